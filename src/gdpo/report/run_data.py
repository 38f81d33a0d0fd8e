"""A run folder read into plain types; whatever is missing or half-written is simply absent.

A report is wanted most when a run went wrong, so nothing but a missing ``run.json`` is an error here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from gdpo.core.errors import Error

EVALUATION_NAMES = ("before", "after")


@dataclass(frozen=True)
class Score:
    """One reward on the held-out prompts."""

    mean: float | None = None
    stderr: float | None = None
    passed: float | None = None
    """Share of samples that pass, where the reward says what passing is."""
    missing: float | None = None
    """Samples without a score, as a count or a share, as the evaluation wrote it."""


@dataclass(frozen=True)
class Evaluation:
    """A held-out evaluation: ``evaluations/before.json`` or ``after.json``."""

    rewards: dict[str, Score]
    all_of: Score | None
    all_of_names: tuple[str, ...]
    prompts: int | None
    samples: int | None
    step: int | None
    temperature: float | None
    completion_length: float | None
    truncated: float | None
    seconds: float | None


@dataclass(frozen=True)
class RunData:
    """Everything a report shows except the text of rollouts, which ``samples`` reads when it is needed."""

    folder: Path
    info: dict[str, Any]
    name: str
    method: str
    model: str
    seed: str
    rewards: list[str]
    recipe_text: str
    total_steps: int | None
    metrics: list[dict[str, float | None]]
    """One mapping a step, in order of steps; None where the value is missing or not finite."""
    before: Evaluation | None
    after: Evaluation | None
    rollout_files: list[Path]
    notes: list[str] = field(default_factory=list)
    """What could not be read, in sentences."""

    def series(self, key: str) -> list[float | None]:
        """[steps] the metric ``key``; None where a step lacks it."""
        return [row.get(key) for row in self.metrics]

    @property
    def steps(self) -> list[int]:
        """[steps] the step numbers."""
        return [int(row["step"] or 0) for row in self.metrics]


def read_run(folder: Path) -> RunData:
    """The run in ``folder``.

    Raises:
        Error: ``folder`` is not a run folder (no readable ``run.json``).
    """
    info = _read_info(folder)
    notes: list[str] = []
    metrics = _read_metrics(folder / "metrics.jsonl", notes)
    recipe_text = _read_text(folder / "recipe.yaml")
    before, after = (_read_evaluation(folder / "evaluations" / f"{name}.json", notes) for name in EVALUATION_NAMES)
    return RunData(
        folder=folder,
        info=info,
        name=str(info.get("name") or folder.resolve().name),
        method=str(info.get("method") or "unknown method"),
        model=str(info.get("model") or "unknown model"),
        seed=str(info.get("seed", "unknown")),
        rewards=_reward_names(info, metrics, before, after),
        recipe_text=recipe_text,
        total_steps=_total_steps(info, recipe_text),
        metrics=metrics,
        before=before,
        after=after,
        rollout_files=sorted((folder / "rollouts").glob("step-*.parquet")),
        notes=notes,
    )


def number(value: object) -> float | None:
    """``value`` as a finite float, else None (also for words, booleans are 0 and 1)."""
    if isinstance(value, int | float):
        try:
            result = float(value)
        except OverflowError:
            return None
        return result if math.isfinite(result) else None
    return None


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in ``path``; None where there is none that can be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_table(path: Path, columns: list[str] | None = None) -> pl.DataFrame | None:
    """The Parquet file ``path``, of ``columns`` those it has; None where it cannot be read."""
    try:
        if columns is not None:
            there = set(pl.read_parquet_schema(path))
            columns = [name for name in columns if name in there]
        return pl.read_parquet(path, columns=columns)
    except (OSError, pl.exceptions.PolarsError):
        return None


def _read_info(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise Error(f"{folder} is not a folder; give the folder of a run, such as runs/NAME")
    info = read_json(folder / "run.json")
    if info is None:
        raise Error(f"{folder} is not a run folder: it has no readable run.json, which every run writes when it starts")
    return info


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _read_metrics(path: Path, notes: list[str]) -> list[dict[str, float | None]]:
    """Later lines win: a resumed run writes again the steps since its last checkpoint."""
    rows: dict[int, dict[str, float | None]] = {}
    unread = 0
    for line in _read_text(path).split("\n"):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            unread += 1
            continue
        step = number(row.get("step")) if isinstance(row, dict) else None
        if step is None:
            unread += 1
            continue
        rows[int(step)] = {key: number(value) for key, value in row.items()}
    if unread:
        notes.append(f"{unread} line{'s' if unread > 1 else ''} of metrics.jsonl could not be read and are left out.")
    return [rows[step] for step in sorted(rows)]


def _read_evaluation(path: Path, notes: list[str]) -> Evaluation | None:
    if not path.exists():
        return None
    value = read_json(path)
    if value is None:
        notes.append(f"evaluations/{path.name} could not be read.")
        return None
    return parse_evaluation(value)


def parse_evaluation(value: Mapping[str, Any]) -> Evaluation:
    """The content of an evaluation's JSON file; what is missing or no number becomes None."""
    all_of = value.get("all_of")
    names = all_of.get("names") if isinstance(all_of, dict) else None
    rewards = value.get("rewards")
    prompts, samples, step = (number(value.get(key)) for key in ("prompts", "samples", "step"))
    return Evaluation(
        rewards={str(name): _score(score) for name, score in rewards.items()} if isinstance(rewards, dict) else {},
        all_of=_score(all_of) if isinstance(all_of, dict) else None,
        all_of_names=tuple(str(name) for name in names) if isinstance(names, list) else (),
        prompts=None if prompts is None else int(prompts),
        samples=None if samples is None else int(samples),
        step=None if step is None else int(step),
        temperature=number(value.get("temperature")),
        completion_length=number(value.get("completion_length")),
        truncated=number(value.get("truncated")),
        seconds=number(value.get("seconds")),
    )


def _score(value: object) -> Score:
    if not isinstance(value, dict):
        return Score()
    return Score(*(number(value.get(key)) for key in ("mean", "stderr", "pass", "missing")))


def _reward_names(
    info: dict[str, Any], metrics: list[dict[str, float | None]], *evaluations: Evaluation | None
) -> list[str]:
    """In the order of run.json, then any others that only metrics or evaluations know."""
    given = info.get("rewards")
    names = [str(name) for name in given] if isinstance(given, list) else []
    for evaluation in evaluations:
        names += evaluation.rewards if evaluation else []
    for row in metrics:
        names += [key[8:-5] for key in row if key.startswith("rewards/") and key.endswith("/mean")]
    return list(dict.fromkeys(names))


def _total_steps(info: dict[str, Any], recipe_text: str) -> int | None:
    """From run.json or the recipe's own ``steps``; None where neither says."""
    value: object = info.get("steps")
    for line in recipe_text.splitlines():
        key, _, rest = line.partition(":")
        if key in ("steps", "max_steps") and rest.split("#")[0].strip().isdecimal():
            value = value or int(rest.split("#")[0])
    steps = number(value)
    return int(steps) if steps else None
