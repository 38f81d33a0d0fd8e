"""One pass over a dump: what every measure and finding is computed from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gdpo.audit.chunks import Chunk, Floats
from gdpo.audit.kept import Kept
from gdpo.audit.setting import Setting
from gdpo.audit.sums import Situations, Totals, base_sums, method_sums, within
from gdpo.expressions import Condition

NOISE = 1e-6
"""A spread below this times the reward's scale counts as noise."""


@dataclass(eq=False)
class Collected:
    """What one pass leaves."""

    names: tuple[str, ...]
    methods: tuple[str, ...]
    """The method in use first."""
    setting: Setting
    totals: Totals = field(default_factory=Totals)
    situations: Situations = field(default_factory=Situations)
    reference: Floats = field(default_factory=lambda: np.zeros(0))
    """[R] see ``base_sums``."""
    low: Floats = field(default_factory=lambda: np.zeros(0))
    """[R] least raw value seen."""
    high: Floats = field(default_factory=lambda: np.zeros(0))
    """[R] largest raw value seen."""
    spreads: list[NDArray[np.float32]] = field(default_factory=list)
    """[G, R] a chunk: spread of a group over the scale seen so far; NaN where not live."""
    attributed: list[NDArray[np.float32]] = field(default_factory=list)
    """[G, R] a chunk: |A| that comes from the reward."""
    lone: list[NDArray[np.float32]] = field(default_factory=list)
    """[G] a chunk: |A| from rewards whose spread rests on one rollout."""
    block: list[NDArray[np.int64]] = field(default_factory=list)
    at_bounds: Floats = field(default_factory=lambda: np.zeros((0, 2)))
    """[R, 2] rollouts of the whole dump at the least and at the largest value seen."""
    lengths: bool = False
    """Whether completions have lengths."""
    kept: Kept = field(default_factory=Kept)
    """For a page: shapes, prompts and whole groups."""

    @property
    def scale(self) -> Floats:
        """[R] the largest |value| of each reward."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    def noisy(self) -> Floats:
        """[blocks, R] |A| that comes from spreads below ``NOISE`` times the scale."""
        return self._in_blocks(
            [np.where(s < NOISE * self.scale, a, 0.0) for s, a in zip(self.spreads, self.attributed, strict=True)]
        )

    def lonely(self) -> Floats:
        """[blocks] |A| from spreads that rest on one rollout of a group."""
        return self._in_blocks([values[:, None] for values in self.lone])[:, 0]

    def _in_blocks(self, parts: Sequence[NDArray[np.floating]]) -> Floats:
        values, block = np.concatenate(parts).astype(np.float64), np.concatenate(self.block)
        count = len(self.totals.blocks)
        return np.stack([np.bincount(block, values[:, k], count) for k in range(values.shape[1])], 1)


def collect(
    parts: Iterable[Chunk], setting: Setting, methods: Sequence[str], *, into: Collected | None = None
) -> Collected:
    """One pass over the chunks under ``setting`` and, for comparison, the other ``methods``.

    Args:
        parts: the chunks.
        setting: that of the method in use.
        methods: to measure beside it.
        into: what an earlier pass under the same setting left, to go on with.
    """
    names = setting.names
    others = [method for method in dict.fromkeys(methods) if method != setting.method]
    settings = {setting.method: setting, **{method: setting.with_method(method) for method in others}}
    found = Collected(names, tuple(settings), setting) if into is None else into
    conditions = {name: Condition(text) for name, text in setting.gates.items()}
    for chunk in parts:
        _add(found, chunk, settings, conditions)
    return found


def _add(found: Collected, chunk: Chunk, settings: Mapping[str, Setting], conditions: Mapping[str, Condition]) -> None:
    setting = found.setting
    gated = setting.gated(chunk.scores)
    about = within(chunk, gated)
    _see_values(found, chunk.scores)
    lengths = chunk.lengths()
    found.lengths |= lengths is not None
    if found.totals.layout and ("length_n" in found.totals.layout) != (lengths is not None):
        lengths = np.full(len(gated), np.nan) if "length_n" in found.totals.layout else None
    sums = base_sums(chunk, chunk.scores, about, found.reference, lengths)
    sums |= _gates(chunk, conditions, found.names)
    weights = setting.rollout_weights(chunk)
    matrix = np.asarray(weights, dtype=np.float64)
    signs = np.where((matrix if matrix.ndim == 1 else matrix.mean(axis=0)) < 0, -1.0, 1.0)
    estimates = {method: one.estimate(chunk, gated) for method, one in settings.items()}
    for method, made in estimates.items():
        own = method_sums(chunk, about, made, signs)
        own["idle"] = own["size"][:, None] * ~about.live.T
        sums |= {f"{method}/{name}": value for name, value in own.items()}
    found.block.append(found.totals.add(chunk, sums))
    found.situations.add(chunk, about, estimates)
    attributed = sums[f"{setting.method}/attributed"]
    found.spreads.append(np.where(about.live, about.std, np.nan).T.astype(np.float32))
    found.attributed.append(attributed.astype(np.float32))
    found.lone.append((attributed * _lone(chunk, about.values, about.live).T).sum(axis=1).astype(np.float32))
    other = "gdpo" if setting.method == "grpo" else "grpo"
    gap = sums[f"{setting.method}/distinct"] - sums[f"{other}/distinct"] if other in estimates else None
    found.kept.add(chunk, about, estimates[setting.method], estimates.get(other), gap)


def _see_values(found: Collected, scores: Floats) -> None:
    """Keep the range, and how many rollouts stand at its ends."""
    known = ~np.isnan(scores)
    low = np.where(known, scores, np.inf).min(axis=0)
    high = np.where(known, scores, -np.inf).max(axis=0)
    if not len(found.low):
        found.low, found.high = np.full(len(low), np.inf), np.full(len(low), -np.inf)
        found.at_bounds = np.zeros((len(low), 2))
        found.reference = np.where(known.any(axis=0), np.where(np.isfinite(low), low, 0.0), 0.0)
    low, high = np.minimum(low, found.low), np.maximum(high, found.high)
    counts = np.stack([(scores == low).sum(axis=0), (scores == high).sum(axis=0)], 1)
    kept = np.stack([low == found.low, high == found.high], 1)
    found.at_bounds = counts + np.where(kept, found.at_bounds, 0.0)
    found.low, found.high = low, high


def _gates(chunk: Chunk, conditions: Mapping[str, Condition], names: Sequence[str]) -> dict[str, Floats]:
    """[G, gates] rollouts at which each condition is known, and at which it holds."""
    if not conditions:
        return {}
    columns = {name: chunk.scores[:, k] for k, name in enumerate(names)}
    holds = np.stack([np.asarray(condition(columns)) for condition in conditions.values()])
    known = ~np.isnan(holds)
    opened = np.where(known, holds, 0.0)
    return {"gate_known": chunk.sum(known.astype(np.float64)).T, "gate_open": chunk.sum(opened).T}


def _lone(chunk: Chunk, values: Floats, live: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[R, G] a group of three or more in which all rollouts but one have the same value of the reward."""
    low, high = chunk.least(values), chunk.largest(values)
    sizes = chunk.sizes
    at_low = chunk.sum((values == chunk.spread(low)).astype(np.float64))
    at_high = chunk.sum((values == chunk.spread(high)).astype(np.float64))
    ends = (at_low + at_high == sizes) & ((at_low == 1) | (at_high == 1))
    return np.asarray(live & ends & (sizes >= 3))
