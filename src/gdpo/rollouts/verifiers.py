"""verifiers and prime-rl: traces.jsonl (an episode a line) and, before 0.4, results.jsonl (a rollout a line)."""

from __future__ import annotations

from typing import Any

from gdpo.rollouts.layout import Columns, Head, Layout, Record, Source, message_text, number_in_name, numbers_in
from gdpo.rollouts.tinker import nested_columns

_COUNTS = frozenset({"num_turns", "total_tool_calls", "num_tool_calls", "num_errors"})
"""Metrics of weight 0 that verifiers itself adds."""


def _matches(head: Head) -> bool:
    return head.has("traces") and head.has("group")


def _flatten(record: Record, source: Source) -> list[Record]:
    work = _get(record, "run", "work", "step")
    step = work if work is not None else number_in_name(source.path.parent, r"^step_?(\d+)$")
    group = _get(record, "group", "id")
    traces = [trace for trace in record.get("traces") or [] if isinstance(trace, dict)]
    return [
        _row(trace, step, group if group is not None else _get(record, "task", "key"), f"{record.get('id')}", index)
        for index, trace in enumerate(traces)
    ]


def _row(trace: Record, step: Any, group: Any, episode: str, index: int) -> Record:
    nodes = [node for node in trace.get("nodes") or [] if isinstance(node, dict)]
    first = next((place for place, node in enumerate(nodes) if node.get("sampled")), len(nodes))
    messages = [node.get("message") for node in nodes]
    advantage = next((node["advantages"][0] for node in nodes if node.get("advantages")), None)
    row: Record = {
        "step": step,
        "group": group,
        "rollout": episode if index == 0 else f"{episode}/{index}",
        "task": _get(trace, "task", "type"),
        "prompt": message_text(messages[:first]),
        "completion": message_text(messages[first:]),
        "length": trace.get("num_output_tokens"),
        "advantage": advantage,
    }
    rewards = trace.get("rewards") or {}
    row |= {f"reward/{name}": value for name, value in numbers_in(rewards).items()}
    for name, value in rewards.items():
        if isinstance(value, dict) and isinstance(value.get("weight"), int | float):
            row[f"weight/{name}"] = value["weight"]
    return row


def _get(record: Any, *keys: str) -> Any:
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return record


def _matches_old(head: Head) -> bool:
    return head.has("example_id", "completion", "reward") and not head.lists


def _flatten_old(record: Record, source: Source) -> list[Record]:
    metrics = record.get("metrics")
    named = metrics if isinstance(metrics, dict) else {}
    row: Record = {
        "group": record.get("example_id"),
        "task": record.get("task") if isinstance(record.get("task"), str) else None,
        "prompt": message_text(record.get("prompt")),
        "completion": message_text(record.get("completion")),
        "length": _get(record, "token_usage", "output_tokens"),
        "total": record.get("reward"),
    }
    return [row | {f"reward/{name}": value for name, value in named.items() if name not in _COUNTS}]


def _columns_old(head: Head) -> Columns:
    found = nested_columns(head)
    note = "metrics of weight 0 cannot be told from rewards in this format; rewards= says which are"
    return Columns(found.standard, found.rewards, notes=(note,))


_HINT = "verifiers from 0.4 on writes each reward of the rubric into traces.jsonl"
LAYOUT = Layout("verifiers", "verifiers", _matches, nested_columns, flatten=_flatten, ids="unique", hint=_HINT)
OLD = Layout("verifiers", "verifiers", _matches_old, _columns_old, flatten=_flatten_old, hint=_HINT)
