"""gdpo's block in a framework's config, where that framework scores the rewards, as an objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.objective import Objective, Reward

KEYS = ("rewards", "weights", "gates", "levels", "method", "options", "masked", "rollouts_folder", "rollouts_text",
        "task")  # fmt: skip
ENTRY = ("weight", "given", "failing", "floor", "range", "scale")


@dataclass
class Settings:
    """What a run asks of gdpo."""

    objective: Objective | None
    """None where the block names no rewards: then each one of the first batch counts with weight 1."""
    block: Mapping[str, Any]
    where: str
    masked: str
    """What becomes of rollouts without a token in the loss: "out" of mean and spread of their group, or "count"."""
    rollouts_folder: str | None
    """Relative to the framework's log folder; None: no table."""
    rollouts_text: bool
    task: str

    @classmethod
    def from_block(cls, block: Any, where: str) -> Settings:
        """From the block itself.

        Args:
            block: a mapping: rewards, weights, gates, levels, method, options and the fields above.
            where: its place in the framework's config, for messages.

        Raises:
            Error: an unknown key, reward or option.
        """
        if not isinstance(block, Mapping):
            raise Error(f"{where} is {block!r}, but a mapping was expected")
        for key in block:
            if key not in KEYS:
                raise Error(f"{where} has no key {key!r}{nearest(str(key), KEYS)}")
        masked = block.get("masked", "out")
        if masked not in ("out", "count"):
            raise Error(f"{where}.masked is {masked!r}{nearest(str(masked), ['out', 'count'])}")
        text = block.get("rollouts_text", True)
        if not isinstance(text, bool):
            raise Error(f"{where}.rollouts_text is {text!r}, but true or false was expected")
        folder = block.get("rollouts_folder", "rollouts")
        named = "rewards" in block or "weights" in block
        objective = _objective(block, _names(block, where), where) if named else None
        if objective is None:
            # A wrong method, option or gate is said now, and not at the first batch; gates need names.
            if block.get("gates") or block.get("levels"):
                raise Error(
                    f"{where} has gates or levels and no rewards: name them, such as rewards: [correct, format]"
                )
            Objective(method=block.get("method", "gdpo"), options=block.get("options"), any=_Read("any"))
        return cls(objective, block, where, masked, str(folder) if folder else None, text, str(block.get("task") or ""))

    def bind(self, names: Sequence[str]) -> Objective:
        """The objective for a batch that has components ``names``.

        Raises:
            Error: the config names a reward that the batch has not, or the batch has one that the config does not name.
        """
        if self.objective is None:
            self.objective = _objective(self.block, {name: {} for name in names}, self.where)
        for name in self.objective.names:
            if name not in names:
                raise Error(f"{self.where} names the reward {name!r}, but this batch has the components "
                            f"{list(names)}{nearest(name, names)}")  # fmt: skip
        for name in names:
            if name not in self.objective.rewards:
                raise Error(f"this batch has the component {name!r}, but {self.where} has the rewards "
                            f"{self.objective.names}: name it there, with weight 0 if it is not to count")  # fmt: skip
        return self.objective


class _Read:
    """Stands for a reward that the framework has scored already."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, completions: Any, **columns: Any) -> Any:
        raise Error(f"reward {self.__name__!r} is read from the framework's batch, so there is nothing to call")


def _names(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = block.get("rewards")
    given = list(block.get("weights") or {}) if given is None else given
    if isinstance(given, Sequence) and not isinstance(given, str):
        given = {name: {} for name in given}
    if not isinstance(given, Mapping) or not given:
        raise Error(f"{where}.rewards is {given!r}, but the names of reward components were expected, such as "
                    "[correctness, format]")  # fmt: skip
    return {str(name): entry for name, entry in given.items()}


def _objective(block: Mapping[str, Any], given: Mapping[str, Any], where: str) -> Objective:
    weights, gates = block.get("weights") or {}, block.get("gates") or {}
    for key, value in (("weights", weights), ("gates", gates)):
        if not isinstance(value, Mapping):
            raise Error(f"{where}.{key} is {value!r}, but a mapping by the rewards' names was expected")
        for name in value:
            if name not in given:
                raise Error(f"{where}.{key} names {name!r}, which is no reward{nearest(str(name), given)}")
    rewards: dict[str, Any] = {name: _reward(name, entry, weights, gates, where) for name, entry in given.items()}
    return Objective(method=block.get("method", "gdpo"), options=block.get("options"), levels=block.get("levels"),
                     **rewards)  # fmt: skip


def _reward(name: str, entry: Any, weights: Mapping[str, Any], gates: Mapping[str, Any], where: str) -> Reward:
    if name in ("method", "options", "levels"):
        raise Error(f"a reward is named {name!r}, which an objective needs for itself: rename it where it is scored")
    entry = {} if entry is None else entry
    entry = {"weight": entry} if isinstance(entry, int | float) else entry
    if not isinstance(entry, Mapping):
        raise Error(f"{where}.rewards.{name} is {entry!r}, but a weight or a mapping was expected")
    for key in entry:
        if key not in ENTRY:
            raise Error(f"{where}.rewards.{name} has no key {key!r}{nearest(str(key), ENTRY)}")
    for key, elsewhere, other in (("weight", weights, "weights"), ("given", gates, "gates")):
        if key in entry and name in elsewhere:
            raise Error(f"{where} says the {key} of {name!r} in rewards and in {other}; once is expected")
    bounds = entry.get("range")
    return Reward(
        _Read(name), weight=entry.get("weight", weights.get(name, 1.0)), given=entry.get("given", gates.get(name)),
        failing=entry.get("failing", "floor"), floor=entry.get("floor"), scale=entry.get("scale"),
        range=None if bounds is None else tuple(bounds), config={"reward": name},
    )  # fmt: skip
