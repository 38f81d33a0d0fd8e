"""verl's dumps of rollouts and of validation: STEP.jsonl with input, output, gts, score.

The legacy trainer adds a column a key of ``reward_extra_info``; the v1 trainer writes a total only, its group in
``uid`` = UID_SESSION_OUTPUT.
"""

from __future__ import annotations

import polars as pl

from gdpo.rollouts.layout import Columns, Head, Layout, Source, choose_rewards


def _matches(head: Head) -> bool:
    return not head.lists and head.has("input", "output") and (head.has("score") or head.has("gts"))


def _columns(head: Head) -> Columns:
    standard = {"prompt": "input", "completion": "output"}
    standard |= {name: name for name in ("step", "advantage") if head.has(name)}
    if head.has("score"):
        standard["total"] = "score"
    if head.has("uid"):
        standard["group"] = "uid"
    taken = [*standard.values(), "gts", "reward"]
    rewards, notes = choose_rewards(head, taken)
    return Columns(standard, rewards, notes=notes)


def _finish(frame: pl.DataFrame, source: Source) -> pl.DataFrame:
    """The group from UID_SESSION_OUTPUT; a session is a rollout, its outputs are parts of it."""
    if "group" not in frame.columns:
        return frame
    parts = pl.col("group").str.extract_groups(r"^(.+)_(\d+)_(\d+)$").struct
    whole = pl.col("group")
    return frame.with_columns(
        pl.coalesce(parts.field("1"), whole).alias("group"),
        pl.when(parts.field("1").is_not_null()).then(parts.field("1") + "_" + parts.field("2")).alias("rollout"),
        parts.field("3").alias("segment"),
    )


LAYOUT = Layout(
    "verl", "verl", _matches, _columns, finish=_finish, ids="segments", grouping="prompts",
    hint="verl's legacy trainer (trainer.use_v1=False) writes every key that a reward function returns beside `score`, "
    "and gdpo's adapter for verl writes its own table",
)  # fmt: skip
