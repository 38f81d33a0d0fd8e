"""gdpo's block in verl's config, ``algorithm.gdpo``, as an objective. Needs no verl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gdpo.core.errors import Error
from gdpo.core.estimators import method_of
from gdpo.core.inputs import nearest
from gdpo.levels import NORMALISE_FIRST
from gdpo.objective import Objective, Reward

KEYS = ("rewards", "weights", "gates", "levels", "method", "options", "kl", "filter", "rollouts_folder",
        "rollouts_text", "task", "strict")  # fmt: skip
ENTRY = ("weight", "given", "failing", "floor", "range", "scale")
KL = "kl"
"""Name of the reward that ``use_kl_in_reward`` becomes."""


@dataclass(frozen=True)
class Settings:
    """What a run asks of gdpo."""

    objective: Objective
    names: list[str]
    """Rewards to be read from ``reward_extra_info``."""
    kl: Literal["reward", "ignore", "off"]
    """What becomes of verl's penalty in the reward; "off" where the run has none."""
    filter: str
    """What makes a group worth keeping under ``filter_groups``: "combined", or a reward that varies in it."""
    rollouts_folder: Path | None
    rollouts_text: bool
    task: str
    strict: bool

    @classmethod
    def from_config(cls, config: Any) -> Settings | None:
        """From verl's whole config; None where it has no ``algorithm.gdpo``.

        Raises:
            Error: an unknown key, reward or option, or settings beside the block that contradict it.
        """
        algorithm = plain(get(config, "algorithm")) or {}
        block = algorithm.get("gdpo")
        if block is None:
            return None
        if not isinstance(block, Mapping):
            raise Error(f"algorithm.gdpo is {block!r}, but a mapping with rewards was expected")
        for key in block:
            if key not in KEYS:
                raise Error(f"algorithm.gdpo has no key {key!r}{nearest(str(key), KEYS)}")
        _check_beside(algorithm)
        rewards = _rewards(block)
        names = list(rewards)
        kl = _kl(block, bool(algorithm.get("use_kl_in_reward")), names)
        if kl == "reward":
            first = method_of(block.get("method", "gdpo")).family == NORMALISE_FIRST
            rewards[KL] = Reward(_Read(KL), scale="none" if first else None, config={"reward": KL})
        options = block.get("options") or {}
        method, levels = block.get("method", "gdpo"), block.get("levels")
        objective = Objective(method=method, options=options, levels=levels, **rewards)
        chosen = block.get("filter", "combined")
        if chosen != "combined" and chosen not in names:
            raise Error(f"algorithm.gdpo.filter is {chosen!r}{nearest(str(chosen), ['combined', *names])}")
        return cls(
            objective, names, kl, chosen, _folder(block, config), _flag(block, "rollouts_text"),
            str(block.get("task") or ""), _flag(block, "strict"),
        )  # fmt: skip


class _Read:
    """Stands for a reward that verl's own reward function has scored already."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, completions: Any, **columns: Any) -> Any:
        raise Error(f"reward {self.__name__!r} is read from verl's reward_extra_info, so there is nothing to call")


def get(config: Any, key: str, default: Any = None) -> Any:
    """An entry of a mapping, an OmegaConf node or an object; ``default`` where there is none."""
    if config is None:
        return default
    found = config.get(key, default) if hasattr(config, "get") else getattr(config, key, default)
    return default if found is None else found


def plain(node: Any) -> Any:
    """An OmegaConf node, or a dataclass of verl's, as plain Python."""
    if type(node).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        return OmegaConf.to_container(node, resolve=True)
    if hasattr(node, "__dataclass_fields__"):
        return {
            name: plain(getattr(node, name)) for name in (*node.__dataclass_fields__, "gdpo") if hasattr(node, name)
        }
    return node


def _check_beside(algorithm: Mapping[str, Any]) -> None:
    chosen = algorithm.get("adv_estimator")
    chosen = getattr(chosen, "value", chosen)
    if chosen != "gdpo":
        raise Error(
            f"algorithm.adv_estimator is {chosen!r} beside algorithm.gdpo, but 'gdpo' was expected (with which verl "
            "stops, rather than train by another method, should gdpo not be loaded): set algorithm.adv_estimator=gdpo; "
            "the method itself is algorithm.gdpo.method"
        )
    for key in ("gdpo_reward_keys", "gdpo_reward_weights"):
        if algorithm.get(key) is not None:
            raise Error(f"algorithm.{key} belongs to verl's built-in gdpo and stands beside algorithm.gdpo: remove it; "
                        "names and weights are algorithm.gdpo.rewards and algorithm.gdpo.weights")  # fmt: skip


