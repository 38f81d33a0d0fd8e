"""``open_dump``: a path becomes a dump that is recognised and ready to be read."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.rollouts import areal, generic, ms_swift, nemo_rl, own, tinker, trl, verifiers, verl
from gdpo.rollouts.dump import Dump, Summary
from gdpo.rollouts.find import LOOKED_FOR, find_sources, natural
from gdpo.rollouts.head import flattened, keys_of, look
from gdpo.rollouts.layout import NUMBERS, TEXTS, Columns, Head, Layout, Source
from gdpo.rollouts.stream import Plan, read

LAYOUTS = (
    own.LAYOUT, own.NESTED, verifiers.LAYOUT, tinker.LAYOUT, ms_swift.LAYOUT, nemo_rl.LAYOUT, areal.LAYOUT,
    verifiers.OLD, verl.LAYOUT, trl.LAYOUT, generic.LAYOUT,
)  # fmt: skip
"""In the order in which they are tried; the first that matches is it."""
FORMATS = tuple(dict.fromkeys(layout.label for layout in LAYOUTS))
_METRICS = re.compile(
    r"^(.*[/._ -])?(loss|grad_norm|learning_rate|reward_std|frac_reward_zero_std|entropy|kl)$"
    r"|.*/(mean|std|max|min)(/.*)?$|^(actor|critic|train|eval|perf|timing_s|response_length)/|^_(step|runtime|timestamp)$"
)
_NO_ROLLOUTS = (
    "{path} is a log of step means (one row a step: {found}), which holds no rollouts; log them: log_completions=True "
    "in TRL and --log_completions true in ms-swift write OUTPUT/completions, trainer.rollout_data_dir=DIR in verl, "
    "logger.log_dir in NeMo-RL, and gdpo's adapters write RUN/rollouts"
)


def open_dump(
    path: str | os.PathLike[str], *, format: str | None = None, rewards: Sequence[str] | None = None,
    group_by: str | None = None, weights: Mapping[str, float] | None = None, only: Collection[Path] | None = None,
) -> Dump:  # fmt: skip
    """Find and recognise a dump of rollouts; it is read when its batches are asked for.

    Args:
        path: a file, a folder, a glob, or a run of ours. JSON lines, Parquet, CSV or JSON; gzip and zstd.
        format: one of ``FORMATS`` instead of the one that the content shows.
        rewards: columns that are rewards. By default those that the format declares as such; in flat tables every
            column of numbers that is not known to be something else (``layout.META``).
        group_by: the column whose equal values in a step make a group, instead of the format's own.
        weights: weights by reward, over those that the dump says.
        only: of the files found, those to read, such as the new ones of a run that goes on; None: all.

    Raises:
        Error: nothing there; empty; a pickle (never opened); a log of step means; no rollouts; no reward column; an
            unknown format, column or reward.
    """
    if format is not None and format not in FORMATS:
        raise Error(f"format {format!r} is unknown{nearest(format, FORMATS)}")
    sources, damaged, notes = find_sources(path)
    sources, layout, head, left = _recognise(path, sources, format)
    _check_not_empty(path, sources, head)
    columns = layout.columns(head)
    columns = _override(columns, head, rewards, group_by)
    if not columns.rewards and "total" not in columns.standard:
        names = ", ".join(head.kinds) or "none"
        raise Error(
            f"{path} has no reward column: columns of numbers were looked for beside the texts, found were {names}"
        )
    summary = Summary(format=layout.label, rewards=list(columns.rewards))
    framework, settings = layout.framework, _settings(head)
    if layout.label == "gdpo" and head.metadata.get("gdpo.framework"):
        own = (sources[0].path.parent.parent / "run.json").is_file()  # of `gdpo train`: its recipe is what to change
        framework = "gdpo" if own else _framework(head.metadata["gdpo.framework"])
    numbers = _numbers(sources)
    if only is not None:
        kept = [at for at, source in enumerate(sources) if source.path in only]
        sources, numbers = [sources[at] for at in kept], numbers and [numbers[at] for at in kept]
    known = keys_of(head.records) | set(columns.standard.values()) | set(columns.rewards.values())
    plan = Plan(
        sources, layout, columns, head_keys=known, damaged=damaged, notes=[*notes, *left, *_said(layout, columns)],
        numbers=numbers,
    )  # fmt: skip
    return Dump(
        list(columns.rewards), framework, _weights(columns, head, weights), summary,
        lambda: read(plan, summary), settings,
    )  # fmt: skip


def _recognise(path: Any, sources: list[Source], wanted: str | None) -> tuple[list[Source], Layout, Head, list[str]]:
    """The files of one format, that format, the head of its rows, and what else was there."""
    families: dict[tuple[Any, ...], list[Source]] = {}
    for source in sources:
        families.setdefault(_family(source), []).append(source)
    found: list[tuple[list[Source], Layout, Head]] = []
    metrics: str | None = None
    seen: list[str] = []
    for members in families.values():
        head, rows = look(members)
        layouts = [layout for layout in LAYOUTS if wanted in (None, layout.label)]
        if wanted is None and _is_metrics(head):
            metrics = metrics or ", ".join(list(head.kinds)[:4])
            continue
        layout = next((layout for layout in layouts if layout.matches(head)), None)
        if layout is None and wanted is not None and head.kinds:
            layout = layouts[0]
        if layout is None:
            seen += list(head.kinds)[:8]
        else:
            found.append((members, layout, flattened(head, rows, layout)))
    if not found:
        if metrics is not None:
            raise Error(_NO_ROLLOUTS.format(path=path, found=metrics))
        if not seen:
            raise Error(f"{path} is empty: no row could be read; {LOOKED_FOR} were looked for")
        raise Error(f"{path} holds no rollouts that could be recognised: found were columns {', '.join(seen[:12])}")
    return _most(found)


def _most(found: list[tuple[list[Source], Layout, Head]]) -> tuple[list[Source], Layout, Head, list[str]]:
    """The format that says most: a known one before any table, then the one with most files; same formats join."""
    best = min(found, key=lambda entry: (entry[1].label == "table", -len(entry[0])))
    same = [entry for entry in found if entry[1] is best[1]]
    sources = sorted((source for members, _, _ in same for source in members), key=lambda source: natural(source.path))
    head = best[2]
    if len(same) > 1:
        kinds = {name: kind for _, _, other in same for name, kind in other.kinds.items()} | head.kinds
        records = [record for _, _, other in same for record in other.records]
        head = replace(head, kinds=kinds, records=records)
    left = [
        f"{len(members)} files of format {layout.label} were left out, such as {members[0].name}; format= reads them"
        for members, layout, _ in found
        if layout is not best[1]
    ]
    return sources, best[1], head, left


def _family(source: Source) -> tuple[Any, ...]:
    """Files that may be of one format: of a kind, with names that differ in their numbers only."""
    return source.kind, source.packed, re.sub(r"\d+", "0", source.path.name)


def _is_metrics(head: Head) -> bool:
    texts = (
        "prompt",
        "completion",
        "input",
        "output",
        "response",
        "content",
        "traces",
        "completions",
        "rollout",
        "group",
    )
    if any(name in head.kinds for name in texts) or head.has("group_idx") or head.has("group_id"):
        return False
    return any(_METRICS.match(name) for name in head.kinds)


def _check_not_empty(path: Any, sources: list[Source], head: Head) -> None:
    if head.records:
        return
    for source in sources:
        if source.kind != "parquet":
            continue
        try:
            if pl.scan_parquet(source.path, glob=False).select(pl.len()).collect().item():
                return
        except pl.exceptions.PolarsError:
            continue
    raise Error(f"{path} is empty: it has columns {', '.join(head.kinds) or 'of no name'} but no rollouts")


def _override(columns: Columns, head: Head, rewards: Sequence[str] | None, group_by: str | None) -> Columns:
    if rewards is not None:
        if isinstance(rewards, str) or not rewards:
            raise Error(f"rewards is {rewards!r}, but a list of columns was expected")
        known = {name.removeprefix("reward/"): name for name in head.kinds}
        for name in rewards:
            if name not in known:
                raise Error(f"rewards names {name!r}, which is no column of the dump{nearest(name, known)}")
            if head.kinds[known[name]] in ("text", "nested"):
                raise Error(f"rewards names {name!r}, whose values are no numbers ({_example(head, known[name])})")
        chosen = {name: known[name] for name in rewards}
        weights = {name: column for name, column in columns.weights.items() if name in chosen}
        standard = {key: column for key, column in columns.standard.items() if column not in chosen.values()}
        columns = replace(columns, rewards=chosen, weights=weights, standard=standard, notes=())
    if group_by is not None:
        if group_by not in head.kinds:
            raise Error(f"group_by names {group_by!r}, which is no column of the dump{nearest(group_by, head.kinds)}")
        rest = {name: column for name, column in columns.rewards.items() if column != group_by}
        columns = replace(columns, rewards=rest, group_by=group_by)
    return columns


def _example(head: Head, name: str) -> str:
    value = next((record[name] for record in head.records if record.get(name) is not None), None)
    return f"such as {str(value)[:40]!r}"


def _weights(columns: Columns, head: Head, given: Mapping[str, float] | None) -> dict[str, float]:
    weights = dict.fromkeys(columns.rewards, 1.0)
    for name, column in columns.weights.items():
        values = (record.get(column) for record in head.records)
        found = next((value for value in values if isinstance(value, int | float) and math.isfinite(value)), None)
        weights[name] = weights[name] if found is None else float(found)
    for name, value in (given or {}).items():
        if name not in weights:
            raise Error(f"weights names {name!r}, which is no reward of the dump{nearest(str(name), weights)}")
        if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not math.isfinite(value):
            raise Error(f"the weight of {name!r} is {value!r}, but a finite number was expected")
        weights[name] = float(value)
    return weights


def _settings(head: Head) -> dict[str, Any]:
    text = head.metadata.get("gdpo.objective")
    if not text:
        return {}
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    return {"objective": value} if isinstance(value, dict) else {}


def _numbers(sources: list[Source]) -> list[int] | None:
    """The number in each file's name, where each has another one."""
    found = [re.findall(r"\d+", source.path.name) for source in sources]
    numbers = [int(digits[-1]) for digits in found if digits and len(digits[-1]) < 16]
    return numbers if len(set(numbers)) == len(sources) > 1 else None


def _framework(written: str) -> str:
    """``trl 1.16.0`` or ``{"name": ...}`` -> trl."""
    try:
        value = json.loads(written)
    except ValueError:
        value = written
    name = value.get("name", "") if isinstance(value, dict) else str(value)
    words: Iterable[str] = re.split(r"[\s=@/]", name.lower().replace("-", "_"))
    known = {"trl", "verl", "nemo_rl", "ms_swift", "verifiers", "tinker", "areal"}
    return next((word for word in words if word in known), "gdpo")


def _said(layout: Layout, columns: Columns) -> list[str]:
    notes = list(columns.notes)
    if not columns.rewards:
        total = columns.standard["total"]
        more = f"; {layout.hint}" if layout.hint else ""
        notes.append(f"no per-reward scores in this dump, only their total in {total!r}{more}")
    if layout.ids == "none" or "rollout" not in columns.standard:
        notes.append("no rollout ids in this dump: each row counts as a rollout of its own")
    if not set(columns.standard) <= {*TEXTS, *NUMBERS}:
        raise AssertionError(columns.standard)
    return notes
