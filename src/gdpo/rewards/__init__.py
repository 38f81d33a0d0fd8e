"""Reward functions by subject, in TRL's convention: ``reward(completions, **columns) -> list[float | None]``.

Each name below is a factory: it takes options and returns such a function. A reward never raises on a model's output,
whatever it is; malformed text earns the floor.
"""

from gdpo.rewards.base import REGISTRY, build, model_text, reward
from gdpo.rewards.code import code_efficiency, code_pass_rate, code_runs, code_style
from gdpo.rewards.dialogue import contains, fluent, says_none_of
from gdpo.rewards.format import json_schema, language, matches, tags
from gdpo.rewards.judge import criterion, judge
from gdpo.rewards.length import cosine_length, length_at_most, shortest_correct, soft_overlong, target_length
from gdpo.rewards.math import integer_answer, math_answer
from gdpo.rewards.reward_model import reward_model
from gdpo.rewards.text import distinct, repetition, similarity, words
from gdpo.rewards.tools import bfcl_match, tool_correctness, tool_exact, tool_format

__all__ = [
    "REGISTRY",
    "bfcl_match",
    "build",
    "code_efficiency",
    "code_pass_rate",
    "code_runs",
    "code_style",
    "contains",
    "cosine_length",
    "criterion",
    "distinct",
    "fluent",
    "integer_answer",
    "json_schema",
    "judge",
    "language",
    "length_at_most",
    "matches",
    "math_answer",
    "model_text",
    "repetition",
    "reward",
    "reward_model",
    "says_none_of",
    "shortest_correct",
    "similarity",
    "soft_overlong",
    "tags",
    "target_length",
    "tool_correctness",
    "tool_exact",
    "tool_format",
    "words",
]
