"""Groups: the one handle through which a method reduces.

A method never sums over rollouts itself. It asks this handle for sums, minima and maxima over groups (all rollouts of
one prompt) and, through ``batch``, over the batch; so the same method runs on dense or ragged groups, on groups spread
over processes (``distributed.py``) and on a stream of batches (``running.py``).

Rows are laid out as strips of equal height, each with rollouts of one group: [height, strips], since both libraries
reduce faster along the first axis; dense PyTorch alone stays [strips, height], where the difference is small and a
transposition is spared. What is known per group broadcasts. Dense groups are one strip each; ragged ones are cut into
strips, the last filled up with copies of its last row, which every sum leaves out: one huge group among small ones
wastes little.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gdpo.core.backend import (
    Array,
    factorize,
    is_tensor,
    like_array,
    lowest,
    namespace,
    ones,
    to_float,
    wide,
    without_nan,
)
from gdpo.core.backend import present as mask_of
from gdpo.core.errors import Error


class Centered(NamedTuple):
    """Values about the mean of their group. "Row-like" is laid out as strips, or broadcasts to that."""

    deviation: Array
    """Laid out: value minus the group's mean; exactly 0 where missing and in groups that are not live."""
    present: Array
    """Row-like: 1 where the value is there, else 0."""
    count: Array
    """[groups] number of values present."""
    low: Array
    """[groups] smallest value present (0 where none is)."""
    high: Array
    """[groups] largest value present (0 where none is); differs from ``low`` exactly where two values differ."""
    offset: Array
    """[groups] mean of the values present, minus ``low``."""
    squares: Array
    """[groups] sum of the squared deviations."""
    live: Array
    """[groups] bool: at least two values are present and they are not all equal, compared exactly."""
    complete: bool
    """Known to have no missing value (never claimed where looking would synchronise or ranks could differ)."""


class Labels:
    """The batch, or its parts (one a label of ``batch_ids``); a group lies in one of them. Reduces values per group."""

    def __init__(self, count: int, of_group: Array | None, groups: Groups) -> None:
        self.count = count
        self.of_group = of_group
        """[groups] label of each group, or None where there is one."""
        self._groups = groups

    def sum(self, values: Array) -> Array:
        """[groups] -> [labels]."""
        return self._groups.scatter(values, self.of_group, self.count, "sum")

    def min(self, values: Array) -> Array:
        """[groups] -> [labels]."""
        return self._groups.scatter(values, self.of_group, self.count, "min")

    def spread(self, values: Array) -> Array:
        """[labels] -> [groups], or something that broadcasts to it."""
        return values if self.of_group is None else values[self.of_group]

    def expand(self, values: Array) -> Array:
        """[labels] -> row-like."""
        return values if self.of_group is None else self._groups.expand(values[self.of_group])


