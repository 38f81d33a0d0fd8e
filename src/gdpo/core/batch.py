"""A batch as a method sees it: columns about their group means, weights, and what they combine to.

Columns are read one at a time, so that memory beyond input and output is O(B), not O(B * R).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
    """[groups] largest absolute reward, on the scale of ``values``; 0 where not live. Bounds the rounding residue."""

    def __mul__(self, factor: Array) -> Term:
        """The term times a number of at least 0 (one for the reward)."""
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

    def divided(self, divisor: Array) -> Combination:
        """The same over a positive scale [B]; 0 / 0 is 0."""
        xp = namespace(divisor)
        safe = xp.where(divisor == 0, 1.0, divisor)
        part = self.part
        return Combination(self.total / safe, lambda k: part(k) / safe, self.signal, self.carriers)


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
        return Term(centered.deviation, self.xp.where(centered.live, size, 0.0))

    def deviation(self, k: int) -> Term:
        """d_k: the reward minus its group mean, or times n/(n-1) of it for the leave-one-out baseline."""
        term = self.about_mean(k)
        if self.options.baseline == "mean":
            return term
        factor = self.leave_one_out(k)
        return Term(term.values * self.groups.expand(factor), term.bound * factor)

    def leave_one_out(self, k: int) -> Array:
        """[groups] n_k/(n_k - 1): the factor from the group mean's deviation to that about the mean of the others."""
        count = self.column(k).centered.count
        return count / self.xp.clip(count - 1, 1, None)

    def normalized(self, k: int) -> Term:
        """z_k = d_k / (sigma_k + eps), or by ``scale``; clipped where ``clip`` is set."""
        deviation, options = self.deviation(k), self.options
        scale = options.scale[k]
        if scale == "none":
            term = deviation
        else:
            std = self.column(k).std if scale == "group" else self._batch_std(k)
            divisor = self.xp.clip(std + options.eps, options.std_floor, None)
            divisor = self.xp.where(divisor == 0, 1.0, divisor)
            if scale == "group":
                term = Term(deviation.values / self.groups.expand(divisor), deviation.bound / divisor)
            else:
                rows = self.groups.batch.expand(divisor)
                term = Term(deviation.values / rows, self.groups.max(self.groups.expand(deviation.bound) / rows))
        if options.clip is None:
            return term
        return Term(self.xp.clip(term.values, -options.clip, options.clip), term.bound)

    def combine(self, term: Callable[[int], Term]) -> Combination:
        """sum_k w_k term_k, with groups whose combined value is only rounding residue set to exactly 0.

        A group is tied as a whole if no rollout's value exceeds 8 R 2^-52 sum_k w_k max|r_k| (on the terms' scale): a
        weighted sum that is constant in exact arithmetic stays below that.
        """
        xp = self.xp
        total = tolerance = carriers = zeros(self.groups.rows, self.rewards)
        participates: Array = None
        for k in self.active:
            value, weight, col = term(k), self.weights[k].value, self.column(k)
            total = total + weight * value.values
            tolerance = tolerance + weight * self.groups.expand(value.bound)
            carriers = carriers + to_float(col.signal)
            present = col.centered.present
            participates = present if participates is None else participates | present
        if participates is None:
            participates = carriers > 0
        self.participates = participates
        tolerance = 8 * len(self.active) * 2.0**-52 * tolerance
        alive = self.groups.expand(self.groups.max(to_float(~(abs(total) <= tolerance)))) > 0

        def part(k: int) -> Array:
            return xp.where(alive, self.weights[k].value * term(k).values, 0.0)

        return Combination(xp.where(alive, total, 0.0), part, alive & (carriers > 0), carriers)

    def group_std(self, c: Combination) -> Array:
        """[B] the spread in each group of c, the sum of ``deviation``, over the rollouts that take part, + eps.

        At least ``std_floor``. The leave-one-out baseline leaves every spread as it is: c is then taken about the mean.
        """
        total = c.total if self.options.baseline == "mean" else self.combine(self.about_mean).total
        centered = self.groups.center(total, self.participates & ~self.xp.isnan(total))
        std = self.groups.std(centered.deviation, centered.count, self.options.ddof)
        return self.groups.expand(self.xp.clip(std + self.options.eps, self.options.std_floor, None))

    def _batch_std(self, k: int) -> Array:
        """[labels] the spread of d_k over all its present values in the batch."""
        centered, batch = self.column(k).centered, self.groups.batch
        count = batch.tally(centered.present)
        return batch.std(centered.deviation, count, self.options.ddof)

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
    signal_finite, takes_part = signal & finite, batch.participates & finite
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
