"""The batches that rewards are tried on: a user's rows, or rows made up here."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from gdpo.core.errors import Error
from gdpo.lint import probes
from gdpo.rewards import model_text

MOST_ROWS = 256
"""Rows of the data that are looked at, spread evenly."""
_MADE_ROWS = 32
"""Rows for which completions are made where the data has none."""
_COMPLETION = ("completion", "completions", "response")
_PROMPT = ("prompt", "prompts", "question", "problem", "input")
EXTRAS: dict[str, Any] = {
    "trainer_state": SimpleNamespace(global_step=0, max_steps=100, epoch=0.0),
    "log_extra": lambda *args, **options: None,
    "log_metric": lambda *args, **options: None,
}
"""What TRL passes to a reward beside one value a completion."""


@dataclass(frozen=True)
class Batch:
    """B completions and their columns, each a list of B values; ``prompts`` and ``completion_ids`` among them."""

    completions: list[Any]
    columns: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(self.completions)

    @property
    def groups(self) -> list[int]:
        """[B] the group of each row: rows of equal prompt, numbered as they come."""
        numbers: dict[str, int] = {}
        keys = [json.dumps(prompt, sort_keys=True, default=str) for prompt in self.columns["prompts"]]
        return [numbers.setdefault(key, len(numbers)) for key in keys]

    def take(self, rows: Iterable[int]) -> Batch:
        """The batch of these rows, in this order, each value copied."""
        chosen = list(rows)
        columns = {name: [copy.deepcopy(values[row]) for row in chosen] for name, values in self.columns.items()}
        return Batch([copy.deepcopy(self.completions[row]) for row in chosen], columns)

    def saying(self, completions: Sequence[Any], rows: Sequence[int] | None = None) -> Batch:
        """Other completions beside the columns of ``rows`` (the first rows where None), with token ids of their own."""
        beside = self.take(range(len(completions)) if rows is None else rows)
        ids = [probes.token_ids(model_text(completion)) for completion in completions]
        return Batch(list(completions), beside.columns | {"completion_ids": ids})

    def having(self, **columns: list[Any]) -> Batch:
        """The same completions with these columns instead."""
        return Batch(self.completions, self.columns | columns)

    def as_chat(self) -> Batch:
        """Prompts and completions as chat messages, where they are text."""
        asked = [[{"role": "user", "content": p}] if isinstance(p, str) else p for p in self.columns["prompts"]]
        said = [probes.message(c) if isinstance(c, str) else c for c in self.completions]
        return Batch(said, self.columns | {"prompts": asked})


def from_rows(rows: Sequence[tuple[str, Any]], origin: str) -> Batch:
    """A user's data as a batch.

    Args:
        rows: (place, record) of each row; records hold ``completion`` and ``prompt``, and any other column.
        origin: where they come from, for the messages.

    Raises:
        Error: no rows, a row that is no record, or completions in some rows only.
    """
    if not rows:
        raise Error(f"{origin} has no rows")
    for place, row in rows:
        if not isinstance(row, Mapping):
            raise Error(f"{origin}, {place} is {str(row)[:60]!r}, but a record with columns was expected")
    step = max(1, -(-len(rows) // MOST_ROWS))
    kept = [dict(row) for _, row in rows[::step]]
    names = list(dict.fromkeys(name for row in kept for name in row))
    said = next((name for name in _COMPLETION if name in names), None)
    asked = next((name for name in _PROMPT if name in names), None)
    columns = {
        name: [row.get(name) for row in kept] for name in names if name not in (said, "prompt") and "/" not in name
    }
    columns["prompts"] = [_messages(row.get(asked)) if asked else f"row {k}" for k, row in enumerate(kept)]
    if said is None:
        return _made(columns, origin)
    for (place, row), values in zip(rows[::step], kept, strict=True):
        if values.get(said) is None:
            raise Error(f"{origin}, {place} has no {said!r}: {str(row)[:60]!r}")
    completions = [_messages(row[said]) for row in kept]
    columns.setdefault("completion_ids", [probes.token_ids(model_text(completion)) for completion in completions])
    return Batch(completions, columns)


def made_up() -> Batch:
    """Four prompts of sums, each with right and wrong answers in every form, prose, tool calls and code."""
    completions: list[str] = []
    columns: dict[str, list[Any]] = {}
    for index, (left, right) in enumerate(((40, 2), (3, 4), (100, 28), (300, 65))):
        answer = str(left + right)
        call = {"name": "add", "arguments": {"a": left, "b": right}}
        code = "def add(a, b):\n    return a + b"
        texts = [
            *_ordinary(answer, index),
            probes.wrap("<think> and <tool_call>", json.dumps(call)),
            probes.wrap("<tool_call>", json.dumps(call | {"arguments": {"a": left, "b": 0}})),
            probes.wrap("a code block", code),
            probes.wrap("a code block", code.replace("+", "-")),
        ]
        values: dict[str, Any] = dict.fromkeys(probes.GOLD_NAMES, answer) | {
            "prompts": f"What is {left} plus {right}? Put the answer between <answer> and </answer>.",
            "calls": [call],
            "tests": [f"assert add({left}, {right}) == {answer}"],
            "entry_point": "add",
        }
        completions += texts
        for name, value in values.items():
            columns.setdefault(name, []).extend(copy.deepcopy(value) for _ in texts)
    columns["completion_ids"] = [probes.token_ids(text) for text in completions]
    return Batch(completions, columns)


def _ordinary(answer: str, index: int) -> list[str]:
    """What a model writes about a sum, right and wrong, in many forms and of many lengths."""
    wrong = probes.damaged(answer)
    working = "First I add the tens, then I add the ones. " * (1 + 2 * index)
    return [
        f"<think>{working}</think>\n<answer>{answer}</answer>",
        f"<think>{working * 2}</think>\n<answer>{wrong}</answer>",
        f"<think>{working}</think>\n<answer>about {answer}.5</answer>",
        f"Sure! <answer>{answer}</answer>",
        f"<answer>{wrong} apples</answer>",
        f"The answer is {answer}.",
        f"{working * 3}So it is \\boxed{{{answer}}}.",
        f"It is \\boxed{{{wrong}}}, or I am much mistaken about the tens.",
        f"{working}\n#### {answer}",
        "I do not know. " * (1 + index),
        "La réponse n'est pas claire : il faudrait d'abord savoir ce que l'on compte ici.",
    ]


def _made(columns: dict[str, list[Any]], origin: str) -> Batch:
    """Completions from the gold answers, right and wrong, in every form; four columns of that kind at most."""
    count = min(_MADE_ROWS, len(columns["prompts"]))
    gold = [name for name in (*probes.GOLD_NAMES, "calls", "tests") if name in columns][:1]
    gold = gold or [name for name in columns if name != "prompts"][:1]
    completions: list[str] = []
    rows: list[int] = []
    for row in range(count):
        answer = probes.answer_text(columns[gold[0]][row]) if gold else None
        texts = _ordinary(answer, row % 4) if answer else [probes.WRAPPINGS["a sentence"], "I do not know."]
        completions += texts
        rows += [row] * len(texts)
    if not completions:
        raise Error(f"{origin} has no completions and no answers to make some from")
    spread = {name: [copy.deepcopy(values[row]) for row in rows] for name, values in columns.items()}
    return Batch(completions, spread | {"completion_ids": [probes.token_ids(text) for text in completions]})


def _messages(value: Any) -> Any:
    """Chat messages that a table keeps as JSON text; anything else as it is."""
    if isinstance(value, str) and value.startswith("[{"):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            return value
        if isinstance(parsed, list) and all(isinstance(entry, dict) and "role" in entry for entry in parsed):
            return parsed
    return "" if value is None else value
