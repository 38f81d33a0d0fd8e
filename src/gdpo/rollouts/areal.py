"""AReaL's dump: DUMP/VERSION/TASK.jsonl, a total only; a file holds the rollouts of one task."""

from __future__ import annotations

import polars as pl

from gdpo.rollouts.layout import Columns, Head, Layout, Source, number_in_name


def _matches(head: Head) -> bool:
    return head.has("task_id", "sample_idx", "reward", "completion")


def _columns(head: Head) -> Columns:
    standard = {"group": "task_id", "rollout": "sample_idx", "prompt": "prompt", "completion": "completion"}
    standard |= {"total": "reward"}
    standard |= {"step": "head_version"} if head.has("head_version") else {}
    also: dict[str, pl.DataType] = {name: pl.Float64() for name in ("seqlen", "prompt_len") if head.has(name)}
    return Columns({key: name for key, name in standard.items() if head.has(name)}, {}, also=also)


def _finish(frame: pl.DataFrame, source: Source) -> pl.DataFrame:
    folder = number_in_name(source.path.parent, r"^(\d+)$")
    step = pl.lit(str(folder)) if folder is not None else pl.col("step") if "step" in frame.columns else pl.lit("0")
    added = [step.alias("step"), (step + "-" + pl.col("group") + "-" + pl.col("rollout")).alias("rollout")]
    if {"seqlen", "prompt_len"} <= set(frame.columns):
        added.append((pl.col("seqlen") - pl.col("prompt_len")).alias("length"))
    return frame.with_columns(added)


LAYOUT = Layout(
    "areal", "areal", _matches, _columns, finish=_finish, ids="unique",
    hint="AReaL's dump holds one number a rollout; write the parts with gdpo.rollouts.rollout_frame in your workflow",
)  # fmt: skip
