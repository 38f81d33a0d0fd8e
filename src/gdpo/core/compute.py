"""From checked input to advantages: ``advantages``, ``estimate`` and ``validate``."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gdpo.core.backend import Array, as_matrix, as_vector, cast_like, is_tensor, namespace
from gdpo.core.batch import Batch, Combination, batch_normalize
from gdpo.core.errors import Error
from gdpo.core.estimators import method_of
from gdpo.core.groups import Groups
from gdpo.core.inputs import check_bounds, check_names, check_options, first_rows, nearest, weight_columns


@dataclass(frozen=True, eq=False)
class Estimate:
    """Advantages and how they came about. B rollouts, R rewards; results in the dtype and library of ``rewards``."""

    advantages: Array
    """[B]."""
    contributions: Array
    """[B, R], adding up to the advantages."""
    normalized: Array
    """[B, R] z_k of the reward as given (a penalty's sign is in its weight); 0 where missing or tied."""
    live: Array
    """[groups, R] bool: at least two values are present and they are not all equal."""
    mean: Array
    """[groups, R] float64 mean of the values present, NaN where none is."""
    std: Array
    """[groups, R] float64 standard deviation of the values present."""
    combined: Array
    """[B] the combined value before batch norm."""
    group: Array
    """[B] which row of ``live`` a rollout belongs to."""
    rewards: Array
    """[B, R] what it was computed from."""
    weights: Array
    """[R] or [B, R] float64."""
    names: list[str] = field(default_factory=list)
    method: str = ""


def advantages(
    rewards: Any, groups: Any, method: str = "gdpo", weights: Any = None, *, names: Any = None, eps: float = 1e-4,
    ddof: int = 1, clip: float | None = None, batch_norm: bool | None = None, baseline: str = "mean",
    scale: Any = "group", std_floor: float = 0.0, bounds: Any = None, include: Any = None, batch_ids: Any = None,
    rollouts: Any = None, **options: Any,
) -> Array:  # fmt: skip
    """One advantage a rollout, [B], from several rewards in groups.

    Args:
        rewards: [B, R] numbers of any real dtype, NaN (or None) where a reward does not apply to a rollout; NumPy,
            PyTorch, nested lists, or a mapping from name to [B].
        groups: a size G (B/G consecutive groups) or ids [B] of any integer or string kind, in any order, any sizes.
        method: a name of ``gdpo.core.estimators.METHODS``.
        weights: [R], [B, R] or a mapping by name; None is 1 for each. A negative weight makes a reward a penalty.
        names: names of the rewards, for messages, and for weights, bounds and scale given by name.
        eps: added to each standard deviation.
        ddof: 1 for the sample standard deviation (the papers), 0 for the population's.
        clip: limit (3 is usual) on each z_k, or on the result where the method sums first.
        batch_norm: whether to normalise over the batch at the end; None is the method's own way.
        baseline: "mean" or "leave-one-out" (the mean of the other rollouts).
        scale: what divides each reward's deviation: "group" (its spread in the group), "batch" (over the batch) or
            "none"; one for all, [R], or by name. Used by the methods that normalise first.
        std_floor: least value of a divisor (sigma_k + eps, and GRPO's).
        bounds: (low, high) of each reward, [R] or by name; used by the methods that need them.
        include: [B] bool; False is as if every reward of that rollout were missing (truncated, failed).
        batch_ids: [B] labels (tasks in mixed data): what is taken over the batch is taken per label.
        rollouts: [B] ids of rollouts that were split into several rows: each counts once, its rows share the advantage.
        options: what only this method takes.

    Returns:
        [B] in the floating dtype, library and device of ``rewards`` (float64 for integers, booleans and lists).
        A rollout without rewards, a group that is tied and a group of one get exactly 0.

    Raises:
        Error: shapes, names or options that do not fit; an infinite value where looking costs no synchronisation.
    """
    common = {
        "names": names, "eps": eps, "ddof": ddof, "clip": clip, "batch_norm": batch_norm, "baseline": baseline,
        "scale": scale, "std_floor": std_floor, "bounds": bounds, "include": include, "batch_ids": batch_ids,
        "rollouts": rollouts,
    }  # fmt: skip
    return _Run(rewards, groups, method, weights, common, options, keep=False).advantages()


def estimate(rewards: Any, groups: Any, method: str = "gdpo", weights: Any = None, **options: Any) -> Estimate:
    """The same as ``advantages`` (same arguments), with every reward's part in it; memory O(B * R)."""
    common = {name: options.pop(name) for name in list(options) if name in COMMON}
    return _Run(rewards, groups, method, weights, common, options, keep=True).estimate()


def validate(rewards: Any, groups: Any, method: str = "gdpo", weights: Any = None, **options: Any) -> None:
    """Check everything, values included, even where that synchronises with a GPU.

    Raises:
        Error: what ``advantages`` raises, and any infinite reward, weights of both signs, or segments that disagree.
    """
    on_cpu = {key: value.cpu() if is_tensor(value) else value for key, value in options.items()}
    if hasattr(rewards, "items"):
        rewards = {key: value.cpu() if is_tensor(value) else value for key, value in rewards.items()}
    moved = [value.cpu() if is_tensor(value) else value for value in (rewards, groups, weights)]
    advantages(moved[0], moved[1], method, moved[2], **on_cpu)


COMMON = tuple(
    p.name for p in inspect.signature(advantages).parameters.values() if p.kind is p.KEYWORD_ONLY
)  # fmt: skip


class _Run:
    """One computation: the checked input, the batch, and the results."""

    def __init__(
        self, rewards: Any, groups: Any, method: str, weights: Any, common: dict[str, Any], own: dict[str, Any],
        keep: bool,
    ) -> None:  # fmt: skip
        self.method = method_of(method)
        for name in own:
            if name not in self.method.options:
                hint = nearest(name, [*self.method.options, *COMMON])
                raise Error(f"method {self.method.name!r} has no option {name!r}{hint}")
        self.own = own
        self.rewards, given = as_matrix(rewards)
        names = common.get("names")
        self.names = check_names(given if names is None else names, self.rewards.shape[1])
        self.options = check_options(
            common.get("eps", 1e-4), common.get("ddof", 1), common.get("clip"), common.get("batch_norm"),
            common.get("baseline", "mean"), common.get("scale", "group"), common.get("std_floor", 0.0), self.names,
        )  # fmt: skip
        bounds = check_bounds(common.get("bounds"), self.names)
        include, batch_ids = _include(common.get("include"), self.rewards), common.get("batch_ids")
        self.groups = Groups.of(groups, self.rewards, batch_ids) if self.rewards.shape[0] else None
        self.weights = weight_columns(weights, self.names, self.rewards)
        self.rows: Array = None
        matrix, columns = self.rewards, self.weights
        if common.get("rollouts") is not None and self.groups is not None:
            first, self.rows = first_rows(common["rollouts"], self.rewards, groups)
            matrix = self.rewards[first]
            labels = self.groups.batch.index() if batch_ids is not None else None
            self.groups = Groups.of(self.groups.index()[first], matrix, None if labels is None else labels[first])
            columns = [
                type(w)(w.value if isinstance(w.value, float) else w.value[first], w.sign, w.active) for w in columns
            ]
            include = None if include is None else include[first]
        if self.groups is not None:
            self.batch = Batch(matrix, self.groups, columns, self.names, self.options, bounds, include, keep)

    def _combine(self) -> tuple[Array, Callable[[int], Array], Combination]:
        """Advantages, k -> contributions of reward k, and the combination they come from."""
        combination = self.method.combine(self.batch, **self.own)
        norm = self.method.batch_norm if self.options.batch_norm is None else self.options.batch_norm
        result, part = batch_normalize(self.batch, combination) if norm else (combination.total, combination.part)
        clip = self.options.clip
        if clip is None or self.method.family != "sum first":
            return result, part, combination
        xp = self.batch.xp
        clipped = xp.clip(result, -clip, clip)
        factor = xp.where(result == 0, 1.0, clipped / xp.where(result == 0, 1.0, result))
        return clipped, lambda k: part(k) * factor, combination

    def _spread(self, values: Array) -> Array:
        """From rollouts to the rows given, in the caller's dtype."""
        return cast_like(values if self.rows is None else values[self.rows], self.rewards)

    def advantages(self) -> Array:
        if self.groups is None:
            return cast_like(self.rewards[:, :0].sum(1) * 1.0, self.rewards)
        with _quiet(self.rewards):
            return self._spread(self._combine()[0])

    def estimate(self) -> Estimate:
        if self.groups is None:
            raise Error("there are no rollouts to explain: rewards has 0 rows")
        batch, xp, count = self.batch, self.batch.xp, len(self.names)
        with _quiet(self.rewards):
            result, part, combination = self._combine()
            zero, none = result * 0.0, batch.groups.sum(result) * 0.0
            parts = [part(k) if k in batch.active else zero for k in range(count)]
            signs = [self.weights[k].sign for k in range(count)]
            normalized = [batch.normalized(k).values * signs[k] if k in batch.active else zero for k in range(count)]
            columns = [batch.column(k) if k in batch.active else None for k in range(count)]
            mean = [none if c is None else c.centered.mean * signs[k] for k, c in enumerate(columns)]
            std = [none if c is None else c.std for c in columns]
            live = [none > 1 if c is None else c.centered.live for c in columns]
            group = batch.groups.index()

        def stack(columns: list[Array]) -> Array:
            return xp.stack(columns, 1)

        return Estimate(
            advantages=self._spread(result), contributions=self._spread(stack(parts)),
            normalized=self._spread(stack(normalized)), live=stack(live), mean=stack(mean), std=stack(std),
            combined=self._spread(combination.total), group=group if self.rows is None else group[self.rows],
            rewards=self.rewards, weights=self._weight_matrix(), names=self.names, method=self.method.name,
        )  # fmt: skip

    def _weight_matrix(self) -> Array:
        like = self.rewards
        if all(isinstance(w.value, float) for w in self.weights):
            return as_vector([w.value * w.sign for w in self.weights], like, "weights")
        xp, rows = self.batch.xp, like.shape[0]
        ones = as_vector(np.ones(rows), like, "weights")
        return xp.stack([ones * w.value * w.sign for w in self.weights], 1)


def _include(include: Any, rewards: Array) -> Array:
    if include is None:
        return None
    mask: Array = include if is_tensor(include) or isinstance(include, np.ndarray) else np.asarray(include)
    if tuple(mask.shape) != (rewards.shape[0],):
        raise Error(
            f"include has shape {tuple(mask.shape)}, but one value a rollout was expected: [{rewards.shape[0]}]"
        )
    if is_tensor(rewards):
        return namespace(rewards).as_tensor(mask, device=rewards.device).bool()
    return as_vector(mask, rewards, "include") != 0


@contextlib.contextmanager
def _quiet_numpy() -> Any:
    with np.errstate(all="ignore"):
        yield


def _quiet(rewards: Array) -> Any:
    """NaN arithmetic is meant: missing rewards and masked branches go through it."""
    if is_tensor(rewards):
        return namespace(rewards).no_grad()
    return _quiet_numpy()
