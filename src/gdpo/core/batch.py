"""A batch as a method sees it: columns about their group means, weights, and what they combine to.

Columns are read one at a time, so that memory beyond input and output is O(B), not O(B * R).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gdpo.core.backend import Array, column, is_tensor, namespace, readable, to_float, zeros
from gdpo.core.errors import Error
from gdpo.core.groups import Centered, Groups, Segments
from gdpo.core.inputs import Options, Weight


class Column(NamedTuple):
    """One reward of the batch, oriented so that more is better (a penalty's sign is flipped)."""

    centered: Centered
    std: Array
    """[groups] standard deviation of the values present."""
    signal: Array
    """[B] bool: the reward is live in the group, present for the rollout and of positive weight there."""


@dataclass(frozen=True)
class Term:
    """What a method adds up over the rewards, before weights."""

    values: Array
    """[B]."""
    bound: Array
    """[B] largest absolute reward in the group on the scale of ``values``, 0 where not live; bounds the residue."""

    def times(self, factor: Array) -> Term:
        """The term times a factor of at least 0, a number or [B]."""
        return Term(self.values * factor, self.bound * factor)


@dataclass(frozen=True)
class Combination:
    """The value of each rollout before batch norm, and how the rewards make it up."""

    total: Array
    """[B] exactly 0 in groups that are tied as a whole."""
    part: Callable[[int], Array]
    """k -> [B], the part of reward k; the parts add up to ``total``."""
    signal: Array
    """[B] bool: the rollout carries signal."""
    carriers: Array
    """[B] number of rewards of positive weight that are live and present for the rollout."""

    tolerance: Array
    """[B] what counts as 0 on the scale of ``total``."""
    takes_part: Array
    """[B] bool: the rollout counts in the batch norm."""

    def divided(self, divisor: Array) -> Combination:
        """The same over a positive scale [B]; 0 / 0 is 0."""
        xp = namespace(divisor)
        safe = xp.where(divisor == 0, 1.0, divisor)
        part = self.part
        return replace(self, total=self.total / safe, part=lambda k: part(k) / safe)

    def kept(self, kept: Array, factor: Array) -> Combination:
        """Only the rollouts ``kept`` [B] bool, times ``factor`` [B]; the others are 0 and out of the batch norm."""
        xp, part = namespace(factor), self.part
        return replace(
            self, total=xp.where(kept, self.total * factor, 0.0), part=lambda k: xp.where(kept, part(k) * factor, 0.0),
            signal=self.signal & kept, takes_part=self.takes_part & kept,
        )  # fmt: skip


class Batch:
    """Rewards [B, R] in groups, with weights; methods read it through ``deviation``, ``normalized`` and ``combine``."""

    def __init__(
        self, rewards: Array, groups: Groups, weights: list[Weight], names: list[str], options: Options,
        bounds: list[tuple[float, float] | None], include: Array | None, keep: bool,
    ) -> None:  # fmt: skip
        self.rewards, self.groups, self.weights, self.names = rewards, groups, weights, names
        self.options, self.bounds, self.xp = options, bounds, groups.xp
        self.active = [k for k, weight in enumerate(weights) if weight.active is not False]
        self._include, self._keep = include, keep
        self._columns: dict[int, Column] = {}
        self.participates: Array = None
        """[B] bool: the rollout has any reward; known after the first ``combine``."""

    def column(self, k: int) -> Column:
        """Reward ``k`` about its group means. The last one read is kept; all are where the parts were asked for."""
        if k in self._columns:
            return self._columns[k]
        weight = self.weights[k]
        values = column(self.rewards, k)
        present = ~self.xp.isnan(values)
        if self._include is not None:
            present = present & self._include
        if is_tensor(weight.active):
            present = present & weight.active
        if is_tensor(weight.sign) or weight.sign != 1:
            values = values * weight.sign
        centered = self.groups.center(values, present)
        if readable(values):
            self._refuse_infinity(k, centered)
        std = self.groups.std(centered.deviation, centered.count, self.options.ddof)
        signal = present & self.groups.expand(centered.live)
        if not isinstance(weight.value, float):
            signal = signal & (weight.value > 0)
        if not self._keep:
            self._columns.clear()
        self._columns[k] = Column(centered, std, signal)
        return self._columns[k]

    def about_mean(self, k: int) -> Term:
        """The reward minus its group mean, whatever the baseline: what spreads are taken of."""
        centered = self.column(k).centered
        size = self.xp.maximum(abs(centered.low), abs(centered.high))
        return Term(centered.deviation, self.groups.expand(self.xp.where(centered.live, size, 0.0)))

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
            std, segments = (self.column(k).std, self.groups) if scale == "group" else (self._deviation_std(k), None)
            divisor = self.xp.clip(std + options.eps, options.std_floor, None)
            divisor = self.xp.where(divisor == 0, 1.0, divisor)
            rows = (segments or self.groups.batch).expand(divisor)
            term = Term(term.values / rows, term.bound / rows)
        if options.clip is None:
            return term
        return Term(self.xp.clip(term.values, -options.clip, options.clip), term.bound)

    def combine(self, term: Callable[[int], Term]) -> Combination:
        """sum_k w_k term_k, with groups whose combined value is only rounding residue set to exactly 0.

        A group is tied as a whole if no rollout's value exceeds 8 R 2^-52 sum_k w_k max|r_k| (on the terms' scale): a
        weighted sum that is constant in exact arithmetic stays below that.
        """
        total = tolerance = carriers = zeros(self.groups.rows, self.rewards)
        participates: Array = None
        for k in self.active:
            value, weight, col = term(k), self.weights[k].value, self.column(k)
            total = total + weight * value.values
            tolerance = tolerance + weight * value.bound
            carriers = carriers + to_float(col.signal)
            present = col.centered.present
            participates = present if participates is None else participates | present
        self.participates = carriers > 0 if participates is None else participates
        tolerance = 8 * len(self.active) * 2.0**-52 * tolerance
        return self.settled(total, lambda k: self.weights[k].value * term(k).values, carriers, tolerance)

    def settled(
        self, total: Array, part: Callable[[int], Array], carriers: Array, tolerance: Array
    ) -> Combination:  # fmt: skip
        """A combination in which groups whose every value is within ``tolerance`` of 0 are exactly 0."""
        xp = self.xp
        alive = self.groups.expand(self.groups.max(to_float(~(abs(total) <= tolerance)))) > 0
        return Combination(
            xp.where(alive, total, 0.0), lambda k: xp.where(alive, part(k), 0.0), alive & (carriers > 0), carriers,
            tolerance, self.participates,
        )  # fmt: skip

    def group_std(self, c: Combination) -> Array:
        """[B] the spread in each group of c, the sum of ``deviation``, over the rollouts that take part, + eps.

        At least ``std_floor``. The leave-one-out baseline leaves every spread as it is: c is then taken about the mean.
        """
        total = c.total if self.options.baseline == "mean" else self.combine(self.about_mean).total
        centered = self.groups.center(total, self.participates & ~self.xp.isnan(total))
        std = self.groups.std(centered.deviation, centered.count, self.options.ddof)
        return self.groups.expand(self.xp.clip(std + self.options.eps, self.options.std_floor, None))

    def weighted_sum(self, values: Callable[[int], Array]) -> Array:
        """[B] sum_k w_k values(k)."""
        total = zeros(self.groups.rows, self.rewards)
        for k in self.active:
            total = total + self.weights[k].value * values(k)
        return total

    def raw(self, k: int) -> Array:
        """[B] the reward itself, a missing one standing at its group mean (0 where the whole group has none)."""
        centered = self.column(k).centered
        mean = self.xp.where(centered.count > 0, centered.mean, 0.0)
        return centered.deviation + self.groups.expand(mean)

    def batch_std(self, values: Array) -> Array:
        """[B] the spread of ``values`` [B] over the rollouts of the batch that take part, + eps."""
        segments = self.groups.batch
        centered = segments.center(values, self.participates & ~self.xp.isnan(values))
        return segments.expand(segments.std(centered.deviation, centered.count, self.options.ddof) + self.options.eps)

    def batch_moments(self, k: int) -> tuple[Array, Array]:
        """([labels], [labels]) mean and standard deviation of the reward's present values over the batch."""
        segments = self.groups.batch
        values = self.raw(k)
        centered = segments.center(values, self.column(k).centered.present & ~self.xp.isnan(values))
        mean = self.xp.where(centered.count > 0, centered.mean, 0.0)
        return mean, segments.std(centered.deviation, centered.count, self.options.ddof)

    def live_share(self, k: int) -> Array:
        """[labels] of the groups with two values of the reward or more, the share in which it is live."""
        centered, segments = self.column(k).centered, self.groups.batch
        rows = self.groups.expand(self.groups.tally(centered.present | True))

        def groups_with(mask: Array) -> Array:  # each group's rows add up to 1
            return self.xp.round(segments.sum(to_float(self.groups.expand(mask)) / rows))

        return groups_with(centered.live) / self.xp.clip(groups_with(centered.count >= 2), 1, None)

    def correlation(self, k: int, other: int) -> Array:
        """[groups] correlation of two rewards in use over the rows that have both; 0 where one does not vary.

        The sample covariance over the product of the standard deviations; ``ddof`` acts on the latter only.
        """
        both = self.column(k).centered.present & self.column(other).centered.present
        one, two = (self.groups.center(self.raw(j), both) for j in (k, other))
        covariance = self.groups.sum(one.deviation * two.deviation) / self.xp.clip(one.count - 1, 1, None)
        first, second = (self.groups.std(c.deviation, c.count, self.options.ddof) for c in (one, two))
        vary = one.live & two.live & (first > 0) & (second > 0)
        return self.xp.where(vary, covariance / self.xp.where(vary, first * second, 1.0), 0.0)

    def oriented_bounds(self, k: int) -> tuple[float, float] | None:
        """The reward's bounds, flipped with its sign where it is a penalty; None where none are known."""
        bounds = self.bounds[k]
        if bounds is None or is_tensor(self.weights[k].sign) or self.weights[k].sign > 0:
            return bounds
        return -bounds[1], -bounds[0]

    def _deviation_std(self, k: int) -> Array:
        """[labels] the spread of d_k over all its present values in the batch."""
        centered, segments = self.column(k).centered, self.groups.batch
        return segments.std(centered.deviation, segments.tally(centered.present), self.options.ddof)

    def _refuse_infinity(self, k: int, centered: Centered) -> None:
        infinite = (centered.high == np.inf) | (centered.low == -np.inf)
        if bool(infinite.any()):
            values = np.asarray(column(self.rewards, k))
            row = int(np.flatnonzero(np.isinf(values) & np.asarray(centered.present))[0])
            raise Error(
                f"reward {self.names[k]!r} is {values[row]} at row {row}, but finite values were expected "
                "(NaN where the reward does not apply)"
            )


def batch_normalize(batch: Batch, combination: Combination) -> tuple[Array, Callable[[int], Array]]:
    """A = x / (std x + eps) over the rollouts of the batch that take part (GDPO, arXiv 2601.05242, equation 6).

    x is the value minus its mean over the rollouts that carry signal, and 0 for the others, so that a tied group gets
    no advantage from what other groups got. The mean is taken out of the parts evenly over each rollout's live rewards.
    """
    xp, segments = batch.xp, batch.groups.batch
    total, signal = combination.total, combination.signal
    finite = total == total  # a NaN (infinite reward on a GPU) stays in its own group
    signal_finite, takes_part = signal & finite, combination.takes_part & finite
    mean = segments.expand(_mean(segments, total, signal_finite))
    shifted = xp.where(signal_finite, total - mean, 0.0)
    count = segments.tally(takes_part)
    center = segments.expand(_mean(segments, shifted, takes_part))
    spread = segments.std(xp.where(takes_part, shifted - center, 0.0), count, batch.options.ddof)
    scale = segments.expand(xp.where(count > 1, spread + batch.options.eps, np.inf))
    scale = xp.where(scale == 0, 1.0, scale)
    share = mean / xp.clip(combination.carriers, 1, None)

    def part(k: int) -> Array:
        # ``carriers`` counts exactly these rewards, so the shares add up to the mean.
        carried = signal & batch.column(k).signal
        return (combination.part(k) - xp.where(carried, share, 0.0)) / scale

    return xp.where(finite, shifted / scale, total), part


def _mean(segments: Segments, values: Array, where: Array) -> Array:
    xp = segments.xp
    return segments.sum(xp.where(where, values, 0.0)) / xp.clip(segments.tally(where), 1, None)
