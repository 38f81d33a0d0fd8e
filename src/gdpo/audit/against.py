"""``audit A --against B``: what changed between two runs, or two parts of one, with intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdpo.audit import measures
from gdpo.audit.chunks import Floats
from gdpo.audit.evidence import Evidence
from gdpo.audit.run import Audit
from gdpo.audit.sums import Sums, pairs
from gdpo.core.errors import Error

_LATER_SEED = 1


@dataclass(frozen=True)
class Change:
    """One measure in both, and the difference with its interval."""

    measure: str
    about: str
    """A reward, a pair, or nothing."""
    value: float
    against: float
    difference: float
    interval: tuple[float, float]
    sure: bool
    """Whether the interval leaves 0 out."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "interval": list(self.interval)}


def compare(one: Audit, other: Audit) -> list[Change]:
    """What changed from ``other`` to ``one``: sure changes first, then by size.

    The interval of a difference is that of the differences of both runs' resamples, which are independent. Rewards that
    only one of the two has are left out.

    Raises:
        Error: one of them has nothing to measure, or they share no reward.
    """
    a, b = one.evidence, other.evidence
    if a is None or b is None:
        raise Error("one of the two has nothing to compare: " + (other if a else one).verdict)
    shared = [name for name in a.names if name in b.names]
    if not shared:
        raise Error(f"the two share no reward: {', '.join(a.names)} and {', '.join(b.names)}")
    b.seed = a.seed + _LATER_SEED  # resamples of two runs must not move together
    b.__dict__.pop("draws", None)
    b.__dict__.pop("resampled", None)
    changes = []
    for name, measure in _MEASURES.items():
        changes += _changes(name, measure, a, b, shared)
    return sorted(changes, key=lambda change: (not change.sure, -abs(change.difference), change.measure, change.about))


def _changes(
    name: str, measure: Callable[[Evidence, Sums], Floats], a: Evidence, b: Evidence, shared: list[str]
) -> list[Change]:
    whole = [_labelled(name, e, measure(e, e.whole)) for e in (a, b)]
    drawn = [_labelled(name, e, measure(e, e.resampled)) for e in (a, b)]
    found = []
    for about in whole[0]:
        if about not in whole[1] or (name not in _ALONE and name not in _PAIRED and about not in shared):
            continue
        first, second = float(whole[0][about]), float(whole[1][about])
        if np.isnan(first) or np.isnan(second):
            continue
        gaps = drawn[0][about] - drawn[1][about]
        low, high = (float(value) for value in a.between(gaps))
        sure = low > 0 or high < 0
        found.append(Change(name, about, first, second, first - second, (low, high), sure))
    return found


def _labelled(name: str, e: Evidence, values: Floats) -> dict[str, Any]:
    if name in _ALONE:
        return {"": values}
    if name in _PAIRED:
        labels = [" and ".join(sorted((e.names[k], e.names[other]))) for k, other in pairs(len(e.names))]
        return {label: values[..., at] for at, label in enumerate(labels)}
    return {label: values[..., k] for k, label in enumerate(e.names)}


_ALONE = ("all_dead_share", "resolution", "cancellation")
_PAIRED = ("correlation",)
_MEASURES: dict[str, Callable[[Evidence, Sums], Floats]] = {
    "mean": lambda e, sums: e.found.reference + measures.mean_offset(sums),
    "group_std_mean": lambda e, sums: measures.group_spread(sums),
    "dead_share": lambda e, sums: measures.dead_groups(sums),
    "missing_share": lambda e, sums: measures.missing_share(sums),
    "dominance": lambda e, sums: measures.dominance(sums, e.method),
    "length_correlation": lambda e, sums: measures.length_correlation(sums),
    "correlation": lambda e, sums: measures.correlation(sums),
    "all_dead_share": lambda e, sums: measures.all_dead(sums),
    "resolution": lambda e, sums: measures.resolution(sums, e.method),
    "cancellation": lambda e, sums: measures.cancellation(sums, e.method),
}
