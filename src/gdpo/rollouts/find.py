"""Which files a path means, and what each of them is by its content."""

from __future__ import annotations

import glob
import gzip
import json
import os
import re
from pathlib import Path
from typing import Any, Literal

import polars as pl

from gdpo.core.errors import Error
from gdpo.rollouts.layout import Source

LOOKED_FOR = "rollouts as JSON lines, Parquet, CSV or JSON, also packed with gzip or zstd"
_HEAD = 1 << 16
_PICKLES = (".pt", ".pth", ".pkl", ".pickle")
_HELD_OUT = re.compile(r"^(test|(eval|evals|evaluation|evaluations|val|validation)([_-].*)?)$", re.IGNORECASE)
_HELD_OUT_FILE = re.compile(r"^(test|eval|val)_", re.IGNORECASE)
_MOST = 100_000
PICKLE = (
    "{path} is a pickle, which can run code when it is loaded and is never opened here; convert it where you trust it, "
    'for example: data = torch.load("{name}", weights_only=True); then write one JSON object a rollout with a column a '
    "reward: file.write(json.dumps(row) + chr(10))"
)


def find_sources(path: str | os.PathLike[str]) -> tuple[list[Source], list[str], list[str]]:
    """The readable files of a file, folder, glob or run; what was left out and why; notes.

    Raises:
        Error: nothing there, or nothing that can be read.
    """
    given = Path(path).expanduser()
    files, notes = _files(given, str(path))
    sources: list[Source] = []
    refused: dict[Path, str] = {}
    for file in files:
        found = sniff(file)
        if isinstance(found, Source):
            name = file.name if len(files) == 1 else _relative(file, given)
            sources.append(Source(found.path, found.kind, found.packed, name))
        else:
            refused[file] = found
    if not sources:
        raise _nothing(path, refused)
    damaged = [f"{_relative(file, given)}: {why}" for file, why in refused.items() if why == "cut off"]
    return sources, damaged, notes


def states(path: str | os.PathLike[str]) -> dict[Path, tuple[int, int]]:
    """Each file that a path means with its (bytes, time of change): what tells whether a growing dump grew.

    Raises:
        Error: nothing there.
    """
    found = {}
    for file in _files(Path(path).expanduser(), str(path))[0]:
        try:
            about = file.stat()
        except FileNotFoundError:
            continue  # taken away while we looked
        found[file] = (about.st_size, about.st_mtime_ns)
    return found


