"""TRL's ``log_completions``: OUTPUT/completions/completions_00001.parquet, also as JSON lines or a logged table.

A float column a reward function, without prefix; extras are of whole numbers or text. No group id.
"""

from __future__ import annotations

from gdpo.rollouts.layout import Columns, Head, Kind, Layout, choose_rewards


def _matches(head: Head) -> bool:
    if head.lists or not head.has("step", "prompt", "completion"):
        return False
    return not any(head.has(name) for name in ("group", "group_id", "rollout", "rollout_id", "rewards", "uid"))


def trl_columns(head: Head) -> Columns:
    """Where a TRL table keeps what."""
    standard = {name: name for name in ("step", "prompt", "completion") if head.has(name)}
    advantage = head.first(("advantage", "advantages"))
    if advantage is not None:
        standard["advantage"] = advantage
    if head.numeric("reward"):
        standard["total"] = "reward"
    # A reward function may have any name; in Parquet its column is of floats, that of a whole-number extra is not.
    kinds: tuple[Kind, ...] = ("float",) if head.late else ("float", "int")
    rewards, notes = choose_rewards(head, standard.values(), kinds, meta=())
    if rewards:
        notes += (
            "every column of decimal numbers counts as a reward, an extra one cannot be told from them: "
            f"{', '.join(rewards)}; rewards= says which are",
        )
    return Columns(standard, rewards, notes=notes)


LAYOUT = Layout(
    "trl", "trl", _matches, trl_columns,
    hint="TRL writes a column a reward function with log_completions=True",
)  # fmt: skip
