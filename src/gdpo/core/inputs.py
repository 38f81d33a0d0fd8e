"""What comes in, checked: weights, options, ids. Every message names the value and what was expected."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from gdpo.core.backend import Array, as_vector, factorize, is_tensor, namespace, readable
from gdpo.core.errors import Error

Scale = Literal["group", "batch", "none"]
Baseline = Literal["mean", "leave-one-out"]


@dataclass(frozen=True)
class Options:
    """The options every method takes, with the paper's defaults (ESTIMATE's docstring says what each means)."""

    eps: float = 1e-4
    ddof: int = 1
    clip: float | None = None
    batch_norm: bool | None = None
    baseline: Baseline = "mean"
    scale: tuple[Scale, ...] = ()
    std_floor: float = 0.0


@dataclass(frozen=True)
class Weight:
    """The weight of one reward: its size, its sign, and whether it is in use at all."""

    value: float | Array
    """abs(w): a number, or [B]."""
    sign: float | Array
    """-1 for a penalty (the reward's sign flips), else 1."""
    active: bool | Array
    """False if the weight is 0 for every rollout: the reward is then out of everything."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the closest known name, else the list of them."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def check_names(names: Sequence[str] | None, count: int) -> list[str]:
    """Names of the rewards; ``reward_0`` and so on where none are given."""
    if names is None:
        return [f"reward_{k}" for k in range(count)]
    names = [str(name) for name in names]
    if len(names) != count:
        raise Error(f"names has {len(names)} entries, but {count} were expected (one a reward)")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Error(f"names has {twice[0]!r} twice, but each reward needs a name of its own")
    return names


def check_options(
    eps: float, ddof: int, clip: float | None, batch_norm: bool | None, baseline: str, scale: object, std_floor: float,
    names: list[str],
) -> Options:  # fmt: skip
    """The common options with their values checked."""
    if not 0 <= _number(eps, "eps") < math.inf:
        raise Error(f"eps is {eps}, but a finite number of at least 0 was expected")
    if ddof not in (0, 1):
        raise Error(f"ddof is {ddof!r}, but 0 (population) or 1 (sample) was expected")
    if clip is not None and not _number(clip, "clip") > 0:
        raise Error(f"clip is {clip}, but a positive number (3 is the usual value) or None was expected")
    if batch_norm is not None and not isinstance(batch_norm, bool | np.bool_):
        raise Error(f"batch_norm is {batch_norm!r}, but True, False or None (the method's own) was expected")
    if baseline not in ("mean", "leave-one-out"):
        raise Error(f"baseline is {baseline!r}, but 'mean' or 'leave-one-out' was expected")
    if not 0 <= _number(std_floor, "std_floor") < math.inf:
        raise Error(f"std_floor is {std_floor}, but a finite number of at least 0 was expected")
    norm = None if batch_norm is None else bool(batch_norm)
    return Options(float(eps), ddof, clip, norm, cast(Baseline, baseline), _scales(scale, names), float(std_floor))


def check_bounds(bounds: object, names: list[str]) -> list[tuple[float, float] | None]:
    """The bounds of each reward, or None where none are known."""
    pairs: list[Any]
    if bounds is None:
        return [None] * len(names)
    if isinstance(bounds, Mapping):
        for name in bounds:
            if name not in names:
                raise Error(f"bounds names {name!r}, which is no reward{nearest(str(name), names)}")
        pairs = [bounds.get(name) for name in names]
    else:
        pairs = list(bounds) if isinstance(bounds, Iterable) else []
        if len(pairs) != len(names):
            raise Error(f"bounds has {len(pairs)} entries, but {len(names)} were expected (one a reward)")
    checked: list[tuple[float, float] | None] = []
    for name, pair in zip(names, pairs, strict=True):
        if pair is None:
            checked.append(None)
            continue
        low, high = pair if isinstance(pair, Sequence) and len(pair) == 2 else (math.nan, math.nan)
        if not low < high:
            raise Error(f"bounds of {name!r} are {pair!r}, but (low, high) with low < high was expected")
        checked.append((float(low), float(high)))
    return checked


def weight_columns(weights: object, names: list[str], like: Array) -> list[Weight]:
    """One ``Weight`` a reward from None (all 1), [R], [B, R] or a mapping by name (a missing name is an error)."""
    count, rows = len(names), like.shape[0]
    if weights is None:
        return [Weight(1.0, 1.0, True)] * count
    matrix: Any = _by_name(weights, names) if isinstance(weights, Mapping) else weights
    if not is_tensor(matrix) or (readable(matrix) and matrix.ndim == 1):
        matrix = as_vector(matrix, np.empty(0), "weights")
    if matrix.ndim not in (1, 2) or matrix.shape[-1] != count:
        found = matrix.shape[-1] if matrix.ndim else "no"
        raise Error(f"weights has {found} values, but {count} were expected (one a reward: {', '.join(names)})")
    if matrix.ndim == 1 and isinstance(matrix, np.ndarray):
        return [_constant_weight(float(value), name) for value, name in zip(matrix, names, strict=True)]
    if matrix.ndim == 2 and matrix.shape[0] != rows:
        raise Error(f"weights has {matrix.shape[0]} rows, but {rows} were expected (one a rollout)")
    matrix = as_vector(matrix, like, "weights")
    return [_varying_weight(matrix[..., k], name, rows) for k, name in enumerate(names)]


def first_rows(rollouts: object, rewards: Array, groups: object) -> tuple[Array, Array]:
    """For segmented rollouts: ([rollouts] the first row of each, [B] which rollout each row belongs to).

    Raises:
        Error: two rows of one rollout differ in their rewards (checked where that costs no synchronisation).
    """
    codes, count = factorize(rollouts, rewards, "rollouts")
    xp, rows = namespace(rewards), rewards.shape[0]
    if is_tensor(rewards):
        order = xp.arange(rows, device=rewards.device)
        first = xp.full((count,), rows, device=rewards.device).scatter_reduce_(0, codes, order, "amin")
    else:
        first = np.full(count, rows, dtype=np.int64)
        np.minimum.at(first, codes, np.arange(rows))
    if readable(rewards):
        same = rewards == rewards[first][codes]
        same = same | ((rewards != rewards) & (rewards[first][codes] != rewards[first][codes]))
        wrong = np.flatnonzero(~np.asarray(same.all(axis=1)))
        if len(wrong):
            raise Error(
                f"row {wrong[0]} has other rewards than row {int(first[codes[wrong[0]]])}, but both are segments of "
                "one rollout, which has one score a reward"
            )
    return first, codes


def _by_name(weights: Mapping[Any, Any], names: list[str]) -> list[Any]:
    for name in weights:
        if name not in names:
            raise Error(f"weights names {name!r}, which is no reward{nearest(str(name), names)}")
    missing = [name for name in names if name not in weights]
    if missing:
        raise Error(f"weights has no value for reward {missing[0]!r}, but one for each of {len(names)} was expected")
    return [weights[name] for name in names]


def _constant_weight(value: float, name: str) -> Weight:
    if not math.isfinite(value):
        raise Error(f"the weight of {name!r} is {value}, but a finite number was expected")
    return Weight(abs(value), -1.0 if value < 0 else 1.0, value != 0)


def _varying_weight(values: Array, name: str, rows: int) -> Weight:
    xp = namespace(values)
    values = xp.broadcast_to(values, (rows,))
    negative, positive = (values < 0).any(), (values > 0).any()
    if readable(values):
        if not bool(xp.isfinite(values).all()):
            row = int(np.flatnonzero(~np.isfinite(np.asarray(values)))[0])
            raise Error(
                f"the weight of {name!r} is {float(values[row])} at row {row}, but a finite number was expected"
            )
        if bool(negative) and bool(positive):
            raise Error(f"the weights of {name!r} have both signs, but a reward is either a reward or a penalty")
        return Weight(abs(values), -1.0 if negative else 1.0, bool(negative) or bool(positive))
    return Weight(abs(values), xp.where(negative, -1.0, 1.0).double(), negative | positive)


def _scales(scale: object, names: list[str]) -> tuple[Scale, ...]:
    if isinstance(scale, str):
        entries: list[Any] = [scale] * len(names)
    elif isinstance(scale, Mapping):
        for name in scale:
            if name not in names:
                raise Error(f"scale names {name!r}, which is no reward{nearest(str(name), names)}")
        entries = [scale.get(name, "group") for name in names]
    else:
        entries = list(scale) if isinstance(scale, Iterable) else [scale]
        if len(entries) != len(names):
            raise Error(f"scale has {len(entries)} entries, but {len(names)} were expected (one a reward)")
    for entry in entries:
        if entry not in ("group", "batch", "none"):
            raise Error(f"scale is {entry!r}, but 'group', 'batch' or 'none' was expected")
    return tuple(entries)


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise Error(f"{what} is {value!r}, but a number was expected")
    return float(value)