class Groups:
    """Rows cut into groups and laid out as strips."""

    index: Array | None = None
    """[height * strips] the row that stands there; None where strip s is rows s*height to (s+1)*height."""
    mask: Array | None = None
    """As laid out: 0 for rows of a rollout that is counted elsewhere, else 1; None where there are none."""
    owner: Array | None = None
    """[strips] the group of each strip; None where strip and group are the same."""
    source: Any = None
    """[B] NumPy: the row that each is a copy of, where rollouts were split into rows."""
    shared = False
    """Whether groups are spread over processes: no decision may then rest on this process's rows alone."""
    batch: Labels

    def __init__(self, like: Array, height: int, strips: int, count: int, dense: bool = False) -> None:
        self.xp, self.like = namespace(like), like
        self.dtype = wide(like)
        self.rows, self.height, self.strips, self.count = int(like.shape[0]), height, strips, count
        self.axis = 1 if is_tensor(like) and dense else 0
        """The axis along which a strip lies."""
        self.shape = (strips, height) if self.axis else (height, strips)
        self.batch = Labels(1, None, self)
        self._codes: Array = None
        self._position: Array = None
        self._sizes: Array = None
        self._everyone: Array = None
        self._extra: Array = None
        self._lengths: Array = None

    @classmethod
    def of(cls, groups: object, like: Array, batch_ids: object = None, rollouts: object = None) -> Groups:
        """Groups from a size (B/size consecutive groups) or from ids [B] of any integer or string kind, in any order.

        Args:
            groups: the size or the ids.
            like: an array of B rows of the library and on the device in use.
            batch_ids: [B] labels; a group that has two is two groups.
            rollouts: [B] ids; rows with the same id and group count once.

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
            if batch_ids is None and rollouts is None:
                return cls(like, size, rows // size, rows // size, dense=True)
            codes, count = np.arange(rows) // size, rows // size
        else:
            codes, count = factorize(groups, rows, "groups")
        of_group, labels = None, 1
        if batch_ids is not None:
            label, labels = factorize(batch_ids, rows, "batch_ids")
            codes, count = factorize(codes * labels + label, rows, "groups")
            of_group = np.zeros(count, dtype=np.int64)
            of_group[codes] = label
        source = None if rollouts is None else first_rows(factorize(rollouts, rows, "rollouts")[0], codes, count)
        handle = cls._from_codes(like, codes, count, source)
        if of_group is not None:
            handle.batch = Labels(labels, like_array(of_group, like), handle)
        return handle

    @classmethod
    def _from_codes(cls, like: Array, codes: Any, count: int, source: Any = None, counted: Any = None) -> Groups:
        """From ``codes`` [B], the group of each row; ``source`` [B] is the row that each is a copy of.

        ``counted`` [B] bool says which rows count; by default those that are no copies.
        """
        rows, sizes = len(codes), np.bincount(codes, minlength=count)
        height = _height(sizes)
        strips_of = -(-sizes // height)
        owner = np.repeat(np.arange(count), strips_of)
        strip = np.arange(len(owner))
        # Rows in order of their groups: where each strip starts, and how many it holds.
        start = np.repeat(np.cumsum(sizes) - sizes - height * (np.cumsum(strips_of) - strips_of), strips_of)
        start += height * strip
        length = np.minimum(np.repeat(np.cumsum(sizes), strips_of) - start, height)
        handle = cls(like, height, len(owner), count)
        small = is_tensor(like) and max(rows, height) * len(owner) < 1 << 31
        kind: Any = np.int32 if small else np.int64  # PyTorch takes either, NumPy would convert
        start, length, strip = start.astype(kind), length.astype(kind), strip.astype(kind)
        index = np.add.outer(np.arange(height, dtype=kind), start)
        np.minimum(index, start + length - kind(1), out=index)
        # Row start + j of a strip stands at j * strips + strip.
        position = np.arange(rows, dtype=kind) * kind(len(owner))
        position += np.repeat(strip - start * kind(len(owner)), length)
        if (codes[1:] < codes[:-1]).any():
            short = codes.astype(np.uint16) if count <= 1 << 16 else codes  # NumPy sorts these by radix
            order = np.argsort(short, kind="stable").astype(kind)
            index, place = order[index], position
            position = np.empty_like(place)
            position[order] = place
        if index.size > rows:
            handle._extra = ones(len(owner), like) * like_array(height - length, like)
        handle.source = source
        if source is not None or counted is not None:
            counted = source == np.arange(rows) if counted is None else counted
            handle.mask = to_float(like_array(counted[index], like), like)
            index = index if source is None else source[index]
        handle.index = like_array(index.reshape(-1), like)
        handle.owner = None if len(owner) == count and (strips_of == 1).all() else like_array(owner, like)
        handle._codes, handle._position = like_array(codes, like), like_array(position, like)
        return handle

    def codes(self) -> Array:
        """[B] the group of each row."""
        if self._codes is None:
            self._codes = like_array(np.repeat(np.arange(self.count), self.height), self.like)
        return self._codes

    def sizes(self) -> Array:
        """[groups] the number of rollouts, copies aside."""
        if self._sizes is None:
            self._sizes = self.sum(self.everyone())
        return self._sizes

    def everyone(self) -> Array:
        """Row-like: 1."""
        if self._everyone is None:
            everyone = ones(self.strips, self.like)
            self._everyone = everyone[:, None] if self.axis else everyone
        return self._everyone

    def gather(self, matrix: Array) -> Array:
        """[B, ...] of any dtype -> its rows as they will stand, [height * strips, ...]."""
        if self.index is None:
            return matrix
        return matrix.index_select(0, self.index) if is_tensor(matrix) else matrix.take(self.index, 0)

    def lay(self, values: Array, gathered: bool = False) -> Array:
        """[B], or a column of ``gather``, of any dtype -> laid out, in the dtype of statistics; always a copy."""
        values = values if gathered else self.gather(values)
        if self.axis:
            return values.to(self.dtype, copy=True).reshape(self.shape)
        if self.index is not None:
            copied = values.to(self.dtype, copy=True) if is_tensor(values) else values.astype(np.float64)
            return copied.reshape(self.shape)
        return np.array(np.ascontiguousarray(values).reshape(self.strips, self.height).T, np.float64, order="C")

    def unlay(self, values: Array) -> Array:
        """Row-like -> [B]."""
        full = values
        if tuple(values.shape) != self.shape:
            full = self.xp.zeros_like(values) + self.xp.broadcast_to(values, self.shape)
        if self._position is not None:
            flat = full.reshape(-1)
            return flat.index_select(0, self._position) if is_tensor(flat) else flat.take(self._position)
        return (full if self.axis else full.T).reshape(-1)

    def sum(self, values: Array, times: Array | None = None) -> Array:
        """Row-like -> [groups], of ``values`` or of their product with ``times``."""
        one_pass = not is_tensor(values) and self.mask is None
        if times is not None and not (one_pass and values.shape == times.shape == self.shape):
            values, times = values * times, None
        if tuple(values.shape) != self.shape:  # one value a strip, or one in all
            if self._lengths is None:
                everyone = self.xp.broadcast_to(self.everyone(), self.shape)
                self._lengths = self._strip_sum(everyone if self.mask is None else self.mask)
            return self._gather(self._lengths * values.reshape(-1), "sum")
        return self._gather(self._strip_sum(values if self.mask is None else values * self.mask, times), "sum")

    def _strip_sum(self, values: Array, times: Array | None = None) -> Array:
        """Laid out -> [strips], less what fills a strip up: copies of its last row, in any array made row by row."""
        total = _total(values, self.axis) if times is None else np.einsum("ij,ij->j", values, times)  # one pass
        if self._extra is None:
            return total
        last = values[:, -1] if self.axis else values[-1]
        return total - self._extra * (last if times is None else last * times[-1])

    def min(self, values: Array) -> Array:
        """Laid out -> [groups]."""
        return self._gather(self.xp.amin(values, self.axis), "min")

    def max(self, values: Array) -> Array:
        """Laid out -> [groups]."""
        return self._gather(self.xp.amax(values, self.axis), "max")

    def expand(self, values: Array) -> Array:
        """[groups] -> row-like."""
        values = values if self.owner is None else values[self.owner]
        return values[:, None] if self.axis else values

    def center(self, values: Array, readable: bool = False) -> Centered:
        """Deviations from the mean of the values that are not NaN, about the smallest of them.

        Subtracting the smallest value first makes a tie exactly 0 whatever the rounding of a mean, and keeps the digits
        of small differences on a large offset (both are faults of a plain float mean; see docs/estimators.md).
        An infinity gives NaN for its whole group. ``values`` is overwritten.
        """
        xp, gather = self.xp, self._gather
        complete = False
        if readable and not math.isnan(float(values[:4].sum())):  # a look at a few first: often that settles it
            low = xp.amin(values, self.axis)
            complete = not math.isnan(float(low.sum()))
        if complete:
            present = self.everyone()
            low, count = gather(low, "min"), self.sizes()
        else:
            present = mask_of(values)
            low, count = gather(lowest(values, self.axis), "min"), self.sum(present)
            low = xp.where(count > 0, low, 0.0)
        values -= self.expand(low)
        if not complete:
            values = without_nan(values)
        high = low + gather(xp.amax(values, self.axis), "max")
        divisor = count if complete else xp.clip(count, 1, None)
        # (high - low) * 0 is 0, or NaN where a value is infinite.
        offset = self.sum(values) / divisor + (high - low) * 0.0
        values -= self.expand(offset)
        if self.dtype != xp.float64:  # a second pass takes out the rounding of the first mean
            values -= self.expand(self.sum(values, present) / divisor)
        if not complete:
            values *= present
        squares = self.sum(values, values)
        return Centered(values, present, count, low, high, offset, squares, high != low, complete)

    def scatter(self, values: Array, owner: Array | None, count: int, how: str) -> Array:
        """[n] reduced over equal ``owner`` [n] -> [count]; None: one segment, or each its own where the sizes agree."""
        xp = self.xp
        if owner is None:
            if values.shape[0] == count:
                return values
            return (_total(values, 0) if how == "sum" else getattr(xp, "a" + how)(values, 0))[None]
        start = {"sum": 0.0, "min": np.inf, "max": -np.inf}[how]
        if is_tensor(values):
            result = xp.full((count,), start, dtype=values.dtype, device=values.device)
            if how == "sum":
                return result.index_add_(0, owner, values)
            return result.scatter_reduce_(0, owner, values, "a" + how)
        if how == "sum":
            return np.bincount(owner, weights=values, minlength=count)
        result = np.full(count, start)
        (np.minimum if how == "min" else np.maximum).at(result, owner, values)
        return result

    def merge(self, values: Array, how: str) -> Array:
        """[groups] of this process -> of all processes; here there is one."""
        return values

    def _gather(self, values: Array, how: str) -> Array:
        """[strips] -> [groups]."""
        return self.merge(self.scatter(values, self.owner, self.count, how), how)


def first_rows(rollout: Any, codes: Any, count: int) -> Any:
    """[B] for each row the first one of the same rollout and group."""
    pair = rollout * count + codes
    _, first, inverse = np.unique(pair, return_index=True, return_inverse=True)
    return first[inverse]


def _height(sizes: Any) -> int:
    """The strip height that costs least: rows with their copies, and the extra step from strips to groups."""
    groups_of = np.bincount(sizes, minlength=2)  # how many groups have each size
    largest, size = len(groups_of) - 1, np.arange(len(groups_of))
    heights = [largest, *(1 << power for power in range(1, largest.bit_length()) if 1 << power < largest)]

    def cost(height: int) -> int:
        strips = int((-(-size // height) * groups_of).sum())
        return strips * height + (0 if height == largest else 4 * strips)

    return min(heights, key=cost)


def _total(values: Array, axis: int) -> Array:
    """Sum along an axis; compensated (pairs of sum and error, halving) where the dtype is not float64."""
    if not is_tensor(values) or values.dtype == namespace(values).float64:
        return values.sum(axis)
    values = values.movedim(axis, 0)
    error = values[:1] * 0.0
    while values.shape[0] > 1:
        half = values.shape[0] // 2
        one, two, rest = values[:half], values[half : 2 * half], values[2 * half :]
        both = one + two
        back = both - one
        error = error + ((one - (both - back)) + (two - back)).sum(0, keepdim=True)
        values = namespace(values).cat([both, rest])
    return (values + error)[0]