def _rewards(block: Mapping[str, Any]) -> dict[str, Reward]:
    """The block's rewards by name, with what ``weights`` and ``gates`` say of them."""
    given, weights, gates = block.get("rewards"), block.get("weights") or {}, block.get("gates") or {}
    for key, value in (("weights", weights), ("gates", gates)):
        if not isinstance(value, Mapping):
            raise Error(f"algorithm.gdpo.{key} is {value!r}, but a mapping by the rewards' names was expected")
    if given is None:
        given = list(weights)
    if isinstance(given, Sequence) and not isinstance(given, str):
        given = {name: {} for name in given}
    if not isinstance(given, Mapping) or not given:
        raise Error(f"algorithm.gdpo.rewards is {given!r}, but names in reward_extra_info were expected, such "
                    "as [correct, format]")  # fmt: skip
    for key, value in (("weights", weights), ("gates", gates)):
        for name in value:
            if name not in given:
                raise Error(f"algorithm.gdpo.{key} names {name!r}, which is no reward{nearest(str(name), given)}")
    return {str(name): _reward(str(name), entry, weights, gates) for name, entry in given.items()}


def _reward(name: str, entry: Any, weights: Mapping[str, Any], gates: Mapping[str, Any]) -> Reward:
    if name in ("method", "options", "levels"):
        raise Error(
            f"a reward is named {name!r}, which an objective needs for itself: rename it in the reward function"
        )
    entry = {} if entry is None else entry
    entry = {"weight": entry} if isinstance(entry, int | float) else entry
    if not isinstance(entry, Mapping):
        raise Error(f"algorithm.gdpo.rewards.{name} is {entry!r}, but a weight or a mapping was expected")
    for key in entry:
        if key not in ENTRY:
            raise Error(f"algorithm.gdpo.rewards.{name} has no key {key!r}{nearest(str(key), ENTRY)}")
    for key, elsewhere, where in (("weight", weights, "weights"), ("given", gates, "gates")):
        if key in entry and name in elsewhere:
            raise Error(f"algorithm.gdpo says the {key} of {name!r} in rewards and in {where}; once is expected")
    bounds = entry.get("range")
    return Reward(
        _Read(name), weight=entry.get("weight", weights.get(name, 1.0)), given=entry.get("given", gates.get(name)),
        failing=entry.get("failing", "floor"), floor=entry.get("floor"), scale=entry.get("scale"),
        range=None if bounds is None else tuple(bounds), config={"reward": name},
    )  # fmt: skip


def _kl(block: Mapping[str, Any], in_reward: bool, names: Sequence[str]) -> Literal["reward", "ignore", "off"]:
    chosen = block.get("kl", "reward")
    if chosen not in ("reward", "ignore"):
        raise Error(f"algorithm.gdpo.kl is {chosen!r}{nearest(str(chosen), ['reward', 'ignore'])}")
    if not in_reward:
        return "off"
    if chosen == "reward" and KL in names:
        raise Error(f"a reward is named {KL!r}, which algorithm.use_kl_in_reward needs for its penalty: rename it, or "
                    "set algorithm.gdpo.kl=ignore")  # fmt: skip
    return "reward" if chosen == "reward" else "ignore"


def _folder(block: Mapping[str, Any], config: Any) -> Path | None:
    """Where the rollout table goes; relative to the run's own folder."""
    given = block.get("rollouts_folder")
    if given is None:
        return None
    folder = Path(str(given)).expanduser()
    home = get(get(config, "trainer"), "default_local_dir")
    return folder if folder.is_absolute() or home is None else Path(str(home)) / folder


def _flag(block: Mapping[str, Any], key: str) -> bool:
    value = block.get(key, True)
    if not isinstance(value, bool):
        raise Error(f"algorithm.gdpo.{key} is {value!r}, but true or false was expected")
    return value
