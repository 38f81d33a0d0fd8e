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
    complex_values = array.is_complex() if is_tensor(array) else array.dtype.kind not in "fiub"
    if complex_values:
        raise Error(f"rewards has dtype {array.dtype}, but real numbers were expected")
    return array, names


def as_vector(values: object, like: Array, what: str) -> Array:
    """``values`` as a vector or matrix in float64, in the library and on the device of ``like``."""
    if is_tensor(like):
        torch = namespace(like)
        if not is_tensor(values):
            values = torch.from_numpy(np.array(_numbers(values, what)))
        tensor: Array = values
        return tensor.detach().to(device=like.device, dtype=torch.float64)
    if is_tensor(values):
        tensor = values
        return tensor.detach().cpu().double().numpy()
    return _numbers(values, what)


def column(matrix: Array, k: int) -> Array:
    """Column ``k`` of a matrix [B, R] as a float64 vector [B]."""
    if is_tensor(matrix):
        return matrix[:, k].detach().double()
    return np.ascontiguousarray(matrix[:, k], dtype=np.float64)


def to_float(mask: Array) -> Array:
    """A boolean vector as float64 ones and zeros."""
    return mask.double() if is_tensor(mask) else mask.astype(np.float64)


def zeros(rows: int, like: Array) -> Array:
    """[rows] float64 zeros in the library and on the device of ``like``."""
    if is_tensor(like):
        torch = namespace(like)
        return torch.zeros(rows, dtype=torch.float64, device=like.device)
    return np.zeros(rows)


def cast_like(values: Array, rewards: Array) -> Array:
    """``values`` in the floating dtype of ``rewards``; float64 where those are integers or booleans."""
    if is_tensor(rewards):
        return values.to(rewards.dtype) if rewards.is_floating_point() else values
    return values.astype(rewards.dtype) if rewards.dtype.kind == "f" else values


def readable(array: Array) -> bool:
    """Whether values can be looked at without a synchronisation: NumPy, or PyTorch on the CPU outside a compiler."""
    if not is_tensor(array):
        return True
    return array.device.type == "cpu" and not namespace(array).compiler.is_compiling()


def factorize(ids: object, like: Array, what: str) -> tuple[Array, int]:
    """Codes 0..n-1 for ``ids`` in order of first appearance, as an integer vector beside ``like``, and their number n.

    Raises:
        Error: not one id a rollout, or an id that is missing.
    """
    rows = like.shape[0]
    if is_tensor(ids):
        tensor: Array = ids
        if tuple(tensor.shape) != (rows,):
            raise Error(f"{what} has shape {tuple(tensor.shape)}, but one id a rollout was expected: [{rows}]")
        if is_tensor(like):
            return _factorize_tensor(tensor.to(like.device))
        ids = tensor.cpu().numpy()
    codes, count = _factorize_numpy(ids, rows, what)
    if is_tensor(like):
        return namespace(like).from_numpy(codes).to(like.device), count
    return codes, count


def _factorize_numpy(ids: object, rows: int, what: str) -> tuple[Array, int]:
    if isinstance(ids, str | bytes) or (not isinstance(ids, Sequence | np.ndarray) and not hasattr(ids, "__array__")):
        raise Error(f"{what} is {ids!r}, but a group size or one id a rollout was expected")
    values: Any = np.asarray(ids) if hasattr(ids, "__array__") else ids
    shape = values.shape if isinstance(values, np.ndarray) else (len(values),)
    if shape != (rows,):
        raise Error(f"{what} has shape {tuple(shape)}, but one id a rollout was expected: [{rows}]")
    if isinstance(values, np.ndarray) and values.dtype.kind in "iubUSM":
        _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.argsort(first, kind="stable")] = np.arange(len(first))
        return rank[inverse], len(first)
    seen: dict[object, int] = {}
    codes = np.empty(rows, dtype=np.int64)
    for row, value in enumerate(values):
        if value is None or value != value or not isinstance(value, Hashable):
            raise Error(f"{what} is {value!r} at row {row}, but every rollout needs an id (a number, text or tuple)")
        codes[row] = seen.setdefault(value, len(seen))
    return codes, len(seen)


def _factorize_tensor(ids: Array) -> tuple[Array, int]:
    torch = namespace(ids)
    unique, inverse = torch.unique(ids, return_inverse=True)
    count = unique.shape[0]
    rows = torch.arange(ids.shape[0], device=ids.device)
    first = torch.full((count,), ids.shape[0], device=ids.device).scatter_reduce_(0, inverse, rows, "amin")
    rank = torch.empty_like(first)
    rank[torch.argsort(first)] = torch.arange(count, device=ids.device)
    return rank[inverse], count


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
