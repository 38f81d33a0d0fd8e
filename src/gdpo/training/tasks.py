"""Tasks: questions with answers, as training rows and held-out rows that never meet.

Held-out questions are those with the smallest hash, whatever the seed or the file's order. Questions whose hash is
below a tenth are reserved: training never uses them, and the shipped model has never seen one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdpo.core.errors import Error
from gdpo.training.made import make
from gdpo.training.readers import recognised, rows_of
from gdpo.training.settings import DataSettings

RESERVED = 0.1
"""Share of all questions that training never uses."""
_TAKEN = ("prompts", "completions", "completion", "completion_ids", "trainer_state", "log_extra", "log_metric",
          "environments")  # fmt: skip
"""Names that TRL passes to rewards itself."""
_QUESTION = ("question", "problem", "prompt", "instruction", "query")
_ANSWER = ("answer", "solution", "final_answer", "ground_truth", "target", "expected_answer", "output")


@dataclass
class Task:
    """Rows with ``prompt`` (chat messages), ``answer`` and the data's other columns."""

    train: list[dict[str, Any]]
    held_out: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    """What a user should know about how the data was read."""


def position(question: str) -> float:
    """Where a question stands in [0, 1): the first 32 bits of its SHA-256."""
    return int(hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()[:8], 16) / 2**32


def is_reserved(question: str) -> bool:
    """Whether a question is kept for evaluation."""
    return position(question) < RESERVED


