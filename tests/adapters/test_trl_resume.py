"""A TRL training that is killed and resumed, and one whose disk is full: weights and the rollout table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
import warnings
from pathlib import Path

import datasets
import numpy as np
import polars as pl
import pytest
from test_trl import PROMPTS, config, vowels

import gdpo
from gdpo.adapters.trl_table import TableFolder
from gdpo.rollouts import RolloutWriter
from gdpo.trl import GDPOTrainer


def run(folder: Path, script: str, *arguments: object, code: int = 0) -> str:
    """A script in a process of its own; what it printed."""
    (folder / "script.py").write_text(script)
    paths = [Path(__file__).parent, Path(__file__).parents[1], Path(gdpo.__file__).parents[1]]
    done = subprocess.run(
        [sys.executable, str(folder / "script.py"), *map(str, arguments)], capture_output=True, text=True, timeout=280,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr[-3000:]
    return done.stdout


RAMPED = """
import os, signal, sys
from test_trl import PROMPTS, config, digits, vowels
from gdpo import Objective, Reward
from gdpo.trl import GDPOTrainer
from gdpo.weights import ramp
model, folder, kill = sys.argv[1:]
def watch(step):
    if step.step == int(kill):
        os.kill(os.getpid(), signal.SIGKILL)
arguments = config(folder, max_steps=151, save_strategy="steps", save_steps=50, save_total_limit=1, num_generations=2,
                   per_device_train_batch_size=4, max_completion_length=2, logging_steps=200)
objective = Objective(vowels=vowels, digits=Reward(digits, weight=ramp(0.2, 1.0, steps=100)))
trainer = GDPOTrainer(model, args=arguments, train_dataset=PROMPTS, objective=objective, on_step=watch,
                      rollouts_folder=folder + "/rollouts")
trainer.train(resume_from_checkpoint=kill == "0")
"""


@pytest.mark.slow
def test_a_ramp_and_the_table_go_on_after_a_kill(tiny_model, tmp_path):
    """SIGKILL in step 58, resumed from 50: at step 50 the weight is 0.6, not 0.2 (huggingface/trl#3148, #3247)."""
    run(tmp_path, RAMPED, tiny_model, tmp_path, 58, code=-signal.SIGKILL)
    table = tmp_path / "rollouts"
    assert (tmp_path / "checkpoint-50").is_dir()
    before = {path.name: path.stat().st_mtime_ns for path in table.glob("step-*.parquet")}
    assert len(before) >= 50
    run(tmp_path, RAMPED, tiny_model, tmp_path, 0)
    assert sorted(path.name for path in table.iterdir()) == [f"step-{k:06d}.parquet" for k in range(1, 152)]
    for name, written in before.items():  # up to the checkpoint as they were, later ones made anew
        assert ((table / name).stat().st_mtime_ns == written) == (name <= "step-000050.parquet")
    frame = pl.read_parquet(table / "*.parquet")
    assert len(frame) == 151 * 4
    assert frame["rollout"].n_unique() == len(frame)
    by_step = frame.group_by("step").agg(pl.col("weight/digits").unique()).sort("step")
    weights = np.array([one for (one,) in by_step["weight/digits"].to_list()])
    # The weight of step k + 1 is read when k steps are done.
    np.testing.assert_allclose(weights[[0, 25, 50, 75, 100, 150]], [0.2, 0.4, 0.6, 0.8, 1.0, 1.0], atol=1e-12)
    np.testing.assert_allclose(weights, 0.2 + 0.8 * np.minimum(np.arange(151) / 100, 1), atol=1e-12)


def state(step):
    return types.SimpleNamespace(global_step=step)


def test_steps_after_the_checkpoint_leave_the_table(tmp_path):
    """With several steps a generation a resumed run writes other numbers than the killed one; none may stay twice."""
    for name in ("step-000049.parquet", "step-000053.parquet", ".step-000057.parquet.7.tmp", "notes.txt"):
        (tmp_path / name).touch()
    TableFolder(RolloutWriter(tmp_path)).on_train_begin(None, state(50), None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "step-000049.parquet"]


def test_another_runs_table_is_not_removed(tmp_path):
    (tmp_path / "step-000053.parquet").touch()
    with pytest.warns(UserWarning, match="holds 1 steps of another run"):
        TableFolder(RolloutWriter(tmp_path)).on_train_begin(None, state(0), None)
    assert (tmp_path / "step-000053.parquet").exists()


def test_several_generations_for_one_step_are_all_in_its_file(tiny_model, tmp_path):
    arguments = config(
        tmp_path, gradient_accumulation_steps=2, steps_per_generation=1, num_generations=4, max_completion_length=4
    )
    rows = datasets.Dataset.from_dict({"prompt": ["x" * k for k in range(1, 17)]})
    GDPOTrainer(str(tiny_model), [vowels], arguments, rows, rollouts_folder=tmp_path / "rollouts").train()
    files = sorted((tmp_path / "rollouts").iterdir())
    assert [path.name for path in files] == ["step-000001.parquet", "step-000002.parquet"]
    for path in files:
        frame = pl.read_parquet(path)
        assert len(frame) == 32
        assert frame["rollout"].n_unique() == 32
        assert frame.group_by("group").len()["len"].to_list() == [4] * 8
        for half in (frame[:16], frame[16:]):
            np.testing.assert_allclose(half["advantage"], gdpo.advantages(half.select("reward/vowels").to_numpy(), 4))
    audited = gdpo.audit(tmp_path / "rollouts").summary
    assert (audited.rollouts, audited.groups, audited.group_sizes) == (64, 16, {4: 16})


FULL = """
import resource, sys, warnings
import transformers
from test_trl import PROMPTS, config, vowels
from gdpo.trl import GDPOTrainer
model, folder = sys.argv[1:]
trainer = GDPOTrainer(model, [vowels], config(folder, max_steps=6), PROMPTS, rollouts_folder=folder + "/rollouts")
def limit(size):
    trainer._gdpo_writer.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
class Disk(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in (1, 4):  # full in steps 2 to 4
            limit(1000 if state.global_step == 1 else resource.RLIM_INFINITY)
trainer.add_callback(Disk())
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    trainer.train()
said = [str(entry.message) for entry in caught if "rollouts" in str(entry.message)]
print("RESULT", trainer.state.global_step, trainer._gdpo_writer.lost, len(said), said)
"""


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while(tiny_model, tmp_path):
    """The system refuses to write (RLIMIT_FSIZE) in steps 2 to 4: one warning, no half file, and the table goes on."""
    (line,) = [line for line in run(tmp_path, FULL, tiny_model, tmp_path).splitlines() if line.startswith("RESULT")]
    assert line.startswith("RESULT 6 3 1 ")
    assert "cannot be written" in line
    assert "Training goes on without" in line
    names = sorted(path.name for path in (tmp_path / "rollouts").iterdir())
    assert names == [f"step-{k:06d}.parquet" for k in (1, 5, 6)]
    for name in names:
        assert len(pl.read_parquet(tmp_path / "rollouts" / name)) == 16


def test_nothing_is_said_in_a_folder_of_its_own(tiny_model, tmp_path):
    trainer = GDPOTrainer(str(tiny_model), [vowels], config(tmp_path), PROMPTS, rollouts_folder=tmp_path / "rollouts")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    assert not [one for one in caught if "rollouts" in str(one.message) or "another run" in str(one.message)]
