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
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

import numpy as np
import polars as pl

from gdpo.core.errors import Error
from gdpo.rollouts.account import Account
from gdpo.rollouts.frames import frame_of_rows
from gdpo.rollouts.layout import META, Layout, Record, Source, Typed

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
        for data in _pieces(file, size, bool(source.packed)):
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


def _pieces(file: IO[bytes], size: int, packed: bool) -> Iterator[bytes]:
    """The bytes of a file; of a packed one that ends in the middle also those before its end."""
    waiting: list[bytes] = []
    try:
        while data := file.read(min(size, 1 << 16) if packed else size):
            waiting.append(data)
            if not packed or len(waiting) << 16 >= size:
                yield b"".join(waiting)
                waiting = []
    except (OSError, EOFError, zlib.error):
        yield b"".join(waiting)
        raise
    if waiting:
        yield b"".join(waiting)


def read_lines(
    source: Source, layout: Layout, schema: dict[str, pl.DataType], known: set[str], account: Account
) -> Iterator[pl.DataFrame]:
    """The rows of a file in blocks: the columns of ``schema``, ``line`` and, for tables a line, ``part``."""
    names = _Names(known)
    waiting: deque[tuple[bytes, int, Future[pl.DataFrame | None] | None]] = deque()

    def next_frame() -> pl.DataFrame:
        block, first, parsing = waiting.popleft()
        frame = parsing.result() if parsing is not None else None
        return _one_by_one(block, first, source, layout, schema, account) if frame is None else frame

    # polars works on a block, without Python's lock, while the next one is read and searched for unknown columns.
    with ThreadPoolExecutor(1) as worker:
        for block, first in _whole_blocks(source, account):
            parsing = None
            if layout.flatten is None or layout.typed is not None:
                parsing = worker.submit(_by_polars, block, first, schema, source, layout.typed)
            if layout.flatten is None or layout.table_a_record:
                names.look(block, first, source, account)
            waiting.append((block, first, parsing))
            if len(waiting) > 1:
                yield next_frame()
        while waiting:
            yield next_frame()


def _whole_blocks(source: Source, account: Account) -> Iterator[tuple[bytes, int]]:
    try:
        yield from blocks(source)
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
            account.text("bytes that are no UTF-8 were replaced", where)
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


def _by_polars(
    block: bytes, first: int, schema: dict[str, pl.DataType], source: Source, typed: Typed | None
) -> pl.DataFrame | None:
    count = block.count(b"\n") + (not block.endswith(b"\n"))
    if (b"\\u" in block and _LONE.search(block)) or not schema:
        return None
    try:
        frame = pl.read_ndjson(block, schema=typed.schema(schema) if typed else schema)
        if frame.height != count:
            return None
        frame = frame.with_columns(pl.Series("line", np.arange(first, first + count)))
        rows = typed.rows(frame, source) if typed else frame
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    return rows if rows is not None and set(schema) <= set(rows.columns) else None


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


class _Names:
    """Finds columns that the sampled rows did not show, which polars would leave out without a word."""

    def __init__(self, known: set[str]) -> None:
        self.known = known
        self._compile()

    def _compile(self) -> None:
        names = (json.dumps(name, ensure_ascii=False)[1:-1].encode("utf-8", "replace") for name in self.known)
        key = rb'"(?!(?:' + b"|".join(map(re.escape, names)) + rb')")([^"\\]{1,200})" ?:'
        # Expressions with a fixed beginning; an alternative in one of them would be slower by half.
        self.spaced, self.close, self.first = (re.compile(start + key) for start in (rb", ", rb",", rb"\n\{"))

    def look(self, block: bytes, first: int, source: Source, account: Account) -> None:
        """Put each unknown column of numbers into the account, with the line where it first stands."""
        style = self.spaced if b'": ' in block[:4096] else self.close
        for _ in range(len(self.known) + 1000):
            match = style.search(block) or self.first.search(block)
            if match is None:
                return
            name = match.group(1).decode("utf-8", "replace")
            start = block.rfind(b"\n", 0, match.start() + 1) + 1
            value = _value_of(block[start : block.find(b"\n", match.end()) + 1 or None], name)
            value = value[0] if isinstance(value, list) and value else value
            if isinstance(value, int | float) and name not in META:
                line = first + block.count(b"\n", 0, start)
                account.note(
                    f"column {name!r} first stands in {source.name} line {line} and is not counted; rewards= counts it"
                )
            self.known.add(name)
            self._compile()


def _value_of(line: bytes, name: str) -> Any:
    try:
        record = json.loads(line, strict=False)
    except (ValueError, RecursionError):
        return None
    return record.get(name) if isinstance(record, dict) else None
