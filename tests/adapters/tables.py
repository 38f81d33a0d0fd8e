"""One set of scores for every framework, and what must be the same of what each writes of it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import polars as pl

import gdpo
from gdpo.auditing import run_explain
from gdpo.rollouts import rollout_frame, write_frame

NAMES = ["correct", "style", "format"]
WEIGHTS = {"correct": 1.0, "style": 0.5, "format": 1.0}
PLANTED = {"grpo": {("dominance", "style"), ("dead", "format")}, "gdpo": {("scale", "style"), ("dead", "format")}}
STEPS, PROMPTS, SIZE = 5, 8, 4
ROWS = PROMPTS * SIZE
LENGTHS = [3 + row % 5 for row in range(ROWS)]
"""Completion tokens of each step's rollouts."""
COMPLETIONS = ["c" * (1 + row % 7) for row in range(ROWS)]


def scores(step):
    """[ROWS, 3] of a step, whole numbers: ``style`` is some 40 times as wide as ``correct``, so that it dominates a sum,
    and is missing on some rows; ``format`` is dead."""
    generator = np.random.default_rng(step)
    table = np.ones((ROWS, 3))
    table[:, 0] = generator.integers(0, 2, ROWS)
    table[:, 1] = generator.integers(0, 65, ROWS)
    table[generator.random(ROWS) < 0.15, 1] = np.nan
    return table


def objective(method="gdpo"):
    return gdpo.Objective(
        method=method,
        **{name: gdpo.Reward(lambda completions, **_: None, weight=weight) for name, weight in WEIGHTS.items()},
    )


def reference(folder: Path, method="gdpo", beside: Path | None = None, text=True) -> Path:
    """The table as ``write_frame`` itself writes it, with the texts and lengths of another, or planted ones."""
    made = objective(method)
    for step in range(1, STEPS + 1):
        group = np.arange(ROWS) // SIZE
        told = {"prompt": [f"p{step}-{k}" for k in group], "completion": COMPLETIONS, "length": LENGTHS}
        if beside is not None:
            told = pl.read_parquet(beside / f"step-{step:06d}.parquet").to_dict(as_series=False)
        frame = rollout_frame(
            step=step, prompts=told["prompt"] if text else [""] * ROWS, lengths=told["length"], names=NAMES,
            completions=told["completion"] if text else [""] * ROWS, scores=scores(step), group=group,
            estimate=made.advantages(scores(step), SIZE),
        )  # fmt: skip
        write_frame(frame, folder / f"step-{step:06d}.parquet", {"gdpo.objective": made.to_yaml()})
    return folder


def check_same(folder: Path, other: Path, capsys) -> None:
    """The audits of two folders agree: verdict, findings, every measure; one rollout of the first can be explained."""
    found, want = gdpo.audit(folder), gdpo.audit(other)
    assert (found.method, found.method_from, found.weights) == (want.method, "the dump", WEIGHTS)
    assert found.enough
    assert None not in found.measures["length_correlation"].values()
    assert found.verdict == want.verdict
    assert [(one.id, one.reward, one.severity) for one in found.findings] == [
        (one.id, one.reward, one.severity) for one in want.findings
    ]
    assert PLANTED[found.method] <= {(one.id, one.reward) for one in found.findings}
    for part in ("measures", "series", "unmeasured"):
        close(getattr(found, part), getattr(want, part), part)
    for key in ("rollouts", "groups", "group_sizes", "steps", "rewards", "missing", "duplicates_dropped", "skipped"):
        assert getattr(found.summary, key) == getattr(want.summary, key), key
    check_explained(folder, capsys)


def close(found, want, where: str) -> None:
    """Equal to 1e-6, whatever it is made of."""
    if isinstance(want, dict):
        assert set(found) == set(want), where
        for key in want:
            close(found[key], want[key], f"{where}.{key}")
    elif isinstance(want, list | tuple):
        assert len(found) == len(want), where
        for k, (one, two) in enumerate(zip(found, want, strict=True)):
            close(one, two, f"{where}[{k}]")
    elif isinstance(want, float) and found is not None:
        assert math.isclose(found, want, rel_tol=0, abs_tol=1e-6) or (math.isnan(found) and math.isnan(want)), (
            f"{where}: {found} and {want}"
        )
    else:
        assert found == want, where


def check_explained(folder: Path, capsys) -> None:
    """``gdpo explain`` gives a rollout of the third step the advantage that the trainer used."""
    frame = pl.read_parquet(folder / "step-000003.parquet")
    row = int(frame["reward/style"].is_null().arg_max()) + 1
    capsys.readouterr()
    run_explain(str(folder), frame["rollout"][row], [], as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["advantage"] == told["recorded"] or math.isclose(told["advantage"], told["recorded"], abs_tol=1e-6)
    assert math.isclose(sum(part["contribution"] for part in told["parts"]), told["advantage"], abs_tol=1e-6)
    assert {part["reward"] for part in told["parts"]} == set(NAMES)
    assert len(told["mates"]) == SIZE
