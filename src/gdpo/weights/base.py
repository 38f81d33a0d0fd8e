"""What a moving weight is, and how one is written in a recipe."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gdpo.core.errors import Error
from gdpo.core.inputs import nearest


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    step: int = 0
    """Optimizer steps done before the batch at hand (0 at the first)."""
    total_steps: int | None = None
    """Steps of the whole run, where known."""
    tokens: int = 0
    """Tokens seen so far."""


class Schedule:
    """A weight over time. ``value`` is pure; what a schedule learns in ``observe`` belongs into its state."""

    kind: ClassVar[str]
    """Its name in a recipe."""

    def value(self, progress: Progress) -> float:
        """The weight for the batch at ``progress``."""
        raise NotImplementedError

    def observe(self, scores: Any, progress: Progress) -> None:
        """See one reward's raw scores [B] of a step; for adaptive weights. Nothing by default."""

    def state_dict(self) -> dict[str, Any]:
        """What moved so far."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        if state:
            raise Error(f"schedule {self.kind!r} has no state, but {sorted(state)} was to be loaded")

    def config(self) -> dict[str, Any] | float:
        """As it stands in a recipe."""
        raise NotImplementedError


REGISTRY: dict[str, Callable[..., Schedule]] = {}
"""Schedules by the name a recipe uses."""


def as_schedule(weight: object, name: str) -> Schedule:
    """A schedule from a number, a ``Schedule``, or a recipe's mapping ``{schedule: ramp, start: 0.2, ...}``.

    Raises:
        Error: not a finite number, an unknown schedule or a wrong parameter; ``name`` says of which reward.
    """
    if isinstance(weight, Schedule):
        return weight
    if isinstance(weight, Mapping):
        parameters = dict(weight)
        kind = parameters.pop("schedule", None)
        if kind not in REGISTRY:
            raise Error(f"the weight of {name!r} has schedule {kind!r}{nearest(str(kind), REGISTRY)}")
        known = inspect.signature(REGISTRY[kind]).parameters
        for key in parameters:
            if key not in known:
                raise Error(f"schedule {kind!r} of reward {name!r} has no parameter {key!r}{nearest(str(key), known)}")
        try:
            return REGISTRY[kind](**parameters)
        except TypeError as error:
            raise Error(f"schedule {kind!r} of reward {name!r}: {error}") from None
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise Error(f"the weight of {name!r} is {weight!r}, but a finite number or a schedule was expected")
    return REGISTRY["constant"](float(weight))
