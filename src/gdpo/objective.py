"""Objective: named rewards with weights and gates, from scores to advantages.

One object says what is trained for. It scores completions (``score``), turns scores into advantages (``advantages``:
gates, weights, the method) and lets what moves move (``observe``). Python and a recipe's YAML build the same object.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from gdpo import rewards as reward_room
from gdpo.core.backend import Array, cast_like, column, is_tensor, namespace
from gdpo.core.compute import COMMON, Estimate, estimate
from gdpo.core.errors import Error
from gdpo.core.estimators import method_of
from gdpo.core.inputs import nearest
from gdpo.expressions import Condition
from gdpo.weights import Progress, Schedule, as_schedule

_SETTINGS = ("weight", "given", "range", "floor", "reward", "args")


@dataclass
class Reward:
    """One named reward of an objective.

    Args:
        function: a reward in TRL's convention, ``function(completions, **columns) -> list[float | None]``.
        weight: a number (negative: a penalty) or a schedule such as ``gdpo.weights.ramp(0.2, 1.0, steps=100)``.
        given: a gate, such as ``"correct >= 1"`` over the raw scores of the objective's rewards. Where it does not hold
            the reward is set to its floor before any normalisation (GDPO, equation 8); where the gating reward is
            missing, this one is missing too.
        range: (low, high) of the scores; taken from the function where it declares one.
        floor: what a failed gate gives: by default the declared minimum, or 0 where none is declared.
    """

    function: Callable[..., Any]
    weight: float | Schedule | Mapping[str, Any] = 1.0
    given: str | None = None
    range: tuple[float, float] | None = None
    floor: float | None = None
    config: Mapping[str, Any] | None = None
    """How a recipe wrote the function, where one did."""


class Objective:
    """Named rewards, their weights and gates, and the method that makes advantages of them.

    Args:
        method: a registered estimator.
        options: options of the estimator, such as ``{"clip": 3}``.
        rewards: name = ``Reward`` (or a reward function, with weight 1).

    Raises:
        Error: no reward, an unknown method, a gate that names no reward, a weight that is no number.
    """

    def __init__(self, *, method: str = "gdpo", options: Mapping[str, Any] | None = None, **rewards: Any) -> None:
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
        self.names = list(self.rewards)
        for name, gate in self.gates.items():
            for other in gate.names:
                if other not in self.rewards:
                    raise Error(f"the gate of {name!r} names {other!r}, which is no reward{nearest(other, self.names)}")
        self._check_options()

    def functions(self) -> list[Callable[..., Any]]:
        """The reward functions under the objective's names (``__name__``), for trainers that take a list."""
        return [_named(reward.function, name) for name, reward in self.rewards.items()]

    def score(self, completions: Sequence[Any], **columns: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
        """[B, R] raw scores, NaN where a reward does not apply. Gates are not applied here. Async rewards run together.

        Raises:
            Error: a reward raised, or returned another number of scores than there are completions, or no number.
        """
        results: dict[str, Any] = {}
        waiting: dict[str, Any] = {}
        for name, reward in self.rewards.items():
            result = _call(name, reward.function, completions, **columns)
            (waiting if inspect.isawaitable(result) else results)[name] = result
        if waiting:
            results |= _await_all(waiting)
        return np.stack([_scores(name, results[name], len(completions)) for name in self.names], axis=1)

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
        weights = [self.weights[name].value(progress) for name in self.names]
        known = method_of(method or self.method)
        options = {k: v for k, v in self.options.items() if method is None or k in COMMON or k in known.options}
        return estimate(
            self.gate(scores), groups, known.name, weights, names=self.names, bounds=self.bounds(), **options, **inputs
        )

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
            filled = xp.where(holds == 1, value, self.floor(name))
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
            extra = {"given": reward.given, "floor": reward.floor, "range": reward.range and list(reward.range)}
            rewards[name] = entry | {key: value for key, value in extra.items() if value is not None}
        return {"method": self.method, "options": self.options, "rewards": rewards}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, folder: Path | None = None) -> Objective:
        """From a recipe's mapping: ``{method, options, rewards: {name: {reward, weight, given, ...options}}}``.

        Args:
            folder: what a reward given as ``file.py:function`` is relative to; the working directory where None.

        Raises:
            Error: an unknown key, reward or option; the message names the nearest known one.
        """
        for key in config:
            if key not in ("method", "options", "rewards"):
                raise Error(f"objective has no key {key!r}{nearest(str(key), ('method', 'options', 'rewards'))}")
        rewards = config.get("rewards")
        if not isinstance(rewards, Mapping) or not rewards:
            raise Error(f"objective has rewards={rewards!r}, but a mapping from names to rewards was expected")
        built = {str(name): _from_config(str(name), entry, folder) for name, entry in rewards.items()}
        for name in built:
            if not name.isidentifier() or name in ("method", "options"):
                raise Error(f"a reward is named {name!r}, but letters, digits and _ were expected (no keyword)")
        return cls(method=config.get("method", "gdpo"), options=config.get("options") or {}, **built)

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

    def to_yaml(self) -> str:
        """``config`` as YAML."""
        return str(yaml.safe_dump(self.config(), sort_keys=False, allow_unicode=True))

    def _check_options(self) -> None:
        """Run the method once on two rollouts, so that a wrong option is an error now and not at the first step."""
        for name in ("names", "bounds", "include", "rollouts", "batch_ids", "lengths", "running"):
            if name in self.options:
                raise Error(f"option {name!r} belongs to a batch or a reward, not to the objective's options")
        self.advantages(np.zeros((2, len(self.names))), 2, lengths=np.ones(2))


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
        floor=entry.get("floor"),
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


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        async def asynchronous(completions: Any, **columns: Any) -> Any:
            try:
                return _counted(name, await function(completions, **columns), len(completions))
            except Error:
                raise
            except Exception as error:
                raise Error(f"reward {name!r} raised {type(error).__name__}: {error}") from error

        named: Callable[..., Any] = asynchronous
    else:

        def synchronous(completions: Any, **columns: Any) -> Any:
            return _counted(name, _call(name, function, completions, **columns), len(completions))

        named = synchronous
    update_wrapper(named, function, assigned=("__doc__",))
    named.__name__ = named.__qualname__ = name
    return named


