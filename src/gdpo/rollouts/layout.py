"""What a family of dumps looks like: how it is recognised and which of its columns mean what."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import polars as pl

from gdpo.rollouts.table import as_text

Record = dict[str, Any]
Kind = Literal["float", "int", "bool", "text", "number_text", "nested", "null"]

TEXTS = ("step", "group", "rollout", "segment", "task", "prompt", "completion")
NUMBERS = ("length", "advantage", "total")
"""Standard columns; steps and ids are read as text because dumps write both ``3`` and ``"3"``."""

META = frozenset([
    "step", "steps", "global_step", "epoch", "iteration", "index", "idx", "id", "uid", "uuid", "request_id",
    "rollout", "rollout_id", "sample_idx", "sample_id", "segment", "turn", "turns", "num_turns", "group",
    "group_id", "group_idx", "traj_idx", "prompt_id", "example_id", "task", "task_id", "problem_id", "question_id",
    "data_source", "seed", "rank", "version", "head_version", "tail_version", "seqlen", "prompt_len",
    "response_len", "length", "lengths", "completion_length", "response_length", "prompt_length", "input_lengths",
    "num_tokens", "tokens", "token_count", "timestamp", "time", "wall_time", "duration", "latency", "created",
    "advantage", "advantages", "weight", "loss", "kl", "entropy", "logprob", "ground_truth", "gts", "label",
    "answer", "solution", "is_truncated", "truncated", "is_completed", "gen_id", "line", "temperature", "top_p",
    "lr", "learning_rate"
])  # fmt: skip
"""Names of number columns that are no rewards unless a format or the caller says so."""
_SURELY = frozenset(
    {"step", "global_step", "epoch", "index", "idx", "id", "uid", "request_id", "timestamp", "gts", "seed"}
)
GROUPS = ("group", "group_id", "group_idx", "uid", "prompt_id", "example_id", "problem_id", "question_id", "task_id")


@dataclass(frozen=True)
class Source:
    """One file of a dump."""

    path: Path
    kind: Literal["lines", "parquet", "csv", "json"]
    packed: Literal["", "gzip", "zstd"] = ""
    name: str = ""
    """How messages name it."""


@dataclass
class Head:
    """What the sampled rows of a dump show: the kind of each column, in the order they were met."""

    kinds: dict[str, Kind]
    records: list[Record]
    """Sampled rows."""
    late: Mapping[str, pl.DataType] = field(default_factory=dict)
    """Types as the files declare them, where they do."""
    lists: bool = False
    """Every value of a row is a list."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Of the first Parquet file."""
    source: Source | None = None
    """The first file."""

    def has(self, *names: str) -> bool:
        """Whether all these columns are there."""
        return all(name in self.kinds for name in names)

    def numeric(self, name: str) -> bool:
        """Whether a column holds numbers or booleans."""
        return self.kinds.get(name) in ("float", "int", "bool")

    def first(self, names: Iterable[str]) -> str | None:
        """The first of these columns that is there."""
        return next((name for name in names if name in self.kinds), None)


