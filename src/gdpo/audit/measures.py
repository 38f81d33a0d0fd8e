"""Measures: pure functions on one batch, each with its definition. All on within-group data, never on step means.

B rollouts, R rewards. Inputs are NumPy arrays in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def dead_share(live: Bools, counts: NDArray[Any] | None = None) -> Floats:
    """[R] share of the groups in which reward k is tied.

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
