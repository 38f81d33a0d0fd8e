"""Reading a table of any common kind into rows, each with where it stands, so that an error can say so."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

from gdpo.core.errors import Error


def read_rows(path: Path) -> list[tuple[str, Any]]:
    """[(place, record)] of a JSONL, JSON, Parquet or CSV file, gzipped or not.

    Raises:
        Error: a line that is no JSON, or a kind of file that is not known.
        OSError, UnicodeDecodeError, polars.exceptions.PolarsError: a file that cannot be read.
    """
    import polars as pl

    packed = path.suffix.lower() == ".gz"
    kind = Path(path.stem).suffix.lower() if packed else path.suffix.lower()
    content = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    if kind in (".jsonl", ".ndjson"):
        return _json_lines(content.decode("utf-8-sig"), path)
    if kind == ".json":
        return _json(content.decode("utf-8-sig"), path)
    if kind in (".parquet", ".csv"):
        frame = pl.read_parquet(io.BytesIO(content)) if kind == ".parquet" else pl.read_csv(io.BytesIO(content))
        return [(f"row {index + 1}", row) for index, row in enumerate(frame.iter_rows(named=True))]
    raise Error(f"data file {path} is of kind {kind or 'unknown'!r}, but .jsonl, .json, .parquet or .csv was expected")


def _json_lines(text: str, path: Path) -> list[tuple[str, Any]]:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append((f"line {number}", json.loads(line)))
        except ValueError as error:
            raise Error(f"{path}, line {number} is not JSON ({error}): one record a line was expected") from None
    return rows


def _json(text: str, path: Path) -> list[tuple[str, Any]]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Error(f"{path} is not JSON ({error})") from None
    if isinstance(value, dict):  # {"data": [...]} and the like
        value = next((entry for entry in value.values() if isinstance(entry, list)), None)
    if not isinstance(value, list):
        raise Error(f"{path} holds no list of records")
    return [(f"record {index + 1}", row) for index, row in enumerate(value)]
