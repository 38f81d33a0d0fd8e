"""Sums over groups from which every measure is computed: collected a chunk at a time, bootstrapped over groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gdpo.audit.chunks import Chunk, Floats
from gdpo.audit.distinct import Keys, distinct_in_groups, multiset_keys, rounded_keys, row_keys
from gdpo.core.compute import Estimate
from gdpo.core.estimators import method_of
from gdpo.levels import NORMALISE_FIRST

EPS = 1e-4
"""Added to a standard deviation, as in the paper."""
BLOCKS = 2048
"""With more groups than this, groups share blocks, and the bootstrap draws blocks."""

Sums = Mapping[str, Floats]
"""Name -> [..., *shape]: sums over groups; the leading axes are those of whoever sums (steps, resamples, none)."""


def pairs(count: int) -> list[tuple[int, int]]:
    """All pairs of rewards, in order."""
    return list(combinations(range(count), 2))


@dataclass(frozen=True, eq=False)
class Within:
    """Rewards about their group means; R first, so that sums run along memory."""

    values: Floats
    """[R, B] behind the gates; 0 where missing."""
    present: NDArray[np.bool_]
    """[R, B]."""
    count: Floats
    """[R, G] values present."""
    live: NDArray[np.bool_]
    """[R, G] two values differ, compared exactly."""
    mean: Floats
    """[R, G]; 0 where nothing is present."""
    std: Floats
    """[R, G] sample standard deviation; 0 where not live."""
    z: Floats
    """[R, B] deviation / (std + eps); 0 where missing or not live."""

    def with_gaps(self) -> Floats:
        """[B, R] values, NaN where missing."""
        return np.where(self.present, self.values, np.nan).T


def within(chunk: Chunk, scores: Floats) -> Within:
    """Means, spreads and normalised values of [B, R] scores in their groups."""
    values = np.ascontiguousarray(scores.T)
    present = ~np.isnan(values)
    count = chunk.sum(present.astype(np.float64))
    low = chunk.least(np.where(present, values, np.inf))
    high = chunk.largest(np.where(present, values, -np.inf))
    live = (count >= 2) & (low != high)
    low = np.where(count > 0, low, 0.0)
    about_low = np.where(present, values - chunk.spread(low), 0.0)
    offset = chunk.sum(about_low) / np.maximum(count, 1)
    deviation = np.where(present & chunk.spread(live), about_low - chunk.spread(offset), 0.0)
    std = np.sqrt(chunk.sum(deviation * deviation) / np.maximum(count - 1, 1))
    z = deviation / chunk.spread(std + EPS)
    return Within(np.where(present, values, 0.0), present, count, live, low + offset, std, z)


def base_sums(chunk: Chunk, raw: Floats, about: Within, reference: Floats, lengths: Floats | None) -> dict[str, Floats]:
    """[G, ...] sums that no method changes.

    Args:
        chunk: G groups.
        raw: [B, R] scores before gates.
        about: the scores behind gates.
        reference: [R] a number near each reward's mean, taken away before squaring.
        lengths: [B] of completions, or None.
    """
    sizes = chunk.sizes.astype(np.float64)
    live = about.live.astype(np.float64)
    there = (about.count > 0).astype(np.float64)
    values = np.ascontiguousarray(raw.T)
    known = ~np.isnan(values)
    shifted = np.where(known, values - reference[:, None], 0.0)
    total, counted = chunk.sum(shifted), chunk.sum(known.astype(np.float64))
    means = total / np.maximum(counted, 1)
    any_live = about.live.any(axis=0)
    sums = {
        "groups": np.ones(len(sizes)), "rollouts": sizes, "several": (sizes >= 2).astype(np.float64),
        "live_groups": any_live.astype(np.float64), "live": live, "tied": there - live, "absent": 1 - there,
        "present": counted, "partly": (counted > 0) * (sizes - counted),
        "sum": total, "squares": chunk.sum(shifted * shifted),
        "with_values": (counted > 0).astype(np.float64), "group_means": means * (counted > 0),
        "group_means_squared": means * means * (counted > 0), "spread": about.std * live,
        "distinct_rewards": any_live * distinct_in_groups(chunk, row_keys(about.with_gaps())),
    }  # fmt: skip
    sums |= _correlations(chunk, about)
    if lengths is not None:
        sums |= _with_length(chunk, about, lengths)
    return {name: value.T if value.ndim > 1 else value for name, value in sums.items()}


def _correlations(chunk: Chunk, about: Within) -> dict[str, Floats]:
    """Per pair, over the rollouts of groups in which both vary and both are present: n, sums, squares, products."""
    squares, total = chunk.sum(about.z * about.z), chunk.sum(about.z)
    partly = about.live & (about.count < chunk.sizes)
    columns: list[list[Floats]] = [[] for _ in range(7)]
    for k, other in pairs(len(about.z)):
        both = about.live[k] & about.live[other]
        flag = both.astype(np.float64)
        if (both & (partly[k] | partly[other])).any():
            mask = (about.present[k] & about.present[other] & chunk.spread(both)).astype(np.float64)
            first, second = about.z[k] * mask, about.z[other] * mask
            found = [chunk.sum(mask), *(chunk.sum(v) for v in (first, second, first**2, second**2, first * second))]
        else:
            found = [flag * chunk.sizes, flag * total[k], flag * total[other], flag * squares[k],
                     flag * squares[other], flag * chunk.sum(about.z[k] * about.z[other])]  # fmt: skip
        for column, value in zip(columns, [*found, flag], strict=True):
            column.append(value)
    names = ("pair_n", "pair_x", "pair_y", "pair_xx", "pair_yy", "pair_xy", "pair_groups")
    empty = np.zeros((0, len(chunk.starts)))
    made = {name: np.stack(column) if column else empty for name, column in zip(names, columns, strict=True)}
    return {**made, "z": total, "zz": squares}


def _with_length(chunk: Chunk, about: Within, lengths: Floats) -> dict[str, Floats]:
    """Per reward, over the rollouts of groups in which it varies: n and the moments of z and the length's z."""
    z = within(chunk, lengths[:, None])
    mask = (about.present & z.present & chunk.spread(about.live)).astype(np.float64)
    reward, length = about.z * mask, z.z * mask
    moments = {"n": mask, "x": reward, "y": length, "xx": reward**2, "yy": length**2, "xy": reward * length}
    return {f"length_{name}": chunk.sum(value) for name, value in moments.items()} | {
        "length_groups": (about.live & z.live).astype(np.float64)
    }


