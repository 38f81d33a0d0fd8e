"""Groups: the one handle through which a method reduces.

A method never sums over rollouts itself. It asks a handle for counts, sums, minima and maxima over groups (all
rollouts of one prompt) or over the batch, so that the same method runs on dense or ragged groups, and later on groups
spread over processes or batches that are a stream: each of those is another handle, not another method.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gdpo.core.backend import Array, factorize, is_tensor, namespace, to_float
from gdpo.core.errors import Error


class Centered(NamedTuple):
    """A column about the mean of its segment."""

    deviation: Array
    """[B] value minus the segment's mean; exactly 0 where missing and in segments that are not live."""
    present: Array
    """[B] bool: the value is there (not NaN, not excluded)."""
    count: Array
    """[segments] number of values present."""
    low: Array
    """[segments] smallest value present (inf where none is)."""
    high: Array
    """[segments] largest value present (-inf where none is)."""
    mean: Array
    """[segments] mean of the values present (NaN where none is)."""
    live: Array
    """[segments] bool: at least two values are present and they are not all equal, compared exactly."""


class Segments:
    """Rows cut into segments; every reduction goes through ``sum``, ``min`` and ``max``.

    Args:
        rows: number of rows B.
        count: number of segments.
        codes: [B] segment of each row, or None where the segments are consecutive and of equal size.
        like: an array of the library and on the device in use.
    """

    def __init__(self, rows: int, count: int, codes: Array | None, like: Array) -> None:
        self.rows = rows
        self.count = count
        self.codes = codes
        self.xp = namespace(like)
        self._device = like.device if is_tensor(like) else None
        self._size = rows // count if count else 0
        self._order: Array = None
        if codes is not None and not is_tensor(codes):
            self._order = np.argsort(codes, kind="stable")
            self._starts = np.searchsorted(codes[self._order], np.arange(count))

    def sum(self, values: Array) -> Array:
        """[B] -> [segments]."""
        if self.codes is None:
            return values.reshape(self.count, self._size).sum(axis=1)
        if self._order is not None:
            return np.bincount(self.codes, weights=values, minlength=self.count)
        zeros = self.xp.zeros(self.count, dtype=values.dtype, device=self._device)
        return zeros.index_add_(0, self.codes, values)

    def tally(self, mask: Array) -> Array:
        """[B] bool -> [segments] how many are true, as float64."""
        return self.sum(to_float(mask))

    def min(self, values: Array) -> Array:
        """[B] -> [segments]."""
        return self._extreme(values, "amin", np.minimum)

    def max(self, values: Array) -> Array:
        """[B] -> [segments]."""
        return self._extreme(values, "amax", np.maximum)

    def expand(self, values: Array) -> Array:
        """[segments] -> [B]: each row gets its segment's value."""
        if self.codes is not None:
            return values[self.codes]
        shape = (self.count, self._size)
        spread = self.xp.broadcast_to(values[:, None], shape)
        return spread.reshape(self.rows)

    def index(self) -> Array:
        """[B] the segment of each row."""
        if self.codes is not None:
            return self.codes
        if self._device is None:
            return np.repeat(np.arange(self.count), self._size)
        return self.xp.arange(self.count, device=self._device).repeat_interleave(self._size, output_size=self.rows)

    def center(self, values: Array, present: Array) -> Centered:
        """Deviations from the mean of the values present, in float64 about the smallest of them.

        Subtracting the smallest value first makes a tie exactly 0 whatever the rounding of a mean, and keeps the digits
        of small differences on a large offset (both are faults of a plain float mean; see docs/estimators.md).
        An infinity gives NaN for its whole segment.
        """
        xp = self.xp
        low = self.min(xp.where(present, values, np.inf))
        high = self.max(xp.where(present, values, -np.inf))
        count = self.tally(present)
        live = (count >= 2) & (high > low)
        shifted = xp.where(present, values - self.expand(low), 0.0)
        offset = self.sum(shifted) / xp.clip(count, 1, None)
        # (high - low) * 0 is 0, or NaN where a value is infinite.
        center = offset + xp.where(live, (high - low) * 0.0, 0.0)
        deviation = xp.where(present & self.expand(live), shifted - self.expand(center), 0.0)
        mean = xp.where(count > 0, low + offset, np.nan)
        return Centered(deviation, present, count, low, high, mean, live)

    def std(self, deviation: Array, count: Array, ddof: int) -> Array:
        """[segments] standard deviation from deviations about the mean; 0 where ``count <= ddof``."""
        squares = self.sum(deviation * deviation)
        return self.xp.where(count > ddof, self.xp.sqrt(squares / self.xp.clip(count - ddof, 1, None)), 0.0)

    def _extreme(self, values: Array, name: str, ufunc: np.ufunc) -> Array:
        if self.codes is None:
            if self._device is None:
                return ufunc.reduce(values.reshape(self.count, self._size), axis=1)
            return getattr(self.xp, name)(values.reshape(self.count, self._size), dim=1)
        if self._order is not None:
            return ufunc.reduceat(values[self._order], self._starts)
        start = np.inf if name == "amin" else -np.inf
        initial = self.xp.full((self.count,), start, dtype=values.dtype, device=self._device)
        return initial.scatter_reduce_(0, self.codes, values, name)


class Groups(Segments):
    """The groups of a batch, and with ``batch`` the batch they make (or its parts, one a label of ``batch_ids``)."""

    batch: Segments

    @classmethod
    def of(cls, groups: object, like: Array, batch_ids: object = None) -> Groups:
        """Groups from a size (B/size consecutive groups) or from ids [B] of any integer or string kind, in any order.

        Raises:
            Error: a size that does not divide B, or ids that do not match the rollouts.
        """
        rows = int(like.shape[0])
        if isinstance(groups, int | np.integer) and not isinstance(groups, bool):
            size = int(groups)
            if size < 1:
                raise Error(f"groups is {size}, but a group has at least one rollout")
            if rows % size:
                raise Error(f"groups of {size} do not fit the rollouts: {rows} is not a multiple of {size}")
            handle = cls(rows, rows // size, None, like)
        else:
            codes, count = factorize(groups, like, "groups")
            handle = cls(rows, count, codes, like)
        if batch_ids is None:
            handle.batch = Segments(rows, 1, None, like)
        else:
            labels, count = factorize(batch_ids, like, "batch_ids")
            # A group never spans two labels: what is taken per label is what a call of its own would give.
            codes, groups_count = factorize(handle.index() * count + labels, like, "groups")
            handle = cls(rows, groups_count, codes, like)
            handle.batch = Segments(rows, count, labels, like)
        return handle
