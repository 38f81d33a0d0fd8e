"""Weights over time: what moves has a state that can be saved."""

from gdpo.weights.base import Progress, Schedule, as_schedule
from gdpo.weights.schedules import constant, ramp

__all__ = ["Progress", "Schedule", "as_schedule", "constant", "ramp"]