def method_sums(chunk: Chunk, about: Within, made: Estimate, signs: Floats) -> dict[str, Floats]:
    """[G, ...] sums of what a method makes of the rewards.

    Args:
        chunk: G groups.
        about: the scores it was given.
        made: advantages and parts.
        signs: [R] -1 for a penalty, else 1.
    """
    advantages, parts = np.asarray(made.advantages), np.ascontiguousarray(np.asarray(made.contributions).T)
    size, sizes = np.abs(advantages), np.abs(parts)
    whole = sizes.sum(axis=0)
    attributed = sizes * np.where(whole > 0, size / np.where(whole > 0, whole, 1.0), 0.0)
    up, down = advantages > 0, advantages < 0
    below, above = about.z * signs[:, None] < 0, about.z * signs[:, None] > 0
    judged = about.present & chunk.spread(about.live)
    rounded = np.round(advantages, 9) + 0.0
    return {
        "a": chunk.sum(advantages), "aa": chunk.sum(advantages * advantages), "size": chunk.sum(size),
        "c": chunk.sum(parts).T, "ac": chunk.sum(parts * advantages).T, "parts": chunk.sum(sizes).T,
        "attributed": chunk.sum(attributed).T,
        "cancelled": _cancelled(chunk, about, made), "judged": chunk.sum(judged.astype(np.float64)).T,
        "up_against": chunk.sum((up & below).astype(np.float64)).T,
        "down_against": chunk.sum((down & above).astype(np.float64)).T,
        "opposed": _opposed(chunk, parts, sizes),
        "distinct": about.live.any(axis=0) * distinct_in_groups(chunk, rounded),
    }  # fmt: skip


def _opposed(chunk: Chunk, parts: Floats, sizes: Floats) -> Floats:
    """[G, pairs] what two rewards take from each other: twice the smaller part where they push opposite ways."""
    found = [
        2 * chunk.sum(np.where((parts[k] > 0) != (parts[other] > 0), np.minimum(sizes[k], sizes[other]), 0.0))
        for k, other in pairs(len(parts))
    ]
    return np.stack(found, 1) if found else np.zeros((len(chunk.starts), 0))


def _cancelled(chunk: Chunk, about: Within, made: Estimate) -> Floats:
    """[G] sum of |w_k z_k| of groups whose rewards cancel as a whole, on the scale of A; 0 for all other groups.

    That scale is the step's sum |A| / sum |combined| where rewards are normalised first; where they are summed first,
    z_k weighs by its share of the root of sum_k (w_k sigma_k)^2, the spread the sum would have were they independent.
    """
    combined = np.abs(np.asarray(made.combined))
    silent = about.live.any(axis=0) & ~(chunk.largest(combined) > 0)
    if not silent.any():
        return np.zeros(len(silent))
    weights = np.abs(np.asarray(made.weights, dtype=np.float64))
    factors = weights.T if weights.ndim == 2 else weights[:, None]
    if method_of(made.method).family == NORMALISE_FIRST:
        labels = chunk.label
        counted = len(chunk.steps)
        whole = np.bincount(labels, chunk.sum(np.abs(np.asarray(made.advantages))), counted)
        before = np.bincount(labels, chunk.sum(combined), counted)
        scale = np.where(before > 0, whole / np.where(before > 0, before, 1.0), 1.0)[labels]
        return np.asarray(silent * scale * chunk.sum((np.abs(about.z) * factors).sum(axis=0)))
    own = factors * chunk.spread(about.std)
    root = np.sqrt((own**2).sum(axis=0)) + EPS
    return np.asarray(silent * chunk.sum((np.abs(about.z) * own).sum(axis=0) / root))


