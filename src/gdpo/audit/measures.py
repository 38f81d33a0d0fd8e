"""Measures: pure functions on one batch, each with its definition. All on within-group data, never on step means.

B rollouts, R rewards. Inputs are NumPy arrays in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpo.audit.sums import Sums, pairs

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def dead_share(live: Bools, counts: NDArray[Any] | None = None) -> Floats:
    """[R] share of the groups in which reward k is tied: the trainer's metric.

    The audit's (``dead_groups``) also counts groups with a single value, as tied.

    Args:
        live: [groups, R], as in ``gdpo.Estimate``.
        counts: [groups, R] values present, where some may be missing: groups with fewer than two do not count.
    """
    judged = np.ones(live.shape) if counts is None else (counts >= 2).astype(float)
    total = judged.sum(axis=0)
    dead = (judged * ~live).sum(axis=0)
    return np.where(total > 0, dead / np.maximum(total, 1), np.nan)


def contribution_share(advantages: Floats, contributions: Floats) -> Floats:
    """[R] dominance of each reward: Cov(A, contribution_k) / Var(A) over the rollouts; sums to 1.

    NaN where A is constant.
    A share below 0 means that the reward was outvoted: on balance the advantage moved against it.

    Args:
        advantages: [B].
        contributions: [B, R], adding up to the advantages.
    """
    centered = advantages - advantages.mean()
    variance = centered @ centered
    if not variance > 0:
        return np.full(contributions.shape[1], np.nan)
    shares: Floats = centered @ contributions / variance
    return shares


def distinct_situations(group: NDArray[Any], live: Bools, values: Floats) -> int:
    """How many different situations the live groups show: distinct multisets of rows of ``values``.

    With ``values`` the rewards [B, R] this counts what there was to tell apart; with the advantages before batch norm
    [B, 1] it counts what the method told apart. Values are rounded to 1e-9 of the largest; NaN equals NaN.

    Args:
        group: [B] group of each rollout, 0..groups-1.
        live: [groups, R].
        values: [B, K].
    """
    if not len(values):
        return 0
    size = float(np.nanmax(np.abs(values), initial=0.0))
    unit = size * 1e-9 if size > 0 else 1.0
    rounded = np.where(np.isnan(values), np.nan, np.round(values / unit) * unit + 0.0)
    keep = np.any(live, axis=1)[group]
    situations: dict[int, list[bytes]] = {}
    for index, row in zip(group[keep].tolist(), rounded[keep], strict=True):
        situations.setdefault(index, []).append(row.tobytes())
    return len({tuple(sorted(rows)) for rows in situations.values()})


# What follows reads sums over groups (``gdpo.audit.sums``) with any leading axes: none for the whole dump, resamples
# for an interval, steps for a series. NaN where there is nothing to measure.


def ratio(part: Floats, whole: Floats) -> Floats:
    """part / whole, NaN where whole is 0."""
    return np.where(whole != 0, part / np.where(whole != 0, whole, 1.0), np.nan)


def dead_groups(sums: Sums) -> Floats:
    """[R] groups in which all values present are equal, over groups with at least one value.

    The trainer's metric (``dead_share``) leaves groups with one value out; here they count as tied, since nothing can
    be learned from them either.
    """
    return ratio(sums["tied"], sums["tied"] + sums["live"])


def all_dead(sums: Sums) -> Floats:
    """Groups in which no reward varies, over all groups."""
    return ratio(sums["groups"] - sums["live_groups"], sums["groups"])


def resolution(sums: Sums, method: str) -> Floats:
    """Over groups in which a reward varies: distinct advantages (rounded to 9 digits) / distinct reward vectors."""
    return ratio(sums[f"{method}/distinct"], sums["distinct_rewards"])


def dominance(sums: Sums, method: str) -> Floats:
    """[R] Cov(A, contribution_k) / Var(A) over all rollouts; sums to 1. Below 0: outvoted on balance."""
    count, a = sums["rollouts"], sums[f"{method}/a"]
    covariance = sums[f"{method}/ac"] - sums[f"{method}/c"] * (a / np.maximum(count, 1))[..., None]
    return ratio(covariance, (sums[f"{method}/aa"] - a * a / np.maximum(count, 1))[..., None])


def influence(sums: Sums, method: str) -> Floats:
    """[R] share of sum |A|, each |A| split over the rewards as their |contributions| are; sums to 1."""
    return ratio(sums[f"{method}/attributed"], sums[f"{method}/size"][..., None])


def pearson(sums: Sums, prefix: str) -> Floats:
    """Pearson correlation from n, x, y, xx, yy, xy; NaN where a side is constant."""
    n, x, y, xx, yy, xy = (sums[f"{prefix}_{name}"] for name in ("n", "x", "y", "xx", "yy", "xy"))
    safe = np.maximum(n, 1)
    product = np.maximum(xx - x * x / safe, 0.0) * np.maximum(yy - y * y / safe, 0.0)
    return ratio(xy - x * y / safe, np.sqrt(product))


def correlation(sums: Sums) -> Floats:
    """[pairs] Pearson of z_k and z_l over rollouts of groups in which both vary and both are present."""
    return pearson(sums, "pair")


def correlation_everywhere(sums: Sums) -> Floats:
    """[pairs] Pearson of z_k and z_l over all rollouts, 0 where a reward is dead or missing."""
    index = pairs(sums["z"].shape[-1])
    one, two = [k for k, _ in index], [k for _, k in index]
    n = np.broadcast_to(sums["rollouts"][..., None], sums["pair_xy"].shape)
    moments = {"all_n": n, "all_xy": sums["pair_xy"]}
    moments |= {"all_x": sums["z"][..., one], "all_y": sums["z"][..., two]}
    return pearson({**moments, "all_xx": sums["zz"][..., one], "all_yy": sums["zz"][..., two]}, "all")


def length_correlation(sums: Sums) -> Floats:
    """[R] Pearson of z and the z of the completion's length, over groups in which the reward varies."""
    if "length_n" not in sums:
        return np.full(sums["live"].shape, np.nan)
    return pearson(sums, "length")


