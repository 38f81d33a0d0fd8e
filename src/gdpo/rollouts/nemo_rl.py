"""NeMo-RL's train_data_stepN.jsonl: every value a list of one, a total only, no group id."""

from __future__ import annotations

from typing import Any

from gdpo.rollouts.layout import Columns, Head, Layout, Record, Source, message_text, number_in_name
from gdpo.rollouts.table import as_text


def _matches(head: Head) -> bool:
    return head.has("content", "rewards") and (head.has("input_lengths") or head.has("token_ids"))


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _flatten(record: Record, source: Source) -> list[Record]:
    content = _one(record.get("content"))
    texts = content if isinstance(content, list) else [content]
    advantages = _one(record.get("advantages"))
    mask = _one(record.get("token_loss_mask"))
    own = [index for index, kept in enumerate(mask) if kept] if isinstance(mask, list) else []
    if isinstance(advantages, list):
        # Padded to the longest of the step: the value at the first token of the model.
        at = own[0] if own else 0
        advantages = advantages[at] if at < len(advantages) else None
    row: Record = {
        "step": number_in_name(source.path, r"step_?(\d+)"),
        "prompt": message_text(texts[:1] if texts and isinstance(texts[0], dict) else texts[0] if texts else ""),
        "completion": _joined(texts[1:]),
        "length": len(own) or None,
        "total": _one(record.get("rewards")),
        "advantage": advantages,
    }
    return [row]


def _joined(texts: list[Any]) -> str:
    return "".join(text if isinstance(text, str) else message_text([text]) for text in texts) if texts else as_text("")


def _columns(head: Head) -> Columns:
    names = ("step", "prompt", "completion", "length", "total", "advantage")
    return Columns({name: name for name in names if head.has(name)}, {})


LAYOUT = Layout(
    "nemo_rl", "nemo_rl", _matches, _columns, flatten=_flatten,
    hint="NeMo-RL's train_data holds the total only; gdpo's adapter for NeMo-RL writes its own table",
)  # fmt: skip
