"""Rewards for how long a completion is.

Each has ``unit``: "tokens" counts ``completion_ids``, which TRL passes; "characters" counts the text. The reward's name
says which.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from gdpo.core.errors import Error
from gdpo.rewards.base import RewardFunction, column_values, factory, model_text, reward
from gdpo.rewards.support import check_number, check_whole

Unit = Literal["tokens", "characters"]
Ends = Mapping[str, float] | Sequence[float]
Correctness = str | Callable[..., Sequence[float | None]]


@factory("length_at_most")
def length_at_most(n: int, unit: Unit = "tokens") -> RewardFunction:
    """1 if the completion has at most ``n`` tokens (or characters), else 0. The function's name says which.

    Args:
        n: the limit.
        unit: "tokens" counts ``completion_ids``, which TRL passes; "characters" counts the text.
    """
    check_whole("length_at_most", "n", n)
    _check_unit("length_at_most", unit)

    @reward(range=(0, 1), name=f"at_most_{n}_{unit}")
    def score(completions: list[Any], completion_ids: Any = None, **columns: Any) -> list[float | None]:
        return [float(length <= n) for length in _lengths("length_at_most", unit, completions, completion_ids)]

    return score


@factory("soft_overlong")
def soft_overlong(maximum: int, buffer: int, unit: Unit = "tokens") -> RewardFunction:
    """0 up to ``maximum - buffer``, from there linearly down to -1 at ``maximum``, -1 beyond (DAPO, eq. 13).

    Source: https://arxiv.org/abs/2503.14476.

    Args:
        maximum: the length from which the whole penalty holds.
        buffer: the length over which it grows, from 1 to ``maximum``.
        unit: "tokens" or "characters".
    """
    check_whole("soft_overlong", "maximum", maximum)
    check_whole("soft_overlong", "buffer", buffer)
    if buffer > maximum:
        raise Error(f"soft_overlong has buffer={buffer}, but at most maximum={maximum} was expected")
    _check_unit("soft_overlong", unit)

    @reward(range=(-1, 0), name=f"soft_overlong_{maximum}_{unit}")
    def score(completions: list[Any], completion_ids: Any = None, **columns: Any) -> list[float | None]:
        lengths = _lengths("soft_overlong", unit, completions, completion_ids)
        return [min(0.0, max(-1.0, (maximum - buffer - length) / buffer)) for length in lengths]

    return score


@factory("cosine_length")
def cosine_length(
    maximum: int,
    correct: Ends = (1.0, 0.5),
    wrong: Ends = (-1.0, -0.5),
    correctness: Correctness = "correctness",
    unit: Unit = "tokens",
) -> RewardFunction:
    """A reward that moves along a half cosine from the shortest to the longest completion, apart for right and wrong.

    ``longest + (shortest - longest) * (1 + cos(pi * min(length / maximum, 1))) / 2``, as in open-r1 (after
    https://arxiv.org/abs/2502.03373) but with the length capped: beyond ``maximum`` it stays what it is there.

    Args:
        maximum: the length at which ``longest`` is reached.
        correct: what a right completion earns at length 0 and at ``maximum``: ``{"shortest": 1.0, "longest": 0.5}`` or
            a pair in that order.
        wrong: the same for a wrong one; with the default a longer one loses less.
        correctness: the column that says which are right (1 or more, or true), or a reward function that does, such as
            ``math_answer()``; None where that is missing.
        unit: "tokens" or "characters".
    """
    check_whole("cosine_length", "maximum", maximum)
    right_ends, wrong_ends = _ends("correct", correct), _ends("wrong", wrong)
    _check_unit("cosine_length", unit)
    _check_correctness("cosine_length", "correctness", correctness)
    bounds = min(right_ends + wrong_ends), max(right_ends + wrong_ends)
    if bounds[0] == bounds[1]:
        raise Error(
            f"cosine_length has {bounds[0]} for every completion, but correct and wrong that differ were expected"
        )

    @reward(range=bounds, name=f"cosine_length_{maximum}_{unit}")
    def score(completions: list[Any], completion_ids: Any = None, **columns: Any) -> list[float | None]:
        lengths = _lengths("cosine_length", unit, completions, completion_ids)
        rights = _rights("cosine_length", correctness, completions, {"completion_ids": completion_ids, **columns})
        scores: list[float | None] = []
        for length, right in zip(lengths, rights, strict=True):
            shortest, longest = right_ends if right else wrong_ends
            share = (1 + math.cos(math.pi * min(length / maximum, 1))) / 2
            value = longest + (shortest - longest) * share
            scores.append(None if right is None else min(bounds[1], max(bounds[0], value)))
        return scores

    return score


@factory("target_length")
def target_length(
    n: int, width: float, shape: Literal["linear", "gaussian"] = "linear", unit: Unit = "tokens"
) -> RewardFunction:
    """1 at length ``n``, less the further away on either side.

    Args:
        n: the length wanted.
        width: "linear": the distance at which 0 is reached; "gaussian": the standard deviation, so that it is 0.61 one
            width away.
        shape: "linear" (``1 - |length - n| / width``, not below 0) or "gaussian"
            (``exp(-((length - n) / width)^2 / 2)``).
        unit: "tokens" or "characters".
    """
    check_whole("target_length", "n", n)
    check_number("target_length", "width", width, above=0)
    if shape not in ("linear", "gaussian"):
        raise Error(f"target_length has shape={shape!r}, but 'linear' or 'gaussian' was expected")
    _check_unit("target_length", unit)

    def value(length: int) -> float:
        away = min(abs(length - n) / width, 1e6)
        return max(0.0, 1 - away) if shape == "linear" else math.exp(-(away**2) / 2)

    @reward(range=(0, 1), name=f"target_length_{n}_{unit}")
    def score(completions: list[Any], completion_ids: Any = None, **columns: Any) -> list[float | None]:
        return [value(length) for length in _lengths("target_length", unit, completions, completion_ids)]

    return score


@factory("shortest_correct")
def shortest_correct(
    correct: Correctness = "correctness", group: str | None = None, unit: Unit = "tokens"
) -> RewardFunction:
    """The length of the shortest right completion of the group by the completion's own; 0 for a wrong one.

    None for every completion of a group without a right one, and where it is not known whether a completion is right.
    The group has to be whole in the call: where a trainer spreads it over processes, each sees a part.

    Args:
        correct: the column that says which are right (1 or more, or true), or a reward function that does.
        group: the column whose equal values make a group; where None, equal prompts do.
        unit: "tokens" or "characters".
    """
    _check_correctness("shortest_correct", "correct", correct)
    if group is not None and not isinstance(group, str):
        raise Error(f"shortest_correct has group={group!r}, but the name of a column or None was expected")
    _check_unit("shortest_correct", unit)

    @reward(range=(0, 1), name=f"shortest_correct_{unit}")
    def score(completions: list[Any], completion_ids: Any = None, **columns: Any) -> list[float | None]:
        lengths = [max(1, n) for n in _lengths("shortest_correct", unit, completions, completion_ids)]
        rights = _rights("shortest_correct", correct, completions, {"completion_ids": completion_ids, **columns})
        name = group or ("prompts" if "prompts" in columns else "prompt")
        if name not in columns:
            raise Error("shortest_correct groups by equal prompts, but none were passed; group=COLUMN names a column")
        keys = [_key(value) for value in column_values(columns, name, len(completions), "shortest_correct")]
        shortest: dict[str, int] = {}
        for key, length, right in zip(keys, lengths, rights, strict=True):
            if right:
                shortest[key] = min(length, shortest.get(key, length))
        return [
            None if right is None or key not in shortest else shortest[key] / length if right else 0.0
            for key, length, right in zip(keys, lengths, rights, strict=True)
        ]

    return score


def _lengths(asking: str, unit: Unit, completions: Sequence[Any], completion_ids: Any) -> list[int]:
    if unit == "characters":
        return [len(model_text(completion)) for completion in completions]
    if completion_ids is None:
        raise Error(f"{asking} counts tokens, but no completion_ids were passed; unit='characters' needs none")
    if len(completion_ids) != len(completions):
        raise Error(f"completion_ids has {len(completion_ids)} entries, but {len(completions)} were expected")
    return [len(ids) for ids in completion_ids]


def _rights(
    asking: str, correctness: Correctness, completions: Sequence[Any], columns: dict[str, Any]
) -> list[bool | None]:
    """Whether each completion is right; None where not known."""
    if isinstance(correctness, str):
        values: Sequence[Any] = column_values(columns, correctness, len(completions), asking)
    else:
        values = correctness(completions=completions, **columns)
        if len(values) != len(completions):
            raise Error(f"{asking} got {len(values)} scores of correctness, but {len(completions)} were expected")
    numbers = [_number(value) for value in values]
    return [None if math.isnan(number) else number >= 1 for number in numbers]


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _key(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=repr)


def _ends(argument: str, given: Ends) -> tuple[float, float]:
    names = ("shortest", "longest")
    if isinstance(given, Mapping) and set(given) == set(names):
        given = [given[name] for name in names]
    if isinstance(given, Mapping | str) or not isinstance(given, Sequence) or len(given) != 2:
        raise Error(
            f"cosine_length has {argument}={given!r}, but {{'shortest': NUMBER, 'longest': NUMBER}} was expected"
        )
    values = [check_number("cosine_length", argument, value) for value in given]
    return values[0], values[1]


def _check_unit(asking: str, unit: object) -> None:
    if unit not in ("tokens", "characters"):
        raise Error(f"{asking} has unit={unit!r}, but 'tokens' or 'characters' was expected")


def _check_correctness(asking: str, argument: str, value: object) -> None:
    if not callable(value) and not (isinstance(value, str) and value):
        raise Error(f"{asking} has {argument}={value!r}, but the name of a column or a reward function was expected")
