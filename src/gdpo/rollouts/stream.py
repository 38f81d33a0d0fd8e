"""From files to batches: rows are gathered by step, cleaned of repetitions, grouped and counted."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gdpo.rollouts.account import Account
from gdpo.rollouts.dump import Batch, Summary
from gdpo.rollouts.frames import frame_of_rows, json_rows, read_csv, read_parquet
from gdpo.rollouts.groups import Codes, from_ids, from_prompts
from gdpo.rollouts.layout import TEXTS, Columns, Layout, Record, Source
from gdpo.rollouts.lines import flat_rows, read_lines

Scores = NDArray[np.float64]
_PLACES = ("line", "part", "file")


@dataclass(frozen=True)
class Plan:
    """What reading a dump needs."""

    sources: list[Source]
    layout: Layout
    columns: Columns
    head_keys: set[str]
    damaged: list[str]
    notes: list[str]
    numbers: list[int] | None = None
    """The number in each file's name, where all differ: the step of a file whose rows say none."""

    def schema(self) -> dict[str, pl.DataType]:
        """Columns of the files and the type they are read as."""
        types = {
            column: pl.String() if name in TEXTS else pl.Float64() for name, column in self.columns.standard.items()
        }
        types |= dict.fromkeys([*self.columns.rewards.values(), *self.columns.weights.values()], pl.Float64())
        if self.columns.group_by is not None:
            types.setdefault(self.columns.group_by, pl.String())
        return types | self.columns.also

    def standard(self, frame: pl.DataFrame, source: Source, file: int) -> pl.DataFrame:
        """A block of a file in standard columns; ``file`` and ``part`` say which rows were written together."""
        columns, height = self.columns, frame.height
        named = dict(columns.standard)
        named |= {f"reward/{name}": column for name, column in columns.rewards.items()}
        named |= {f"weight/{name}": column for name, column in columns.weights.items()}
        # Series by hand: a query for each small block would cost more than reading it.
        series = [frame.get_column(column).alias(name) for name, column in named.items()]
        series += [frame.get_column(name) for name in (*columns.also, "line")]
        part = frame.get_column("part") if "part" in frame.columns else _constant("part", 0, height)
        block = pl.DataFrame([*series, part, _constant("file", file, height)])
        if self.layout.finish is not None:
            block = without(self.layout.finish(block, source), columns.also)
        if columns.group_by is not None:
            block = block.with_columns(frame[columns.group_by].cast(pl.String).alias("group"))
        if "step" not in block.columns:
            # Files were written apart: what stands in one was not trained on with what stands in another.
            number = self.numbers[file] if self.numbers else file
            return block.insert_column(0, _constant("step", number, height))
        step = block.get_column("step").cast(pl.Float64, strict=False).cast(pl.Int64, strict=False)
        step = step.fill_null(0) if step.null_count() else step
        return block.replace_column(block.columns.index("step"), step)


def _constant(name: str, value: int, height: int) -> pl.Series:
    return pl.Series(name, np.full(height, value, dtype=np.int64))


def without(frame: pl.DataFrame, names: Collection[str]) -> pl.DataFrame:
    """A frame without some columns."""
    return pl.DataFrame([series for series in frame.get_columns() if series.name not in names]) if names else frame


def _joined(frames: list[pl.DataFrame]) -> pl.DataFrame:
    return frames[0] if len(frames) == 1 else pl.concat(frames)