@dataclass(frozen=True)
class Columns:
    """Where the standard columns and the rewards of one dump stand."""

    standard: dict[str, str]
    """standard name -> column of the file."""
    rewards: dict[str, str]
    """reward -> column of the file, in order."""
    weights: dict[str, str] = field(default_factory=dict)
    """reward -> column of the file."""
    also: dict[str, pl.DataType] = field(default_factory=dict)
    """What else ``finish`` needs."""
    group_by: str | None = None
    """The column of the file that the caller wants groups from."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """A family of dumps."""

    label: str
    framework: str
    matches: Callable[[Head], bool]
    columns: Callable[[Head], Columns]
    flatten: Callable[[Record, Source], list[Record]] | None = None
    """A nested record as flat rows, whose columns ``columns`` then names."""
    finish: Callable[[pl.DataFrame, Source], pl.DataFrame] | None = None
    """Last touches on a block in standard columns."""
    ids: Literal["none", "unique", "segments"] = "none"
    """What a repeated rollout id in a step means: there are no ids; the same rollout again; a further part of it."""
    grouping: Literal["runs", "prompts"] = "runs"
    """Without a group column: runs of equal prompts, or all equal prompts of a step."""
    table_a_record: bool = False
    """Each record of the file is a whole table (a log call)."""
    hint: str = ""
    """How the framework logs what a total-only dump lacks."""


def kind_of(values: Iterable[Any]) -> Kind:
    """The kind of a column from some of its values: numbers win where they are at least half of those present."""
    seen = {"float": 0, "int": 0, "bool": 0, "text": 0, "number_text": 0, "nested": 0}
    for value in values:
        if value is None:
            continue
        if isinstance(value, bool):
            seen["bool"] += 1
        elif isinstance(value, int):
            seen["int"] += 1
        elif isinstance(value, float):
            seen["float"] += 1
        elif isinstance(value, str):
            seen["number_text" if number_of(value) is not None else "text"] += 1
        else:
            seen["nested"] += 1
    numbers, texts = seen["float"] + seen["int"] + seen["bool"], seen["text"] + seen["number_text"]
    if not numbers + texts + seen["nested"]:
        return "null"
    if numbers and numbers >= texts + seen["nested"]:
        return "float" if seen["float"] else "int" if seen["int"] else "bool"
    if seen["nested"] > texts:
        return "nested"
    return "text" if seen["text"] else "number_text"


def number_of(text: str) -> float | None:
    """A number or a boolean that stands as text, else None."""
    stripped = text.strip()
    if stripped.lower() in ("true", "false"):
        return float(stripped.lower() == "true")
    try:
        return float(stripped) if re.match(r"[-+]?(\d|\.\d|nan$|inf)", stripped, re.I) else None
    except ValueError:
        return None


def choose_rewards(
    head: Head, taken: Iterable[str], kinds: Sequence[Kind] = ("float", "int", "bool"), meta: Collection[str] = META
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Rewards of a flat table: columns of these kinds that are neither taken nor named in ``meta``.

    Where no column holds numbers, those whose every value is a number or boolean as text are taken. What is left out
    although it could be a reward is said.
    """
    free = [name for name in head.kinds if name not in set(taken)]
    found = [name for name in free if head.kinds[name] in kinds and name not in meta]
    texts = [name for name in free if head.kinds[name] == "number_text" and name not in META]
    notes: list[str] = []
    if texts and not found:
        found, texts = texts, []
        notes.append(f"numbers written as text were read as numbers: {', '.join(found)}")
    left = [name for name in free if head.numeric(name) and name not in found and name not in _SURELY] + texts
    if left:
        notes.append(
            f"columns of numbers that are not counted as rewards: {', '.join(left)}; rewards= names those that are"
        )
    return {name: name for name in found}, tuple(notes)


def message_text(messages: Any) -> str:
    """The text of a lone message; several messages as JSON."""
    if isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], dict):
        content = messages[0].get("content")
        if isinstance(content, str):
            return as_text(content)
    if messages is None:
        return ""
    return as_text(messages)


def numbers_in(value: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of nested rewards, names joined by a point; an object with ``score`` is one reward."""
    found: dict[str, Any] = {}
    if not isinstance(value, Mapping):
        return found
    for name, leaf in value.items():
        if isinstance(leaf, Mapping) and "score" in leaf:
            found[prefix + name] = leaf["score"]
        elif isinstance(leaf, Mapping):
            found |= numbers_in(leaf, f"{prefix}{name}.")
        else:
            found[prefix + name] = leaf
    return found


def number_in_name(path: Path, pattern: str) -> int | None:
    """The number that a part of the path holds, innermost part first."""
    for part in reversed(path.parts):
        found = re.search(pattern, part)
        if found:
            return int(found.group(1))
    return None


def json_text(value: Any) -> str:
    """JSON on one line."""
    return as_text(json.dumps(value, ensure_ascii=False, default=str))
