"""tinker-cookbook's *_rollout_summaries.jsonl: a trajectory a line, its metrics as components, no texts."""

from __future__ import annotations

from gdpo.rollouts.layout import Columns, Head, Layout, Record, Source, number_in_name, numbers_in


def _matches(head: Head) -> bool:
    return head.has("group_idx", "traj_idx") and (head.has("trajectory_metrics") or head.has("total_reward"))


def _flatten(record: Record, source: Source) -> list[Record]:
    steps = [step for step in record.get("steps") or [] if isinstance(step, dict)]
    metrics = numbers_in(record.get("trajectory_metrics"))
    if not metrics and steps:
        metrics = numbers_in(steps[-1].get("metrics"))
    step = record.get("iteration")
    step = step if step is not None else number_in_name(source.path, r"iteration_?(\d+)")
    group = f"{record.get('split', '')}/{record.get('group_idx')}"
    row: Record = {
        "step": step,
        "group": group,
        "rollout": f"{step}-{record.get('group_idx')}-{record.get('traj_idx')}",
        "task": next((str(tag) for tag in record.get("tags") or []), None),
        "length": sum(step["ac_len"] for step in steps if isinstance(step.get("ac_len"), int)) or None,
        "total": record.get("total_reward"),
    }
    return [row | {f"reward/{name}": value for name, value in metrics.items()}]


def nested_columns(head: Head) -> Columns:
    """Columns of rows that a ``flatten`` made: standard names, ``reward/NAME`` and ``weight/NAME``."""
    names = ("step", "group", "rollout", "segment", "task", "prompt", "completion", "length", "total", "advantage")
    rewards = {
        name.removeprefix("reward/"): name
        for name, kind in head.kinds.items()
        if name.startswith("reward/") and (kind != "text" and kind != "nested")
    }
    weights = {name: f"weight/{name}" for name in rewards if head.has(f"weight/{name}")}
    return Columns({name: name for name in names if head.has(name)}, rewards, weights)


LAYOUT = Layout(
    "tinker", "tinker", _matches, nested_columns, flatten=_flatten, ids="unique",
    hint="put each reward into the metrics that the environment's step returns",
)  # fmt: skip
