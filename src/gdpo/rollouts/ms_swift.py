"""ms-swift's completions.jsonl: a line a log call, each a dict of lists; the last table stands twice."""

from __future__ import annotations

from gdpo.rollouts.layout import Head, Layout, Record, Source
from gdpo.rollouts.trl import trl_columns


def _matches(head: Head) -> bool:
    return head.lists and head.has("prompt", "completion")


def rows_of(record: Record, source: Source) -> list[Record]:
    """The rows of one table; a column of another length is left out where it is too short."""
    count = max((len(value) for value in record.values() if isinstance(value, list)), default=0)
    return [
        {name: value[row] for name, value in record.items() if isinstance(value, list) and row < len(value)}
        for row in range(count)
    ]


LAYOUT = Layout(
    "ms_swift", "ms_swift", _matches, trl_columns, flatten=rows_of, table_a_record=True,
    hint="ms-swift writes a column a reward function with --log_completions true",
)  # fmt: skip
