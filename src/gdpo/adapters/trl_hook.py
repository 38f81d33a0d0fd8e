"""What of TRL the adapter stands on, checked before training, and TRL's rewards as an objective."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.objective import Objective, Reward

HOOKS = {
    "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
    "_generate_and_score_completions": ("inputs",),
}
"""TRL's private methods that are wrapped, and their parameters; the same from TRL 0.20 to 1.16."""

NEEDS = ("reward_funcs", "reward_func_names", "reward_weights", "num_generations", "_metrics", "_logs", "accelerator",
         "state")  # fmt: skip
"""Attributes of a trainer that are read or replaced."""


def version() -> str:
    """TRL's version, as messages name it."""
    import trl

    return f"TRL {getattr(trl, '__version__', '?')}"


def check_class(kind: type, after: type | None = None) -> None:
    """Check that a trainer class has the methods that are wrapped.

    Args:
        kind: the class.
        after: a class of its bases; only what stands behind it is looked at.

    Raises:
        Error: it has not, or with other parameters; the message names TRL's version and the remedy.
    """
    bases = kind.__mro__
    behind = bases if after is None else bases[bases.index(after) + 1 :]
    for name, expected in HOOKS.items():
        method = next((vars(base)[name] for base in behind if name in vars(base)), None)
        if method is None:
            raise Error(
                f"{kind.__name__} of {version()} has no {name}, on which gdpo's advantages rest: use TRL 0.20 to 1.16, "
                "or a newer gdpo"
            )
        if getattr(method, "__wrapped__", None) is not None:
            method = inspect.unwrap(method)
        parameters = [p for p in inspect.signature(method).parameters.values() if p.name != "self"]
        fixed = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
        free = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        if fixed != expected and not (free and len(fixed) <= len(expected)):
            raise Error(
                f"{kind.__name__}.{name} of {version()} takes ({', '.join(fixed)}), but ({', '.join(expected)}) was "
                "expected: use TRL 0.20 to 1.16, or a newer gdpo"
            )


def check_trainer(trainer: Any) -> None:
    """Check a built trainer before its class is changed.

    Raises:
        Error: something needed is missing, or another plug-in sits on the same methods of this very object.
    """
    for name in NEEDS:
        if not hasattr(trainer, name):
            raise Error(f"{type(trainer).__name__} of {version()} has no {name}, which gdpo needs: a GRPO trainer of "
                        "TRL 0.20 to 1.16 was expected")  # fmt: skip
    for name in HOOKS:
        if name in vars(trainer):
            raise Error(
                f"{type(trainer).__name__} has its own {name} on this object, put there by another plug-in, which "
                "would win over gdpo's: attach gdpo first, or remove that plug-in"
            )


def unique_names(names: Sequence[Any]) -> list[str]:
    """Names that can stand for rewards: identifiers, each once."""
    found: list[str] = []
    for name in names:
        base = "".join(c if c.isalnum() or c == "_" else "_" for c in str(name)) or "reward"
        base = base if base.isidentifier() else f"reward_{base}"
        unique, count = base, 1
        while unique in found or unique in ("method", "options", "levels"):
            count += 1
            unique = f"{base}_{count}"
        found.append(unique)
    return found


def weights_of(trainer: Any) -> list[float]:
    """A trainer's weights by position, exact: TRL keeps them in float32, where 0.7 is 0.699999988."""
    kept: list[float] = trainer.reward_weights.tolist()
    given = getattr(trainer.args, "reward_weights", None) or ()
    single = np.asarray(given, dtype=np.float32).tolist()
    # Environments add weights after the given ones; whatever else a trainer did to its tensor counts.
    return [float(given[k]) if k < len(single) and single[k] == value else value for k, value in enumerate(kept)]


def objective_of(
    trainer: Any, names: Sequence[str], method: str, options: Mapping[str, Any] | None, gates: Mapping[str, str] | None
) -> Objective:
    """An objective of a trainer's own reward functions and weights."""
    for name in gates or {}:
        if name not in names:
            raise Error(f"gates names {name!r}, but the rewards are {list(names)}")
    weights = weights_of(trainer)
    rewards: dict[str, Any] = {
        name: Reward(function, weight=weight, given=(gates or {}).get(name))
        for name, function, weight in zip(names, trainer.reward_funcs, weights, strict=True)
    }
    return Objective(method=method, options=options, **rewards)


def with_environments(objective: Objective, trainer: Any, names: Sequence[str]) -> Objective:
    """The objective with a reward more for each column that TRL's environments add (``get_reward``).

    Raises:
        Error: the trainer has a reward that the objective does not name, or the other way round.
    """
    extra: dict[str, Reward] = {}
    for k, name in enumerate(names):
        if name in objective.rewards:
            continue
        function = trainer.reward_funcs[k]
        # TRL makes the functions of environments inside its own __init__.
        if "__init__.<locals>.get_reward" not in getattr(function, "__qualname__", ""):
            raise Error(f"the trainer has the reward {name!r}, but the objective has {objective.names}: name it there, "
                        "with weight 0 if it is not to count")  # fmt: skip
        extra[name] = Reward(function, weight=weights_of(trainer)[k])
    for name in objective.names:
        if name not in names:
            raise Error(f"the objective has the reward {name!r}, which the trainer has not{nearest(name, names)}")
    if not extra:
        return objective
    rewards: dict[str, Any] = {**objective.rewards, **extra}
    config = objective.config()
    return Objective(method=config["method"], options=config["options"], levels=config.get("levels"), **rewards)
