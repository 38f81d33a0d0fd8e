"""From checked input to advantages: ``advantages``, ``estimate`` and ``validate``."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gdpo.core.backend import Array, as_matrix, as_vector, cast_like, factorize, is_tensor, namespace, readable
from gdpo.core.batch import Batch, Combination
from gdpo.core.errors import Error
from gdpo.core.estimators import method_of
from gdpo.core.groups import Groups
from gdpo.core.inputs import check_bounds, check_names, check_options, check_rows, nearest, weight_columns
from gdpo.core.running import RunningNorm, batch_normalize


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
    eps_in: str = "std", ddof: int = 1, clip: float | None = None, batch_norm: bool | str | None = None,
    lengths: Any = None, baseline: str = "mean", scale: Any = "group", std_floor: float = 0.0, bounds: Any = None,
    include: Any = None, batch_ids: Any = None, rollouts: Any = None, running: RunningNorm | None = None,
    out: Any = None, **options: Any,
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
        eps_in: "std" for std + eps (the papers), "variance" for sqrt(variance + eps).
        ddof: 1 for the sample standard deviation (the papers), 0 for the population's.
        clip: limit (3 is usual) on each z_k, or on the result where the method sums first.
        batch_norm: whether to normalise over the batch at the end; None is the method's own way; "token" weighs each
            rollout by its ``lengths`` there, as verl does.
        lengths: [B] tokens of each rollout, for ``batch_norm="token"``.
        baseline: "mean" or "leave-one-out" (the mean of the other rollouts).
        scale: what divides each reward's deviation: "group" (its spread in the group), "batch" (over the batch) or
            "none"; one for all, [R], or by name. Used by the methods that normalise first.
        std_floor: least value of a divisor (sigma_k + eps, and GRPO's).
        bounds: (low, high) of each reward, [R] or by name; used by the methods that need them.
        include: [B] bool; False is as if every reward of that rollout were missing (truncated, failed).
        batch_ids: [B] labels (tasks in mixed data): what is taken over the batch is taken per label.
        rollouts: [B] ids of rollouts that were split into several rows: each counts once, its rows share the advantage.
        running: statistics of the batch norm to carry from call to call; updated by this one.
        out: [B] floating array to write the result into, such as a column of ``rewards`` itself.
        options: what only this method takes.

    Returns:
        [B] in the floating dtype, library and device of ``rewards`` (float64 for integers, booleans and lists).
        A rollout without rewards, a group that is tied and a group of one get exactly 0.

    Raises:
        Error: shapes, names or options that do not fit; an infinite value where looking costs no synchronisation.
    """
    common = {
        "names": names, "eps": eps, "eps_in": eps_in, "ddof": ddof, "clip": clip, "batch_norm": batch_norm,
        "lengths": lengths, "baseline": baseline, "scale": scale, "std_floor": std_floor, "bounds": bounds,
        "include": include, "batch_ids": batch_ids, "rollouts": rollouts, "running": running,
    }  # fmt: skip
    return Run(rewards, groups, method, weights, common, options, keep=False).advantages(out)


def estimate(rewards: Any, groups: Any, method: str = "gdpo", weights: Any = None, **options: Any) -> Estimate:
    """The same as ``advantages`` (same arguments but ``out``), with every reward's part in it; memory O(B * R)."""
    common = {name: options.pop(name) for name in list(options) if name in COMMON}
    return Run(rewards, groups, method, weights, common, options, keep=True).estimate()


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
    p.name for p in inspect.signature(advantages).parameters.values() if p.kind is p.KEYWORD_ONLY and p.name != "out"
)


