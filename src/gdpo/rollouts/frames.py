"""Tables: Parquet, CSV and JSON files, and rows of any origin, in the columns that a dump needs."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from gdpo.rollouts.account import Account
from gdpo.rollouts.layout import Record, Source, number_of
from gdpo.rollouts.table import as_text

ROWS = 200_000
"""Rows of a large Parquet file in memory at a time."""
_SMALL = 16 << 20
"""Bytes of a Parquet file that is read in one go."""


def frame_of_rows(
    rows: list[Record], lines: list[int], schema: dict[str, pl.DataType], source: Source, account: Account
) -> pl.DataFrame:
    """Python rows as a frame with the columns of ``schema`` and ``line``."""
    columns: list[pl.Series] = []
    for name, dtype in schema.items():
        values = [row.get(name) for row in rows]
        if dtype == pl.Float64:
            numbers = [
                value if type(value) is float else _number(value, name, source, line, account)
                for value, line in zip(values, lines, strict=True)
            ]
            columns.append(pl.Series(name, numbers, dtype=pl.Float64))
        else:
            texts = [None if value is None else _text(value) for value in values]
            columns.append(pl.Series(name, texts, dtype=pl.String))
    return pl.DataFrame([*columns, pl.Series("line", lines, dtype=pl.Int64)])


def _text(value: Any) -> str:
    if isinstance(value, bool | int | float):
        return str(value)
    return as_text(value)


def _number(value: Any, name: str, source: Source, line: int, account: Account) -> float | None:
    if value is None:
        return None
    where = f"{source.name} line {line}"
    shown = name.removeprefix("reward/")
    if isinstance(value, bool | int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str):
        number = number_of(value)
        if number is not None:
            account.value(shown, "written as text, read as a number", where)
            return number
    account.value(shown, "not a number, counted as missing", f"{where}: {as_text(value)[:40]!r}")
    return None


def read_parquet(source: Source, schema: dict[str, pl.DataType], account: Account) -> Iterator[pl.DataFrame]:
    """The rows of a Parquet file, some hundred thousand at a time."""
    try:
        if source.path.stat().st_size < _SMALL:
            names = [name for name in pl.read_parquet_schema(source.path) if name in schema]
            frame = pl.read_parquet(source.path, columns=names, glob=False)
            yield to_schema(frame, schema, source, account, 1, frame.height)
            return
        lazy = pl.scan_parquet(source.path, glob=False)
        present = lazy.collect_schema()
        count = lazy.select(pl.len()).collect().item()
        lazy = lazy.select([name for name in schema if name in present])
        for start in range(0, count, ROWS):
            frame = lazy.slice(start, ROWS).collect()
            yield to_schema(frame, schema, source, account, start + 1, min(ROWS, count - start))
    except (pl.exceptions.PolarsError, OSError) as error:
        account.skip(source.name, f"not readable as Parquet, cut off or damaged ({_first_line(error)})")


def read_csv(source: Source, schema: dict[str, pl.DataType], account: Account) -> Iterator[pl.DataFrame]:
    """The rows of a CSV file; every value is read as text first."""
    try:
        frame = csv_frame(source)
    except (pl.exceptions.PolarsError, OSError) as error:
        account.skip(source.name, f"not readable as CSV ({_first_line(error)})")
        return
    yield to_schema(
        frame.select([name for name in schema if name in frame.columns]), schema, source, account, 2, frame.height
    )


def csv_frame(source: Source, rows: int | None = None) -> pl.DataFrame:
    """A CSV file with every column as text; comma, semicolon or tab, whichever its first line has most of."""
    head = pl.read_csv(source.path, has_header=False, separator="\x01", quote_char=None, n_rows=1, infer_schema=False)
    first = str(head.item(0, 0)) if head.height else ""
    separator = max(",;\t", key=first.count)
    return pl.read_csv(source.path, separator=separator, infer_schema=False, n_rows=rows, encoding="utf8-lossy")


def json_rows(source: Source) -> list[Record]:
    """The rows of a JSON file: a list of objects, an object of equally long lists, or a logged table.

    Raises:
        ValueError: it is none of these.
    """
    data = source.path.read_bytes()
    if source.packed == "gzip":
        data = gzip.decompress(data)
    value = json.loads(data.decode("utf-8-sig", "replace"), strict=False)
    if isinstance(value, dict) and isinstance(value.get("columns"), list) and isinstance(value.get("data"), list):
        return [dict(zip(value["columns"], row, strict=False)) for row in value["data"] if isinstance(row, list)]
    if isinstance(value, dict) and isinstance(value.get("log_history"), list):
        value = value["log_history"]
    if isinstance(value, dict) and value and all(isinstance(column, list) for column in value.values()):
        return [dict(zip(value, row, strict=False)) for row in zip(*value.values(), strict=False)]
    rows = value if isinstance(value, list) else [value]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("no list of objects")
    return rows


def to_schema(
    frame: pl.DataFrame, schema: dict[str, pl.DataType], source: Source, account: Account, first: int, height: int
) -> pl.DataFrame:
    """A frame with the columns of ``schema`` and ``line``; absent columns are null."""
    columns: list[pl.Series] = []
    for name, dtype in schema.items():
        if name not in frame.columns:
            columns.append(pl.Series(name, [None], dtype=dtype).new_from_index(0, height))
        elif dtype == pl.Float64:
            columns.append(_numbers(frame[name], source, account, first))
        else:
            columns.append(text_of(frame[name]))
    return pl.DataFrame([*columns, pl.Series("line", np.arange(first, first + height), dtype=pl.Int64)])


def _numbers(series: pl.Series, source: Source, account: Account, first: int) -> pl.Series:
    if series.dtype.is_numeric() or series.dtype in (pl.Boolean, pl.Null):
        return series.cast(pl.Float64)
    if series.dtype == pl.String:
        lower = series.str.strip_chars().str.to_lowercase()
        booleans = lower.replace({"true": "1", "false": "0", "": None, "null": None, "none": None})
        numbers = booleans.cast(pl.Float64, strict=False)
        wrong = (numbers.is_null() & booleans.is_not_null()).arg_true().to_list()
    else:
        numbers = pl.Series(series.name, [None] * len(series), dtype=pl.Float64)
        wrong = series.is_not_null().arg_true().to_list()
    shown = series.name.removeprefix("reward/")
    for row in wrong:
        account.value(shown, "not a number, counted as missing", f"{source.name} row {first + row}")
    return numbers.alias(series.name)


def text_of(series: pl.Series) -> pl.Series:
    """Text as it is, numbers written out, messages as JSON."""
    if series.dtype == pl.String:
        return series
    if isinstance(series.dtype, pl.List) and isinstance(series.dtype.inner, pl.Struct):
        encoded = pl.element().struct.json_encode()
        joined = "[" + pl.col(series.name).list.eval(encoded).list.join(", ") + "]"
        return series.to_frame().select(joined).to_series().alias(series.name)
    if series.dtype in (pl.List, pl.Array, pl.Struct, pl.Object):
        return pl.Series(series.name, [None if v is None else as_text(v) for v in series.to_list()], dtype=pl.String)
    return series.cast(pl.String, strict=False)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
