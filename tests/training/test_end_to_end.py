"""`gdpo train` as a user runs it: a whole run, a run killed twice, Ctrl-C, a full disk, and bad input."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

SMALL = [
    "steps=6", "save_steps=2", "per_device_train_batch_size=32", "evaluation.prompts=16", "evaluation.samples=2",
    "weights.integer={schedule: ramp, start: 0.2, end: 1.0, steps: 4}", "gates.integer='format >= 1'",
]  # fmt: skip


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gdpo", *arguments]


def gdpo(folder: Path, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=folder, capture_output=True, text=True, timeout=300, check=False, **options
    )


def lines(path: Path) -> list[dict]:
    """Whole lines of a metrics file, without what depends on the clock."""
    found = []
    for text in path.read_text().splitlines() if path.is_file() else []:
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        found.append({key: value for key, value in line.items() if key != "seconds"})
    return found


def timeless(path: Path) -> dict:
    value = json.loads(path.read_text())
    value.pop("seconds")
    return value


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    done = gdpo(folder, "train", "math", *SMALL, "name=whole")
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "whole"


@pytest.mark.slow
def test_a_method_of_ten_lines_trains(tmp_path):
    """A new user's method, in a file of theirs, trains, is recorded by name, and resumes."""
    (tmp_path / "mine.py").write_text(
        "import gdpo\n"
        "\n"
        "\n"
        "@gdpo.estimator('quieter')\n"
        "def quieter(batch, *, factor=0.5):\n"
        '    """BN(sum_k w_k z_k), the first reward at half its weight."""\n'
        "    return batch.combine(lambda k: batch.normalized(k).times(factor if k == 0 else 1.0))\n"
    )
    done = gdpo(tmp_path, "train", "math", *SMALL, "steps=4", "method=mine.py:quieter", "options.factor=0.25")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "math-nano-quieter-seed0"
    assert json.loads((folder / "run.json").read_text())["method"] == "quieter"
    assert len(lines(folder / "metrics.jsonl")) == 4
    frame = pl.read_parquet(sorted((folder / "rollouts").iterdir())[0])
    shares = frame.select(pl.col("^contribution/.*$")).sum_horizontal()
    np.testing.assert_allclose(shares, frame["advantage"], atol=1e-6)
    first, second = frame["normalized/correct"].to_numpy(), frame["contribution/correct"].to_numpy()
    live = np.abs(first) > 1e-9
    other = frame["contribution/format"].to_numpy() / np.where(
        frame["normalized/format"] == 0, np.nan, frame["normalized/format"]
    )
    assert np.nanmedian(second[live] / first[live]) == pytest.approx(0.25 * np.nanmedian(other), rel=0.02)
    bad = gdpo(tmp_path, "train", "math", *SMALL, "method=mine.py:louder")
    assert bad.returncode == 2
    assert "the file registers ['quieter']" in bad.stderr


@pytest.mark.slow
def test_a_run_leaves_everything(whole_run):
    assert {
        "recipe.yaml",
        "run.json",
        "metrics.jsonl",
        "rollouts",
        "checkpoints",
        "evaluations",
        "model",
        "report.html",
    } <= {path.name for path in whole_run.iterdir()}
    record = json.loads((whole_run / "run.json").read_text())
    assert record["finished"]
    assert record["seed"] == 0
    assert {"python", "torch", "transformers", "trl", "numpy"} <= set(record["versions"])
    steps = lines(whole_run / "metrics.jsonl")
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert [line["rewards/integer/weight"] for line in steps] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    for name in ("correct", "format", "integer"):
        for measure in ("mean", "group_std", "dead_share", "contribution_share"):
            assert f"rewards/{name}/{measure}" in steps[0]
    assert not list(whole_run.rglob("*.tmp"))
    report = (whole_run / "report.html").read_text()
    assert 'http-equiv="Content-Security-Policy"' in report


@pytest.mark.slow
def test_the_rollout_table_is_the_contract(whole_run):
    frames = [pl.read_parquet(path) for path in sorted((whole_run / "rollouts").iterdir())]
    assert len(frames) == 6
    frame = pl.concat(frames)
    assert frame["rollout"].n_unique() == len(frame) == 6 * 32
    for name in ("correct", "format", "integer"):
        assert {f"{kind}/{name}" for kind in ("reward", "gated", "weight", "normalized", "contribution")} <= set(
            frame.columns
        )
    parts = sum(frame[f"contribution/{name}"] for name in ("correct", "format", "integer"))
    np.testing.assert_allclose(parts, frame["advantage"], atol=1e-12)
    shut = frame.filter(pl.col("reward/format") < 1)
    assert len(shut)
    assert (shut["gated/integer"] == 0).all()
    assert (frame.group_by("step", "group").len()["len"] == 8).all()
    metadata = pl.read_parquet_metadata(whole_run / "rollouts" / "step-000001.parquet")
    assert metadata["gdpo.schema"] == "1"
    assert metadata["gdpo.framework"].startswith("trl ")
    assert "given: format >= 1" in metadata["gdpo.objective"]


