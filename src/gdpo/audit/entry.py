"""``gdpo.audit(...)``: a path, a table, or a dump that was opened."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from gdpo.audit.run import Audit
from gdpo.audit.run import audit as run_audit
from gdpo.core.errors import Error
from gdpo.rollouts import open_dump
from gdpo.rollouts.dump import Dump


def audit(
    dump: Any, *, format: str | None = None, rewards: Sequence[str] | None = None, group_by: str | None = None,
    weights: Mapping[str, float] | None = None, **options: Any,
) -> Audit:  # fmt: skip
    """What the rewards of some rollouts are really teaching.

    Args:
        dump: a file, a folder, a glob or a run; a polars or pandas table with a row a rollout; or a ``Dump``.
        format, rewards, group_by: how to read it, see ``gdpo.rollouts.open_dump``.
        weights: by reward, over those that the dump says.
        options: ``method``, ``gates``, ``bounds``, ``options``, ``primary``, ``thresholds``, ``seed`` of
            ``gdpo.audit.run.audit``.

    Returns:
        The ``Audit``: ``verdict``, ``findings``, ``measures``, ``summary``, ``series`` and ``examples``.

    Raises:
        Error: nothing to read, or an option that does not fit.
    """
    if isinstance(dump, Dump):
        return run_audit(dump, weights=weights, **options)
    reading: dict[str, Any] = {"format": format, "rewards": rewards, "group_by": group_by, "weights": weights}
    if isinstance(dump, str | os.PathLike):
        return run_audit(open_dump(dump, **reading), **options)
    frame = _frame(dump)
    with tempfile.TemporaryDirectory() as folder:  # one way to read a table, whoever holds it
        path = Path(folder) / "table.parquet"
        frame.write_parquet(path)
        return run_audit(open_dump(path, **reading), **options)


def _frame(table: Any) -> pl.DataFrame:
    if isinstance(table, pl.DataFrame):
        return table
    if isinstance(table, pl.LazyFrame):
        return table.collect()
    if hasattr(table, "to_dict") and hasattr(table, "columns"):
        return pl.DataFrame({str(name): list(table[name]) for name in table.columns}, strict=False)
    raise Error(f"{type(table).__name__} cannot be audited: a path, a polars or pandas table, or a Dump was expected")
