"""How advantages are made of a dump's scores: method, options, weights, gates, levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gdpo.audit.chunks import Chunk, Floats
from gdpo.core.compute import COMMON, Estimate, estimate
from gdpo.core.errors import Error
from gdpo.core.estimators import method_of
from gdpo.core.inputs import nearest
from gdpo.levels import NORMALISE_FIRST, level_weights
from gdpo.objective import Objective, Reward
from gdpo.weights import Progress


@dataclass(frozen=True)
class Setting:
    """One way to turn scores into advantages.

    Args:
        names: the R rewards.
        method: a registered estimator.
        weights: by name; 1 for a reward that is not named.
        gates: reward -> condition, such as ``{"length": "correct >= 1"}``.
        floors: reward -> what a closed gate gives; the lower bound, or 0, where not named.
        failing: reward -> "floor" or "missing", see ``gdpo.objective.Reward``.
        bounds: reward -> (low, high).
        options: of the estimator.
        levels: as in an objective.
        moving: take each rollout's weights from the dump's ``weight/NAME`` columns where it has them.
    """

    names: tuple[str, ...]
    method: str = "gdpo"
    weights: Mapping[str, float] = field(default_factory=dict)
    gates: Mapping[str, str] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)
    failing: Mapping[str, str] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    levels: Mapping[str, Any] = field(default_factory=dict)
    moving: bool = True

    def __post_init__(self) -> None:
        method_of(self.method)
        for what in ("weights", "gates", "floors", "failing", "bounds"):
            for name in getattr(self, what):
                if name not in self.names:
                    raise Error(f"{what}.{name} names {name!r}, which is no reward{nearest(str(name), self.names)}")
        self.objective()

    def objective(self) -> Objective:
        """The same as an objective whose functions are never called. Checks gates, levels and options."""
        known = method_of(self.method)
        rewards = {
            name: Reward(
                _never_called, weight=self.weight(name), given=self.gates.get(name), floor=self.floors.get(name),
                range=self.bounds.get(name), failing=self.failing.get(name, "floor"),  # type: ignore[arg-type]
            )
            for name in self.names
        }  # fmt: skip
        levels = self.levels if known.family == NORMALISE_FIRST else None
        if self.moving and not any(self.weight_list()):  # schedules that begin at 0: the dump's own weights count
            rewards = {name: replace(reward, weight=1.0) for name, reward in rewards.items()}
        return Objective(method=self.method, options=self.usable_options(), levels=levels, **rewards)

    def weight(self, name: str) -> float:
        """The constant weight of a reward."""
        return float(self.weights.get(name, 1.0))

    def weight_list(self) -> list[float]:
        """[R]."""
        return [self.weight(name) for name in self.names]

    def usable_options(self) -> dict[str, Any]:
        """Those options that the method takes."""
        known = method_of(self.method)
        return {key: value for key, value in self.options.items() if key in COMMON or key in known.options}

    def with_method(self, method: str) -> Setting:
        """The same under another method."""
        return replace(self, method=method)

    def gated(self, scores: Floats) -> Floats:
        """[B, R] scores behind their gates."""
        return np.asarray(self.objective().gate(scores)) if self.gates else scores

    def rollout_weights(self, chunk: Chunk) -> Floats | list[float]:
        """[B, R] weights as the dump has them, or [R]."""
        columns = [chunk.column(f"weight/{name}") if self.moving else None for name in self.names]
        if all(column is None for column in columns):
            return self.weight_list()
        rows = len(chunk.scores)
        filled = [
            np.full(rows, self.weight(name)) if column is None else np.where(np.isnan(column), 0.0, column)
            for name, column in zip(self.names, columns, strict=True)
        ]
        matrix = np.stack(filled, 1)
        return [float(w) for w in matrix[0]] if (matrix == matrix[0]).all() and matrix.any() else matrix

    def estimate(self, chunk: Chunk, gated: Floats | None = None) -> Estimate:
        """Advantages of the chunk's rollouts and their parts, a step at a time."""
        gated = self.gated(chunk.scores) if gated is None else gated
        weights: Any = self.rollout_weights(chunk)
        options = self.usable_options()
        labels = chunk.batch_ids
        if self.levels and method_of(self.method).family == NORMALISE_FIRST and isinstance(weights, list):
            levels = self.objective().levels
            weights = level_weights(levels, gated, chunk.group, weights, self.names, {**options, "batch_ids": labels})
        several = {"batch_ids": labels} if len(chunk.steps) > 1 else {}
        bounds = dict(self.bounds) or None
        return estimate(
            gated, chunk.group, self.method, weights, names=list(self.names), bounds=bounds, **several, **options
        )


def _never_called(completions: Sequence[Any], **columns: Any) -> list[None]:
    raise AssertionError("scores come from the dump")


def from_objective(names: Sequence[str], config: Mapping[str, Any], weights: Mapping[str, float]) -> Setting:
    """The setting of a run whose dump holds its objective, as ``Objective.config`` writes it.

    Schedules count with their value at the start; the dump's own ``weight/NAME`` columns go before.

    Args:
        names: rewards of the dump.
        config: ``{method, options, levels, rewards}``.
        weights: by name, where the dump or the caller says them; they go before the objective's.
    """
    parts: dict[str, Any] = {"gates": {}, "floors": {}, "failing": {}, "bounds": {}}
    found: dict[str, float] = {}
    for name, entry in (config.get("rewards") or {}).items():
        if name not in names or not isinstance(entry, Mapping):
            continue
        bounds = _bounds(entry.get("range"))
        values = {"gates": entry.get("given"), "floors": entry.get("floor"), "failing": entry.get("failing"),
                  "bounds": bounds}  # fmt: skip
        for what, value in values.items():
            if value is not None:
                parts[what][name] = value
        found[name] = _start(entry.get("weight", 1.0), name)
    return Setting(
        tuple(names), method=str(config.get("method", "gdpo")), weights={**found, **weights},
        options=dict(config.get("options") or {}), levels=dict(config.get("levels") or {}), **parts,
    )  # fmt: skip


def _start(weight: Any, name: str) -> float:
    from gdpo.weights import as_schedule

    return float(as_schedule(weight, name).value(Progress()))


def _bounds(written: Any) -> tuple[float, float] | None:
    """As gdpo writes them; None where a dump holds something else. No reward is built to learn its range."""
    try:
        low, high = (float(bound) for bound in written)
    except (TypeError, ValueError):
        return None
    return (low, high) if low < high else None