def sniff(path: Path) -> Source | str:
    """What a file is by its first bytes, or why it cannot be read: empty, pickle, binary, text, unreadable, cut off."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_HEAD)
            file.seek(max(0, size - 4))
            tail = file.read(4)
    except OSError as error:
        return f"unreadable ({error.strerror or error})"
    if not head:
        return "empty"
    if head[:4] == b"PAR1":
        return Source(path, "parquet") if tail == b"PAR1" and size > 12 else "cut off"
    if _is_pickle(head, path):
        return "pickle"
    if head[:2] == b"\x1f\x8b":
        return _packed(path, "gzip")
    if head[:4] == b"\x28\xb5\x2f\xfd":
        return _packed(path, "zstd")
    kind = _text_kind(head, len(head) == size, path)
    return kind if kind in ("empty", "binary", "text") else Source(path, kind)  # type: ignore[arg-type]


def _files(given: Path, pattern: str) -> tuple[list[Path], list[str]]:
    if given.is_dir():
        own = sorted((given / "rollouts").glob("step-*.parquet"), key=natural)
        if own:
            return own, []
        return _without_held_out([file for file in _walk(given) if not file.name.startswith(".")], given)
    if given.exists():
        return [given], []
    if any(mark in pattern for mark in "*?["):
        found = [Path(name) for name in glob.glob(str(given), recursive=True)]
        inside = [inner for name in found for inner in (_walk(name) if name.is_dir() else [name])]
        if inside:
            return sorted(set(inside), key=natural), []
        raise Error(f"no file matches {pattern!r}; {LOOKED_FOR} were looked for")
    raise Error(f"there is no file or folder {pattern!r}; {LOOKED_FOR} were looked for")


def _walk(folder: Path) -> list[Path]:
    found: list[Path] = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(root) / name for name in names]
        if len(found) > _MOST:
            raise Error(f"{folder} holds over {_MOST} files; name the folder or a glob of the rollouts")
    return sorted(found, key=natural)


def _without_held_out(files: list[Path], folder: Path) -> tuple[list[Path], list[str]]:
    """Evaluations stand beside training rollouts in some layouts and are no part of the training."""
    held = [file for file in files if _held_out(file.relative_to(folder))]
    rest = sorted(set(files) - set(held), key=natural)
    if not held or not any(isinstance(sniff(file), Source) for file in rest):
        return files, []
    first = held[0].relative_to(folder)
    return rest, [
        f"{len(held)} files of evaluation rollouts were left out, such as {first}; give their path to read them"
    ]


def _held_out(file: Path) -> bool:
    return any(_HELD_OUT.match(part) for part in file.parts[:-1]) or _HELD_OUT_FILE.match(file.name) is not None


def natural(path: Path) -> list[tuple[int, int, str]]:
    """Sorts 2 before 10."""
    parts = re.split(r"(\d+)", str(path))
    return [(0, int(part), "") if part.isdecimal() and part.isascii() else (1, 0, part) for part in parts]


def _relative(file: Path, given: Path) -> str:
    try:
        return str(file.relative_to(given)) if given.is_dir() else file.name
    except ValueError:
        return str(file)


def _is_pickle(head: bytes, path: Path) -> bool:
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return True
    if head[:2] == b"PK" and b"data.pkl" in head[:1024]:
        return True
    return path.suffix.lower() in _PICKLES and head.lstrip()[:1] not in b"{["


def _packed(path: Path, packed: Literal["gzip", "zstd"]) -> Source | str:
    try:
        if packed == "gzip":
            with gzip.open(path, "rb") as file:
                head = file.read(_HEAD)
        else:
            lines = pl.read_csv(
                path, has_header=False, separator="\x01", quote_char=None, n_rows=20, infer_schema=False
            )
            head = "\n".join(lines.to_series().fill_null("").to_list()).encode()
    except (OSError, EOFError, pl.exceptions.PolarsError) as error:
        return "empty" if isinstance(error, pl.exceptions.NoDataError) else f"unreadable ({str(error)[:80]})"
    kind = _text_kind(head, False, path)
    return kind if kind in ("empty", "binary", "text") else Source(path, kind, packed)  # type: ignore[arg-type]


def _text_kind(head: bytes, whole: bool, path: Path) -> str:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        return "empty"
    if text[:1] == b"{":
        return "lines" if _first_is_json(text, whole) else "json"
    if text[:1] == b"[":
        return "json"
    if b"\0" in head or sum(byte < 9 for byte in head[:4096]) > 8:
        return "binary"
    try:
        head[: -4 if not whole else None].decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 8:
            return "binary"
    first = text.split(b"\n", 1)[0]
    named = max(first.count(mark) for mark in (b",", b";", b"\t"))
    if named and path.suffix.lower() not in (".md", ".txt", ".log", ".py", ".yaml", ".yml", ".toml"):
        return "csv"
    return "text"


def _first_is_json(text: bytes, whole: bool) -> bool:
    """Whether the file is JSON lines: its first line is an object, or is too long to see its end, or damaged."""
    first, end, _ = text.partition(b"\n")
    if re.match(rb'\{\s*"(columns|data)"\s*:\s*\[\s*[\["]', first):
        return False  # a logged table
    try:
        record = json.loads(first, strict=False)
    except (ValueError, RecursionError):
        if first.strip() == b"{" or (not end and whole):
            return not whole or not _parses(text)
        # A damaged first line is still a line; pretty-printed JSON has a short one that opens.
        return len(first) > 200 or (b":" in first and first.rstrip().endswith(b"}"))
    return "log_history" not in record


def _parses(text: bytes) -> bool:
    try:
        json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return False
    return True


def _nothing(path: Any, refused: dict[Path, str]) -> Error:
    reasons = set(refused.values())
    if not refused:
        return Error(f"{path} holds no files; {LOOKED_FOR} were looked for")
    first = next(iter(refused))
    if "pickle" in reasons:
        pickle = next(file for file, why in refused.items() if why == "pickle")
        return Error(PICKLE.format(path=pickle, name=pickle.name))
    if len(refused) > 1:
        found = ", ".join(sorted(reasons))
        return Error(f"none of the {len(refused)} files of {path} can be read ({found}); {LOOKED_FOR} were looked for")
    why = refused[first]
    if why == "empty":
        return Error(f"{path} is empty; {LOOKED_FOR} were looked for")
    what = {
        "cut off": "a Parquet file without its end (the writer was killed)", "binary": "a binary file",
        "text": "text that is no table",
    }.get(why, why)  # fmt: skip
    return Error(f"{path} is {what}; {LOOKED_FOR} were looked for")
