"""What a reader gives and the audit takes: a dump, step by step, in the terms of the rollout table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Batch:
    """The rollouts that had their advantages computed together: those of one step."""

    step: int
    """The step as the dump numbers it; 0 where it has none."""
    scores: NDArray[np.float64]
    """[B, R] raw rewards in the order of ``Dump.rewards``; NaN where missing."""
    group: NDArray[np.int64]
    """[B] group of each rollout, 0..groups-1."""
    rows: pl.DataFrame
    """[B] the other columns of the rollout table that the dump has: ``rollout`` (id, unique in the dump), ``task``,
    ``prompt``, ``completion``, ``length``, ``advantage`` (what the trainer used), ``total`` (its reward, where the dump
    has one beside or instead of the parts), ``weight/NAME``. One row a rollout, also where the dump has several."""

    @property
    def groups(self) -> int:
        """How many groups."""
        return int(self.group.max(initial=-1)) + 1


@dataclass
class Summary:
    """What was read. The field names are part of ``gdpo audit --json``."""

    format: str = ""
    files: int = 0
    rollouts: int = 0
    groups: int = 0
    group_sizes: dict[int, int] = field(default_factory=dict)
    """size -> number of groups."""
    steps: list[int] = field(default_factory=list)
    rewards: list[str] = field(default_factory=list)
    missing: dict[str, int] = field(default_factory=dict)
    """reward -> rollouts without a value, for those that have any."""
    duplicates_dropped: int = 0
    skipped: list[str] = field(default_factory=list)
    """What could not be read: the file and line, and why."""
    notes: list[str] = field(default_factory=list)
    """What a user should know about how the dump was read."""

    def add(self, batch: Batch) -> None:
        """Count a batch in: for those who read a part of a dump."""
        sizes = np.bincount(batch.group) if len(batch.group) else np.zeros(0, dtype=np.int64)
        self.rollouts += len(batch.scores)
        self.groups += batch.groups
        for size, count in zip(*np.unique(sizes, return_counts=True), strict=True):
            self.group_sizes[int(size)] = self.group_sizes.get(int(size), 0) + int(count)
        self.steps = sorted({*self.steps, batch.step})
        for name, missing in zip(self.rewards, np.isnan(batch.scores).sum(axis=0), strict=False):
            if missing:
                self.missing[name] = self.missing.get(name, 0) + int(missing)

    def emptied(self) -> Summary:
        """The same source with nothing counted."""
        return replace(self, rollouts=0, groups=0, group_sizes={}, steps=[], missing={})


@dataclass
class Dump:
    """A dump that was found and recognised; nothing but its head has been read yet."""

    rewards: list[str]
    """Names of the R rewards."""
    framework: str
    """One of "trl", "verl", "nemo_rl", "ms_swift", "verifiers", "tinker", "areal" or "gdpo": for remedies in its own
    terms."""
    weights: dict[str, float]
    """Weights of the rewards where the dump or the caller says them; 1 for the others."""
    summary: Summary
    """Filled as batches are read; complete once they all are."""
    read: Callable[[], Iterator[Batch]]
    """Reads the batches in the order of their steps, a bounded amount in memory."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What else the dump says of the run: ``objective`` (a mapping as in a recipe) where gdpo wrote it."""

    def batches(self) -> Iterator[Batch]:
        """The batches, once more from the start at each call."""
        return self.read()

    def within(self, first: int, last: int) -> Dump:
        """The part with steps ``first`` to ``last``, both included."""
        summary = self.summary.emptied()

        def read() -> Iterator[Batch]:
            vars(summary).update(vars(self.summary.emptied()))
            for batch in self.batches():
                if first <= batch.step <= last:
                    summary.add(batch)
                    yield batch
            whole = self.summary
            summary.files, summary.notes, summary.skipped = whole.files, whole.notes, whole.skipped
            summary.duplicates_dropped = whole.duplicates_dropped

        return replace(self, summary=summary, read=read)
