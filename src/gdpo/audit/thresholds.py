"""The one table of thresholds. ``benchmarks/audit_power.py`` shows what they find and how often they are wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from gdpo.core.errors import Error
from gdpo.core.inputs import nearest


@dataclass(frozen=True)
class Thresholds:
    """From which value on a measure is a finding. The interval must clear the value beside it, ``surely_...``: a value
    that few groups push over the threshold is none."""

    dead: float = 0.7
    """Share of groups in which a reward is tied."""
    surely_dead: float = 0.6
    no_signal: float = 0.5
    """Share of groups in which no reward varies."""
    surely_no_signal: float = 0.4
    saturation: float = 0.035
    """Distance of the mean from a bound, in widths of the range; of the last third of the steps, or of as
    many as have enough groups."""
    at_bound: float = 0.9
    """Where bounds are not declared: share of rollouts at the least or largest value seen that makes it a bound."""
    dominance: float = 0.75
    """Share of Var(A) that one reward makes, ..."""
    surely_dominance: float = 0.65
    dominance_beyond: float = 0.2
    """... and how far that must be beyond what its weight asks for, w_k^2 / sum w^2."""
    scale: float = 10.0
    """Weighted group spread over the median of the others'."""
    surely_scale: float = 5.0
    conflict: float = -0.5
    """Correlation of two rewards within groups."""
    surely_conflict: float = -0.4
    redundancy: float = 0.95
    """Correlation of two rewards within groups."""
    surely_redundancy: float = 0.9
    noise: float = 0.1
    """Share of |A| from spreads below a millionth of the scale."""
    surely_noise: float = 0.03
    length: float = 0.5
    """Size of the correlation with the completion's length within groups."""
    surely_length: float = 0.4
    gate: float = 0.02
    """Share of rollouts at which a gate holds, below which it never opens."""
    surely_gate: float = 0.05
    missing: float = 0.2
    """Share of rollouts without a value."""
    surely_missing: float = 0.1
    drift: float = 1.0
    """Standard deviations by which a mean moved from the first to the last third of the steps."""
    surely_drift: float = 0.7
    collapse: float = 0.8
    """Situations a method tells apart, over those there are."""
    surely_collapse: float = 0.9
    unearned: float = 0.5
    """Share of |A| in groups in which the primary reward is dead."""
    surely_unearned: float = 0.4
    groups: int = 8
    """Groups of two rollouts or more that a finding must rest on."""
    groups_for_fine: int = 30
    """Such groups in which a reward varies, from which on "nothing wrong was found" may be said."""
    resamples: int = 200
    """Of the bootstrap over groups."""
    confidence: float = 0.99
    """Of the intervals."""

    def with_changes(self, changes: Mapping[str, Any]) -> Thresholds:
        """Other values for some of them.

        Raises:
            Error: an unknown name, or no number.
        """
        known = [field.name for field in fields(self)]
        for name, value in changes.items():
            if name not in known:
                raise Error(f"thresholds has no {name!r}{nearest(name, known)}")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise Error(f"threshold {name} is {value!r}, but a number was expected")
        whole = ("groups", "groups_for_fine", "resamples")
        typed: dict[str, Any] = {name: int(value) if name in whole else float(value) for name, value in changes.items()}
        return replace(self, **typed)