@dataclass
class _State:
    """What is kept from batch to batch."""

    seen: set[bytes] = field(default_factory=set)
    """Digests of the parts read so far."""
    ids: set[int] = field(default_factory=set)
    times: dict[int, int] = field(default_factory=dict)
    """How many batches each step had."""
    usual: int | None = None
    sizes: dict[int, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    rollouts: int = 0
    groups: int = 0
    dropped: int = 0


def read(plan: Plan, summary: Summary) -> Iterator[Batch]:
    """The batches of a dump; the summary is filled on the way and complete at the end."""
    state, account = _State(), Account(skipped=list(plan.damaged), said=list(plan.notes))
    summary.files = len(plan.sources)
    _fill(plan, summary, state, account)
    for step, frame in _steps(plan, account):
        batch = _batch(step, frame, plan, state, account)
        _fill(plan, summary, state, account)
        if batch is not None:
            yield batch
    if len([size for size in state.sizes if state.sizes[size]]) > 1:
        account.note("groups of different sizes: " + ", ".join(f"{n} of {k}" for k, n in sorted(state.sizes.items())))
    _fill(plan, summary, state, account)


def _steps(plan: Plan, account: Account) -> Iterator[tuple[int, pl.DataFrame]]:
    """Each step with its rows, once two blocks in a row held none of them."""
    open_steps: dict[int, list[pl.DataFrame]] = {}
    before: set[int] = set()
    for file, source in enumerate(plan.sources):
        for raw in _blocks(source, plan, account):
            if not raw.height:
                continue
            block = plan.standard(raw, source, file)
            present: set[int] = set()
            for step, rows in _by_step(block):
                present.add(step)
                open_steps.setdefault(step, []).append(rows)
            for step in sorted(set(open_steps) - present - before):
                yield step, _joined(open_steps.pop(step))
            before = present
    for step in sorted(open_steps):
        yield step, _joined(open_steps.pop(step))


def _by_step(block: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    steps = block.get_column("step").to_numpy()
    if (steps == steps[0]).all():
        yield int(steps[0]), block
        return
    for (step,), rows in block.partition_by("step", as_dict=True, maintain_order=True).items():
        yield int(step), rows


def _blocks(source: Source, plan: Plan, account: Account) -> Iterator[pl.DataFrame]:
    schema = plan.schema()
    if source.kind == "lines":
        yield from read_lines(source, plan.layout, schema, plan.head_keys, account)
    elif source.kind == "parquet" and plan.layout.flatten is None:
        yield from read_parquet(source, schema, account)
    elif source.kind == "csv":
        yield from read_csv(source, schema, account)
    else:
        yield _whole(source, plan, schema, account)


def _whole(source: Source, plan: Plan, schema: dict[str, pl.DataType], account: Account) -> pl.DataFrame:
    rows: list[Record] = []
    lines: list[int] = []
    try:
        records = pl.read_parquet(source.path).to_dicts() if source.kind == "parquet" else json_rows(source)
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        account.skip(source.name, f"not readable ({str(error)[:120]})")
        records = []
    for line, record in enumerate(records, 1):
        found = flat_rows(record, source, plan.layout, line, account)
        rows += found
        lines += [line] * len(found)
    return frame_of_rows(rows, lines, schema, source, account)


def _batch(step: int, frame: pl.DataFrame, plan: Plan, state: _State, account: Account) -> Batch | None:
    height = frame.height
    frame = _without_repetitions(frame, plan, state)
    state.dropped += height - frame.height
    frame = _whole_rollouts(frame, plan, account)
    if not frame.height:
        return None
    time = state.times[step] = state.times.get(step, 0) + 1
    if time == 2:
        account.note(f"step {step} stands in several places: its parts are measured apart, as batches of their own")
    group = _group(frame, plan, state, account)
    rewards = list(plan.columns.rewards)
    scores = np.empty((frame.height, len(rewards)))
    for k, name in enumerate(rewards):
        scores[:, k] = frame.get_column(f"reward/{name}").to_numpy()
    scores = _finite(scores, frame, plan, account)
    for name, count in zip(rewards, np.isnan(scores).sum(axis=0).tolist(), strict=True):
        if count:
            state.missing[name] = state.missing.get(name, 0) + count
    for size, count in zip(*(v.tolist() for v in np.unique(np.bincount(group), return_counts=True)), strict=True):
        state.sizes[size] = state.sizes.get(size, 0) + count
    if state.sizes:
        state.usual = max(state.sizes, key=lambda size: state.sizes[size])
    state.rollouts += frame.height
    state.groups += int(group.max()) + 1
    return Batch(step, scores, group, _rows(step, time, frame, state))


def _without_repetitions(frame: pl.DataFrame, plan: Plan, state: _State) -> pl.DataFrame:
    """Rows without those that a trainer wrote once more: the same ids, else parts whose texts and numbers repeat."""
    if plan.layout.ids == "unique" and "rollout" in frame.columns:
        return frame.unique("rollout", keep="first", maintain_order=True)
    if "completion" not in frame.columns or "rollout" in frame.columns:
        return frame
    names = [
        name for name in frame.columns if name in ("prompt", "completion", "advantage") or name.startswith("reward/")
    ]
    hashes = pl.DataFrame([frame.get_column(name) for name in names]).hash_rows().to_numpy()
    file, part = frame.get_column("file").to_numpy(), frame.get_column("part").to_numpy()
    starts = np.flatnonzero(np.r_[True, (file[1:] != file[:-1]) | (part[1:] != part[:-1])])
    kept: list[Codes] = []
    for start, end in zip(starts, np.r_[starts[1:], frame.height], strict=True):
        rows = hashes[start:end]
        half = len(rows) // 2
        twice = len(rows) % 2 == 0 and half > 1 and (rows[:half] == rows[half:]).all()
        if twice and "prompt" in names and frame["prompt"][int(start) : int(start) + half].n_unique() > 1:
            rows = rows[:half]
        digest = hashlib.blake2b(rows.tobytes(), digest_size=16).digest()
        if digest not in state.seen:
            state.seen.add(digest)
            kept.append(np.arange(start, start + len(rows)))
    keep = np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64)
    return frame if len(keep) == frame.height else frame[keep]


def _whole_rollouts(frame: pl.DataFrame, plan: Plan, account: Account) -> pl.DataFrame:
    """One row a rollout: rows that share an id are parts of it, whose texts join and whose rewards are one."""
    if plan.layout.ids != "segments" or "rollout" not in frame.columns or not frame.height:
        return frame
    keys = [name for name in ("group", "rollout") if name in frame.columns]
    if frame["rollout"].is_null().all() or frame.select(keys).n_unique() == frame.height:
        return frame
    frame = frame.with_columns(pl.coalesce("rollout", pl.format("row {}-{}", "file", "line")))
    rewards = [name for name in frame.columns if name.startswith("reward/")]
    others = [name for name in frame.columns if name not in (*keys, "completion", "length", "segment")]
    parts = [pl.col(name).drop_nulls().first() for name in others]
    parts += [pl.col("completion").str.join("\n")] if "completion" in frame.columns else []
    parts += [pl.col("length").sum()] if "length" in frame.columns else []
    differ = [pl.col(name).drop_nulls().n_unique().gt(1).alias(f"differs {name}") for name in rewards]
    whole = frame.group_by(keys, maintain_order=True).agg(*parts, *differ)
    account.note(
        "rows that share a rollout id are parts of one rollout and count once: "
        f"{frame.height} rows are {whole.height} rollouts, first in step {frame['step'][0]}"
    )
    for name in rewards:
        count = int(whole[f"differs {name}"].sum())
        if count:
            account.note(f"parts of one rollout differ in {name.removeprefix('reward/')}; the first value counts")
    return whole.drop([f"differs {name}" for name in rewards])


def _group(frame: pl.DataFrame, plan: Plan, state: _State, account: Account) -> Codes:
    if "group" in frame.columns and not frame["group"].is_null().all():
        return from_ids(frame["group"])
    if "prompt" in frame.columns:
        codes, notes = from_prompts(frame["prompt"], plan.layout.grouping == "runs", state.usual)
        for note in notes:
            account.note(note)
        return codes
    account.note("neither a group column nor prompts: all rollouts of a step are one group; group_by= names a column")
    return np.zeros(frame.height, dtype=np.int64)


def _finite(scores: Scores, frame: pl.DataFrame, plan: Plan, account: Account) -> Scores:
    wrong = np.isinf(scores)
    for row, k in np.argwhere(wrong):
        source = plan.sources[frame["file"][int(row)]]
        place = f"{source.name} {'line' if source.kind == 'lines' else 'row'} {frame['line'][int(row)]}"
        account.value(list(plan.columns.rewards)[k], "infinite, counted as missing", place)
    scores[wrong] = np.nan
    return scores


def _rows(step: int, time: int, frame: pl.DataFrame, state: _State) -> pl.DataFrame:
    """The other columns of the rollout table, every rollout with an id of its own."""
    label = f"{step}" if time == 1 else f"{step}.{time}"
    if "rollout" in frame.columns and not frame["rollout"].is_null().any():
        hashes = frame["rollout"].hash().to_list()
        if len(set(hashes)) == len(hashes) and state.ids.isdisjoint(hashes):
            state.ids.update(hashes)
            ids = frame["rollout"]
        else:
            within = [pl.col("group") + "-"] if "group" in frame.columns else []
            ids = frame.select(pl.concat_str(pl.lit(f"{label}-"), *within, "rollout").alias("rollout")).to_series()
            if ids.n_unique() < len(ids):
                ids = pl.Series("rollout", [f"{label}-{row}" for row in range(frame.height)])
    else:
        ids = pl.Series("rollout", [f"{label}-{row}" for row in range(frame.height)])
    drop = [
        name for name in frame.columns if name.startswith("reward/") or name in (*_PLACES, "step", "group", "segment")
    ]
    rest = without(frame, {*drop, "rollout"}).get_columns()
    rows = pl.DataFrame([ids.alias("rollout"), *rest])
    if "length" in rows.columns:
        rows.replace_column(rows.columns.index("length"), rows.get_column("length").cast(pl.Int64, strict=False))
    return rows


def _fill(plan: Plan, summary: Summary, state: _State, account: Account) -> None:
    summary.rollouts, summary.groups, summary.duplicates_dropped = state.rollouts, state.groups, state.dropped
    summary.group_sizes = dict(sorted(state.sizes.items()))
    numbered = "step" in plan.columns.standard or plan.layout.label == "areal" or plan.numbers is not None
    summary.steps = sorted(state.times) if numbered else []
    summary.missing = dict(state.missing)
    summary.skipped, summary.notes = account.all_skipped(), account.all_notes()
