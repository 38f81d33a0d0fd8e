"""Levels: rewards that count as one.

A level's score is the weighted sum of its rewards' normalised values; that score is normalised in the group once more.
Both steps are linear within a group, so a level is nothing but weights: reward k of a level of weight W counts with
W w_k / (sigma_level + eps) in each group, and its contribution stays its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdpo.core.backend import Array, is_tensor, namespace
from gdpo.core.compute import estimate
from gdpo.core.errors import Error
from gdpo.core.estimators import Method
from gdpo.core.inputs import nearest

NORMALISE_FIRST = "normalise first"
_OPTIONS = ("eps", "eps_in", "ddof", "baseline", "scale", "std_floor", "include", "rollouts", "batch_ids")


@dataclass(frozen=True)
class Level:
    """Rewards that count as one of ``weight``."""

    rewards: tuple[str, ...]
    weight: float = 1.0

    def config(self) -> Any:
        """As a recipe writes it."""
        names = list(self.rewards)
        return names if self.weight == 1.0 else {"rewards": names, "weight": self.weight}


def check_levels(levels: Mapping[str, Any] | None, names: Sequence[str], method: Method) -> dict[str, Level]:
    """Levels as given, checked.

    Raises:
        Error: no mapping, an unknown reward, one that stands in two levels, a weight that is no positive number, or a
            method that adds the rewards up before it normalises.
    """
    if not levels:
        return {}
    if not isinstance(levels, Mapping):
        raise Error(f"levels is {levels!r}, but a mapping from a level's name to its rewards was expected")
    if method.family != NORMALISE_FIRST:
        raise Error(f"levels needs a method that normalises each reward first, which {method.name!r} does not")
    checked: dict[str, Level] = {}
    seen: dict[str, str] = {}
    for name, entry in levels.items():
        weight: Any = 1.0
        if isinstance(entry, Mapping):
            for key in entry:
                if key not in ("rewards", "weight"):
                    raise Error(f"level {name!r} has no key {key!r}{nearest(str(key), ('rewards', 'weight'))}")
            weight, entry = entry.get("weight", 1.0), entry.get("rewards")
        if isinstance(entry, str) or not isinstance(entry, Sequence) or not entry:
            raise Error(f"level {name!r} is {entry!r}, but a list of rewards was expected")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
            raise Error(f"the weight of level {name!r} is {weight!r}, but a positive number was expected")
        for reward in entry:
            if reward not in names:
                raise Error(f"level {name!r} names {reward!r}, which is no reward{nearest(str(reward), names)}")
            if reward in seen:
                raise Error(
                    f"reward {reward!r} stands in the levels {seen[reward]!r} and {name!r}, but one was expected"
                )
            seen[reward] = str(name)
        checked[str(name)] = Level(tuple(entry), float(weight))
    return checked


def level_weights(
    levels: Mapping[str, Level], scores: Array, groups: Any, weights: Sequence[float], names: Sequence[str],
    options: Mapping[str, Any],
) -> Array:  # fmt: skip
    """[B, R] weights that make each level count as one reward, see above.

    Args:
        levels: by name.
        scores: [B, R] gated scores.
        groups: a size or ids [B].
        weights: [R] of the rewards.
        names: of the rewards.
        options: of the estimate; those that concern normalisation are used.
    """
    given = {key: value for key, value in options.items() if key in _OPTIONS}
    common = {key: value for key, value in given.items() if key not in ("baseline", "scale", "std_floor")}
    rows: Array = scores if is_tensor(scores) else np.asarray(scores)
    xp, like = namespace(rows), rows[:, :1] * 0.0
    columns = {name: xp.where(like[:, 0] == 0, 1.0, 1.0) * weight for name, weight in zip(names, weights, strict=True)}
    for level in levels.values():
        chosen = [list(names).index(name) for name in level.rewards]
        own = [weights[k] for k in chosen]
        if not any(own):
            continue
        scale = given.get("scale")
        if isinstance(scale, Mapping):
            scale = {name: scale[name] for name in level.rewards if name in scale}
        extra = {**given, **({"scale": scale} if scale is not None else {})}
        inner = estimate(rows[:, chosen], groups, "mo_grpo", own, names=list(level.rewards), **extra)
        outer = estimate(inner.combined[:, None], groups, "grpo_no_std", **common)
        eps = given.get("eps", 1e-4)
        spread = outer.std[:, 0][outer.group]
        live = outer.live[:, 0][outer.group]
        divisor = xp.sqrt(spread**2 + eps) if given.get("eps_in") == "variance" else spread + eps
        factor = xp.where(live, level.weight / xp.where(live, divisor, 1.0), 0.0)
        for name in level.rewards:
            columns[name] = columns[name] * factor
    return xp.stack([columns[name] for name in names], 1)
