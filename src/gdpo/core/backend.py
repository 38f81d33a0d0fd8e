"""NumPy and PyTorch alike: the few things in which the two libraries differ.

Both offer ``where``, ``isnan``, ``sqrt``, ``clip`` and the operators under the same names, so the mathematics is
written once against a namespace ``xp`` (the module ``numpy`` or ``torch``). What differs, making arrays, reading ids
and casting, stands here. PyTorch is never imported: whoever passes a tensor has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from gdpo.core.errors import Error

Array: TypeAlias = Any
"""A ``numpy.ndarray`` or a ``torch.Tensor``."""

NO_FLOAT64 = {"mps"}
"""Types of devices that cannot compute in float64."""


def is_tensor(value: object) -> bool:
    """Whether ``value`` is a ``torch.Tensor``; False where PyTorch was never imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def namespace(array: Array) -> Any:
    """The module that works on ``array``: ``torch`` or ``numpy``."""
    return sys.modules["torch"] if is_tensor(array) else np


def as_matrix(rewards: object) -> tuple[Array, list[str] | None]:
    """``rewards`` as an array [B, R] in its own floating dtype, and names where a mapping gave them.

    Integers and booleans are left as they are here; each column becomes float64 when it is read. ``None`` becomes NaN.

    Raises:
        Error: not two-dimensional, or values that are not real numbers.
    """
    names = None
    if isinstance(rewards, Mapping):
        names = [str(name) for name in rewards]
        rewards = _stack(names, list(rewards.values()))
    if not is_tensor(rewards) and not isinstance(rewards, np.ndarray):
        rewards = _numbers(rewards, "rewards")
    array: Array = rewards
    if isinstance(array, np.ndarray) and array.dtype == object:
        array = _numbers(array, "rewards")
    if array.ndim != 2:
        hint = "; one reward is a matrix with one column" if array.ndim == 1 else ""
        raise Error(f"rewards has shape {tuple(array.shape)}, but [rollouts, rewards] was expected{hint}")
    if array.shape[1] == 0:
        raise Error("rewards has no column, but at least one reward was expected")
    complex_values = array.is_complex() if is_tensor(array) else array.dtype.kind not in "fiub"
    if complex_values:
        raise Error(f"rewards has dtype {array.dtype}, but real numbers were expected")
    return array, names


def as_vector(values: object, like: Array, what: str) -> Array:
    """``values`` as a vector or matrix in the dtype of statistics, in the library and on the device of ``like``."""
    if is_tensor(like):
        tensor: Array = values if is_tensor(values) else namespace(like).from_numpy(np.array(_numbers(values, what)))
        return tensor.detach().to(device=like.device, dtype=wide(like))
    if is_tensor(values):
        tensor = values
        return tensor.detach().cpu().double().numpy()
    return _numbers(values, what)


def wide(like: Array) -> Any:
    """The dtype of statistics: float64, or float32 on devices that have no float64 (sums are then compensated)."""
    xp = namespace(like)
    return xp.float32 if is_tensor(like) and like.device.type in NO_FLOAT64 else xp.float64


def like_array(values: Any, like: Array) -> Array:
    """A NumPy array in the library and on the device of ``like``."""
    return namespace(like).from_numpy(np.ascontiguousarray(values)).to(like.device) if is_tensor(like) else values


def column(matrix: Array, k: int) -> Array:
    """Column ``k`` of a matrix [B, R] as a float64 vector [B]."""
    if is_tensor(matrix):
        return matrix[:, k].detach().to(wide(matrix))
    return np.ascontiguousarray(matrix[:, k], dtype=np.float64)


def ones(count: int, like: Array) -> Array:
    """[count] ones in the dtype of statistics."""
    if is_tensor(like):
        return namespace(like).ones(count, dtype=wide(like), device=like.device)
    return np.ones(count)


def add_product(total: Array | float, values: Array, factor: Array | float) -> Array:
    """``total`` + ``values`` * ``factor``, in the place of ``total`` where it is as large as the result."""
    if isinstance(total, float):
        return values * factor
    if isinstance(factor, float) and factor == 1 and total.shape == values.shape:
        total += values
        return total
    larger = not isinstance(factor, float) and (factor.ndim > total.ndim or factor.shape[-1] > total.shape[-1])
    if total.shape != values.shape or larger:
        return total + values * factor
    if is_tensor(total) and is_tensor(factor):
        return total.addcmul_(values, factor)
    total += values * factor
    return total


def to_float(mask: Array, like: Array) -> Array:
    """A boolean array as ones and zeros in the dtype of statistics."""
    return mask.to(wide(like)) if is_tensor(mask) else mask.astype(np.float64)


