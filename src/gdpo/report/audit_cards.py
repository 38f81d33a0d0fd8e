"""A card for each reward of an audit: how it runs over the steps, and what becomes of it in the advantage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from gdpo.audit.run import Audit
from gdpo.report.formats import NONE, fixed, significant
from gdpo.report.sparks import Spark, band_over_steps, histogram, over_steps

COLOURS = 8
"""So many can be told apart; with more rewards than that, so many curves are drawn at first."""
OPEN = 8
"""With more rewards than this, cards begin closed."""


@dataclass(frozen=True)
class Card:
    """One reward."""

    name: str
    colour: int
    facts: list[tuple[str, str]]
    findings: list[tuple[int, str, str]]
    """(number in the list of findings, id, severity)."""
    sparks: list[Spark]
    opened: bool


def cards(found: Audit) -> list[Card]:
    """A card a reward, in the order of the dump; none where nothing was measured."""
    if not found.measures or found.evidence is None:
        return []
    names = found.summary.rewards
    kept = found.evidence.found.kept
    zero, quantiles = kept.shapes.zero(), kept.shapes.quantiles()
    what, numbers = axis(found)
    ends = [numbers[at] for at in kept.shapes.stretch_ends()]
    places = what, [numbers[0], *ends[1:]]
    made, colours = [], reward_colours(found)
    for k, name in enumerate(names):
        edges, shares = kept.shapes.bars(k)
        parts = [
            histogram("Part in the advantage", f"exactly 0 for {percent(_finite(zero[k]))}", edges.tolist(),
                      shares.tolist(), short),
            band_over_steps("Middle half and 90 % of parts", places, quantiles[k].tolist(), short),
        ]  # fmt: skip
        sparks = [*_series(found, name), *(spark for spark in parts if spark is not None)]
        made.append(Card(name, colours[k], _facts(found, name), _findings(found, name), sparks, len(names) <= OPEN))
    return made


def reward_colours(found: Audit) -> list[int]:
    """[R] number of each reward's colour: its place, or where there are many its rank by share of the push."""
    names = found.summary.rewards
    if len(names) <= COLOURS or not found.measures:
        return list(range(len(names)))
    share = found.measures["influence"]
    ranked = sorted(range(len(names)), key=lambda k: -(share.get(names[k]) or 0.0))
    return [ranked.index(k) for k in range(len(names))]


def axis(found: Audit) -> tuple[str, list[int]]:
    """(what it counts, [S]) the horizontal axis: the steps, or where a dump repeats steps the parts in their order."""
    steps: list[int] = found.series.get("step", [])
    if all(before < after for before, after in pairwise(steps)):
        return "step", steps
    return "part", list(range(1, len(steps) + 1))


def _series(found: Audit, name: str) -> list[Spark]:
    series, places = found.series, axis(found)
    spread = series["spread"][name]
    made = [
        over_steps("Mean", places, series["mean"][name], significant),
        over_steps("Spread in a group", places, spread, significant, _from_zero(spread)),
        over_steps("Dead in groups", places, series["dead_share"][name], percent, (0.0, 1.0)),
        over_steps("Share of the push", places, series["influence"][name], percent, (0.0, 1.0)),
    ]
    return [spark for spark in made if spark is not None]


def _from_zero(values: Sequence[float | None]) -> tuple[float, float] | None:
    high = max((value for value in values if value is not None), default=0.0)
    return (0.0, 1.1 * high) if high > 0 else None


def _facts(found: Audit, name: str) -> list[tuple[str, str]]:
    measures = found.measures
    share = measures.get(f"dominance_{found.method}", {}).get(name)
    facts = [
        ("mean", significant(measures["mean"].get(name))),
        ("share of the advantage", percent(share)),
        ("dead in", percent(measures["dead_share"].get(name))),
        ("drift", drift(measures["drift"].get(name))),
        ("with length", fixed(measures["length_correlation"].get(name), 2, sign=True)),
    ]
    return [(label, value) for label, value in facts if value != NONE]


def _findings(found: Audit, name: str) -> list[tuple[int, str, str]]:
    return [
        (number, one.id, one.severity)
        for number, one in enumerate(found.findings, 1)
        if one.reward == name or name in one.rewards
    ]


def drift(value: Any) -> str:
    """How far a mean moved, in standard deviations."""
    return NONE if value is None else f"{significant(value, sign=True)}\u202fstd"


def percent(value: float | None) -> str:
    """A share."""
    return NONE if value is None else f"{fixed(100 * value)}\u202f%"


def short(value: float | None) -> str:
    """Two significant digits."""
    return significant(value, 2)


def _finite(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)
