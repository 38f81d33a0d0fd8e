"""Whole steps taken together, so that a dump of many small steps costs no more than one of a few large ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gdpo.rollouts.dump import Batch, Dump

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
TARGET = 32_768
"""Rollouts from which on a chunk is full."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """B rollouts in G groups of S whole steps; rows are ordered by group, groups by step."""

    scores: Floats
    """[B, R] raw, NaN where missing."""
    group: Integers
    """[B] group of each rollout, ascending, 0..G-1."""
    starts: Integers
    """[G] first row of each group."""
    label: Integers
    """[G] step of each group as an index of ``steps``."""
    steps: list[int]
    rows: pl.DataFrame
    """[B] what else the dump says of each rollout, see ``gdpo.rollouts.Batch``."""

    @property
    def sizes(self) -> Integers:
        """[G] rollouts in each group."""
        return np.diff(self.starts, append=len(self.group))

    @property
    def batch_ids(self) -> Integers:
        """[B] label of each rollout's step: advantages are computed a step at a time."""
        return self.label[self.group]

    def sum(self, values: NDArray[Any]) -> NDArray[Any]:
        """[..., B] -> [..., G]."""
        return np.add.reduceat(values, self.starts, axis=-1)

    def least(self, values: NDArray[Any]) -> NDArray[Any]:
        """[..., B] -> [..., G]."""
        return np.minimum.reduceat(values, self.starts, axis=-1)

    def largest(self, values: NDArray[Any]) -> NDArray[Any]:
        """[..., B] -> [..., G]."""
        return np.maximum.reduceat(values, self.starts, axis=-1)

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """[..., G] -> [..., B]."""
        return np.repeat(values, self.sizes, axis=-1)

    def place(self, row: int) -> int:
        """Number of a rollout's group in its step, from 0."""
        group = int(self.group[row])
        return group - int(np.searchsorted(self.label, self.label[group]))

    def column(self, name: str) -> Floats | None:
        """[B] a column of numbers, NaN where null; None where the dump has none."""
        if name not in self.rows.columns or not self.rows[name].dtype.is_numeric():
            return None
        return self.rows[name].cast(pl.Float64).fill_null(np.nan).to_numpy()

    def lengths(self) -> Floats | None:
        """[B] characters of the completions, or their tokens where the dump has no text; None where it has neither."""
        if "completion" in self.rows.columns and self.rows["completion"].dtype == pl.String:
            text = self.rows["completion"]
            count = text.str.len_chars()
            if count.max():  # a table written without text has empty ones
                return count.cast(pl.Float64).fill_null(np.nan).to_numpy()
        return self.column("length")

    def ids(self) -> list[str]:
        """[B] id of each rollout."""
        if "rollout" in self.rows.columns:
            return [str(value) for value in self.rows["rollout"].to_list()]
        return [f"{self.steps[label]}-{row}" for row, label in enumerate(self.batch_ids.tolist())]


def chunks(dump: Dump, target: int = TARGET) -> Iterator[Chunk]:
    """The dump, whole steps together until there are ``target`` rollouts."""
    waiting: list[Batch] = []
    for batch in dump.batches():
        if not len(batch.scores):
            continue
        waiting.append(batch)
        if sum(len(one.scores) for one in waiting) >= target:
            yield joined(waiting)
            waiting = []
    if waiting:
        yield joined(waiting)


def joined(batches: Iterable[Batch]) -> Chunk:
    """One chunk of several steps."""
    scores, codes, labels, steps, frames, offset = [], [], [], [], [], 0
    for label, batch in enumerate(batches):
        known, code = np.unique(batch.group, return_inverse=True)
        order = None if (code[1:] >= code[:-1]).all() else np.argsort(code, kind="stable")
        values = np.asarray(batch.scores, dtype=np.float64)
        scores.append(values if order is None else values[order])
        codes.append((code if order is None else code[order]) + offset)
        frames.append(batch.rows if order is None else batch.rows[order])
        labels.append(np.full(len(known), label))
        steps.append(batch.step)
        offset += len(known)
    group = np.concatenate(codes).astype(np.int64)
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    rows = frames[0] if len(frames) == 1 else pl.concat(frames, how="diagonal_relaxed")
    return Chunk(np.concatenate(scores), group, starts, np.concatenate(labels), steps, rows)
