"""How many different rows and groups there are, by 64-bit fingerprints: exact but for chances of about n^2 / 2^64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpo.audit.chunks import Chunk, Floats

Keys = NDArray[np.uint64]


def mixed(bits: Keys) -> Keys:
    """Each number scattered over 64 bits (the finaliser of splitmix64); wraps around as it is meant to."""
    with np.errstate(over="ignore"):
        bits = bits + np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return bits ^ (bits >> np.uint64(31))


def row_keys(values: Floats) -> Keys:
    """[B, K] numbers -> [B] fingerprints; equal rows have equal ones, NaN equals NaN and -0 equals 0."""
    keys = np.zeros(len(values), dtype=np.uint64)
    for k in range(values.shape[1]):
        column = np.where(np.isnan(values[:, k]), np.nan, values[:, k] + 0.0)
        keys = mixed(keys ^ np.ascontiguousarray(column).view(np.uint64))
    return keys


def multiset_keys(chunk_starts: NDArray[Any], keys: Keys) -> Keys:
    """[B] fingerprints of rows -> [G] of groups, whatever the order of their rows."""
    with np.errstate(over="ignore"):
        return np.add.reduceat(mixed(keys), chunk_starts)


def rounded_keys(values: Floats, unit: float) -> Keys:
    """[B] numbers -> [B] fingerprints after rounding to multiples of ``unit``."""
    return mixed((np.round(values / unit) + 0.0).view(np.uint64))


def distinct_in_groups(chunk: Chunk, keys: NDArray[Any]) -> Floats:
    """[B] -> [G] how many different values each group has."""
    order = np.lexsort((keys, chunk.group))
    ordered = keys[order]
    first = np.ones(len(keys), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    first[chunk.starts] = True  # a sort by group leaves every group in its own rows
    return chunk.sum(first.astype(np.float64))
