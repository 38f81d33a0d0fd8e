"""The rollout table, version 1: a row a rollout, one Parquet file a step, written whole or not at all.

Columns: ``step``, ``group`` (unique in the step), ``rollout`` (unique in the run), ``task``, ``prompt`` and
``completion`` (text, or messages as JSON), ``length`` (tokens), then for each reward NAME ``reward/NAME`` (raw; null =
missing),
``gated/NAME``, ``weight/NAME``, ``normalized/NAME``, ``contribution/NAME``, and ``advantage``. File metadata holds
``gdpo.schema``, ``gdpo.version``, ``gdpo.framework`` and ``gdpo.objective`` (YAML).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gdpo.core.compute import Estimate
from gdpo.core.errors import Error
from gdpo.version import __version__

SCHEMA_VERSION = "1"


def rollout_frame(
    *, step: int, prompts: Sequence[Any], completions: Sequence[Any], lengths: Sequence[int] | None,
    names: Sequence[str], scores: Any, group: Any, estimate: Estimate | None = None, task: str | Sequence[str] = "",
    include: Any = None,
) -> pl.DataFrame:  # fmt: skip
    """A step's rollouts as a table of B rows.

    Args:
        step: the training step they were made for.
        prompts, completions: [B] text, or chat messages (kept as JSON).
        lengths: [B] completion lengths in tokens, None where unknown.
        names: the R rewards.
        scores: [B, R] raw scores, NaN = missing (written as null).
        group: [B] group of each rollout in this step.
        estimate: advantages and parts of the same rollouts; held-out rollouts have none.
        task: a label for all, or one a rollout.
        include: [B] bool, as the estimate was made with. A rollout that was left out is written as it counted, with
            every reward missing, so that whoever computes from the table gets the same advantages.
    """
    rows = len(prompts)
    columns: dict[str, Any] = {
        "step": pl.Series([step] * rows, dtype=pl.Int64),
        "group": pl.Series(np.asarray(group, dtype=np.int64)),
        "rollout": pl.Series([f"{step}-{row}" for row in range(rows)], dtype=pl.String),
        "task": pl.Series([task] * rows if isinstance(task, str) else list(task), dtype=pl.String),
        "prompt": pl.Series([as_text(prompt) for prompt in prompts], dtype=pl.String),
        "completion": pl.Series([as_text(completion) for completion in completions], dtype=pl.String),
        "length": pl.Series([None] * rows if lengths is None else list(lengths), dtype=pl.Int64),
    }
    parts: list[tuple[str, Any]] = [("reward", scores)]
    if estimate is not None:
        weights = np.broadcast_to(_numpy(estimate.weights), (rows, len(names)))
        parts += [("gated", estimate.rewards), ("weight", weights), ("normalized", estimate.normalized)]
        parts += [("contribution", estimate.contributions)]
    for k, name in enumerate(names):
        for kind, values in parts:
            column = _numpy(values)[:, k]
            if include is not None and kind in ("reward", "gated"):
                column = np.where(include, column, np.nan)
            columns[f"{kind}/{name}"] = pl.Series(column, dtype=pl.Float64, nan_to_null=True)
    if estimate is not None:
        columns["advantage"] = pl.Series(_numpy(estimate.advantages), dtype=pl.Float64)
    return pl.DataFrame(columns)


def write_frame(frame: pl.DataFrame, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a rollout table under a temporary name beside ``path``, then rename it: never half a file.

    Raises:
        Error: the file cannot be written (no space, no permission); nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    known = {"gdpo.schema": SCHEMA_VERSION, "gdpo.version": __version__, **(metadata or {})}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.write_parquet(temporary, metadata=known)
        os.replace(temporary, path)
    except (OSError, pl.exceptions.PolarsError) as error:
        temporary.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        raise Error(f"the rollouts cannot be written to {path}: {reason}; free space and resume") from None


def as_text(value: Any) -> str:
    """Text as it is, messages as JSON. Lone surrogates, which no file can hold as UTF-8, become U+FFFD."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _numpy(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    if hasattr(values, "detach"):
        values = values.detach().cpu().double()
    return np.asarray(values, dtype=np.float64)
