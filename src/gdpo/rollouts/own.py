"""gdpo's own rollout table: ``reward/NAME`` columns, or the same as JSON lines with ``rewards`` as an object."""

from __future__ import annotations

from gdpo.rollouts.layout import Columns, Head, Layout, Record, Source, message_text, numbers_in
from gdpo.rollouts.tinker import nested_columns


def _matches(head: Head) -> bool:
    named = any(name.startswith("reward/") for name in head.kinds)
    return named and (head.has("group") or head.has("rollout") or head.has("completion"))


def _matches_nested(head: Head) -> bool:
    return head.kinds.get("rewards") == "nested" and any(isinstance(r.get("rewards"), dict) for r in head.records)


def _flatten(record: Record, source: Source) -> list[Record]:
    row = {key: value for key, value in record.items() if key not in ("rewards", "weights")}
    for name in ("prompt", "completion"):
        if name in row and not isinstance(row[name], str):
            row[name] = message_text(row[name])
    row |= {f"reward/{name}": value for name, value in numbers_in(record.get("rewards")).items()}
    return [row | {f"weight/{name}": value for name, value in numbers_in(record.get("weights")).items()}]


def _columns(head: Head) -> Columns:
    found = nested_columns(head)
    if "total" not in found.standard and head.numeric("reward"):
        return Columns({**found.standard, "total": "reward"}, found.rewards, found.weights)
    return found


LAYOUT = Layout("gdpo", "gdpo", _matches, _columns, ids="segments")
NESTED = Layout("gdpo", "gdpo", _matches_nested, _columns, flatten=_flatten, ids="segments")
