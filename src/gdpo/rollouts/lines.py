"""JSON lines: blocks of whole lines, read by polars where it can and one by one where it gives up.

Only ``\\n`` ends a line. polars is given the columns to read, so that a value of another kind, NaN, a cut line or bytes
that are no UTF-8 make it refuse the block instead of changing a value.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import polars as pl

from gdpo.core.errors import Error
from gdpo.rollouts.account import Account
from gdpo.rollouts.frames import frame_of_rows
from gdpo.rollouts.layout import META, Layout, Record, Source

BLOCK = 4 << 20
"""Bytes of a block; a longer line makes a longer block."""
_LONE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]")
_BOM = b"\xef\xbb\xbf"


def open_bytes(source: Source) -> IO[bytes]:
    """The unpacked bytes of a file."""
    if source.packed == "gzip":
        return gzip.open(source.path, "rb")  # type: ignore[return-value]
    if source.packed == "zstd":
        return _open_zstd(source)
    return source.path.open("rb")


def _open_zstd(source: Source) -> IO[bytes]:
    try:
        import zstandard  # type: ignore[import-not-found,unused-ignore]

        return zstandard.open(source.path, "rb")  # type: ignore[no-any-return,unused-ignore]
    except ImportError:
        pass
    if not hasattr(pl, "read_lines"):
        raise Error(f"{source.path} is packed with zstd; unpack it with `zstd -d`, or `pip install zstandard`")
    try:
        lines = pl.read_lines(source.path)["line"]
    except pl.exceptions.PolarsError as error:
        raise OSError(str(error).splitlines()[0]) from None
    return io.BytesIO("\n".join(lines.fill_null("").to_list()).encode() + b"\n")


def blocks(source: Source, size: int = BLOCK) -> Iterator[tuple[bytes, int]]:
    """(whole lines, number of the first of them) of a file; the last line may lack its end."""
    rest, line = [b""], 1
    with open_bytes(source) as file:
        first = True
        while data := file.read(size):
            if first and data.startswith(_BOM):
                data = data[len(_BOM) :]
            first = False
            end = data.rfind(b"\n") + 1
            if not end:
                rest.append(data)
                continue
            block = b"".join([*rest, data[:end]])
            yield block, line
            line += block.count(b"\n")
            rest = [data[end:]]
    last = b"".join(rest)
    if last:
        yield last, line


def read_lines(
    source: Source, layout: Layout, schema: dict[str, pl.DataType], known: set[str], account: Account
) -> Iterator[pl.DataFrame]:
    """The rows of a file in blocks: the columns of ``schema``, ``line`` and, for tables a line, ``part``."""
    pattern = _unknown(known)
    try:
        for block, first in blocks(source):
            frame = None
            if layout.flatten is None:
                for late in _late(block, pattern, first, source):
                    account.note(late[1])
                    known.add(late[0])
                    pattern = _unknown(known)
                frame = _by_polars(block, first, schema)
            yield _one_by_one(block, first, source, layout, schema, account) if frame is None else frame
    except (OSError, EOFError, zlib.error) as error:
        # Packed files of a killed writer end in the middle; what came before has been given.
        account.skip(source.name, f"cut off or unreadable ({error})")


def records_of(block: bytes, first: int, source: Source, account: Account) -> Iterator[tuple[int, Record]]:
    """(line number, object) of each line that holds one; the others are put into the account."""
    lines = block.split(b"\n")
    for place, raw in enumerate(lines):
        line = raw.strip(b" \t\r\xa0\0" if not place else b" \t\r")
        if not line:
            continue
        where = f"{source.name} line {first + place}"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            text = line.decode("utf-8", "replace")
            account.note(f"bytes that are no UTF-8 were replaced, first in {where}")
        try:
            record = json.loads(text, strict=False)
        except (ValueError, RecursionError):
            cut = place == len(lines) - 1
            account.skip(where, "cut off" if cut else "no JSON")
            continue
        if isinstance(record, dict):
            yield first + place, record
        else:
            account.skip(where, f"{type(record).__name__} where an object was expected")


def _by_polars(block: bytes, first: int, schema: dict[str, pl.DataType]) -> pl.DataFrame | None:
    count = block.count(b"\n") + (not block.endswith(b"\n"))
    if (b"\\u" in block and _LONE.search(block)) or not schema:
        return None
    try:
        frame = pl.read_ndjson(block, schema=schema)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    if frame.height != count:
        return None
    return frame.with_columns(pl.Series("line", np.arange(first, first + count)))


def _one_by_one(
    block: bytes, first: int, source: Source, layout: Layout, schema: dict[str, pl.DataType], account: Account
) -> pl.DataFrame:
    rows: list[Record] = []
    lines: list[int] = []
    for line, record in records_of(block, first, source, account):
        found = flat_rows(record, source, layout, line, account)
        rows += found
        lines += [line] * len(found)
    frame = frame_of_rows(rows, lines, schema, source, account)
    return frame.with_columns(pl.col("line").alias("part")) if layout.table_a_record else frame


def flat_rows(record: Record, source: Source, layout: Layout, line: int, account: Account) -> list[Record]:
    """A record as rows; one of another shape than its format has is put into the account."""
    if layout.flatten is None:
        return [record]
    try:
        rows = layout.flatten(record, source)
    except (TypeError, AttributeError, ValueError, KeyError, IndexError):
        account.skip(f"{source.name} line {line}", f"not the shape of {layout.label}")
        return []
    if not rows:
        account.skip(f"{source.name} line {line}", "holds no rollout (failed)")
    return rows


def _unknown(known: set[str]) -> tuple[re.Pattern[bytes], ...]:
    """Keys that the sampled rows did not show: after a comma, or first in a line."""
    names = b"|".join(re.escape(json.dumps(name, ensure_ascii=False)[1:-1].encode("utf-8", "replace")) for name in known)
    key = rb'"(?!(?:' + names + rb')")([^"\\]{1,200})" ?:'
    # Three expressions, each with a fixed beginning: an alternative would be slower by half.
    return tuple(re.compile(start + key) for start in (rb", ", rb",", rb"\n\{"))


def _late(
    block: bytes, patterns: tuple[re.Pattern[bytes], ...], first: int, source: Source
) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for match in (m for pattern in patterns if (m := pattern.search(block))):
        start = block.rfind(b"\n", 0, match.start() + 1) + 1 if match.group(0)[:1] != b"\n" else match.start() + 1
        end = block.find(b"\n", match.end())
        try:
            record: Any = json.loads(block[start : end if end >= 0 else None], strict=False)
        except (ValueError, RecursionError):
            continue
        name = next(group for group in match.groups() if group is not None).decode("utf-8", "replace")
        value = record.get(name) if isinstance(record, dict) else None
        line = first + block.count(b"\n", 0, start)
        where = f"{source.name} line {line}"
        if isinstance(value, int | float) and name not in META:
            found[name] = f"column {name!r} first stands in {where} and is not counted; rewards= with its name counts it"
        else:
            found.setdefault(name, "")
    return [(name, text) for name, text in found.items()]
