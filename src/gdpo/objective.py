"""Objective: named rewards with weights and gates, from scores to advantages.

One object says what is trained for. It scores completions (``score``), turns scores into advantages (``advantages``:
gates, weights, the method) and lets what moves move (``observe``). Python and a recipe's YAML build the same object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from gdpo import rewards as reward_room
from gdpo.core.backend import Array, cast_like, column, is_tensor, namespace
from gdpo.core.compute import COMMON, Estimate, estimate
from gdpo.core.errors import Error
from gdpo.core.estimators import method_of
from gdpo.core.inputs import nearest
from gdpo.expressions import Condition
from gdpo.levels import NORMALISE_FIRST, check_levels, level_weights
from gdpo.rewards.scoring import named, score_matrix
from gdpo.weights import Progress, Schedule, as_schedule, constant

_SETTINGS = ("weight", "given", "failing", "range", "floor", "scale", "reward", "args")
_KEYS = ("method", "options", "levels", "rewards")


@dataclass
class Reward:
    """One named reward of an objective.

    Args:
        function: a reward in TRL's convention, ``function(completions, **columns) -> list[float | None]``.
        weight: a number (negative: a penalty) or a schedule such as ``gdpo.weights.ramp(0.2, 1.0, steps=100)``.
        given: a gate, such as ``"correct >= 1"`` over the raw scores of the objective's rewards. Where it does not hold
            the reward is set to its floor before any normalisation (GDPO, equation 8); where the gating reward is
            missing, this one is missing too. ``soft(correct, 0.2, 0.8)`` opens by degrees: the reward is that share of
            the way from its floor to its value.
        failing: what a rollout gets where the gate does not hold: "floor", or "missing" (the reward then compares the
            passing rollouts with each other only).
        range: (low, high) of the scores; taken from the function where it declares one.
        floor: what a failed gate gives: by default the declared minimum, or 0 where none is declared.
        scale: what divides this reward's deviation, "group", "batch" or "none", where the method normalises first;
            by default what the objective's options say.
    """

    function: Callable[..., Any]
    weight: float | Schedule | Mapping[str, Any] = 1.0
    given: str | None = None
    range: tuple[float, float] | None = None
    floor: float | None = None
    failing: Literal["floor", "missing"] = "floor"
    scale: Literal["group", "batch", "none"] | None = None
    config: Mapping[str, Any] | None = None
    """How a recipe wrote the function, where one did."""


class Objective:
    """Named rewards, their weights and gates, and the method that makes advantages of them.

    Args:
        method: a registered estimator.
        options: options of the estimator, such as ``{"clip": 3}``.
        levels: rewards that count as one, such as ``{"style": ["format", "concise"]}``: their weighted sum of
            normalised values is normalised in the group once more, so that the level weighs as much as one reward of
            weight 1 (or as ``{"style": {"rewards": [...], "weight": 0.5}}`` says). For methods that normalise first.
        rewards: name = ``Reward`` (or a reward function, with weight 1).

    Raises:
        Error: no reward, an unknown method, a gate that names no reward, a weight that is no number, constant weights
            that are all 0.
    """

    def __init__(
        self, *, method: str = "gdpo", options: Mapping[str, Any] | None = None,
        levels: Mapping[str, Any] | None = None, **rewards: Any,
    ) -> None:  # fmt: skip
        if not rewards:
            raise Error("an objective needs at least one reward, but none was given")
        known = method_of(method)
        self.method = known.origin or known.name
        self.options = dict(options or {})
        self.rewards: dict[str, Reward] = {}
        self.weights: dict[str, Schedule] = {}
        self.gates: dict[str, Condition] = {}
        for name, entry in rewards.items():
            reward = entry if isinstance(entry, Reward) else Reward(entry)
            if not callable(reward.function):
                raise Error(f"reward {name!r} is {reward.function!r}, but a function of completions was expected")
            self.rewards[name] = reward
            self.weights[name] = as_schedule(reward.weight, name)
            if reward.given is not None:
                self.gates[name] = Condition(reward.given)
            for what, value, choices in (
                ("failing", reward.failing, ("floor", "missing")),
                ("scale", reward.scale, ("group", "batch", "none", None)),
            ):
                if value not in choices:
                    raise Error(f"{what} of {name!r} is {value!r}{nearest(str(value), [k for k in choices if k])}")
        self.names = list(self.rewards)
        for name, gate in self.gates.items():
            for other in gate.names:
                if other not in self.rewards:
                    raise Error(f"the gate of {name!r} names {other!r}, which is no reward{nearest(other, self.names)}")
        if all(isinstance(weight, constant) and weight.weight == 0 for weight in self.weights.values()):
            raise Error("every weight is 0, but at least one reward must count")
        self._set_scales()
        self.levels = check_levels(levels, self.names, known)
        self._check_options()

    def functions(self) -> list[Callable[..., Any]]:
        """The reward functions under the objective's names (``__name__``), for trainers that take a list."""
        return [named(reward.function, name) for name, reward in self.rewards.items()]

    def unusable(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
        """Which rows of data have no gold value that a reward can use, by reward; rewards without any are left out.

        Args:
            rows: of one data set, the same columns in each.
        """
        columns = {key: [row.get(key) for row in rows] for key in (rows[0] if rows else ())}
        found: dict[str, list[int]] = {}
        for name, reward in self.rewards.items():
            usable = getattr(reward.function, "usable", None)
            if usable is None:
                continue
            try:
                bad = [row for row, good in enumerate(usable(**columns)) if not good]
            except KeyError as error:
                raise Error(f"reward {name!r} needs the column {error}, but the data has {sorted(columns)}") from None
            if bad:
                found[name] = bad
        return found

    def score(self, completions: Sequence[Any], **columns: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
        """[B, R] raw scores, NaN where a reward does not apply. Gates are not applied here. Async rewards run together.

        Raises:
            Error: a reward returned another number of scores than there are completions, or no number; or it raised on
                more than a tenth of the completions (where it raises on a few, those have no score, and a log says so).
        """
        return score_matrix({name: reward.function for name, reward in self.rewards.items()}, completions, columns)

    def advantages(
        self, scores: Any, groups: Any, progress: Progress | None = None, *, method: str | None = None, **inputs: Any
    ) -> Estimate:
        """Gates, then weights at ``progress``, then the method.

        Args:
            scores: [B, R] raw scores in the order of ``names``, NumPy or PyTorch, NaN where missing.
            groups: a group size, or ids [B].
            progress: where the run stands; the start where None.
            method: another method than the objective's, for a what-if on the same scores.
            inputs: further arguments of ``gdpo.advantages`` for this batch: ``include``, ``rollouts``, ``batch_ids``,
                ``lengths``, ``running``.

        Returns:
            The ``Estimate``; its ``rewards`` are the gated scores and its ``weights`` the weights at this step.
        """
        progress = progress or Progress()
        weights: Any = [self.weights[name].value(progress) for name in self.names]
        known = method_of(method or self.method)
        options = {k: v for k, v in self.options.items() if method is None or k in COMMON or k in known.options}
        gated = self.gate(scores)
        if not any(weights):  # schedules that are 0 at this step: every advantage is 0
            weights = namespace(gated).where(gated == gated, 0.0, 0.0)
        elif self.levels and known.family == NORMALISE_FIRST:
            weights = level_weights(self.levels, gated, groups, weights, self.names, {**options, **inputs})
        return estimate(gated, groups, known.name, weights, names=self.names, bounds=self.bounds(), **options, **inputs)

    def gate(self, scores: Any) -> Array:
        """[B, R] scores with every gated reward set to its floor where its gate does not hold."""
        matrix: Array = scores if is_tensor(scores) else np.asarray(scores, dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[1] != len(self.names):
            raise Error(f"scores has shape {tuple(matrix.shape)}, but [rollouts, {len(self.names)}] was expected")
        if not self.gates:
            return matrix
        xp = namespace(matrix)
        columns = {name: column(matrix, k) for k, name in enumerate(self.names)}
        gated = dict(columns)
        for name, gate in self.gates.items():
            holds, value = gate(columns), columns[name]
            if self.rewards[name].failing == "missing":
                filled = xp.where(holds > 0, value, xp.nan)
            else:
                floor = self.floor(name)
                filled = xp.where(holds == 1, value, xp.where(holds == 0, floor, floor + holds * (value - floor)))
            gated[name] = xp.where(xp.isnan(holds) | xp.isnan(value), xp.nan, filled)
        return cast_like(xp.stack([gated[name] for name in self.names], 1), matrix)

    def observe(self, scores: Any, estimate: Estimate, progress: Progress) -> None:
        """See a finished step: adaptive weights move here, and nowhere else."""
        for k, name in enumerate(self.names):
            self.weights[name].observe(column(scores, k), progress)

    def bounds(self) -> list[tuple[float, float] | None]:
        """(low, high) of each reward, None where none is declared."""
        return [_range(name, reward) for name, reward in self.rewards.items()]

    def floor(self, name: str) -> float:
        """What reward ``name`` is set to where its gate does not hold."""
        reward = self.rewards[name]
        bounds = _range(name, reward)
        return reward.floor if reward.floor is not None else bounds[0] if bounds else 0.0

    def state_dict(self) -> dict[str, Any]:
        """Everything that moved, in plain values that JSON can hold."""
        return {"version": 1, "weights": {name: schedule.state_dict() for name, schedule in self.weights.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            Error: a state of another version or of other rewards.
        """
        if state.get("version") != 1 or set(state.get("weights", {})) != set(self.names):
            raise Error(
                f"the saved state is of rewards {sorted(state.get('weights', {}))}, but {self.names} were expected"
            )
        for name, schedule in self.weights.items():
            schedule.load_state_dict(state["weights"][name])

    def config(self) -> dict[str, Any]:
        """The objective as a recipe writes it; a function that no recipe named stands as ``module:name``."""
        rewards: dict[str, Any] = {}
        for name, reward in self.rewards.items():
            function = reward.function
            origin = (
                f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__name__)}"
            )
            entry: dict[str, Any] = dict(reward.config) if reward.config is not None else {"reward": origin}
            entry["weight"] = self.weights[name].config()
            extra = {
                "given": reward.given, "failing": None if reward.failing == "floor" else reward.failing,
                "floor": reward.floor, "range": reward.range and list(reward.range), "scale": reward.scale,
            }  # fmt: skip
            rewards[name] = entry | {key: value for key, value in extra.items() if value is not None}
        options = {key: value for key, value in self.options.items() if key != "scale"}
        if self._scale is not None:
            options["scale"] = self._scale
        levels = {"levels": {name: level.config() for name, level in self.levels.items()}} if self.levels else {}
        return {"method": self.method, "options": options, **levels, "rewards": rewards}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, folder: Path | None = None) -> Objective:
        """From a recipe's mapping: ``{method, options, levels, rewards: {name: {reward, weight, given, ...options}}}``.

        Args:
            folder: what a reward given as ``file.py:function`` is relative to; the working directory where None.

        Raises:
            Error: an unknown key, reward or option; the message names the nearest known one.
        """
        for key in config:
            if key not in _KEYS:
                raise Error(f"objective has no key {key!r}{nearest(str(key), _KEYS)}")
        rewards = config.get("rewards")
        if not isinstance(rewards, Mapping) or not rewards:
            raise Error(f"objective has rewards={rewards!r}, but a mapping from names to rewards was expected")
        built = {str(name): _from_config(str(name), entry, folder) for name, entry in rewards.items()}
        for name in built:
            if not name.isidentifier() or name in ("method", "options", "levels"):
                raise Error(f"a reward is named {name!r}, but letters, digits and _ were expected (no keyword)")
        return cls(
            method=config.get("method", "gdpo"),
            options=config.get("options") or {},
            levels=config.get("levels"),
            **built,
        )

    @classmethod
    def from_yaml(cls, source: str | Path) -> Objective:
        """From YAML text or a ``Path`` to a file: the keys of ``from_config``, or a recipe with ``objective``."""
        folder = source.parent if isinstance(source, Path) else None
        try:
            config = yaml.safe_load(source.read_text(encoding="utf-8") if isinstance(source, Path) else source)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise Error(f"the objective cannot be read: {error}") from None
        if not isinstance(config, Mapping):
            raise Error(f"the objective is {config!r}, but a mapping with method and rewards was expected")
        return cls.from_config(config.get("objective", config), folder=folder)

    def record(self) -> dict[str, Any]:
        """``config`` with the range that each reward declares: for dumps, whose readers build no rewards."""
        config = self.config()
        for name, reward in self.rewards.items():
            bounds = _range(name, reward)
            if bounds is not None:
                config["rewards"][name]["range"] = list(bounds)
        return config

    def to_yaml(self) -> str:
        """``record`` as YAML."""
        return str(yaml.safe_dump(self.record(), sort_keys=False, allow_unicode=True))

    def _check_options(self) -> None:
        """Run the method once on two rollouts, so that a wrong option is an error now and not at the first step."""
        for name in ("names", "bounds", "include", "rollouts", "batch_ids", "lengths", "running"):
            if name in self.options:
                raise Error(f"option {name!r} belongs to a batch or a reward, not to the objective's options")
        self.advantages(np.zeros((2, len(self.names))), 2, lengths=np.ones(2))

    def _set_scales(self) -> None:
        """Put the rewards' own scales beside what the options say for the rest."""
        own = {name: reward.scale for name, reward in self.rewards.items() if reward.scale is not None}
        self._scale = self.options.get("scale")
        if not own:
            return
        rest = self._scale if isinstance(self._scale, Mapping) else dict.fromkeys(self.names, self._scale or "group")
        self.options["scale"] = {name: own.get(name, rest.get(name, "group")) for name in self.names}


__all__ = ["Objective", "Progress", "Reward"]


def _from_config(name: str, entry: object, folder: Path | None) -> Reward:
    if isinstance(entry, str):
        entry = {"reward": entry}
    if not isinstance(entry, Mapping):
        raise Error(f"reward {name!r} is {entry!r}, but a mapping with 'reward' (and its options) was expected")
    spec = entry.get("reward", name)
    options = {str(key): value for key, value in entry.items() if key not in _SETTINGS}
    function = reward_room.build(spec, *entry.get("args", ()), folder=folder, **options)
    bounds = entry.get("range")
    return Reward(
        function, weight=entry.get("weight", 1.0), given=entry.get("given"), range=tuple(bounds) if bounds else None,
        floor=entry.get("floor"), failing=entry.get("failing", "floor"), scale=entry.get("scale"),
        config={key: entry[key] for key in ("reward", "args", *options) if key in entry} | {"reward": spec},
    )  # fmt: skip


def _range(name: str, reward: Reward) -> tuple[float, float] | None:
    bounds = reward.range if reward.range is not None else getattr(reward.function, "range", None)
    if bounds is None:
        return None
    try:
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not low < high:
        raise Error(f"the range of {name!r} is {bounds!r}, but (low, high) with low < high was expected")
    return low, high
