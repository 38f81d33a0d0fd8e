"""Sweeps: one recipe under several settings and seeds, each from the same start and data, resumable."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdpo.core.errors import Error
from gdpo.report import write_compare_report
from gdpo.training import recipe as recipes
from gdpo.training.recipe import Recipe
from gdpo.training.run import write_text

_MOST = 500


@dataclass
class SweepRun:
    """One run of a sweep."""

    name: str
    """Its folder beside the others, such as ``method=grpo,seed=0``."""
    values: dict[str, Any]
    recipe: Recipe
    overrides: list[str]


@dataclass
class Sweep:
    """What is swept, and the runs that makes."""

    source: str
    folder: Path
    axes: dict[str, list[Any]]
    fixed: list[str]
    runs: list[SweepRun] = field(default_factory=list)

    @classmethod
    def parse(cls, source: str, overrides: Sequence[str]) -> Sweep:
        """From a recipe and ``key=value`` where a comma or a range (``0..2``) makes a sweep.

        Raises:
            Error: nothing is swept, too much is, or a setting is wrong in any of the runs.
        """
        axes: dict[str, list[str]] = {}
        fixed: list[str] = []
        place = {"name": "", "output_dir": ""}
        for text in overrides:
            key, value = recipes.parse_override(text)
            written = text.partition("=")[2]
            if key in place:
                place[key] = str(value)
            elif len(choices := _choices(written)) > 1:
                axes[key] = choices
            else:
                fixed.append(text)
        if not axes:
            raise Error("compare needs at least one key with several values, such as method=grpo,gdpo or seed=0..2")
        count = 1
        for choices in axes.values():
            count *= len(choices)
        if count > _MOST:
            raise Error(f"that sweep has {count} runs, but at most {_MOST} were expected")
        base = recipes.load(source, fixed)
        stem = base.recipe if source in recipes.names() else Path(source).stem
        name = place["name"] or f"{stem}-compare-{'-'.join(_plain(key) for key in axes)}"
        folder = Path(place["output_dir"] or base.output_dir) / name
        sweep = cls(source, folder, {key: [_value(c) for c in choices] for key, choices in axes.items()}, fixed)
        for combination in itertools.product(*axes.values()):
            chosen = dict(zip(axes, combination, strict=True))
            run_name = ",".join(f"{_plain(key)}={_plain(value)}" for key, value in chosen.items())
            changes = [*fixed, *(f"{key}={value}" for key, value in chosen.items())]
            changes += [f"output_dir={json.dumps(str(folder))}", f"name={json.dumps(run_name)}"]
            recipe = recipes.load(source, changes)
            sweep.runs.append(SweepRun(run_name, {k: _value(v) for k, v in chosen.items()}, recipe, changes))
        if len({run.name for run in sweep.runs}) < len(sweep.runs):
            raise Error("two runs of the sweep would have the same folder; write the values so that they differ")
        return sweep


def run_sweep(sweep: Sweep, *, jobs: int, command: str, say: Callable[[str], Any]) -> int:
    """Run what is not done yet, side by side as the cores allow, and write the page. Returns how many runs failed.

    Args:
        sweep: what to run.
        jobs: runs at once; 0 for as many as the cores allow (one at a time on a GPU, or with a model that is not nano).
        command: how the sweep was called, for the record.
        say: takes a line of progress.
    """
    record = _begin(sweep, command)
    jobs, threads = _share_cores(sweep, jobs)
    waiting = [run for run in sweep.runs if not _finished(sweep.folder / run.name)]
    say(f"{len(sweep.runs)} runs, {len(sweep.runs) - len(waiting)} done, {jobs} at a time: {sweep.folder}")
    running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
    failed: set[str] = set()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                run = waiting.pop(0)
                running[run.name] = (_start(sweep, run, threads), time.monotonic())
                say(f"started {run.name}")
            time.sleep(0.2)
            for name, (process, started) in list(running.items()):
                status = process.poll()
                if status is None:
                    continue
                del running[name]
                done = status == 0 and _finished(sweep.folder / name)
                if not done:
                    failed.add(name)
                say(f"{'finished' if done else 'failed  '} {name} after {time.monotonic() - started:.0f} s")
                _write(sweep, record, failed)
    except KeyboardInterrupt:
        for process, _ in running.values():
            process.wait()
        raise
    _write(sweep, record, failed)
    return len(failed)


def _begin(sweep: Sweep, command: str) -> dict[str, Any]:
    record = {
        "schema": 1, "recipe": sweep.source, "sweep": sweep.axes, "overrides": sweep.fixed, "command": command,
    }  # fmt: skip
    path = sweep.folder / "compare.json"
    if path.is_file():
        old = json.loads(path.read_text(encoding="utf-8"))
        same = ("recipe", "sweep", "overrides")
        if any(old.get(key) != record[key] for key in same):
            asked = {key: old.get(key) for key in same}
            raise Error(f"{sweep.folder} holds another comparison ({asked}); name=NAME makes one beside it")
    elif sweep.folder.exists() and any(sweep.folder.iterdir()):
        raise Error(f"{sweep.folder} exists and is no comparison; name=NAME makes one beside it (nothing was changed)")
    _write(sweep, record, set(), page=False)
    return record


def _write(sweep: Sweep, record: dict[str, Any], failed: set[str], page: bool = True) -> None:
    runs = []
    for run in sweep.runs:
        done = _finished(sweep.folder / run.name)
        status = "done" if done else "failed" if run.name in failed else "pending"
        runs.append({"folder": run.name, "values": run.values, "status": status})
    write_text(sweep.folder / "compare.json", json.dumps({**record, "runs": runs}, indent=1) + "\n")
    if page and any(run["status"] == "done" for run in runs):
        write_compare_report(sweep.folder)


def _start(sweep: Sweep, run: SweepRun, threads: int) -> subprocess.Popen[bytes]:
    resume = ["--resume"] if (sweep.folder / run.name / "run.json").is_file() else []
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    log = sweep.folder / "logs" / f"{run.name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "gdpo", "train", sweep.source, *run.overrides, *resume],
            stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment,
        )  # fmt: skip


def _share_cores(sweep: Sweep, jobs: int) -> tuple[int, int]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if jobs == 0:
        import torch

        from gdpo.training import models

        small = all(run.recipe.model in models.shipped() for run in sweep.runs) and not torch.cuda.is_available()
        jobs = cores if small else 1
    jobs = max(1, min(jobs, len(sweep.runs)))
    return jobs, max(1, cores // jobs)


def _finished(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / "run.json").read_text(encoding="utf-8")).get("finished"))
    except (OSError, ValueError):
        return False


def _choices(text: str) -> list[str]:
    """The values that ``a,b,c`` or ``0..4`` stands for; anything else stands for itself."""
    bounds = re.fullmatch(r"(-?\d+)\.\.(-?\d+)", text.strip())
    if bounds:
        first, last = int(bounds[1]), int(bounds[2])
        if last < first:
            raise Error(f"the range {text!r} runs backwards; {last}..{first} was expected")
        return [str(number) for number in range(first, last + 1)]
    if text.strip()[:1] in ("[", "{", '"', "'"):
        return [text]
    choices = [choice.strip() for choice in text.split(",") if choice.strip()]
    return list(dict.fromkeys(choices)) or [text]


def _value(text: str) -> Any:
    return recipes.parse_override(f"x={text}")[1]


def _plain(text: object) -> str:
    """Text that can stand in a folder's name."""
    return re.sub(r'[\x00-\x1f<>:"|?*\\/\s]+', "_", str(text)).strip("_") or "_"
