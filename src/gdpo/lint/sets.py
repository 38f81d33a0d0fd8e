"""Checks of several rewards together, on what moves an advantage: differences within groups of equal prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpo.audit.findings import Finding

DUPLICATE = 0.95
"""Correlation beyond which two rewards count as one."""
SCALE_RATIO = 10.0
_FEWEST_ROWS = 8
_FEWEST_TIED = 3
_CHANCE = 0.05
_MOST_SUMMED = 10
"""Rewards up to which every sum is tried."""
Floats = NDArray[np.float64]


def check_sets(scores: Mapping[str, Sequence[float | None]], groups: Sequence[int]) -> list[Finding]:
    """Findings on several rewards.

    Args:
        scores: [B] of each reward, None where missing.
        groups: [B] group of each row.
    """
    names = list(scores)
    matrix = np.array([[np.nan if s is None else s for s in scores[name]] for name in names], dtype=np.float64).T
    if len(names) < 2 or len(matrix) < _FEWEST_ROWS:
        return []
    group = np.asarray(groups, dtype=np.int64)
    centered = _centered(matrix, group)
    live = [k for k in range(len(names)) if np.nanmax(np.abs(centered[:, k]), initial=0.0) > 1e-9]
    duplicates = list(_duplicates(matrix, group, live, names))
    said = [set(finding.evidence["rewards"]) for finding in duplicates]
    return [
        *duplicates,
        *_scales(centered, live, names),
        *_sums(centered, live, names),
        *_decided(matrix, group, names, said),
    ]


def _centered(matrix: Floats, group: NDArray[Any]) -> Floats:
    """Scores minus the mean of their group; minus the mean of all where every group is one row."""
    if len(np.unique(group)) == len(group):
        group = np.zeros_like(group)
    centered = np.full_like(matrix, np.nan)
    for wanted in np.unique(group):
        rows = group == wanted
        known = ~np.isnan(matrix[rows])
        totals = np.where(known, matrix[rows], 0.0).sum(axis=0)
        centered[rows] = matrix[rows] - totals / np.maximum(known.sum(axis=0), 1)
    return centered


def _duplicates(matrix: Floats, group: NDArray[Any], live: list[int], names: list[str]) -> Iterator[Finding]:
    for left, right in combinations(live, 2):
        both = ~np.isnan(matrix[:, [left, right]]).any(axis=1)
        one, two = _centered(matrix[both][:, [left, right]], group[both]).T
        if both.sum() < _FEWEST_ROWS or not (one @ one > 1e-12 and two @ two > 1e-12):
            continue
        correlation = float(one @ two / np.sqrt((one @ one) * (two @ two)))
        if abs(correlation) > DUPLICATE:
            how = "move together" if correlation > 0 else "are opposites"
            yield Finding(
                "duplicate-rewards", "warning", None,
                f"{names[left]} and {names[right]} {how}: correlation {correlation:.2f} within groups.",
                {"rewards": [names[left], names[right]], "correlation": round(correlation, 4), "rows": int(both.sum())},
                f"Drop one, or put both on one level: levels: {{both: [{names[left]}, {names[right]}]}}.",
                measure="correlation", value=correlation,
            )  # fmt: skip


def _scales(centered: Floats, live: list[int], names: list[str]) -> Iterator[Finding]:
    spreads = {k: float(np.sqrt(np.nanmean(centered[:, k] ** 2))) for k in live}
    if len(spreads) < 2:
        return
    large, small = max(spreads, key=lambda k: spreads[k]), min(spreads, key=lambda k: spreads[k])
    ratio = spreads[large] / spreads[small]
    if ratio > SCALE_RATIO:
        yield Finding(
            "scale-ratio", "warning", None,
            f"{names[large]} spreads {ratio:.0f} times as far as {names[small]}, so a plain sum hears it alone.",
            {"spread": {names[k]: float(f"{value:.4g}") for k, value in spreads.items()}, "ratio": round(ratio, 1)},
            "method: gdpo (each reward on its own scale), or scores of about the same range.",
            measure="scale ratio", value=ratio,
        )  # fmt: skip


def _sums(centered: Floats, live: list[int], names: list[str]) -> Iterator[Finding]:
    """Rewards that are the sum of others; a constant between them does not matter within groups."""
    if not 3 <= len(live) <= _MOST_SUMMED:
        return
    whole = ~np.isnan(centered[:, live]).any(axis=1)
    if whole.sum() < _FEWEST_ROWS:
        return
    known = {k: centered[whole, k] for k in live}
    for total in live:
        others = [k for k in live if k != total]
        parts = next(
            (
                parts for size in range(2, len(others) + 1) for parts in combinations(others, size)
                if np.allclose(sum(known[k] for k in parts), known[total], rtol=0, atol=1e-6)
            ),
            None,
        )  # fmt: skip
        if parts is not None:
            summed = [names[k] for k in parts]
            yield Finding(
                "sum-of-others", "warning", names[total],
                f"{names[total]} is the sum of {' and '.join(summed)}, so each of them counts twice.",
                {"sum of": summed, "rows": int(whole.sum())},
                f"Drop {names[total]}: one aim a reward, and weights say how much each counts.",
            )  # fmt: skip


def _decided(matrix: Floats, group: NDArray[Any], names: list[str], duplicates: list[set[str]]) -> Iterator[Finding]:
    """Rewards that are tied in every group in which another is tied; of duplicates that goes without saying."""
    parts = [matrix[group == wanted] for wanted in np.unique(group)]
    tied = np.array([_tied(part) for part in parts]).reshape(-1, len(names))
    said = [*duplicates]
    for one, other in permutations(range(len(names)), 2):
        judged = tied[~np.isnan(tied[:, [one, other]]).any(axis=1)][:, [one, other]] == 1
        silent, both = int(judged[:, 0].sum()), int(judged.all(axis=1).sum())
        share = float(judged[:, 1].mean()) if len(judged) else 1.0
        # A reward that is tied nearly everywhere is tied there too, by chance.
        if silent < _FEWEST_TIED or both < silent or silent == len(judged) or share**silent > _CHANCE:
            continue
        if {names[one], names[other]} not in said:
            said.append({names[one], names[other]})
            yield Finding(
                "decided-elsewhere", "note", names[other],
                f"{names[other]} only differs in groups in which {names[one]} decides already.",
                {
                    "decides": names[one], "groups": len(judged), f"groups where {names[one]} ties": silent,
                    f"groups where {names[other]} ties": int(judged[:, 1].sum()),
                },
                f"It adds nothing where {names[one]} is silent: drop it, or reward what differs there.",
            )  # fmt: skip


def _tied(part: Floats) -> list[float]:
    """[R] 1 where all scores of a group are the same, else 0; NaN where fewer than two are present."""
    columns = [column[~np.isnan(column)] for column in part.T]
    return [float(column.max() == column.min()) if len(column) > 1 else np.nan for column in columns]
