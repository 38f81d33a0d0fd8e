"""Rewards for how long a completion is."""

from __future__ import annotations

from typing import Any, Literal

from gdpo.core.errors import Error
from gdpo.rewards.base import RewardFunction, factory, model_text, reward


@factory("length_at_most")
def length_at_most(n: int, unit: Literal["tokens", "characters"] = "tokens") -> RewardFunction:
    """1 if the completion has at most ``n`` tokens (or characters), else 0. The function's name says which.

    Args:
        n: the limit.
        unit: "tokens" counts ``completion_ids``, which TRL passes; "characters" counts the text.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise Error(f"length_at_most has n={n!r}, but a whole number of at least 1 was expected")
    if unit not in ("tokens", "characters"):
        raise Error(f"length_at_most has unit={unit!r}, but 'tokens' or 'characters' was expected")

    @reward(range=(0, 1), name=f"at_most_{n}_{unit}")
    def score(completions: list[Any], completion_ids: Any = None, **columns: Any) -> list[float | None]:
        if unit == "characters":
            return [float(len(model_text(completion)) <= n) for completion in completions]
        if completion_ids is None:
            raise Error("length_at_most counts tokens, but no completion_ids were passed; unit='characters' needs none")
        if len(completion_ids) != len(completions):
            raise Error(f"completion_ids has {len(completion_ids)} entries, but {len(completions)} were expected")
        return [float(len(ids) <= n) for ids in completion_ids]

    return score