def _call(name: str, function: Callable[..., Any], *args: Any, **columns: Any) -> Any:
    try:
        return function(*args, **columns)
    except Error:
        raise
    except Exception as error:
        raise Error(f"reward {name!r} raised {type(error).__name__}: {error}") from error


def _await_all(waiting: Mapping[str, Any]) -> dict[str, Any]:
    async def gather() -> list[Any]:
        return await asyncio.gather(*waiting.values(), return_exceptions=True)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        found = asyncio.run(gather())
    else:
        # Inside a running loop (a notebook, a server) asyncio.run is refused: use a loop in a thread of its own.
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(asyncio.run, gather()).result()
    results = dict(zip(waiting, found, strict=True))
    for name, result in results.items():
        if isinstance(result, BaseException):
            raise Error(f"reward {name!r} raised {type(result).__name__}: {result}") from result
    return results


def _counted(name: str, result: Any, count: int) -> Any:
    """``result`` as a list of one score a completion."""
    values = result.tolist() if hasattr(result, "tolist") else result
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != count:
        found = repr(values) if isinstance(values, str) or not isinstance(values, Sequence) else f"{len(values)} scores"
        raise Error(f"reward {name!r} returned {found}, but {count} were expected, one a completion")
    return values


def _scores(name: str, result: Any, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    values = _counted(name, result, count)
    try:
        return np.array([math.nan if value is None else float(value) for value in values], dtype=np.float64)
    except (TypeError, ValueError):
        odd = next(v for v in values if v is not None and not isinstance(v, int | float | np.number))
        raise Error(f"reward {name!r} returned {odd!r} for a completion, but a number or None was expected") from None