def cancellation(sums: Sums, method: str) -> Floats:
    """1 - sum |A| / sum of |contributions|; a group that cancels as a whole counts in full (``sums._cancelled``)."""
    whole = sums[f"{method}/parts"].sum(axis=-1) + sums[f"{method}/cancelled"]
    return 1.0 - ratio(sums[f"{method}/size"], whole)


def opposed(sums: Sums, method: str) -> Floats:
    """[pairs] twice the smaller of two opposite contributions, over the sum of all |contributions|."""
    return ratio(sums[f"{method}/opposed"], sums[f"{method}/parts"].sum(axis=-1)[..., None])


def pushed_up_against(sums: Sums, method: str) -> Floats:
    """[R] share of the rollouts (groups where k varies) pushed up although k is below its group mean."""
    return ratio(sums[f"{method}/up_against"], sums[f"{method}/judged"])


def pushed_down_against(sums: Sums, method: str) -> Floats:
    """[R] the other way round: pushed down although k is above its group mean."""
    return ratio(sums[f"{method}/down_against"], sums[f"{method}/judged"])


def unearned(sums: Sums, method: str) -> Floats:
    """[R] share of sum |A| in groups in which reward k does not vary; a finding where k is the primary reward."""
    return ratio(sums[f"{method}/idle"], sums[f"{method}/size"][..., None])


def missing_share(sums: Sums) -> Floats:
    """[R] share of all rollouts without a value of the reward."""
    return 1.0 - ratio(sums["present"], sums["rollouts"][..., None])


def mean_offset(sums: Sums) -> Floats:
    """[R] mean of the values present, less the reference that the sums were taken about."""
    return ratio(sums["sum"], sums["present"])


def group_spread(sums: Sums) -> Floats:
    """[R] mean of the group's standard deviation over groups in which the reward varies; 0 where none does."""
    return np.where(sums["live"] > 0, sums["spread"] / np.maximum(sums["live"], 1), 0.0)


def scale_ratio(sums: Sums, weights: Floats) -> Floats:
    """[R] |w_k| times its group spread, over the median of the other rewards' that vary; NaN without another."""
    sizes = np.where(sums["live"] > 0, np.abs(weights) * group_spread(sums), np.nan)
    sizes = np.where(weights != 0, sizes, np.nan)
    columns = []
    for k in range(sizes.shape[-1]):
        others = np.delete(sizes, k, axis=-1)
        columns.append(ratio(sizes[..., k], _median(others)))
    return np.stack(columns, -1)


def _median(values: Floats) -> Floats:
    """Along the last axis without NaN; NaN where nothing is left."""
    if not values.shape[-1]:
        return np.full(values.shape[:-1], np.nan)
    ordered = np.sort(values, axis=-1)  # NaN last
    count = (~np.isnan(values)).sum(axis=-1)
    low, high = np.maximum((count - 1) // 2, 0), np.maximum(count // 2, 0)
    high = np.minimum(high, values.shape[-1] - 1)
    take = [np.take_along_axis(ordered, at[..., None], axis=-1)[..., 0] for at in (low, high)]
    return np.asarray((take[0] + take[1]) / 2)


def gate_pass(sums: Sums) -> Floats:
    """[gates] share of the rollouts (where the condition is known) at which the gate holds."""
    return ratio(sums["gate_open"], sums["gate_known"])


def varying_share(sums: Sums) -> Floats:
    """[R] groups in which the reward varies, over all groups."""
    return ratio(sums["live"], sums["groups"][..., None])


def drift(series: Sums) -> tuple[Floats, Floats]:
    """([R], [R]) how far the mean moved from the first third of the steps to the last, in standard deviations of the
    reward (its rollouts about the mean of their step), and the standard error of that, from the spread of group means.

    NaN with fewer than three steps, or where the reward never varies inside a step.
    """
    steps = len(series["groups"])
    third = steps // 3
    if not third:
        return (np.full(series["live"].shape[-1], np.nan),) * 2
    counted = series["present"]
    squares = series["squares"] - ratio(series["sum"] ** 2, counted)
    std = np.sqrt(ratio(np.nansum(squares, axis=0), np.maximum(counted - 1, 0).sum(axis=0)))
    means, errors = [], []
    for part in (slice(0, third), slice(steps - third, steps)):
        sums = {name: values[part].sum(axis=0) for name, values in series.items()}
        means.append(mean_offset(sums))
        n = sums["with_values"]
        spread = ratio(sums["group_means_squared"] - ratio(sums["group_means"] ** 2, n), np.maximum(n - 1, 0))
        errors.append(ratio(np.maximum(spread, 0.0), n))
    return ratio(means[1] - means[0], std), ratio(np.sqrt(errors[0] + errors[1]), std)
