"""As a new user: the base install alone, a dump in an unknown folder, one command, the right verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import gdpo

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """``gdpo`` in an environment that has the base install only."""
    folder = tmp_path_factory.mktemp("base")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    done = subprocess.run([python, "-m", "pip", "install", "-q", ROOT], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot install here: {done.stderr.strip()[-200:]}")
    for package in ("torch", "transformers", "trl", "pandas", "pyarrow"):
        assert subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False).returncode
    return python.with_name("gdpo")


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """TRL's completions beside what else an output folder holds; the format reward never varies, length drowns."""
    folder = tmp_path_factory.mktemp("somewhere") / "grpo-out"
    (folder / "completions").mkdir(parents=True)
    (folder / "checkpoint-3").mkdir()
    (folder / "checkpoint-3" / "optimizer.pt").write_bytes(b"\x80\x02}q\x00.")
    (folder / "checkpoint-3" / "trainer_state.json").write_text('{"log_history": [{"loss": 1.0, "step": 1}]}')
    random = np.random.default_rng(0)
    for step in range(1, 5):
        correct, length = (random.random(96) < 0.4).astype(float), -random.integers(10, 400, 96).astype(float)
        scores = np.stack([correct, np.ones(96), length], 1)
        pl.DataFrame({
            "step": [step] * 96, "prompt": [f"question {step}.{row // 8}" for row in range(96)],
            "completion": [f"answer {row}" for row in range(96)], "reward_correct": correct, "reward_format": scores[:, 1],
            "reward_length": length, "advantage": gdpo.advantages(scores, 8, "grpo"),
        }).write_parquet(folder / "completions" / f"completions_{step:05d}.parquet")  # fmt: skip
    return folder


def run(command, *words):
    done = subprocess.run([command, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_command_gives_the_verdict(command, dump, tmp_path):
    shown = run(command, "audit", dump, "--html", tmp_path / "audit.html")
    assert "reward_length drowns the others" in shown or "the spread of reward_length" in shown
    assert "trl, 4 files, 384 rollouts in 48 groups (48 of 8), 4 steps" in " ".join(shown.split())
    assert "reward_format is the same for every rollout in 100 % of the groups" in " ".join(shown.split())
    assert (tmp_path / "audit.html").stat().st_size > 10_000
    found = json.loads(run(command, "audit", dump, "--json"))
    assert {one["id"] for one in found["findings"]} >= {"dominance", "dead", "scale"}
    assert (found["method"], found["method_from"]) == ("grpo", "its advantages")
    assert "reward_length" in run(command, "explain", dump, "2-17")
    assert "method=gdpo" in run(command, "replay", dump, "method=gdpo")
