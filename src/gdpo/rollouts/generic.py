"""Any table of rollouts: a row a rollout, a column a reward."""

from __future__ import annotations

from gdpo.rollouts.layout import GROUPS, Columns, Head, Layout, choose_rewards

_NAMES = {
    "step": ("step", "global_step", "iteration", "Step"),
    "group": GROUPS,
    "rollout": ("rollout", "rollout_id", "sample_id", "trajectory_id"),
    "segment": ("segment",),
    "task": ("task", "data_source"),
    "prompt": ("prompt", "input", "question", "problem", "query", "instruction", "Prompt"),
    "completion": ("completion", "output", "response", "generation", "answer_text", "text", "Completion"),
    "length": ("length", "completion_length", "response_length", "num_tokens"),
    "advantage": ("advantage", "advantages"),
}


def _matches(head: Head) -> bool:
    found = head.first(_NAMES["completion"]) or head.first(_NAMES["group"]) or head.first(_NAMES["prompt"])
    return not head.lists and found is not None


def _columns(head: Head) -> Columns:
    standard = {key: name for key, names in _NAMES.items() if (name := head.first(names)) is not None}
    rewards, notes = choose_rewards(head, standard.values())
    for name in ("reward", "total_reward", "score"):
        others = [other for other in rewards if other not in ("reward", "total_reward", "score")]
        if name in rewards and others:
            standard["total"] = name
            del rewards[name]
            break
    return Columns(standard, rewards, notes=notes)


LAYOUT = Layout("table", "gdpo", _matches, _columns, ids="segments")
