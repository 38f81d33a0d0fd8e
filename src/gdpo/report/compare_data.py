"""A sweep read into arms: the runs that differ only in their seed stand together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpo.core.errors import Error
from gdpo.report.formats import NONE, Interval, joined, t_interval
from gdpo.report.run_data import Evaluation, RunData, Score, read_json, read_run

ALL_OF = ""
"""The key of "all rewards hold" among measures; a reward cannot have this name."""


@dataclass(frozen=True)
class Member:
    """One run of the sweep; ``run`` is None while it is pending, or where its folder cannot be read."""

    folder: str
    label: str
    seed: str
    status: str
    run: RunData | None
    report: str | None
    """Relative link to its own report, where that exists."""

    def final(self, measure: str, which: str = "after") -> float | None:
        """Held-out mean of a reward, or of all together, where the run is done."""
        evaluation = (self.run.after if which == "after" else self.run.before) if self.run else None
        if self.status != "done" or evaluation is None:
            return None
        score = _score(evaluation, measure)
        return score.mean if score else None


@dataclass(frozen=True)
class Arm:
    """Runs that differ only in their seed."""

    name: str
    colour: int
    members: list[Member]

    def finals(self, measure: str, which: str = "after") -> dict[str, float]:
        """Value by seed, of the runs that are done and have it."""
        values = {member.seed: member.final(measure, which) for member in self.members}
        return {seed: value for seed, value in values.items() if value is not None}

    def interval(self, measure: str, which: str = "after") -> Interval | None:
        """Mean over seeds with Student's t interval."""
        return t_interval(list(self.finals(measure, which).values()))


@dataclass(frozen=True)
class Sweep:
    """A compare folder."""

    folder: Path
    recipe: str
    arms: list[Arm]
    measures: list[str]
    """``ALL_OF`` first where evaluations have it, then the rewards."""
    all_of_names: tuple[str, ...]
    notes: list[str]

    @property
    def members(self) -> list[Member]:
        """Every run of the sweep."""
        return [member for arm in self.arms for member in arm.members]


@dataclass(frozen=True)
class Paired:
    """Difference of two arms over the seeds both have."""

    arm: Arm
    base: Arm
    measure: str
    differences: dict[str, float]
    interval: Interval | None


def read_sweep(folder: Path) -> Sweep:
    """The sweep in ``folder``.

    Raises:
        Error: ``folder`` is not a compare folder (no readable ``compare.json`` with a list of runs).
    """
    info = read_json(folder / "compare.json")
    if info is None or not isinstance(info.get("runs"), list):
        raise Error(f"{folder} is not a compare folder: it has no readable compare.json with a list of runs")
    notes: list[str] = []
    arms: dict[str, list[Member]] = {}
    for entry in info["runs"]:
        if isinstance(entry, dict) and isinstance(entry.get("folder"), str):
            member, arm = _member(folder, entry, notes)
            arms.setdefault(arm, []).append(member)
        else:
            notes.append("compare.json has an entry without a folder; it is left out.")
    runs = [member.run for members in arms.values() for member in members if member.run]
    evaluations = [e for run in runs for e in (run.after, run.before) if e]
    names = next((e.all_of_names for e in evaluations if e.all_of_names), ())
    rewards = list(dict.fromkeys(name for run in runs for name in run.rewards))
    return Sweep(
        folder=folder,
        recipe=str(info.get("recipe") or "unknown recipe"),
        arms=[Arm(name, index, members) for index, (name, members) in enumerate(arms.items())],
        measures=[ALL_OF, *rewards] if names else rewards,
        all_of_names=names,
        notes=notes,
    )


def paired(sweep: Sweep, measure: str) -> list[Paired]:
    """Every other arm against the first, seed by seed; ``interval`` is None where no seed has both."""
    if not sweep.arms:
        return []
    base = sweep.arms[0]
    start = base.finals(measure)
    pairs = []
    for arm in sweep.arms[1:]:
        values = arm.finals(measure)
        differences = {seed: values[seed] - start[seed] for seed in start if seed in values}
        pairs.append(Paired(arm, base, measure, differences, t_interval(list(differences.values()))))
    return pairs


def mean_curve(runs: list[RunData], key: str) -> tuple[list[int], list[float | None], list[list[float | None]]]:
    """Steps of any run, the mean of ``key`` over the runs that have that step, and each run's own values."""
    steps = sorted({step for run in runs for step in run.steps})
    each = []
    for run in runs:
        values = dict(zip(run.steps, run.series(key), strict=True))
        each.append([values.get(step) for step in steps])
    mean: list[float | None] = []
    for position in range(len(steps)):
        known = [value for values in each if (value := values[position]) is not None]
        # A mean over fewer runs than the others have would jump where a run ends: it stops there instead.
        mean.append(math.fsum(known) / len(known) if known and len(known) == len(each) else None)
    return steps, mean, each


def _member(folder: Path, entry: dict[str, Any], notes: list[str]) -> tuple[Member, str]:
    name = entry["folder"]
    values = entry.get("values")
    values = values if isinstance(values, dict) else {}
    arm = _arm_name(values)
    inside = _inside(folder, name)
    status = str(entry.get("status") or "pending")
    run: RunData | None = None
    if inside is not None and inside.is_dir():
        try:
            run = read_run(inside)
        except Error:
            run = None
    if run is None and status == "done":
        notes.append(f"{name} is marked as done, but holds no run that can be read.")
    report = f"{name}/report.html" if inside is not None and (inside / "report.html").is_file() else None
    seed = str(values.get("seed", NONE))
    return Member(name, f"{arm}, seed {seed}", seed, status, run, report), arm


def _arm_name(values: dict[str, Any]) -> str:
    """What sets an arm apart; where only one thing varies beside the seed, its value says enough."""
    varied = {key: value for key, value in values.items() if key != "seed"}
    if len(varied) == 1:
        return str(*varied.values())
    return ", ".join(f"{key}={value}" for key, value in varied.items()) or "all runs"


def _inside(folder: Path, name: str) -> Path | None:
    """The run's folder, where ``name`` is one beside compare.json and not a way out of it."""
    return folder / name if name and name not in (".", "..") and not set("/\\") & set(name) else None


def _score(evaluation: Evaluation, measure: str) -> Score | None:
    return evaluation.all_of if measure == ALL_OF else evaluation.rewards.get(measure)


def measure_label(sweep: Sweep, measure: str) -> str:
    """A measure's name for readers."""
    return f"all of {joined(list(sweep.all_of_names))}" if measure == ALL_OF else measure
