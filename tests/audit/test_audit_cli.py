"""`gdpo audit` on parts and on two dumps, and following a dump that grows, as processes."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from gdpo.audit.follow import Follower
from gdpo.audit.run import audit
from gdpo.core.errors import Error
from gdpo.following import run_follow
from gdpo.rollouts import open_dump
from gdpo.rollouts.find import states

ROOT = Path(__file__).resolve().parents[2]


def gdpo(*words, status=0):
    done = subprocess.run(
        [sys.executable, "-m", "gdpo", *map(str, words)], capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == status, done.stderr
    return done.stdout if status != 2 else done.stderr


def step_frame(step, groups=12):
    """As TRL writes it: format never varies, length runs to hundreds."""
    random = np.random.default_rng(step)
    size = random.integers(1, 300, groups * 8)
    return pl.DataFrame(
        {
            "step": [step] * len(size),
            "prompt": [f"question {step}.{row // 8}" for row in range(len(size))],
            "completion": [f"\x1b[31m<script>{'x' * n}" for n in size],
            "correct": random.integers(0, 2, len(size)).astype(float),
            "format": np.ones(len(size)),
            "brief": -size.astype(float),
        }
    )


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completions")
    for step in (1, 2, 3):
        step_frame(step).write_parquet(folder / f"completions_{step:05d}.parquet")
    return folder


def test_a_new_process_prints_the_verdict_first_and_no_control_characters(dump):
    shown = gdpo("audit", dump)
    assert shown.startswith("the spread of brief in a group is 1")
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 100
    for id in ("dominance", "scale", "dead", "length"):
        assert f"  {id}" in shown


def test_parts_of_a_run_against_each_other(dump):
    assert "0 of" in gdpo("audit", dump, "steps=1", "--against", dump, "against.steps=1..1")
    files = dump / "completions_00001.parquet", dump / "completions_00002.parquet"
    other = json.loads(gdpo("audit", files[0], "--against", files[1], "--json"))
    assert {change["measure"] for change in other["changes"]} >= {"mean", "dead_share", "dominance"}
    assert other["rollouts"] == 96
    shown = gdpo("audit", dump, "method=gdpo", "--against", dump, "against.method=grpo")
    assert "dominance" in shown


@pytest.mark.parametrize(("words", "message"), [
    (["steps=4..1"], "first step is after its last"), (["steps=x"], "a range such as 1..4"),
    (["against.steps=1"], "--against"), (["steps=77..78", "--against", "DUMP"], "nothing to compare"),
    (["steps=1", "--follow"], "--follow"), (["--follow", "--against", "DUMP"], "do not go together"),
])  # fmt: skip
def test_bad_input_is_one_sentence_and_status_2(dump, words, message):
    said = gdpo("audit", dump, *[str(dump) if word == "DUMP" else word for word in words], status=2)
    assert message in said
    assert said.count("\n") == 1


def follower(path, **options):
    reads = []

    def opened(only):
        reads.append({file.name for file in only})
        return open_dump(path, only=only)

    return Follower(opened, **options), reads


def test_each_file_is_read_once_and_the_sums_are_those_of_the_whole(tmp_path):
    follow, reads = follower(tmp_path)
    came = []
    for step in range(1, 8):
        step_frame(step).write_parquet(tmp_path / f"completions_{step:05d}.parquet")
        came.append(follow.look(states(tmp_path)))
    assert came == [[], [1], [2], [3], [4], [5], [6]]  # a file counts once it stands still
    assert follow.look(states(tmp_path)) == [7]
    assert follow.look(states(tmp_path)) == []
    assert sum(map(len, reads)) == 8  # the first one, alone and perhaps still growing, was looked into twice
    found, whole = follow.audit(), audit(open_dump(tmp_path))
    assert found.measures["collapse"] == whole.measures["collapse"]
    assert found.measures["dead_share"] == whole.measures["dead_share"]
    assert found.measures[f"dominance_{found.method}"] == pytest.approx(
        whole.measures[f"dominance_{found.method}"], abs=1e-12
    )
    assert [(one.id, one.reward) for one in found.findings] == [(one.id, one.reward) for one in whole.findings]
    assert [one.value for one in found.findings] == pytest.approx([one.value for one in whole.findings], abs=1e-12)
    assert (found.summary.rollouts, found.summary.group_sizes) == (whole.summary.rollouts, whole.summary.group_sizes)
    assert found.framework == "trl"


def test_one_file_that_grows_by_lines_keeps_its_last_step_back(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    rows = [json.dumps(row) for step in (1, 2, 3) for row in step_frame(step).to_dicts()]
    follow, _ = follower(path)
    path.write_text("\n".join(rows[:150]) + '\n{"step": 2, "pro')
    assert follow.look(states(path)) == [1]
    path.write_text("\n".join(rows) + "\n")
    assert follow.look(states(path)) == [2]
    assert follow.look(states(path)) == [3]  # the file stood still
    assert follow.summary.rollouts == 288
    assert follow.again == 0


def test_a_step_that_comes_again_is_left_out_and_other_rewards_are_an_error(tmp_path):
    follow, _ = follower(tmp_path)
    step_frame(1).write_parquet(tmp_path / "completions_00001.parquet")
    follow.look(states(tmp_path), last=True)
    step_frame(1).write_parquet(tmp_path / "completions_00001_again.parquet")
    assert follow.look(states(tmp_path), last=True) == []
    assert follow.again == 96
    step_frame(2).rename({"brief": "short"}).write_parquet(tmp_path / "completions_00002.parquet")
    with pytest.raises(Error, match=r"step 2 has the rewards .*short"):
        follow.look(states(tmp_path), last=True)


def test_follow_ends_at_a_finding_of_the_severity(dump, capsys):
    assert run_follow(str(dump), [], fail_on="error", seconds=0.01) == 1
    shown = capsys.readouterr().out
    assert "steps 1 to 3: 288 rollouts" in shown
    assert "dead" in shown


def test_follow_a_process_until_ctrl_c(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "gdpo", "audit", str(tmp_path), "--follow"], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    time.sleep(3)
    assert process.poll() is None  # an empty folder is waited for
    for step in (1, 2, 3):
        step_frame(step).write_parquet(tmp_path / f"completions_{step:05d}.parquet")
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert first.startswith("steps 1 to 3: 288 rollouts"), errors
    assert "3 steps" in rest
    assert process.returncode == 0


@pytest.mark.slow
def test_replay_foretells_what_training_with_the_other_method_shows(tmp_path):
    spec = importlib.util.spec_from_file_location("replay_prediction", ROOT / "benchmarks" / "replay_prediction.py")
    prediction = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prediction)
    rows = prediction.compared(tmp_path, 0)
    assert all(row["within"] for row in rows.values()), rows
    assert rows["collapse"]["grpo"] < rows["collapse"]["interval"][0]  # it is not the same as before


@pytest.mark.slow
def test_following_a_training_of_ours_until_it_ends(tmp_path):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    training = subprocess.Popen(
        [sys.executable, "-m", "gdpo", "train", "math", "steps=6", "evaluation.prompts=8", "name=live"], cwd=tmp_path,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    run = tmp_path / "runs" / "live"
    for _ in range(600):
        if (run / "run.json").is_file():
            break
        time.sleep(0.1)
    shown = subprocess.run(
        [sys.executable, "-m", "gdpo", "audit", str(run), "--follow"], capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert training.wait(timeout=60) == 0
    assert shown.returncode == 0, shown.stderr
    heads = [line.split(":")[0] for line in shown.stdout.splitlines() if line.startswith("step")]
    assert len(heads) >= 3  # it came in parts while the training went on
    assert "gdpo, 6 files, 768 rollouts" in " ".join(shown.stdout.split())
