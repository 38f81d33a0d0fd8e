"""gdpo's block in NeMo-RL's config, ``grpo.adv_estimator.gdpo``, as an objective. Needs no NeMo-RL."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdpo.adapters.verl_config import get, plain
from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.objective import Objective, Reward

log = logging.getLogger("gdpo")
WHERE = "grpo.adv_estimator.gdpo"
KEYS = ("rewards", "weights", "gates", "levels", "method", "options", "masked", "rollouts_folder", "rollouts_text",
        "task")  # fmt: skip
ENTRY = ("weight", "given", "failing", "floor", "range", "scale")


@dataclass
class Settings:
    """What a run asks of gdpo."""

    objective: Objective | None
    """None where the block names no rewards: then each one of the first batch counts with weight 1."""
    block: Mapping[str, Any]
    masked: str
    """What becomes of rollouts without a token in the loss: "out" of mean and spread of their group, or "count"."""
    rollouts_folder: str | None
    """Relative to NeMo-RL's log folder; None: no table."""
    rollouts_text: bool
    task: str

    @classmethod
    def from_config(cls, estimator: Any) -> Settings:
        """From ``grpo.adv_estimator``, a mapping or NeMo-RL's own object.

        Raises:
            Error: an unknown key, reward or option, or a setting of the built-in estimator that would be lost.
        """
        block = plain(get(estimator, "gdpo")) or {}
        if not isinstance(block, Mapping):
            raise Error(f"{WHERE} is {block!r}, but a mapping was expected")
        for key in block:
            if key not in KEYS:
                raise Error(f"{WHERE} has no key {key!r}{nearest(str(key), KEYS)}")
        _check_beside(estimator, block)
        masked = block.get("masked", "out")
        if masked not in ("out", "count"):
            raise Error(f"{WHERE}.masked is {masked!r}{nearest(str(masked), ['out', 'count'])}")
        text = block.get("rollouts_text", True)
        if not isinstance(text, bool):
            raise Error(f"{WHERE}.rollouts_text is {text!r}, but true or false was expected")
        folder = block.get("rollouts_folder", "rollouts")
        named = "rewards" in block or "weights" in block
        objective = _objective(block, _names(block)) if named else None
        if objective is None:
            # A wrong method, option or gate is said now, and not at the first batch; gates need names.
            if block.get("gates") or block.get("levels"):
                raise Error(
                    f"{WHERE} has gates or levels and no rewards: name them, such as rewards: [correct, format]"
                )
            Objective(method=block.get("method", "gdpo"), options=block.get("options"), any=_Read("any"))
        return cls(objective, block, masked, str(folder) if folder else None, text, str(block.get("task") or ""))

    def bind(self, names: Sequence[str]) -> Objective:
        """The objective for a batch that has components ``names``.

        Raises:
            Error: the config names a reward that the batch has not, or the batch has one that the config does not name.
        """
        if self.objective is None:
            self.objective = _objective(self.block, {name: {} for name in names})
        for name in self.objective.names:
            if name not in names:
                raise Error(f"{WHERE} names the reward {name!r}, but this batch has the components "
                            f"{list(names)}{nearest(name, names)}")  # fmt: skip
        for name in names:
            if name not in self.objective.rewards:
                raise Error(f"this batch has the component {name!r}, but {WHERE} has the rewards "
                            f"{self.objective.names}: name it there, with weight 0 if it is not to count")  # fmt: skip
        return self.objective


class _Read:
    """Stands for a reward that NeMo-RL's environment has scored already."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, completions: Any, **columns: Any) -> Any:
        raise Error(f"reward {self.__name__!r} is read from NeMo-RL's batch, so there is nothing to call")


def _check_beside(estimator: Any, block: Mapping[str, Any]) -> None:
    if get(estimator, "reward_weights") is not None:
        raise Error(
            "grpo.adv_estimator.reward_weights is a list, which NeMo-RL gives to the rewards in the alphabetical order "
            f"of their names: remove it, and write {WHERE}.weights by name, such as {{correctness: 1.0, format: 0.5}}"
        )
    if get(estimator, "normalize_rewards", True) is False:
        raise Error(f"grpo.adv_estimator.normalize_rewards is false, which belongs to the built-in estimator: set it "
                    f"to true, and {WHERE}.options.scale=none to divide by no spread")  # fmt: skip
    options = block.get("options") or {}
    if get(estimator, "use_leave_one_out_baseline", False) and "baseline" not in options:
        log.warning(
            "grpo.adv_estimator.use_leave_one_out_baseline is true, NeMo-RL's default, and not used: the paper's "
            "baseline is the group's mean. %s.options.baseline=leave-one-out asks for the other", WHERE,
        )  # fmt: skip


def _names(block: Mapping[str, Any]) -> dict[str, Any]:
    given = block.get("rewards")
    given = list(block.get("weights") or {}) if given is None else given
    if isinstance(given, Sequence) and not isinstance(given, str):
        given = {name: {} for name in given}
    if not isinstance(given, Mapping) or not given:
        raise Error(f"{WHERE}.rewards is {given!r}, but the names of reward components were expected, such as "
                    "[correctness, format]")  # fmt: skip
    return {str(name): entry for name, entry in given.items()}


def _objective(block: Mapping[str, Any], given: Mapping[str, Any]) -> Objective:
    weights, gates = block.get("weights") or {}, block.get("gates") or {}
    for key, value in (("weights", weights), ("gates", gates)):
        if not isinstance(value, Mapping):
            raise Error(f"{WHERE}.{key} is {value!r}, but a mapping by the rewards' names was expected")
        for name in value:
            if name not in given:
                raise Error(f"{WHERE}.{key} names {name!r}, which is no reward{nearest(str(name), given)}")
    rewards: dict[str, Any] = {name: _reward(name, entry, weights, gates) for name, entry in given.items()}
    return Objective(method=block.get("method", "gdpo"), options=block.get("options"), levels=block.get("levels"),
                     **rewards)  # fmt: skip


def _reward(name: str, entry: Any, weights: Mapping[str, Any], gates: Mapping[str, Any]) -> Reward:
    if name in ("method", "options", "levels"):
        raise Error(f"a reward is named {name!r}, which an objective needs for itself: rename it in the environment")
    entry = {} if entry is None else entry
    entry = {"weight": entry} if isinstance(entry, int | float) else entry
    if not isinstance(entry, Mapping):
        raise Error(f"{WHERE}.rewards.{name} is {entry!r}, but a weight or a mapping was expected")
    for key in entry:
        if key not in ENTRY:
            raise Error(f"{WHERE}.rewards.{name} has no key {key!r}{nearest(str(key), ENTRY)}")
    for key, elsewhere, where in (("weight", weights, "weights"), ("given", gates, "gates")):
        if key in entry and name in elsewhere:
            raise Error(f"{WHERE} says the {key} of {name!r} in rewards and in {where}; once is expected")
    bounds = entry.get("range")
    return Reward(
        _Read(name), weight=entry.get("weight", weights.get(name, 1.0)), given=entry.get("given", gates.get(name)),
        failing=entry.get("failing", "floor"), floor=entry.get("floor"), scale=entry.get("scale"),
        range=None if bounds is None else tuple(bounds), config={"reward": name},
    )  # fmt: skip