@pytest.mark.slow
def test_held_out_prompts_are_never_trained_on(whole_run):
    held_out = set(pl.read_parquet(whole_run / "evaluations" / "before.parquet")["prompt"])
    trained = {prompt for path in (whole_run / "rollouts").iterdir() for prompt in pl.read_parquet(path)["prompt"]}
    assert len(held_out) == 16
    assert not held_out & trained
    assert held_out == set(pl.read_parquet(whole_run / "evaluations" / "after.parquet")["prompt"])


def start_and_kill(folder: Path, arguments: list[str], metrics: Path, after: int) -> None:
    """SIGKILL once ``after`` lines of metrics are there."""
    process = subprocess.Popen(command(*arguments), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while len(lines(metrics)) < after and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() is None, "the run ended before it could be killed"
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_run_killed_twice_ends_as_if_it_had_not_been(whole_run, tmp_path):
    run = tmp_path / "runs" / "cut"
    arguments = ["train", "math", *SMALL, "name=cut"]
    start_and_kill(tmp_path, arguments, run / "metrics.jsonl", 1)  # before the first checkpoint
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "loss"')  # as a kill in the middle of a line leaves it
    start_and_kill(tmp_path, [*arguments, "--resume"], run / "metrics.jsonl", 5)
    (run / "checkpoints" / "checkpoint-99").mkdir()  # as a kill in the middle of a checkpoint leaves it
    assert not (run / "evaluations" / "after.json").exists()
    done = gdpo(tmp_path, "train", str(run), "--resume")
    assert done.returncode == 0, done.stderr
    assert lines(run / "metrics.jsonl") == lines(whole_run / "metrics.jsonl")
    for name in ("before", "after"):
        assert timeless(run / "evaluations" / f"{name}.json") == timeless(whole_run / "evaluations" / f"{name}.json")
    for path in sorted((whole_run / "rollouts").iterdir()):
        assert pl.read_parquet(path).equals(pl.read_parquet(run / "rollouts" / path.name))
    assert (run / "model" / "model.safetensors").read_bytes() == (
        whole_run / "model" / "model.safetensors"
    ).read_bytes()
    assert not (run / "checkpoints" / "checkpoint-99").exists()


@pytest.mark.slow
def test_control_c_saves_and_says_how_to_go_on(whole_run, tmp_path):
    run = tmp_path / "runs" / "stopped"
    process = subprocess.Popen(
        command("train", "math", *SMALL, "save_steps=100", "name=stopped"), cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while len(lines(run / "metrics.jsonl")) < 3 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "runs/stopped --resume" in said
    assert len(list((run / "checkpoints").glob("checkpoint-*"))) == 1
    assert gdpo(tmp_path, "train", "runs/stopped", "--resume").returncode == 0
    assert lines(run / "metrics.jsonl") == lines(whole_run / "metrics.jsonl")


@pytest.mark.slow
def test_resume_refuses_another_recipe_and_a_run_is_not_overwritten(whole_run):
    before = {path: path.stat().st_mtime_ns for path in whole_run.rglob("*")}
    folder = whole_run.parents[1]
    again = gdpo(folder, "train", "math", *SMALL, "name=whole")
    assert again.returncode == 2
    assert "exists already" in again.stderr
    other = gdpo(folder, "train", "math", *SMALL, "name=whole", "seed=5", "--resume")
    assert other.returncode == 2
    assert "seed=0, not 5" in other.stderr
    assert {path: path.stat().st_mtime_ns for path in whole_run.rglob("*")} == before


@pytest.mark.slow
def test_the_trained_model_is_a_model(whole_run, tmp_path):
    done = gdpo(tmp_path, "train", "math", *SMALL, f"model={whole_run / 'model'}", "dtype=float32", "name=more", "steps=1",
                "trainer.gradient_checkpointing=false", "max_completion_length=48", "learning_rate=1e-4", "lora=4",
                "num_generations=8", "gradient_accumulation_steps=1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "more" / "model" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="mounting a small disk needs root")
def test_a_full_disk_is_one_sentence(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=9m", "none", disk], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        done = gdpo(tmp_path, "train", "math", *SMALL, f"output_dir={disk}", "name=full")
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    assert done.returncode == 2, done.stderr[-2000:]
    assert re.search("cannot be written: .*(N|n)o space left", done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_compare_runs_both_and_writes_one_page(tmp_path):
    arguments = ["compare", "math", "method=grpo,gdpo", "seed=0..1", "steps=2", *SMALL[1:5], "name=both"]
    done = gdpo(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "both"
    record = json.loads((folder / "compare.json").read_text())
    assert {run["folder"] for run in record["runs"]} == {
        f"method={m},seed={s}" for m in ("grpo", "gdpo") for s in (0, 1)
    }
    assert all(run["status"] == "done" for run in record["runs"])
    assert "grpo" in (folder / "report.html").read_text()
    one, two = (timeless(folder / f"method={m},seed=0" / "evaluations" / "before.json") for m in ("grpo", "gdpo"))
    assert one == two  # the same start and held-out data
    prompts = [
        pl.read_parquet(folder / f"method={m},seed=1" / "rollouts" / "step-000001.parquet")["prompt"]
        for m in ("grpo", "gdpo")
    ]
    assert prompts[0].equals(prompts[1])
    again = gdpo(tmp_path, *arguments)
    assert "4 done" in again.stdout
    other = gdpo(tmp_path, *[a.replace("seed=0..1", "seed=0..2") for a in arguments])
    assert other.returncode == 2
    assert "another comparison" in other.stderr
