"""The head of a dump: sampled rows of its files, enough to say what it is and which columns it has."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import IO, Any

import polars as pl

from gdpo.rollouts.account import Account
from gdpo.rollouts.frames import csv_frame, json_rows
from gdpo.rollouts.layout import Head, Kind, Layout, Record, Source, kind_of
from gdpo.rollouts.lines import flat_rows, open_bytes, records_of

_BYTES = 2 << 20
"""Bytes of JSON lines that are looked at in all."""
_FILES = 64
_SPOTS = 5
_ROWS = 50


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """At most ``count`` of the items, evenly, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(place * (len(items) - 1) / (count - 1))] for place in range(count)]


def look(sources: Sequence[Source]) -> tuple[Head, list[tuple[Record, Source]]]:
    """The head of files, and the sampled rows with their file.

    Columns are those of every Parquet file's schema, and those of the sampled rows of the others: small dumps as a
    whole, large ones in spots from the first to the last row.
    """
    account = Account()
    rows: list[tuple[Record, Source]] = []
    late: dict[str, pl.DataType] = {}
    metadata: dict[str, str] = {}
    for source in sources:
        if source.kind == "parquet":
            late |= {name: dtype for name, dtype in _schema(source).items() if late.get(name) in (None, pl.Null)}
            metadata = metadata or _metadata(source)
    chosen = spread(sources, _FILES)
    for source in chosen:
        rows += [(record, source) for record in _sample(source, max(_BYTES // len(chosen), 1 << 15), account)]
    records = [record for record, _ in rows]
    kinds = kinds_of(records, late)
    return Head(kinds, records, late, _all_lists(records), metadata, sources[0] if sources else None), rows


def flattened(head: Head, rows: Iterable[tuple[Record, Source]], layout: Layout) -> Head:
    """The head of the rows that a nested format's records hold."""
    if layout.flatten is None:
        return head
    account = Account()
    flat = [row for record, source in rows for row in flat_rows(record, source, layout, 0, account)]
    return Head(kinds_of(flat, {}), flat, {}, False, head.metadata, head.source)


def kinds_of(records: Sequence[Record], late: dict[str, pl.DataType]) -> dict[str, Kind]:
    """The kind of each column, those that files declare first, in the order they stand."""
    names = dict.fromkeys(late) | dict.fromkeys(name for record in records for name in record)
    kinds: dict[str, Kind] = {}
    for name in names:
        declared = _declared(late[name]) if name in late else None
        kinds[name] = declared or kind_of(record.get(name) for record in records)
    return kinds


def keys_of(records: Iterable[Any]) -> set[str]:
    """Every key of the records, nested ones too."""
    found: set[str] = set()
    waiting = list(records)
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            found |= value.keys()
            waiting += [inner for inner in value.values() if isinstance(inner, dict | list)]
        elif isinstance(value, list):
            waiting += [inner for inner in value if isinstance(inner, dict | list)]
    return found


def _declared(dtype: pl.DataType) -> Kind | None:
    if dtype.is_float() or dtype.is_decimal():
        return "float"
    if dtype.is_integer():
        return "int"
    if dtype == pl.Boolean:
        return "bool"
    return "nested" if dtype.is_nested() else None


def _all_lists(records: Sequence[Record]) -> bool:
    return bool(records) and all(
        record and all(isinstance(value, list) for value in record.values()) and _is_table(record) for record in records
    )


def _is_table(record: Record) -> bool:
    texts = record.get("prompt"), record.get("completion")
    return all(isinstance(column, list) for column in texts) and len(texts[0] or ()) == len(texts[1] or ())


def _sample(source: Source, budget: int, account: Account) -> list[Record]:
    try:
        if source.kind == "lines":
            return _sample_lines(source, budget, account)
        if source.kind == "parquet":
            return pl.scan_parquet(source.path, glob=False).head(_ROWS).collect().to_dicts()
        if source.kind == "csv":
            return csv_frame(source, rows=10_000).to_dicts()
        return json_rows(source)[:100_000]
    except (OSError, EOFError, ValueError, pl.exceptions.PolarsError):
        return []


def _sample_lines(source: Source, budget: int, account: Account) -> list[Record]:
    size = source.path.stat().st_size
    with open_bytes(source) as file:
        if source.packed or size <= budget:
            data = _beginning(file, budget * 4 if source.packed else budget)
            return [record for _, record in records_of(data.removeprefix(b"\xef\xbb\xbf"), 1, source, account)]
        records: list[Record] = []
        for spot in range(_SPOTS):
            file.seek((size - budget // _SPOTS) * spot // (_SPOTS - 1))
            if spot:
                file.readline()
            data = file.read(budget // _SPOTS) + file.readline()
            data = data.removeprefix(b"\xef\xbb\xbf")
            records += [record for _, record in records_of(data, 1, source, account)]
        return records


def _beginning(file: IO[bytes], size: int) -> bytes:
    """The first bytes of a file, at least a line; what there is of a packed one that ends in the middle."""
    data = b""
    try:
        while (len(data) < size or b"\n" not in data) and (more := file.read(1 << 16)):
            data += more
    except (OSError, EOFError, zlib.error):
        pass
    return data


def _schema(source: Source) -> dict[str, pl.DataType]:
    try:
        return dict(pl.read_parquet_schema(source.path))
    except (OSError, pl.exceptions.PolarsError):
        return {}


def _metadata(source: Source) -> dict[str, str]:
    try:
        return dict(pl.read_parquet_metadata(source.path))
    except (OSError, pl.exceptions.PolarsError):
        return {}
