"""NeMo-RL's train_data_stepN.jsonl: every value a list of one, a total only, no group id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from gdpo.rollouts.layout import Columns, Head, Layout, Record, Source, Typed, message_text, number_in_name
from gdpo.rollouts.table import as_text


def _matches(head: Head) -> bool:
    return head.has("content", "rewards") and (head.has("input_lengths") or head.has("token_ids"))


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def split_content(content: Any) -> tuple[str, str]:
    """(prompt, completion) of a rollout's ``content``: a text or message a turn, of which the first is the prompt."""
    texts = content if isinstance(content, list) else [content]
    first = texts[:1] if texts and isinstance(texts[0], dict) else texts[0] if texts else ""
    return message_text(first), _joined(texts[1:])


def _flatten(record: Record, source: Source) -> list[Record]:
    prompt, completion = split_content(_one(record.get("content")))
    advantages = _one(record.get("advantages"))
    mask = _one(record.get("token_loss_mask"))
    own = [index for index, kept in enumerate(mask) if kept] if isinstance(mask, list) else []
    if isinstance(advantages, list):
        # Padded to the longest of the step: the value at the first token of the model.
        at = own[0] if own else 0
        advantages = advantages[at] if at < len(advantages) else None
    row: Record = {
        "step": number_in_name(source.path, r"step_?(\d+)"),
        "prompt": prompt,
        "completion": completion,
        "length": len(own) or None,
        "total": _one(record.get("rewards")),
        "advantage": advantages,
    }
    return [row]


def _schema(flat: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
    numbers = pl.List(pl.List(pl.Float64))
    return {
        "content": pl.List(pl.List(pl.String)), "rewards": pl.List(pl.Float64), "advantages": numbers,
        "token_loss_mask": numbers,
    }  # fmt: skip


def _rows(frame: pl.DataFrame, source: Source) -> pl.DataFrame | None:
    """As ``_flatten`` does, for lines whose every value is a list of one and whose texts are no messages."""
    lists = [pl.col(name).list.len().eq(1).all() for name in _schema({})]
    texts = pl.col("content").list.first()
    if not all(frame.select(lists).row(0)) or frame.select(texts.list.first().str.starts_with("{").any()).item():
        return None
    own = pl.col("token_loss_mask").list.first().list.eval(pl.element() != 0)
    count = own.list.sum().cast(pl.Float64)
    return frame.select(
        "line",
        pl.lit(number_in_name(source.path, r"step_?(\d+)"), pl.Int64).cast(pl.String).alias("step"),
        texts.list.first().fill_null("").alias("prompt"),
        texts.list.slice(1).list.join("").fill_null("").alias("completion"),
        pl.when(count > 0).then(count).alias("length"),
        pl.col("rewards").list.first().alias("total"),
        pl.col("advantages")
        .list.first()
        .list.get(own.list.arg_max().fill_null(0), null_on_oob=True)
        .alias("advantage"),
    )


def _joined(texts: list[Any]) -> str:
    return "".join(text if isinstance(text, str) else message_text([text]) for text in texts) if texts else as_text("")


def _columns(head: Head) -> Columns:
    names = ("step", "prompt", "completion", "length", "total", "advantage")
    return Columns({name: name for name in names if head.has(name)}, {})


LAYOUT = Layout(
    "nemo_rl", "nemo_rl", _matches, _columns, flatten=_flatten, typed=Typed(_schema, _rows),
    hint="NeMo-RL's train_data holds the total only; gdpo's adapter for NeMo-RL writes its own table",
)  # fmt: skip
