"""Rollouts of a run: all of their numbers, and the text of the few that a page can carry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gdpo.report.run_data import RunData, read_table

_KEYS = ["step", "group", "rollout", "length", "advantage"]
_TEXTS = ["task", "prompt", "completion"]
_PARTS = ("reward", "gated", "weight", "normalized", "contribution")
_RANGES = 10


@dataclass(frozen=True)
class Rollouts:
    """The numbers of every rollout, one row each: file, row, step, group, length, advantage and ``PART/NAME``."""

    files: list[Path]
    table: pl.DataFrame
    rewards: list[str]
    unread: int

    def column(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """[rows] a numeric column; NaN where missing or where the run has no such column."""
        if name not in self.table.columns:
            return np.full(self.table.height, np.nan)
        values = self.table[name].cast(pl.Float64, strict=False).fill_null(float("nan"))
        return values.to_numpy()


def read_rollouts(run: RunData) -> Rollouts:
    """The numeric columns of every step's rollout table; files that cannot be read are counted, not raised."""
    columns = [*_KEYS, *(f"{part}/{name}" for name in run.rewards for part in _PARTS)]
    files: list[Path] = []
    frames, unread = [], 0
    for path in run.rollout_files:
        frame = read_table(path, columns)
        if frame is None or "step" not in frame.columns:
            unread += 1
            continue
        index = pl.Series("row", np.arange(frame.height), dtype=pl.Int64)
        frames.append(frame.with_columns(index, pl.lit(len(files), pl.Int64).alias("file")))
        files.append(path)
    table = pl.concat(frames, how="diagonal_relaxed") if frames else pl.DataFrame()
    return Rollouts(files, table, run.rewards, unread)


def choose(rollouts: Rollouts, cap: int, also: list[int]) -> list[int]:
    """At most ``cap`` row numbers worth reading, in order, the same for the same run.

    The steps are cut into ten stretches; each gives its highest advantages, its lowest and random ones (a quarter, a
    quarter, a half), so that a page shows what was pushed, what was held back and what is usual, early and late.
    ``also`` are rows that must be among them.
    """
    count = rollouts.table.height
    if count <= cap:
        return list(range(count))
    chosen = dict.fromkeys(also[:cap])
    random = np.random.default_rng(0)
    advantages = rollouts.column("advantage")
    order = np.argsort(rollouts.column("step"), kind="stable")
    stretches = [stretch for stretch in np.array_split(order, _RANGES) if len(stretch)]
    for position, stretch in enumerate(stretches):
        room = (cap - len(chosen)) // (len(stretches) - position)
        ranked = stretch[np.argsort(np.nan_to_num(advantages[stretch]), kind="stable")]
        wanted = [*ranked[: room // 4], *ranked[::-1][: room // 4], *random.permutation(stretch)]
        fresh = [int(row) for row in dict.fromkeys(wanted) if row not in chosen]
        chosen |= dict.fromkeys(fresh[:room])
    return sorted(chosen)


def read_texts(rollouts: Rollouts, rows: list[int]) -> dict[int, dict[str, str | None]]:
    """Task, prompt, completion and rollout id of ``rows``; only the files that hold them are opened."""
    texts: dict[int, dict[str, str | None]] = {}
    places = rollouts.table.select("file", "row")
    by_file: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        file, inner = places.row(row)
        by_file.setdefault(file, []).append((row, inner))
    for file, pairs in by_file.items():
        frame = read_table(rollouts.files[file], ["rollout", *_TEXTS])
        for row, inner in pairs:
            found: dict[str, Any] = frame.row(inner, named=True) if frame is not None and inner < frame.height else {}
            texts[row] = {key: None if value is None else str(value) for key, value in found.items()}
    return texts


def last_quarter(rollouts: Rollouts) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], int, int]:
    """Which rows belong to the last quarter of the steps, and its first and last step."""
    steps = rollouts.column("step")
    known = np.unique(steps[np.isfinite(steps)])
    if not len(known):
        return np.zeros(len(steps), dtype=bool), 0, 0
    first = known[-max(1, -(-len(known) // 4))]
    return steps >= first, int(first), int(known[-1])


def histogram(
    values: np.ndarray[Any, np.dtype[np.float64]], edges: np.ndarray[Any, np.dtype[np.float64]]
) -> list[float]:
    """Share of the finite ``values`` in each bin, in per cent; values beyond the edges count in the outermost bins."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return [0.0] * (len(edges) - 1)
    counts, _ = np.histogram(np.clip(finite, edges[0], edges[-1]), bins=edges)
    return [round(100.0 * float(count) / len(finite), 3) for count in counts]


def symmetric_edges(columns: list[np.ndarray[Any, np.dtype[np.float64]]], bins: int = 41) -> np.ndarray[Any, Any]:
    """Edges of an odd number of bins about 0, wide enough for 99.8 % of the values; None-like input gives [-1, 1]."""
    sizes = np.abs(np.concatenate([column[np.isfinite(column)] for column in columns])) if columns else np.zeros(0)
    reach = float(np.quantile(sizes, 0.998)) if len(sizes) else 0.0
    if not np.isfinite(reach) or reach <= 0.0:
        reach = 1.0
    return np.linspace(-reach, reach, bins + 1) * (bins / (bins - 1))
