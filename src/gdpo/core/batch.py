"""A batch as a method sees it: columns about their group means, weights, and what they combine to.

Columns are read one at a time, so that memory beyond input and output is O(B), not O(B * R). Values for each rollout
are "row-like": laid out as ``Groups`` says, [height, strips], or [strips] where all rollouts of a group have the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gdpo.core.backend import Array, add_product, is_tensor, namespace, readable, to_float
from gdpo.core.errors import Error
from gdpo.core.groups import Centered, Groups
from gdpo.core.inputs import Options, Weight

BLOCK = 8
"""Columns whose rows are gathered at once where groups are ragged."""


class Column(NamedTuple):
    """One reward of the batch, oriented so that more is better (a penalty's sign is flipped)."""

    centered: Centered
    std: Array
    """[groups] standard deviation of the values present."""
    carries: Array
    """Row-like: 1 where the reward is live in the group and of positive weight, else 0."""

    @property
    def signal(self) -> Array:
        """Row-like: 1 where it also is present for the rollout, else 0."""
        return self.centered.present * self.carries


@dataclass(frozen=True)
class Term:
    """What a method adds up over the rewards, before weights: ``base`` times ``factor``, both row-like."""

    base: Array
    bound: Array
    """[strips] largest absolute reward in the group on the scale of ``base``, 0 where not live; bounds the residue."""
    factor: Array | float = 1.0
    """At least 0."""

    @property
    def values(self) -> Array:
        """Row-like."""
        return self.base * self.factor

    def times(self, factor: Array) -> Term:
        """The term times a factor of at least 0, a number or row-like."""
        return replace(self, factor=self.factor * factor)


@dataclass(frozen=True)
class Combination:
    """The value of each rollout before batch norm, and how the rewards make it up; all row-like."""

    total: Array
    """Exactly 0 in groups that are tied as a whole."""
    part: Callable[[int], Array]
    """k -> the part of reward k; the parts add up to ``total``."""
    signal: Array
    """1 where the rollout carries signal, else 0."""
    carriers: Array
    """The number of rewards of positive weight that are live and present for the rollout."""
    tolerance: Array
    """What counts as 0 on the scale of ``total``."""
    takes_part: Array
    """1 where the rollout counts in the batch norm, else 0."""

    def divided(self, divisor: Array) -> Combination:
        """The same over a positive scale; 0 / 0 is 0."""
        factor, part = 1.0 / namespace(divisor).where(divisor == 0, 1.0, divisor), self.part
        return replace(self, total=self.total * factor, part=lambda k: part(k) * factor)

    def kept(self, kept: Array, factor: Array) -> Combination:
        """Only the rollouts where ``kept`` is 1, times ``factor``; the others, 0, are out of the batch norm."""
        factor, part = factor * kept, self.part
        return replace(
            self, total=self.total * factor, part=lambda k: part(k) * factor, signal=self.signal * kept,
            takes_part=self.takes_part * kept,
        )  # fmt: skip


class Batch:
    """Rewards [B, R] in groups, with weights; methods read it through ``deviation``, ``normalized`` and ``combine``."""

    def __init__(
        self, rewards: Array, groups: Groups, weights: list[Weight], names: list[str], options: Options,
        bounds: list[tuple[float, float] | None], include: Array | None, keep: bool,
    ) -> None:  # fmt: skip
        self.rewards, self.groups, self.names = rewards, groups, names
        self.weights = [
            weight if isinstance(weight.value, float) else weight._replace(value=groups.lay(weight.value))
            for weight in weights
        ]
        self.options, self.bounds, self.xp = options, bounds, groups.xp
        self.active = [k for k, weight in enumerate(weights) if weight.active is not False]
        self._include = None if include is None else groups.lay(include) != 0
        self._keep = keep
        self._columns: dict[int, Column] = {}
        self._block: tuple[int, Array] | None = None
        self.readable = readable(rewards)
        """Whether values may be looked at: that costs no synchronisation."""
        self.participates: Array = None
        """Row-like: 1 where the rollout has any reward, else 0; known after the first ``combine``."""

    def column(self, k: int) -> Column:
        """Reward ``k`` about its group means. The last one read is kept; all are where the parts were asked for."""
        if k in self._columns:
            return self._columns[k]
        if not self._keep:
            self._columns.clear()
        weight, groups, xp = self.weights[k], self.groups, self.xp
        values = self._laid(k)
        for wanted in (self._include, weight.active):
            if wanted is not None and wanted is not True:
                values = xp.where(wanted, values, np.nan)
        if is_tensor(weight.sign) or weight.sign != 1:
            values *= weight.sign
        centered = groups.center(values, self.readable and not groups.shared)
        if self.readable:
            self._refuse_infinity(k, centered)
        carries = groups.expand(to_float(centered.live, values))
        if not isinstance(weight.value, float):
            carries = carries * to_float(weight.value > 0, values)
        self._columns[k] = Column(centered, self.std(centered.squares, centered.count), carries)
        return self._columns[k]

    def clear(self) -> None:
        """Forget the columns read so far."""
        self._columns.clear()
        self._block = None

    def _laid(self, k: int) -> Array:
        if self.groups.index is None:
            return self.groups.lay(self.rewards[:, k])
        start = k - k % BLOCK  # rows of several columns are gathered in about the time of one
        if self._block is None or self._block[0] != start:
            self._block = None
            self._block = start, self.groups.gather(self.rewards[:, start : start + BLOCK])
        return self.groups.lay(self._block[1][:, k - start], gathered=True)

    def std(self, squares: Array, count: Array) -> Array:
        """Standard deviation from the sum of squared deviations, which is 0 where ``count <= ddof``."""
        return self.xp.sqrt(squares / self.xp.clip(count - self.options.ddof, 1, None))

    def guarded(self, std: Array) -> Array:
        """A standard deviation that may divide: + eps, or sqrt(std^2 + eps) with ``eps_in="variance"``."""
        eps = self.options.eps
        return std + eps if self.options.eps_in == "std" else self.xp.sqrt(std * std + eps)

    def about_mean(self, k: int) -> Term:
        """The reward minus its group mean, whatever the baseline: what spreads are taken of."""
        centered = self.column(k).centered
        # In float32 (no float64 on the device) the residue is that of the deviations, since low is taken out exactly.
        exact = self.groups.dtype == self.xp.float64
        size = (
            self.xp.maximum(-centered.low, centered.high) if exact else centered.high - centered.low
        ) * centered.live
        return Term(centered.deviation, self.groups.expand(size))

    def about_others(self, k: int) -> Term:
        """The reward minus the mean of the others in the group: n/(n - 1) times its deviation from the group mean."""
        count = self.column(k).centered.count
        return self.about_mean(k).times(self.groups.expand(count / self.xp.clip(count - 1, 1, None)))

    def deviation(self, k: int) -> Term:
        """d_k: the reward minus its baseline."""
        return self.about_mean(k) if self.options.baseline == "mean" else self.about_others(k)

    def normalized(self, k: int) -> Term:
        """z_k = d_k / (sigma_k + eps), or by ``scale``; clipped where ``clip`` is set."""
        term, options, scale = self.deviation(k), self.options, self.options.scale[k]
        if scale != "none":
            column, xp = self.column(k), self.xp
            std = column.std
            if scale == "batch":
                std = self.groups.batch.spread(self.batch_moments(k, within=True)[1])
            divisor = self.guarded(std)
            divisor = xp.clip(divisor, options.std_floor, None) if options.std_floor else divisor
            factor = 1.0 / (xp.where(divisor == 0, 1.0, divisor) if options.eps == 0 else divisor)
            term = term.times(factor if scale == "batch" and factor.shape[0] == 1 else self.groups.expand(factor))
        if options.clip is None:
            return term
        return Term(self.xp.clip(term.values, -options.clip, options.clip), term.bound * term.factor)

    def combine(self, term: Callable[[int], Term]) -> Combination:
        """sum_k w_k term_k, with groups whose combined value is only rounding residue set to exactly 0.

        A group is tied as a whole if no rollout's value exceeds 8 R 2^-52 sum_k w_k max|r_k| (on the terms' scale): a
        weighted sum that is constant in exact arithmetic stays below that.
        """
        total: Array = 0.0
        tolerance = counts = total
        many = 2.0**26 if self.groups.dtype == self.xp.float64 else 2.0**12  # more than rewards; the square is exact
        for k in self.active:
            value = term(k)
            factor, column = self.weights[k].value * value.factor, self.column(k)
            total = add_product(total, value.base, factor)
            tolerance = tolerance + value.bound * factor
            # Two counts in one pass: the rewards present, and many times those that also carry signal.
            counts = add_product(counts, column.centered.present, 1.0 + many * column.carries)
            del value, column  # before the next is read: memory stays O(B)
        carriers = self.xp.floor(counts / many)
        self.participates = self.xp.clip(counts, None, 1.0)
        if not self._keep:
            self.clear()
        tolerance = 8 * len(self.active) * self.xp.finfo(self.groups.dtype).eps * tolerance
        return self.settled(total, lambda k: self.weights[k].value * term(k).values, carriers, tolerance)

    def settled(self, total: Array, part: Callable[[int], Array], carriers: Array, tolerance: Array) -> Combination:
        """A combination in which groups whose every value is within ``tolerance`` of 0 are exactly 0.

        ``total`` is overwritten.
        """
        excess = self.groups.max(abs(total) - tolerance)
        alive = self.groups.expand(to_float(~(excess <= 0), self.rewards))  # NaN is alive
        signal = alive * self.xp.clip(carriers, None, 1.0)
        total *= alive
        return Combination(
            total, lambda k: part(k) * alive, signal, carriers, tolerance, self.participates
        )  # fmt: skip

    def group_std(self, c: Combination) -> Array:
        """Row-like: the spread in each group of c, the sum of ``deviation``, over the rollouts that take part, + eps.

        At least ``std_floor``. The leave-one-out baseline leaves every spread as it is: c is then taken about the mean.
        """
        total = c.total if self.options.baseline == "mean" else self.combine(self.about_mean).total
        centered = self.groups.center(self.xp.where(self.participates > 0, total, np.nan))
        std = self.std(centered.squares, centered.count)
        return self.groups.expand(self.xp.clip(self.guarded(std), self.options.std_floor, None))

    def weighted_sum(self, values: Callable[[int], Array]) -> Array:
        """Row-like: sum_k w_k values(k)."""
        return sum(self.weights[k].value * values(k) for k in self.active)

    def raw(self, k: int) -> Array:
        """Row-like: the reward, a missing one standing at its group mean (0 where the whole group has none).

        Less the smallest value of the batch where all rollouts have the same weight, which then changes no spread of
        the weighted sum and keeps the digits of what is left.
        """
        xp, batch, column = self.xp, self.groups.batch, self.column(k).centered
        there = (column.count > 0) & (column.low == column.low)
        low = batch.min(xp.where(there, column.low, np.inf))
        low = batch.spread(xp.where(low == np.inf, 0.0, low))
        low = low if isinstance(self.weights[k].value, float) else low * 0.0
        return column.deviation + self.groups.expand(xp.where(there, column.low - low + column.offset, 0.0 - low))

    def batch_std(self, values: Array) -> Array:
        """Row-like: the spread of row-like ``values`` over the rollouts of the batch that take part, + eps."""
        xp, groups, batch = self.xp, self.groups, self.groups.batch
        counts = (self.participates > 0) & ~xp.isnan(values)
        low = batch.min(groups.min(xp.where(counts, values, np.inf)))
        shifted = xp.where(counts, values - batch.expand(low), 0.0)
        count = batch.sum(groups.sum(to_float(counts, self.rewards)))
        mean = batch.expand(batch.sum(groups.sum(shifted)) / xp.clip(count, 1, None))
        deviation = xp.where(counts, shifted - mean, 0.0)
        return batch.expand(self.guarded(self.std(batch.sum(groups.sum(deviation, deviation)), count)))

    def batch_moments(self, k: int, about: float = 0.0, within: bool = False) -> tuple[Array, Array]:
        """([labels], [labels]) mean, less ``about``, and standard deviation of the reward's values over the batch.

        Merged from the groups' (Chan, Golub and LeVeque 1983), about the smallest value of the batch. ``within`` takes
        the deviations from the group means, whose mean is 0, instead of the values.
        """
        xp, batch, column = self.xp, self.groups.batch, self.column(k).centered
        there = (column.count > 0) & (column.offset == column.offset)  # a NaN stays in its own group
        low = batch.min(xp.where(there, column.low, np.inf))
        means = xp.where(there, column.low - batch.spread(low) + column.offset, 0.0)
        counts = xp.where(there, column.count, 0.0)
        count = batch.sum(counts)
        mean = batch.sum(counts * means) / xp.clip(count, 1, None)
        between = means * 0.0 if within else means - batch.spread(mean)
        squares = batch.sum(xp.where(there, column.squares, 0.0) + counts * between * between)
        return xp.where(count > 0, low - about + mean, -about), self.std(squares, count)

    def live_share(self, k: int) -> Array:
        """[labels] of the groups with two values of the reward or more, the share in which it is live."""
        batch, column = self.groups.batch, self.column(k).centered
        live, able = (batch.sum(to_float(mask, self.rewards)) for mask in (column.live, column.count >= 2))
        return live / self.xp.clip(able, 1, None)

    def correlation_sum(self) -> Array:
        """[groups] sum over all pairs of rewards in use of their correlation; 0 for a reward that does not vary.

        The sample covariance over the product of the standard deviations; ``ddof`` acts on the latter only. Where no
        value is missing that is the sample variance of the sum of d_k / sigma_k, linear in R; else pair by pair.
        """
        xp, groups = self.xp, self.groups
        if all(self.column(k).centered.complete for k in self.active):
            total = sum(self.column(k).centered.deviation * groups.expand(self._inverse(k)) for k in self.active)
            count = self.column(self.active[0]).centered.count
            return groups.sum(total, total) / xp.clip(count - 1, 1, None)
        pairs = [(k, other) for place, k in enumerate(self.active) for other in self.active[place:]]
        return sum(self._correlation(k, other) * (1 if k == other else 2) for k, other in pairs)

    def _inverse(self, k: int) -> Array:
        std = self.column(k).std
        return self.xp.where(std > 0, 1.0 / self.xp.where(std > 0, std, 1.0), 0.0)

    def _correlation(self, k: int, other: int) -> Array:
        """[groups] correlation of two rewards over the rows that have both."""
        xp, groups, first, second = self.xp, self.groups, self.column(k).centered, self.column(other).centered
        both = (first.present * second.present) > 0
        one, two = (groups.center(xp.where(both, c.deviation, np.nan)) for c in (first, second))
        covariance = groups.sum(one.deviation, two.deviation) / xp.clip(one.count - 1, 1, None)
        product = self.std(one.squares, one.count) * self.std(two.squares, two.count)
        vary = one.live & two.live & (product > 0)
        return xp.where(vary, covariance / xp.where(vary, product, 1.0), 0.0)

    def oriented_bounds(self, k: int) -> tuple[float, float] | None:
        """The reward's bounds, flipped with its sign where it is a penalty; None where none are known."""
        bounds = self.bounds[k]
        if bounds is None or is_tensor(self.weights[k].sign) or self.weights[k].sign > 0:
            return bounds
        return -bounds[1], -bounds[0]

    def _refuse_infinity(self, k: int, centered: Centered) -> None:
        if math.isfinite(float(centered.offset.sum())):
            return
        values = np.asarray(self.rewards[:, k].double() if is_tensor(self.rewards) else self.rewards[:, k])
        infinite = np.isinf(values)
        if self._include is not None:
            infinite &= np.asarray(self.groups.unlay(self._include))
        for row in np.flatnonzero(infinite)[:1]:
            raise Error(
                f"reward {self.names[k]!r} is {values[row]} at row {row}, but finite values were expected "
                "(NaN where the reward does not apply)"
            )