def load(settings: DataSettings, held_out: int) -> Task:
    """The task of a recipe's data.

    Args:
        settings: where the data is.
        held_out: how many prompts to keep for evaluation; at most a fifth of a small data set.

    Raises:
        Error: data that is missing, unreadable or too small; the message names the file and row.
    """
    rows, origin = _read(settings)
    notes: list[str] = []
    questions: dict[str, dict[str, Any]] = {}
    for row in rows:
        questions.setdefault(row["question"], row)
    if len(questions) < len(rows) and settings.source not in ("reasoning_gym", "made"):
        notes.append(f"{origin}: {len(rows) - len(questions)} rows ask a question asked before; each counts once")
    if settings.held_out_path:
        kept, name = _file(Path(settings.held_out_path), settings)
        evaluation = {row["question"]: row for row in kept}
        both = evaluation.keys() & questions.keys()
        if both:
            notes.append(f"{len(both)} questions of {name} stand in {origin} too; training leaves them out")
        chosen = sorted(evaluation, key=position)[:held_out]
        train = [question for question in questions if question not in evaluation]
    else:
        evaluation, ordered = questions, sorted(questions, key=position)
        if len(ordered) < 2:
            raise Error(f"{origin} has {len(ordered)} distinct question(s), but at least 2 are needed: one is held out")
        count = min(held_out, max(1, len(ordered) // 5))
        if count < held_out:
            notes.append(f"{origin} has {len(ordered)} distinct questions: {count} are held out, not {held_out}")
        chosen = ordered[:count]
        taken = set(chosen)
        train = [question for question in questions if not is_reserved(question) and question not in taken]
        train = train or [question for question in questions if question not in taken]
    if not train:
        raise Error(f"{origin} has no question left to train on once {settings.held_out_path} is left out")
    return Task(
        [_row(questions[question], settings) for question in train],
        [_row(evaluation[question], settings) for question in chosen], notes,
    )  # fmt: skip


def _row(row: Mapping[str, Any], settings: DataSettings) -> dict[str, Any]:
    if "messages" in row:  # data that brings its whole prompt
        messages = row["messages"]
    else:
        messages = [{"role": "system", "content": settings.system}] if settings.system else []
        messages.append({"role": "user", "content": settings.template.replace("{question}", row["question"])})
    rest = {key: value for key, value in row.items() if key not in ("prompt", "question", "messages")}
    return {"prompt": messages, **rest}


def _read(settings: DataSettings) -> tuple[list[dict[str, Any]], str]:
    if settings.source == "reasoning_gym":
        return _reasoning_gym(settings)
    if settings.source == "made":
        return make(str(settings.name), settings.size, 0, **settings.parameters), f"made task {settings.name}"
    if settings.source == "file":
        return _file(Path(str(settings.path)), settings)
    return _hub(settings)


def _reasoning_gym(settings: DataSettings) -> tuple[list[dict[str, Any]], str]:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    from gdpo.core.inputs import nearest

    name = str(settings.name)
    if name not in DATASETS:
        raise Error(f"reasoning-gym has no task {name!r}{nearest(name, DATASETS)}")
    try:
        made = reasoning_gym.create_dataset(name, size=settings.size, seed=0, **settings.parameters)
    except (TypeError, ValueError, AssertionError) as error:
        raise Error(f"reasoning-gym task {name!r} does not take {settings.parameters}: {error}") from None
    rows = [made[index] for index in range(settings.size)]
    return [{"question": row["question"], "answer": str(row["answer"])} for row in rows], f"reasoning-gym {name}"


def _file(path: Path, settings: DataSettings) -> tuple[list[dict[str, Any]], str]:
    import polars as pl

    if not path.is_file():
        raise Error(f"data file {path} does not exist" if not path.exists() else f"data {path} is no file")
    try:
        rows = rows_of(path)
    except (OSError, UnicodeDecodeError, pl.exceptions.PolarsError) as error:
        raise Error(f"data file {path} cannot be read: {' '.join(str(error).split())[:200]}") from None
    return recognised(rows, path) or _recognise(rows, str(path), settings), str(path)


def _hub(settings: DataSettings) -> tuple[list[dict[str, Any]], str]:
    import datasets

    name = str(settings.name)
    try:
        found = datasets.load_dataset(name, settings.subset, split=settings.split)
    except Exception as error:  # the hub client raises many kinds, from several libraries
        reason = " ".join(str(error).split())[:200]
        raise Error(f"data set {name!r} cannot be loaded: {reason}; a local file works with data=PATH") from None
    rows = [(f"row {index + 1}", dict(row)) for index, row in enumerate(found)]
    return recognised(rows, None) or _recognise(rows, name, settings), name


def _recognise(rows: list[tuple[str, Any]], origin: str, settings: DataSettings) -> list[dict[str, Any]]:
    """Rows with ``question`` (text), ``answer`` (text) and the other columns."""
    if not rows:
        raise Error(f"{origin} has no rows")
    first = next((row for _, row in rows if isinstance(row, dict)), {})
    question = settings.question_field or next((key for key in _QUESTION if key in first), None)
    answer = settings.answer_field or next((key for key in _ANSWER if key in first), None)
    for what, key, known in (("question", question, _QUESTION), ("answer", answer, _ANSWER)):
        if key is None:
            raise Error(
                f"{origin} has columns {sorted(first)}, but a {what} was expected under one of {', '.join(known)}; "
                f"data.{what}_field=COLUMN names another"
            )
    return [_one(row, f"{origin}, {place}", str(question), str(answer)) for place, row in rows]


def _one(row: Any, place: str, question: str, answer: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise Error(f"{place} is {str(row)[:60]!r}, but a record with {question!r} and {answer!r} was expected")
    for key in (question, answer):
        if row.get(key) is None or row[key] == "":
            raise Error(f"{place} has no {key!r}")
    for key in row:
        if key in _TAKEN:
            raise Error(f"{place} has a column {key!r}, a name that rewards get from the trainer; rename the column")
    asked = row[question]
    if isinstance(asked, list):  # chat messages: the last of the user's is the question
        users = [m.get("content") for m in asked if isinstance(m, dict) and m.get("role") == "user"]
        asked = users[-1] if users else None
    if not isinstance(asked, str):
        raise Error(f"{place} has {question!r} of type {type(asked).__name__}, but text was expected")
    gold = str(row[answer])
    others = {key: value for key, value in row.items() if key not in (question, answer, "prompt", "question")}
    if "####" in gold:  # GSM8K: the working, then the number
        others.setdefault("solution", gold)
        gold = gold.rpartition("####")[2].strip()
    return {**others, "question": asked, "answer": gold}
