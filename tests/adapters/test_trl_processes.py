"""GDPOTrainer on one, two and four processes: the same numbers, and errors and stops that reach all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import gdpo

REWARDS = [[1, 0], [0, 1], [1, 1], [0, 0], [1, 1], [1, 0], [0, 0], [1, 0]]
"""Two groups of four. With statistics of each process's own pairs the third advantage would be 1.527."""
ADVANTAGES = [0, 0, 1.224677006, -1.224677006, 1.414097314, 0, -1.414097314, 0]
"""In float64 on the whole batch."""

SCRIPT = """
import json, os, sys, warnings
from test_trl import PROMPTS, config
from test_trl_processes import REWARDS
import gdpo, trl
from gdpo.trl import AuditCallback, GDPOTrainer
model, folder = sys.argv[1:]
rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
mine = REWARDS[rank * 8 // count : (rank + 1) * 8 // count]
found = {}

def first(completions, **columns):
    return [float(row[0]) for row in mine]

def second(completions, **columns):
    return [float(row[1]) for row in mine]

async def later(completions, **columns):
    return second(completions)

def broken(completions, **columns):
    if rank == count - 1 and count > 1:
        raise ValueError("no verifier here")
    return [0.0] * len(completions)

def short(completions, **columns):
    return [0.0] * (len(completions) - (rank == 0))

def dead(completions, **columns):
    return [1.0] * len(completions)

def made(name, *rewards, **changes):
    callbacks = changes.pop("callbacks", None)
    arguments = config(f"{folder}/{name}", per_device_train_batch_size=8 // count, num_generations=4, max_steps=1,
                       max_completion_length=2, **changes)
    extra = {"rollouts_folder": f"{folder}/{name}/rollouts"} if name == "train" else {}
    trainer = GDPOTrainer(model, list(rewards), arguments, PROMPTS, eval_dataset=PROMPTS, callbacks=callbacks, **extra)
    real = trainer._generate_and_score_completions
    def keep(inputs):
        output = real(inputs)
        mode = "train" if trainer.model.training else "eval"
        found.setdefault(f"{name}-{mode}", []).extend(output["advantages"].tolist())
        return output
    trainer._generate_and_score_completions = keep
    return trainer

groups = {"num_generations_eval": 2} if "num_generations_eval" in trl.GRPOConfig.__dataclass_fields__ else {}
trainer = made("train", first, second, eval_strategy="steps", eval_steps=1,
               per_device_eval_batch_size=8 // count, **groups)
trainer.train()
found["lines"] = [line for line in trainer.state.log_history if "loss" in line]
for name, rewards in (("raises", [first, broken]), ("lengths", [short, second])):
    try:
        made(name, *rewards).train()
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
if "log_extra" in open(sys.modules[trl.GRPOTrainer.__module__].__file__).read():  # these call async functions
    made("async", first, later).train()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    audit = AuditCallback("stop", every=2, thresholds={"groups": 2})
    trainer = made("stops", first, dead, callbacks=[audit])
    trainer.args.max_steps = 6
    trainer.train()
found["stopped"] = [trainer.state.global_step, audit.stopped_by.id]
found["said"] = [str(one.message) for one in caught if "training stops" in str(one.message)]
json.dump(found, open(f"{folder}/found-{rank}.json", "w"))
"""


@pytest.fixture(scope="module", params=[1, 2, 4])
def found(request, tiny_model, tmp_path_factory):
    """What each process saw, and the folder."""
    folder = tmp_path_factory.mktemp(f"processes-{request.param}")
    (folder / "script.py").write_text(SCRIPT)
    paths = [Path(__file__).parent, Path(__file__).parents[1], Path(gdpo.__file__).parents[1]]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(request.param),
         str(folder / "script.py"), str(tiny_model), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(request.param)]


def whole(parts, key):
    return [value for part in parts for value in part[key]]


@pytest.mark.slow
def test_the_same_numbers_on_any_number_of_processes(found):
    """A group spread over ranks, ZJU-REAL/SpatialLadder#1 and huggingface/trl#3842."""
    folder, parts = found
    np.testing.assert_allclose(whole(parts, "train-train"), ADVANTAGES, atol=1e-6)
    frame = pl.read_parquet(folder / "train" / "rollouts" / "step-000001.parquet")
    np.testing.assert_allclose(frame["advantage"], ADVANTAGES, atol=1e-6)
    assert frame.select("reward/first", "reward/second").to_numpy().tolist() == REWARDS
    (line,) = parts[0]["lines"]
    assert line["gdpo/rewards/first/mean"] == 0.625
    assert line["gdpo/rewards/second/dead_share"] == 0.0
    assert line["frac_reward_zero_std"] == 0.0


@pytest.mark.slow
def test_evaluation_groups_of_another_size(found):
    _, parts = found
    import trl

    size = 2 if "num_generations_eval" in trl.GRPOConfig.__dataclass_fields__ else 4
    rows = 8 // len(parts)
    first_batch = np.concatenate([part["train-eval"][:rows] for part in parts])
    np.testing.assert_allclose(first_batch, gdpo.advantages(np.array(REWARDS, dtype=float), size), atol=1e-6)


@pytest.mark.slow
def test_one_process_that_fails_is_an_error_on_all(found):
    _, parts = found
    count = len(parts)
    if count == 1:  # as TRL has it
        assert "raises" not in parts[0]
        assert parts[0].get("lengths", "ValueError").split(":")[0] in ("ValueError", "RuntimeError")
        return
    for part in parts:
        assert part["raises"] == (
            f"Error: reward 'broken' failed on process {count - 1} of {count}: ValueError: no verifier here"
        )
        rows = 8 // count
        assert part["lengths"] == (
            f"Error: reward 'short' failed on process 0 of {count}: ValueError: {rows - 1} scores for {rows} completions"
        )
        assert "raises-train" not in part  # nothing was trained on


@pytest.mark.slow
def test_asynchronous_rewards(found):
    _, parts = found
    if "async-train" not in parts[0]:
        pytest.skip("this TRL calls no asynchronous rewards")
    np.testing.assert_allclose(whole(parts, "async-train"), ADVANTAGES, atol=1e-6)


@pytest.mark.slow
def test_an_audit_stops_all_processes_at_the_same_step(found):
    _, parts = found
    assert [part["stopped"] for part in parts] == [[2, "dead"]] * len(parts)
    assert [len(part["said"]) for part in parts] == [1] + [0] * (len(parts) - 1)
