"""What findings are made from: sums, their resamples, and how a finding is put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from gdpo.audit import remedies
from gdpo.audit.chunks import Floats
from gdpo.audit.collect import Collected
from gdpo.audit.findings import Finding, Severity
from gdpo.audit.sums import Sums
from gdpo.audit.thresholds import Thresholds
from gdpo.core.estimators import method_of

Interval = tuple[float, float]


@dataclass(eq=False)
class Evidence:
    """What findings are made from."""

    found: Collected
    framework: str
    limits: Thresholds
    primary: str | None = None
    seed: int = 0
    unmeasured: dict[str, str] = field(default_factory=dict)
    """Measure -> why it could not be taken."""

    @cached_property
    def whole(self) -> Sums:
        """Sums over the dump."""
        return self.found.totals.whole()

    @cached_property
    def series(self) -> Sums:
        """Sums by step."""
        return self.found.totals.series()

    @cached_property
    def draws(self) -> Any:
        """[resamples, blocks]."""
        return self.found.totals.draws(self.limits.resamples, self.seed)

    @cached_property
    def resampled(self) -> Sums:
        """Sums of each resample of the groups."""
        return self.found.totals.resampled(self.draws)

    @cached_property
    def weights(self) -> Floats:
        """[R]."""
        return np.array(self.found.setting.weight_list())

    @cached_property
    def asked(self) -> Floats:
        """[R] share of the weight that each reward has."""
        size = np.abs(self.weights)
        return np.asarray(size / size.sum())

    @cached_property
    def late(self) -> Sums:
        """Sums over the last steps: a third of them, or more where that is fewer groups than a finding must rest on."""
        groups = self.series["several"][::-1].cumsum()
        enough = int(np.searchsorted(groups, self.limits.groups)) + 1
        steps = min(max(len(groups) // 3, enough), len(groups))
        return {name: values[len(groups) - steps :].sum(axis=0) for name, values in self.series.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """Of the rewards."""
        return self.found.names

    @property
    def method(self) -> str:
        """In use."""
        return self.found.setting.method

    @property
    def sums_first(self) -> bool:
        """Whether the method in use adds the rewards up before it normalises."""
        return method_of(self.method).family == "sum first"

    def measured(self, measure: Callable[[Sums], Floats]) -> tuple[Floats, Floats, Floats]:
        """(value, low, high) of a measure of sums."""
        return measure(self.whole), *self.between(measure(self.resampled))

    def between(self, values: Floats) -> tuple[Floats, Floats]:
        """(low, high) along the first axis at the confidence of the thresholds."""
        tail = (1 - self.limits.confidence) / 2
        with np.errstate(all="ignore"):
            known = np.where(np.isnan(values).all(axis=0), 0.0, values)
            low, high = np.nanquantile(known, [tail, 1 - tail], axis=0)
        return low, high

    def finding(
        self, id: str, what: str, *, measure: str, value: Any, interval: tuple[Any, Any], threshold: float, remedy: str,
        cost: Any, reward: str | None = None, rewards: tuple[str, ...] = (), severity: Severity = "warning",
        groups: Any = 0, method: str | None = None, evidence: dict[str, Any] | None = None,
    ) -> Finding:  # fmt: skip
        """A finding with what it rests on."""
        rests = {"steps": len(self.found.totals.steps), "groups": int(groups), "rollouts": int(self.whole["rollouts"])}
        return Finding(
            id, severity, reward, what, evidence or {}, remedy, measure, float(value),
            (float(interval[0]), float(interval[1])), (), threshold, rests, rewards or ((reward,) if reward else ()),
            method, float(min(max(cost, 0.0), 1.0)),
        )  # fmt: skip


def percent(value: Any) -> str:
    """As text, with three digits."""
    return f"{100 * value:.3g} %"


def weigh_down(e: Evidence, k: int, factor: float = 0.5) -> str:
    """A remedy: one weight times ``factor``."""
    weights = dict(zip(e.names, (float(w) for w in e.weights), strict=True))
    weights[e.names[k]] *= factor
    return remedies.set_weights(e.framework, weights, [e.names[k]])
