"""One real group in which the run's method tells rollouts apart that another method cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gdpo.core.errors import Error
from gdpo.report.samples import Rollouts

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Pattern:
    """The rollouts of one group that earned exactly the same rewards."""

    scores: list[float | None]
    """[rewards] raw scores, None where missing."""
    count: int
    own: float
    """Advantage in this run, as recorded."""
    other: float
    """Advantage the other method would have given."""
    merged: int | None
    """Number of the set of patterns the other method cannot tell apart; None where it can."""
    rows: list[int]


@dataclass(frozen=True)
class ExampleGroup:
    """A group and what two methods make of it; patterns in order of falling advantage."""

    step: int
    group: str
    method: str
    other_method: str
    rewards: list[str]
    patterns: list[Pattern]
    rollouts: int
    own_distinct: int
    other_distinct: int
    merging: str = ""
    """The method that tells fewer apart, where that may be either; else it is the other method."""
    colours: list[int] | None = None
    """Number of each reward's colour, where that is not its place."""
    left_out: int = 0
    """Rewards that are not shown, since all rollouts of the group have the same value of them."""

    @property
    def rows(self) -> list[int]:
        """Row numbers of one rollout a pattern."""
        return [pattern.rows[0] for pattern in self.patterns]


def find_example(rollouts: Rollouts, method: str) -> ExampleGroup | None:
    """The group that shows best what the two methods do differently; None where no group shows it.

    The other method is GRPO; for a run with GRPO it is GDPO. Later groups win over earlier ones that are as telling.
    """
    if rollouts.table.height == 0 or len(rollouts.rewards) < 2 or "group" not in rollouts.table.columns:
        return None
    other_method = "gdpo" if method == "grpo" else "grpo"
    candidates = _candidates(rollouts, method)
    for step, group in candidates[:5]:
        example = _compare(rollouts, step, group, method, other_method)
        if example is not None:
            return example
    return None


def _candidates(rollouts: Rollouts, method: str) -> list[tuple[float, object]]:
    """Groups in which equal weighted sums hide different rewards, the most telling first.

    Only sums are looked at here, which is quick on every group of a run: GRPO's advantages are tied where sums are.
    """
    scores, weights = _gated(rollouts), _weights(rollouts)
    sums = np.where(np.isnan(scores), 0.0, scores * weights).sum(axis=1)
    steps, own = rollouts.column("step"), rollouts.column("advantage")
    groups = rollouts.table["group"].to_list()
    members: dict[tuple[float, object], list[int]] = {}
    for row, key in enumerate(zip(steps.tolist(), groups, strict=True)):
        members.setdefault(key, []).append(row)
    telling = []
    for key, rows in members.items():
        if len(rows) < 2 or np.isnan(own[rows]).any() or np.isnan(scores[rows]).any():
            continue
        vectors = {tuple(scores[row]) for row in rows}
        distinct_sums = len(set(np.round(sums[rows], 9).tolist()))
        distinct_own = len(set(np.round(own[rows], 6).tolist()))
        lost = len(vectors) - distinct_sums
        kept = distinct_own - distinct_sums if method != "grpo" else lost
        if lost > 0 and kept > 0 and distinct_sums > 1:
            telling.append((min(kept, 3), len(vectors), key[0], key))
    telling.sort(key=lambda entry: entry[:3], reverse=True)
    return [entry[3] for entry in telling]


def _compare(rollouts: Rollouts, step: float, group: object, method: str, other_method: str) -> ExampleGroup | None:
    from gdpo.core import compute

    steps = rollouts.column("step")
    in_step = np.flatnonzero(steps == step)
    ids = rollouts.table["group"].gather(in_step.tolist()).to_list()
    try:
        estimate = compute.estimate(
            _gated(rollouts)[in_step],
            [str(label) for label in ids],
            method=other_method,
            weights=_weights(rollouts)[in_step],
        )
    except Error:
        return None
    other = np.asarray(estimate.advantages, dtype=np.float64)
    places = [place for place, label in enumerate(ids) if label == group]
    patterns = _patterns(rollouts, in_step, places, other)
    own_distinct = len({round(pattern.own, 6) for pattern in patterns})
    other_distinct = len({round(pattern.other, 6) for pattern in patterns})
    if own_distinct == other_distinct:
        return None
    return ExampleGroup(
        step=int(step),
        group=str(group),
        method=method,
        other_method=other_method,
        rewards=rollouts.rewards,
        patterns=patterns,
        rollouts=len(places),
        own_distinct=own_distinct,
        other_distinct=other_distinct,
    )


def _patterns(rollouts: Rollouts, in_step: np.ndarray[Any, Any], places: list[int], other: Floats) -> list[Pattern]:
    raw = np.stack([rollouts.column(f"reward/{name}") for name in rollouts.rewards], axis=1)
    own = rollouts.column("advantage")
    found: dict[tuple[str, float], list[int]] = {}
    for place in places:
        row = int(in_step[place])
        found.setdefault((repr(raw[row].tolist()), round(float(own[row]), 6)), []).append(place)
    sets: dict[float, list[tuple[str, float]]] = {}
    for key, members in found.items():
        sets.setdefault(round(float(other[members[0]]), 6), []).append(key)
    shared = sorted((value for value, keys in sets.items() if len(keys) > 1), reverse=True)
    patterns = []
    for members in found.values():
        row, value = int(in_step[members[0]]), float(other[members[0]])
        patterns.append(
            Pattern(
                scores=[None if np.isnan(score) else float(score) for score in raw[row]],
                count=len(members),
                own=float(own[row]),
                other=value,
                merged=shared.index(round(value, 6)) if round(value, 6) in shared else None,
                rows=[int(in_step[member]) for member in members],
            )
        )
    return sorted(patterns, key=lambda pattern: (-pattern.own, -pattern.other))


def _gated(rollouts: Rollouts) -> Floats:
    """[rows, rewards] scores after gates where the table has them, else as they came."""
    columns = []
    for name in rollouts.rewards:
        gated = f"gated/{name}"
        columns.append(rollouts.column(gated if gated in rollouts.table.columns else f"reward/{name}"))
    return np.stack(columns, axis=1)


def _weights(rollouts: Rollouts) -> Floats:
    """[rows, rewards] weights; 1 where the table has none."""
    columns = [rollouts.column(f"weight/{name}") for name in rollouts.rewards]
    return np.nan_to_num(np.stack(columns, axis=1), nan=1.0)