class Run:
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
        self.own, self.keep, self.common = own, keep, common
        self.rewards, given = as_matrix(rewards)
        names = common.get("names")
        self.names = check_names(given if names is None else names, self.rewards.shape[1])
        self.options = check_options(common, self.names)
        self.bounds = check_bounds(common.get("bounds"), self.names)
        self.include = check_rows(common.get("include"), self.rewards, "include")
        self.lengths = check_rows(common.get("lengths"), self.rewards, "lengths")
        self.running = common.get("running")
        if self.running is not None and not isinstance(self.running, RunningNorm):
            raise Error(f"running is {self.running!r}, but a RunningNorm was expected")
        self.weights = weight_columns(weights, self.names, self.rewards)
        self._check_weights()
        self.groups = self._grouped(groups)
        self.batch = self._batch()

    def _check_weights(self) -> None:
        """Weights [R] that are all 0 are a mistake; weights [B, R] can be, where what makes them (levels, schedules,
        confidences) found nothing in this batch: every advantage is then 0."""
        if not self.rewards.shape[0] or any(weight.active is not False for weight in self.weights):
            return
        if not self._by_rollout():
            raise Error("every weight is 0, but at least one reward must count")
        self.weights = [weight._replace(active=True) for weight in self.weights]  # methods always have a reward to read

    def _by_rollout(self) -> bool:
        """Whether the weights are [B, R]."""
        return bool(self.weights) and not any(isinstance(weight.value, float) for weight in self.weights)

    def _batch(self) -> Batch:
        return Batch(
            self.rewards, self.groups, self.weights, self.names, self.options, self.bounds, self.include, self.keep
        )

    def _grouped(self, groups: Any) -> Groups:
        batch_ids, rollouts = self.common.get("batch_ids"), self.common.get("rollouts")
        handle = Groups.of(groups, self.rewards, batch_ids, rollouts)
        source = handle.source
        if source is not None and readable(self.rewards):
            rewards = np.asarray(self.rewards.double() if is_tensor(self.rewards) else self.rewards)
            other = rewards[source]
            wrong = np.flatnonzero(~((rewards == other) | (np.isnan(rewards) & np.isnan(other))).all(axis=1))
            if len(wrong):
                raise Error(
                    f"row {wrong[0]} has other rewards than row {int(source[wrong[0]])}, but both are segments of one "
                    "rollout, which has one score a reward"
                )
        return handle

    def _label_names(self) -> list[str]:
        """Names of the parts of the batch in the order of their numbers."""
        ids = self.common.get("batch_ids")
        if ids is None or self.running is None:
            return [""] * self.groups.batch.count
        codes, count = factorize(ids, self.rewards.shape[0], "batch_ids")
        first = [int(np.flatnonzero(codes == label)[0]) for label in range(count)]
        return [str(ids[row].item() if hasattr(ids[row], "item") else ids[row]) for row in first]

    def _combine(self) -> tuple[Array, Callable[[int], Array], Combination]:
        """Advantages, k -> contributions of reward k, and the combination they come from; all row-like."""
        batch, clip = self.batch, self.options.clip
        combination = self.method.combine(batch, **self.own)
        result, part = combination.total, combination.part
        norm = self.method.batch_norm if self.options.batch_norm is None else self.options.batch_norm
        if norm:
            lengths = batch.groups.lay(self.lengths) if norm == "token" else None
            result, part = batch_normalize(batch, combination, lengths, self.running, self._label_names())
        if clip is None or self.method.family != "sum first":
            return result, part, combination
        xp = batch.xp
        clipped = xp.clip(result, -clip, clip)
        factor = xp.where(result == 0, 1.0, clipped / xp.where(result == 0, 1.0, result))
        return clipped, lambda k: part(k) * factor, combination

    def _rows(self, values: Array) -> Array:
        """Row-like -> [B] in the caller's dtype."""
        return self.groups.unlay(cast_like(values, self.rewards))

    def advantages(self, out: Any = None) -> Array:
        """[B]."""
        check_out(out, self.rewards)
        if self.groups.count == 0:
            result = cast_like(self.rewards[:, :0].sum(1) * 1.0, self.rewards)
        else:
            with _quiet(self.rewards):
                result = self._rows(self._combine()[0])
        if out is None:
            return result
        out[...] = result
        return out

    def estimate(self) -> Estimate:
        """Advantages and parts."""
        if self.groups.count == 0:
            raise Error("there are no rollouts to explain: rewards has 0 rows")
        batch, xp, count = self.batch, self.batch.xp, len(self.names)
        with _quiet(self.rewards):
            result, part, combination = self._combine()
            zero = result * 0.0
            none = batch.groups.sum(zero)
            parts = [part(k) if k in batch.active else zero for k in range(count)]
            signs = [self.weights[k].sign for k in range(count)]
            normalized = [batch.normalized(k).values * signs[k] if k in batch.active else zero for k in range(count)]
            columns = [batch.column(k) if k in batch.active else None for k in range(count)]
            mean = [none if c is None else self._mean(c.centered) * signs[k] for k, c in enumerate(columns)]
            std = [none if c is None else c.std for c in columns]
            live = [none > 1 if c is None else c.centered.live for c in columns]

        def stack(columns: list[Array]) -> Array:
            return xp.stack(columns, 1)

        return Estimate(
            advantages=self._rows(result), contributions=stack([self._rows(values) for values in parts]),
            normalized=stack([self._rows(values) for values in normalized]), live=stack(live), mean=stack(mean),
            std=stack(std), combined=self._rows(combination.total), group=batch.groups.codes(),
            rewards=self.rewards, weights=self._weight_matrix(), names=self.names, method=self.method.name,
        )  # fmt: skip

    def _mean(self, centered: Any) -> Array:
        return self.batch.xp.where(centered.count > 0, centered.low + centered.offset, np.nan)

    def _weight_matrix(self) -> Array:
        like = self.rewards
        if all(isinstance(w.value, float) for w in self.weights):
            return as_vector([w.value * w.sign for w in self.weights], like, "weights")
        ones = as_vector(np.ones(like.shape[0]), like, "weights")
        return self.batch.xp.stack([ones * w.value * w.sign for w in self.weights], 1)


def check_out(out: Any, rewards: Array) -> None:
    """Raise where ``out`` cannot take [B] advantages beside ``rewards``."""
    if out is None:
        return
    floating = out.is_floating_point() if is_tensor(out) else getattr(getattr(out, "dtype", None), "kind", "") == "f"
    if is_tensor(out) != is_tensor(rewards) or not floating or tuple(out.shape) != (rewards.shape[0],):
        found = f"{type(out).__name__} of shape {tuple(getattr(out, 'shape', ()))}"
        raise Error(f"out is a {found}, but a floating {type(rewards).__name__} of shape ({rewards.shape[0]},) "
                    "was expected")  # fmt: skip
    if is_tensor(out) and out.device != rewards.device:
        raise Error(f"out is on {out.device}, but rewards is on {rewards.device}")


@contextlib.contextmanager
def _quiet_numpy() -> Any:
    with np.errstate(all="ignore"):
        yield


def _quiet(rewards: Array) -> Any:
    """NaN arithmetic is meant: missing rewards and masked branches go through it."""
    if is_tensor(rewards):
        return namespace(rewards).no_grad()
    return _quiet_numpy()
