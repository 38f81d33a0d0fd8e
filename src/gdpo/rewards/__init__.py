"""Reward functions by subject, in TRL's convention: ``reward(completions, **columns) -> list[float | None]``.

Each name below is a factory: it takes options and returns such a function. A reward never raises on a model's output,
whatever it is; malformed text earns the floor.
"""

from gdpo.rewards.base import REGISTRY, build, model_text, reward
from gdpo.rewards.code import code_efficiency, code_pass_rate, code_runs, code_style
from gdpo.rewards.format import tags
from gdpo.rewards.length import length_at_most
from gdpo.rewards.math import integer_answer, math_answer

__all__ = [
    "REGISTRY",
    "build",
    "code_efficiency",
    "code_pass_rate",
    "code_runs",
    "code_style",
    "integer_answer",
    "length_at_most",
    "math_answer",
    "model_text",
    "reward",
    "tags",
]
