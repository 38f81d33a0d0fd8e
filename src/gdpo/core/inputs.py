"""What comes in, checked: weights, options, ids. Every message names the value and what was expected."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from gdpo.core.backend import Array, as_vector, is_tensor, namespace, readable
from gdpo.core.errors import Error

Scale = Literal["group", "batch", "none"]
Baseline = Literal["mean", "leave-one-out"]
EpsIn = Literal["std", "variance"]


@dataclass(frozen=True)
class Options:
    """The options every method takes, with the paper's defaults (ESTIMATE's docstring says what each means)."""

    eps: float = 1e-4
    ddof: int = 1
    clip: float | None = None
    batch_norm: bool | Literal["token"] | None = None
    baseline: Baseline = "mean"
    eps_in: EpsIn = "std"
    scale: tuple[Scale, ...] = ()
    std_floor: float = 0.0


class Weight(NamedTuple):
    """The weight of one reward: its size, its sign, and whether it is in use at all."""

    value: float | Array
    """abs(w): a number, or [B] (row-like in a ``Batch``)."""
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


def check_options(given: Mapping[str, Any], names: list[str]) -> Options:
    """The common options, by name, with their values checked; one that is absent has its default."""
    eps, ddof, clip, norm, baseline, eps_in, scale, std_floor = (
        given.get(name, default)
        for name, default in (
            ("eps", 1e-4), ("ddof", 1), ("clip", None), ("batch_norm", None), ("baseline", "mean"), ("eps_in", "std"),
            ("scale", "group"), ("std_floor", 0.0),
        )
    )  # fmt: skip
    if not 0 <= _number(eps, "eps") < math.inf:
        raise Error(f"eps is {eps}, but a finite number of at least 0 was expected")
    if ddof not in (0, 1):
        raise Error(f"ddof is {ddof!r}, but 0 (population) or 1 (sample) was expected")
    if clip is not None and not _number(clip, "clip") > 0:
        raise Error(f"clip is {clip}, but a positive number (3 is the usual value) or None was expected")
    if norm is not None and norm != "token" and not isinstance(norm, bool | np.bool_):
        raise Error(f"batch_norm is {norm!r}, but True, False, 'token' or None (the method's own) was expected")
    if norm == "token" and given.get("lengths") is None:
        raise Error("batch_norm='token' weighs each rollout by its tokens, but lengths [B] is missing")
    if baseline not in ("mean", "leave-one-out"):
        raise Error(f"baseline is {baseline!r}, but 'mean' or 'leave-one-out' was expected")
    if eps_in not in ("std", "variance"):
        raise Error(f"eps_in is {eps_in!r}, but 'std' (std + eps) or 'variance' (sqrt(variance + eps)) was expected")
    if not 0 <= _number(std_floor, "std_floor") < math.inf:
        raise Error(f"std_floor is {std_floor}, but a finite number of at least 0 was expected")
    norm = bool(norm) if isinstance(norm, np.bool_) else norm
    scales = _scales(scale, names)
    return Options(float(eps), ddof, clip, norm, cast(Baseline, baseline), eps_in, scales, float(std_floor))


def check_rows(values: Any, rewards: Array, what: str) -> Array:
    """``values`` as a vector with one number a rollout.

    Raises:
        Error: another shape, or (where looking costs no synchronisation) a negative or infinite length.
    """
    if values is None:
        return None
    vector: Array = values if is_tensor(values) or isinstance(values, np.ndarray) else np.asarray(values)
    if tuple(vector.shape) != (rewards.shape[0],):
        raise Error(
            f"{what} has shape {tuple(vector.shape)}, but one value a rollout was expected: [{rewards.shape[0]}]"
        )
    vector = as_vector(vector, rewards, what)
    if what == "lengths" and readable(vector) and not bool(((vector >= 0) & (vector < math.inf)).all()):
        raise Error("lengths has a value that is negative or not finite, but numbers of tokens were expected")
    return vector


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
    if isinstance(matrix, list | tuple) and len(matrix) == count and all(type(w) in (int, float) for w in matrix):
        # No array is made, so that a compiler sees plain numbers.
        return [_constant_weight(float(w), name) for w, name in zip(matrix, names, strict=True)]
    if not is_tensor(matrix) or (readable(matrix) and matrix.ndim == 1):
        matrix = as_vector(matrix, np.empty(0), "weights")
    if matrix.ndim not in (1, 2) or matrix.shape[-1] != count:
        found = matrix.shape[-1] if matrix.ndim else "no"
        raise Error(f"weights has {found} values, but {count} were expected (one a reward: {', '.join(names)})")
    if matrix.ndim == 1 and isinstance(matrix, np.ndarray):
        return [_constant_weight(float(v), name) for v, name in zip(matrix, names, strict=True)]
    if matrix.ndim == 2 and matrix.shape[0] != rows:
        raise Error(f"weights has {matrix.shape[0]} rows, but {rows} were expected (one a rollout)")
    matrix = as_vector(matrix, like, "weights")
    return [_varying_weight(matrix[..., k], name, rows) for k, name in enumerate(names)]


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
    return Weight(abs(values), xp.where(negative, -1.0, 1.0).to(values.dtype), negative | positive)


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