@dataclass(eq=False)
class Totals:
    """Sums over the whole dump, by step, and by blocks of groups for the bootstrap."""

    layout: dict[str, tuple[slice, tuple[int, ...]]] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    by_step: list[Floats] = field(default_factory=list)
    blocks: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    groups: int = 0

    def add(self, chunk: Chunk, sums: Mapping[str, Floats]) -> NDArray[np.int64]:
        """Add a chunk's [G, ...] sums; returns the block of each group."""
        if not self.layout:
            self._lay(sums)
        flat = np.concatenate([sums[name].reshape(len(chunk.starts), -1) for name in self.layout], axis=1)
        first = np.flatnonzero(np.diff(chunk.label, prepend=-1))
        self.by_step += list(np.add.reduceat(flat, first, axis=0))
        self.steps += [chunk.steps[label] for label in chunk.label[first]]
        block = _blocks(self.groups + np.arange(len(flat)))
        if block.max() >= len(self.blocks):
            grown = np.zeros((int(block.max()) + 1, flat.shape[1]))
            grown[: len(self.blocks)] = self.blocks if self.blocks.size else 0.0
            self.blocks = grown
        order = np.argsort(block, kind="stable")
        starts = np.flatnonzero(np.diff(block[order], prepend=-1))
        self.blocks[block[order][starts]] += np.add.reduceat(flat[order], starts, axis=0)
        self.groups += len(flat)
        return block

    def _lay(self, sums: Mapping[str, Floats]) -> None:
        at = 0
        for name, value in sums.items():
            width = int(np.prod(value.shape[1:], dtype=np.int64))
            self.layout[name] = slice(at, at + width), value.shape[1:]
            at += width

    def named(self, flat: Floats) -> dict[str, Floats]:
        """[..., M] -> name -> [..., *shape]."""
        return {name: flat[..., at].reshape((*flat.shape[:-1], *shape)) for name, (at, shape) in self.layout.items()}

    def whole(self) -> dict[str, Floats]:
        """Sums over everything."""
        return self.named(self.blocks.sum(axis=0))

    def series(self) -> dict[str, Floats]:
        """[steps, ...] sums by step."""
        return self.named(np.stack(self.by_step))

    def draws(self, count: int, seed: int = 0) -> NDArray[np.int64]:
        """[count, blocks] how often each resample draws each block."""
        blocks = len(self.blocks)
        random = np.random.default_rng(seed)
        return random.multinomial(blocks, np.full(blocks, 1 / blocks), size=count)

    def resampled(self, draws: NDArray[np.int64]) -> dict[str, Floats]:
        """[count, ...] sums of each resample."""
        return self.named(draws.astype(np.float64) @ self.blocks)


def _blocks(index: NDArray[np.int64]) -> NDArray[np.int64]:
    """The block of each group: its own for the first ``BLOCKS``, then scattered."""
    scattered = (index.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(53)
    return np.where(index < BLOCKS, index, scattered.astype(np.int64) % BLOCKS)


@dataclass(eq=False)
class Situations:
    """What groups look like, to count how many of their differences a method keeps."""

    rewards: list[Keys] = field(default_factory=list)
    combined: dict[str, list[Floats]] = field(default_factory=dict)
    starts: list[NDArray[np.int64]] = field(default_factory=list)
    at: int = 0

    def add(self, chunk: Chunk, about: Within, estimates: Mapping[str, Estimate]) -> None:
        """See the live groups of a chunk."""
        live = about.live.any(axis=0)
        self.rewards.append(multiset_keys(chunk.starts, row_keys(about.with_gaps()))[live])
        rows, sizes = np.repeat(live, chunk.sizes), chunk.sizes[live]
        self.starts.append(self.at + np.cumsum(sizes) - sizes)
        self.at += int(sizes.sum())
        for method, made in estimates.items():
            self.combined.setdefault(method, []).append(np.asarray(made.combined)[rows])

    def codes(self, method: str | None) -> tuple[NDArray[np.int64], int]:
        """([live groups] number of each group's situation, how many there are); None counts reward multisets."""
        if not self.at:
            return np.zeros(0, dtype=np.int64), 0
        keys = np.concatenate(self.rewards) if method is None else self._advantage_keys(method)
        known, code = np.unique(keys, return_inverse=True)
        return code, len(known)

    def _advantage_keys(self, method: str) -> Keys:
        values = np.concatenate(self.combined[method])
        largest = float(np.abs(values).max(initial=0.0))
        return multiset_keys(np.concatenate(self.starts), rounded_keys(values, largest * 1e-9 if largest else 1.0))
