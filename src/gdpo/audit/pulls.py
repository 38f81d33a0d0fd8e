"""In which prompts rewards pull against each other: sums by prompt, kept while a dump is read.

A reward's push on a rollout is its weight times its normalised value, w_k z_k, before any method puts the rewards
together. What two rewards take from each other in a rollout is |w_k z_k| + |w_l z_l| - |w_k z_k + w_l z_l|, twice the
smaller push where they have opposite signs, else 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gdpo.audit.chunks import Chunk, Floats
from gdpo.audit.sums import Within, pairs

MOST_PAIRS = 15
"""Pairs that are followed: those that take most from each other in the first rollouts."""
MOST_PROMPTS = 200_000
"""Prompts that are followed; those that come later are only counted."""
KEPT = 16
"""Prompts whose place is kept: those in which most push is lost."""
_GROUPS, _PUSH, _LOST, _FIXED = 0, 1, 2, 3


@dataclass(frozen=True)
class Pull:
    """A prompt (or, in a dump without prompts, a group) in which rewards pull apart."""

    groups: int
    push: float
    """Sum of |w_k z_k|."""
    lost: float
    """Of it, what the rewards of a rollout take from each other: sum of |w_k z_k| less |sum_k w_k z_k|."""
    pairs: tuple[float, ...]
    """Of it, what each followed pair takes from each other."""
    at: int
    """Number (in the order read) of the group in which most is lost."""


@dataclass(eq=False)
class Pulls:
    """Sums by prompt; exact for the prompts followed."""

    pairs: list[tuple[int, int]] = field(default_factory=list)
    """Followed."""
    by_text: bool = False
    """Whether prompts are told apart by their text; else each group stands for itself."""
    left_out: int = 0
    """Groups of prompts that are not followed."""
    rows: dict[int, int] = field(default_factory=dict)
    """Key of a prompt -> row of the sums."""
    sums: Floats = field(default_factory=lambda: np.zeros((0, _FIXED)))
    """[prompts, groups, push, lost, then each followed pair]."""
    best: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Row -> (lost, number) of its most telling group."""

    def add(self, chunk: Chunk, about: Within, weights: Any, first: int) -> list[int]:
        """Add a chunk's groups.

        Args:
            chunk: B rollouts in G groups.
            about: the rewards within groups.
            weights: [R] or [B, R].
            first: number of the chunk's first group.

        Returns:
            Groups of the chunk that are now the most telling of a prompt kept.
        """
        if len(about.z) < 2:
            return []
        matrix = np.asarray(weights, dtype=np.float64)
        pushes = about.z * (matrix.T if matrix.ndim == 2 else matrix[:, None])
        sizes = np.abs(pushes)
        if not self.pairs:
            self._follow(pushes)
        found = [np.ones(len(chunk.starts)), chunk.sum(sizes.sum(axis=0)),
                 _lost(chunk, sizes.sum(axis=0), pushes.sum(axis=0))]  # fmt: skip
        found += [_lost(chunk, sizes[k] + sizes[other], pushes[k] + pushes[other]) for k, other in self.pairs]
        rows = self._rows(self._keys(chunk, first))
        kept = rows >= 0
        self.left_out += int((~kept).sum())
        np.add.at(self.sums, rows[kept], np.stack(found, 1)[kept])
        return self._tell(rows, found[_LOST], first)

    def _follow(self, pushes: Floats) -> None:
        known = pairs(len(pushes))
        if len(known) > MOST_PAIRS:
            part = pushes[:, :32_768]
            size = [np.minimum(np.abs(part[k]), np.abs(part[o]))[part[k] * part[o] < 0].sum() for k, o in known]
            known = [known[at] for at in sorted(np.argsort(-np.array(size), kind="stable")[:MOST_PAIRS].tolist())]
        self.pairs = known
        self.sums = np.zeros((0, _FIXED + len(known)))

    def _keys(self, chunk: Chunk, first: int) -> list[int]:
        if "prompt" in chunk.rows.columns:
            prompts = chunk.rows["prompt"].gather(pl.Series(chunk.starts))
            if not prompts.null_count():
                self.by_text = True
                hashed: list[int] = prompts.cast(pl.String).hash(seed=0).to_list()
                return hashed
        return [-1 - number for number in range(first, first + len(chunk.starts))]  # no hash is negative

    def _rows(self, keys: list[int]) -> NDArray[np.int64]:
        rows = np.empty(len(keys), dtype=np.int64)
        for at, key in enumerate(keys):
            row = self.rows.get(key, -1)
            if row < 0 and len(self.rows) < MOST_PROMPTS:
                row = self.rows[key] = len(self.rows)
            rows[at] = row
        if len(self.rows) > len(self.sums):
            grown = np.zeros((max(len(self.rows), 2 * len(self.sums)), self.sums.shape[1]))
            grown[: len(self.sums)] = self.sums
            self.sums = grown
        return rows

    def _tell(self, rows: NDArray[np.int64], lost: Floats, first: int) -> list[int]:
        """Keep the place of the prompts that lose most. A prompt's sum only grows, so whoever is among them at the end
        was among them when it was last seen."""
        totals = self.sums[: len(self.rows), _LOST]
        least = np.partition(totals, -KEPT)[-KEPT] if len(totals) > KEPT else 0.0
        telling = np.flatnonzero((rows >= 0) & (totals[rows] >= least) & (lost > 0))
        chosen: dict[int, int] = {}
        for group in telling.tolist():
            row = int(rows[group])
            if lost[group] > self.best.get(row, (0.0, 0))[0]:
                self.best[row] = float(lost[group]), first + group
                chosen[row] = group
        ranked = sorted(self.best, key=lambda row: -totals[row])
        self.best = {row: self.best[row] for row in ranked[:KEPT]}
        return [group for row, group in chosen.items() if row in self.best]

    def most(self) -> list[Pull]:
        """At most ``KEPT`` prompts, those in which most is lost first."""
        ranked = sorted(self.best, key=lambda row: (-self.sums[row, _LOST], row))
        return [self._pull(self.sums[row], self.best[row][1]) for row in ranked]

    def whole(self) -> Pull:
        """Over all prompts followed."""
        return self._pull(self.sums.sum(axis=0), -1)

    def losing(self, share: float) -> int:
        """Prompts that lose at least ``share`` of their push."""
        used = self.sums[: len(self.rows)]
        return int((used[:, _LOST] >= share * np.maximum(used[:, _PUSH], 1e-300)).sum())

    def _pull(self, sums: Floats, at: int) -> Pull:
        return Pull(int(sums[_GROUPS]), float(sums[_PUSH]), float(sums[_LOST]), tuple(sums[_FIXED:].tolist()), at)


def _lost(chunk: Chunk, sizes: Floats, together: Floats) -> Floats:
    """[G] sum over rollouts of |parts| less |their sum|; rounding of the difference is not taken for a loss."""
    lost = sizes - np.abs(together)
    lost[lost < 1e-12 * sizes] = 0.0
    return np.asarray(chunk.sum(lost))