def present(values: Array) -> Array:
    """1 where a value is there, 0 where it is NaN, in the dtype of ``values``."""
    if not is_tensor(values):
        return (values == values).astype(np.float64)
    torch = namespace(values)
    if torch.compiler.is_compiling():
        return (values == values).to(values.dtype)
    return torch.eq(values, values, out=torch.empty_like(values))  # 7 times as fast as by way of bool


def lowest(values: Array, axis: int) -> Array:
    """The least along an axis, NaN aside; inf where there is nothing else."""
    if is_tensor(values):
        return namespace(values).nan_to_num(values, nan=np.inf, posinf=np.inf, neginf=-np.inf).amin(axis)
    return np.nan_to_num(np.fmin.reduce(values, axis=axis), nan=np.inf, posinf=np.inf, neginf=-np.inf)


def without_nan(values: Array) -> Array:
    """``values``, none of them negative, with 0 for NaN."""
    if is_tensor(values):
        return namespace(values).nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf)
    return np.fmax(values, 0.0, out=values)


def cast_like(values: Array, rewards: Array) -> Array:
    """``values`` in the floating dtype of ``rewards``; as they are where those are integers or booleans. -0 is 0."""
    if is_tensor(rewards):
        return (values + 0.0).to(rewards.dtype) if rewards.is_floating_point() else values + 0.0
    return np.add(values, 0.0, dtype=rewards.dtype if rewards.dtype.kind == "f" else None, casting="same_kind")


def readable(array: Array) -> bool:
    """Whether values can be looked at without a synchronisation: NumPy, or PyTorch on the CPU outside a compiler."""
    if not is_tensor(array):
        return True
    return array.device.type == "cpu" and not namespace(array).compiler.is_compiling()


def factorize(ids: object, rows: int, what: str) -> tuple[Any, int]:
    """Codes 0..n-1 for ``ids`` [B] as NumPy integers, and their number n; in order of first appearance.

    Raises:
        Error: not one id a rollout, or an id that is missing.
    """
    if is_tensor(ids):
        tensor: Array = ids
        ids = tensor.detach().cpu().numpy()
    if isinstance(ids, str | bytes) or (not isinstance(ids, Sequence | np.ndarray) and not hasattr(ids, "__array__")):
        raise Error(f"{what} is {ids!r}, but a group size or one id a rollout was expected")
    values: Any = np.asarray(ids) if hasattr(ids, "__array__") else ids
    shape = values.shape if isinstance(values, np.ndarray) else (len(values),)
    if shape != (rows,):
        raise Error(f"{what} has shape {tuple(shape)}, but one id a rollout was expected: [{rows}]")
    if isinstance(values, np.ndarray) and values.dtype.kind in "iub" and rows:
        return _factorize_integers(values)
    if isinstance(values, np.ndarray) and values.dtype.kind in "USM":
        _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
        return _by_appearance(first)[inverse], len(first)
    seen: dict[object, int] = {}
    codes = np.empty(rows, dtype=np.int64)
    for row, value in enumerate(values):
        if value is None or value != value or not isinstance(value, Hashable):
            raise Error(f"{what} is {value!r} at row {row}, but every rollout needs an id (a number, text or tuple)")
        codes[row] = seen.setdefault(value, len(seen))
    return codes, len(seen)


def _factorize_integers(values: Any) -> tuple[Any, int]:
    if (values[1:] >= values[:-1]).all():  # sorted already
        codes = np.zeros(len(values), dtype=np.int64)
        np.cumsum(values[1:] != values[:-1], out=codes[1:])
        return codes, int(codes[-1]) + 1
    low, high, rows = int(values.min()), int(values.max()), len(values)
    if high - low > 4 * rows + 1024:
        _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
        return _by_appearance(first)[inverse], len(first)
    table = np.full(high - low + 1, rows)
    entry = values.astype(np.int64) - low
    table[entry[::-1]] = np.arange(rows)[::-1]  # the last one written is the first row of that id
    used = np.flatnonzero(table < rows)
    ranks = np.empty_like(table)
    ranks[used] = _by_appearance(table[used])
    return ranks[entry], len(used)


def _by_appearance(first: Any) -> Any:
    ranks = np.empty(len(first), dtype=np.int64)
    ranks[np.argsort(first, kind="stable")] = np.arange(len(first))
    return ranks


def _numbers(values: object, what: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise Error(f"{what} cannot be read as numbers: {error}") from None


def _stack(names: list[str], columns: list[Any]) -> Array:
    lengths = {name: len(values) for name, values in zip(names, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise Error(f"rewards has columns of different lengths: {lengths}")
    if not columns:
        raise Error("rewards is an empty mapping, but at least one named reward was expected")
    if any(is_tensor(values) for values in columns):
        first = next(values for values in columns if is_tensor(values))
        return namespace(first).stack([as_vector(v, first, "rewards") if not is_tensor(v) else v for v in columns], -1)
    return np.stack([v if isinstance(v, np.ndarray) else _numbers(v, "rewards") for v in columns], axis=-1)
