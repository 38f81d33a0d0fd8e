"""Schedules: weights that depend on the step alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from gdpo.core.errors import Error
from gdpo.weights.base import REGISTRY, Progress, Schedule


@dataclass(frozen=True)
class constant(Schedule):
    """The same weight at every step."""

    weight: float
    kind: ClassVar[str] = "constant"

    def __post_init__(self) -> None:
        _finite("constant", weight=self.weight)

    def value(self, progress: Progress) -> float:
        """``weight``."""
        return float(self.weight)

    def config(self) -> float:
        """The number itself."""
        return float(self.weight)


@dataclass(frozen=True)
class ramp(Schedule):
    """A straight line from ``start`` at step ``begin`` to ``end``, ``steps`` steps later; level before and after.

    ``ramp(0.2, 1.0, steps=100)`` is 0.2 at step 0, 0.6 at step 50 and 1.0 from step 100 on.
    """

    start: float
    end: float
    steps: int
    begin: int = 0
    kind: ClassVar[str] = "ramp"

    def __post_init__(self) -> None:
        _finite("ramp", start=self.start, end=self.end, steps=self.steps, begin=self.begin)
        if self.steps < 1 or self.begin < 0:
            raise Error(f"ramp has steps={self.steps}, begin={self.begin}, but steps >= 1 and begin >= 0 were expected")

    def value(self, progress: Progress) -> float:
        """The weight at ``progress.step``."""
        done = min(max((progress.step - self.begin) / self.steps, 0.0), 1.0)
        return float(self.start + (self.end - self.start) * done)

    def config(self) -> dict[str, Any]:
        """The parameters by name."""
        return {"schedule": "ramp", "start": self.start, "end": self.end, "steps": self.steps, "begin": self.begin}


def _finite(kind: str, **parameters: object) -> None:
    for name, value in parameters.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise Error(f"{kind} has {name}={value!r}, but a finite number was expected")


REGISTRY["constant"] = constant
REGISTRY["ramp"] = ramp
