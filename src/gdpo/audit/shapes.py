"""How each reward's part of the advantage is distributed, and how that moves: counted in bins while a dump is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gdpo.audit.chunks import Chunk, Floats

BINS = 512
"""Of equal width, half of them below 0; the outermost also hold what lies beyond."""
STRETCHES = 64
"""Into at most so many stretches of steps are counts divided."""
_ZERO, _MISSING, _COLUMNS = BINS, BINS + 1, BINS + 2
_REACH = 16.0
"""Bins reach to at least this many root mean squares of the reward's parts in the first rollouts where it has any."""


@dataclass(eq=False)
class PartShapes:
    """Counts of contributions; memory depends on the number of rewards only."""

    widths: Floats = field(default_factory=lambda: np.zeros(0))
    """[R] of each reward's bins; 0 until one of its contributions differs from 0."""
    per_stretch: int = 1
    """Steps in each stretch."""
    steps: int = 0
    """Steps seen."""
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0, _COLUMNS), dtype=np.int64))
    """[stretches, R, bins, then exactly 0, then missing]."""

    def add(self, chunk: Chunk, parts: Floats, present: NDArray[np.bool_]) -> None:
        """Count the contributions of a chunk's rollouts.

        Args:
            chunk: B rollouts of S steps.
            parts: [B, R].
            present: [R, B] whether the rollout has a value of the reward.
        """
        self._scale(parts)
        first = self.steps
        self.steps += len(chunk.steps)
        while self.steps > STRETCHES * self.per_stretch:
            self._halve()
        stretch = (first + chunk.batch_ids) // self.per_stretch
        start, count = int(stretch[0]), (self.steps - 1) // self.per_stretch + 1
        rewards = parts.shape[1]
        if count > len(self.counts):
            grown = np.zeros((count, rewards, _COLUMNS), dtype=np.int64)
            grown[: len(self.counts)] = self.counts if self.counts.size else 0
            self.counts = grown
        for k in range(rewards):
            place = (stretch - start) * _COLUMNS + self._bin(parts[:, k], present[k], float(self.widths[k]))
            found = np.bincount(place, minlength=(count - start) * _COLUMNS)
            self.counts[start:, k] += found.reshape(count - start, _COLUMNS)

    def _scale(self, parts: Floats) -> None:
        if not len(self.widths):
            self.widths = np.zeros(parts.shape[1])
        for k in np.flatnonzero(self.widths == 0).tolist():
            part = parts[:, k]
            size = math.sqrt(float(np.mean(np.square(part, where=~np.isnan(part), out=np.zeros(len(part))))))
            if size > 0 and math.isfinite(size):
                self.widths[k] = 2.0 ** math.ceil(math.log2(_REACH * size)) * 2 / BINS

    def _bin(self, part: Floats, present: NDArray[np.bool_], width: float) -> NDArray[np.int64]:
        known = present & ~np.isnan(part)
        place = np.full(len(part), _ZERO, dtype=np.int64)
        if width:
            bins = np.floor(np.where(known, part, 0.0) * (1 / width)) + BINS // 2
            place = np.where(part == 0, _ZERO, np.clip(bins, 0, BINS - 1).astype(np.int64))
        place[~known] = _MISSING
        return place

    def _halve(self) -> None:
        self.per_stretch *= 2
        if not self.counts.size:
            return
        even = np.concatenate([self.counts, np.zeros_like(self.counts[: len(self.counts) % 2])])
        self.counts = even[0::2] + even[1::2]

    def whole(self) -> NDArray[np.int64]:
        """[R, bins + 2] over all steps."""
        total: NDArray[np.int64] = self.counts.sum(axis=0)
        return total

    def zero(self) -> Floats:
        """[R] share of the rollouts with a value whose part is exactly 0; NaN where none has a value."""
        counts = self.whole()
        known = counts[:, :_MISSING].sum(axis=1)
        return np.where(known > 0, counts[:, _ZERO] / np.maximum(known, 1), np.nan)

    def bars(self, k: int, most: int = 40, within: float = 0.995) -> tuple[Floats, Floats]:
        """(edges [n + 1], shares [n]) of a picture of one reward with at most ``most`` bars, as many below 0 as above.

        They reach as far as ``within`` of the contributions that differ from 0; the outermost hold the rest, too.
        Shares are of the rollouts that have a value; with ``zero()`` they add up to 1.
        """
        counts, half = self.whole()[k], BINS // 2
        outward = counts[half:BINS] + counts[:half][::-1]
        total = outward.sum()
        reach = min(int(np.searchsorted(np.cumsum(outward), within * total)) + 1, half) if total else 1
        merged = max(1, -(-reach // (most // 2)))
        sides = -(-reach // merged)
        code = np.clip((np.arange(BINS) - half) // merged + sides, 0, 2 * sides - 1)
        shares = np.bincount(code, counts[:BINS], 2 * sides) / max(int(counts[:_MISSING].sum()), 1)
        edges = np.arange(-sides, sides + 1) * (merged * float(self.widths[k]))
        return edges.astype(np.float64), shares.astype(np.float64)

    def quantiles(self, shares: tuple[float, ...] = (0.05, 0.25, 0.75, 0.95)) -> Floats:
        """[R, stretches, shares] of each stretch's contributions, to a bin's width; NaN where there is no value."""
        half = BINS // 2
        order = [*range(half), _ZERO, *range(half, BINS)]
        middle = np.append(np.arange(BINS) - half + 0.5, 0.0)[order]
        rising = np.cumsum(self.counts[:, :, order], axis=2)
        total = rising[:, :, -1]
        made = np.full((self.counts.shape[1], len(self.counts), len(shares)), np.nan)
        for at, share in enumerate(shares):
            place = (rising < (share * total)[:, :, None]).sum(axis=2)
            found = middle[np.minimum(place, len(middle) - 1)] * self.widths
            made[:, :, at] = np.where(total > 0, found, np.nan).T
        return made

    def stretch_ends(self) -> list[int]:
        """Position of each stretch's last step among the steps read."""
        return [min((at + 1) * self.per_stretch, self.steps) - 1 for at in range(len(self.counts))]
