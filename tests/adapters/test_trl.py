"""The TRL adapter in real training steps, on one process and on two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import polars as pl
import pytest
import torch
import trl

import gdpo
from gdpo import Objective, Reward
from gdpo.adapters.trl import GRPOConfig, GRPOTrainer

PROMPTS = datasets.Dataset.from_dict({"prompt": ["abc", "hello", "what", "no"]})


def vowels(completions, **columns):
    return [float(sum(c in "aeiou" for c in text)) for text in completions]


def digits(completions, **columns):
    return [None if len(text) % 7 == 0 else float(any(c.isdigit() for c in text)) for text in completions]


def config(folder, **changes) -> GRPOConfig:
    settings = dict(
        use_cpu=True, max_steps=2, per_device_train_batch_size=16, num_generations=8, max_completion_length=12,
        logging_steps=1, gradient_checkpointing=False, save_strategy="no", report_to="none", disable_tqdm=True,
        learning_rate=1e-3,
    )  # fmt: skip
    return GRPOConfig(str(folder), **{**settings, **changes})


def test_one_import_changed(tiny_model, tmp_path):
    """TRL's own arguments only: advantages are GDPO's with reward_weights, and each reward has its metrics."""
    trainer = GRPOTrainer(str(tiny_model), [vowels, digits], config(tmp_path, reward_weights=[1.0, 0.5]), PROMPTS)
    seen = spy(trainer)
    trainer.train()
    assert len(seen) == 2
    for scores, advantages in seen:
        expected = gdpo.advantages(scores.double(), 8, weights=[1.0, 0.5])
        assert advantages.dtype == torch.float32
        np.testing.assert_allclose(advantages, expected, atol=1e-6)
    line = trainer.state.log_history[0]
    scores = seen[0][0].double().numpy()
    assert line["rewards/vowels/mean"] == pytest.approx(scores[:, 0].mean())
    assert line["rewards/digits/mean"] == pytest.approx(np.nanmean(scores[:, 1]))
    groups = scores.reshape(-1, 8, 2)
    assert line["rewards/vowels/group_std"] == pytest.approx(groups[:, :, 0].std(axis=1, ddof=1).mean())
    tied = np.nanmax(groups, axis=1) == np.nanmin(groups, axis=1)
    assert [line[f"rewards/{n}/dead_share"] for n in ("vowels", "digits")] == pytest.approx(tied.mean(axis=0).tolist())
    assert line["rewards/vowels/contribution_share"] + line["rewards/digits/contribution_share"] == pytest.approx(1)
    assert line["rewards/digits/weight"] == 0.5
    assert line["reward"] == pytest.approx(np.nansum(scores * [1, 0.5], axis=1).mean(), rel=1e-5)


def spy(trainer):
    """What the trainer scored and what it trained on, batch by batch."""
    seen, real_score, real = [], trainer._calculate_rewards, trainer._generate_and_score_completions

    def score(*args):
        trainer.spied = real_score(*args)
        return trainer.spied

    def generate(inputs):
        output = real(inputs)
        seen.append((trainer.spied.clone(), output["advantages"].clone()))
        return output

    trainer._calculate_rewards, trainer._generate_and_score_completions = score, generate
    return seen


def test_rollouts_and_trls_own_completions_table(tiny_model, tmp_path):
    """Gates, the rollout table, and our advantages in the completions file that TRL writes."""
    arguments = config(tmp_path, log_completions=True, num_completions_to_print=0)
    trainer = GRPOTrainer(
        str(tiny_model), [vowels, digits], arguments, PROMPTS, gates={"digits": "vowels >= 1"},
        rollouts_folder=tmp_path / "rollouts", task="letters",
    )  # fmt: skip
    trainer.train()
    if not (tmp_path / "completions").exists():
        pytest.skip("this TRL keeps no table of completions")
    for step in (1, 2):
        ours = pl.read_parquet(tmp_path / "rollouts" / f"step-{step:06d}.parquet")
        theirs = pl.read_parquet(tmp_path / "completions" / f"completions_{step:05d}.parquet")
        assert ours["completion"].to_list() == theirs["completion"].to_list()
        np.testing.assert_allclose(ours["advantage"], theirs["advantage"], atol=1e-6)
        np.testing.assert_allclose(
            ours["contribution/vowels"] + ours["contribution/digits"], ours["advantage"], atol=1e-12
        )
        shut = ours.filter((pl.col("reward/vowels") < 1) & pl.col("reward/digits").is_not_null())
        assert (shut["gated/digits"] == 0).all()
        assert ours["reward/digits"].null_count() == ours["gated/digits"].null_count()
        assert set(ours["task"]) == {"letters"}
        assert (ours["length"] <= 12).all()


def test_an_objective_with_moving_weights_and_evaluation(tiny_model, tmp_path):
    objective = Objective(
        vowels=Reward(vowels, weight=gdpo.weights.ramp(0.0, 1.0, steps=2)), digits=Reward(digits), method="grpo"
    )
    steps = []
    trainer = GRPOTrainer(
        str(tiny_model), args=config(tmp_path, max_steps=3, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=8),
        train_dataset=PROMPTS, eval_dataset=PROMPTS, objective=objective, on_step=steps.append,
    )  # fmt: skip
    trainer.train()
    train = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["rewards/vowels/weight"] for line in train] == [0.0, 0.5, 1.0]
    assert [step.step for step in steps] == [1, 2, 3]
    for step, weight in zip(steps, (0.0, 0.5, 1.0), strict=True):
        expected = gdpo.advantages(step.scores, 8, "grpo", weights=[weight, 1.0])
        np.testing.assert_allclose(step.estimate.advantages, expected, atol=1e-12)
        assert train[step.step - 1]["reward"] == pytest.approx(
            np.nansum(step.scores * [weight, 1], axis=1).mean(), rel=1e-5
        )
    held_out = [line for line in trainer.state.log_history if "eval_loss" in line]
    assert "eval_rewards/digits/dead_share" in held_out[0]


def test_two_rewards_of_one_name(tiny_model, tmp_path):
    one, two = (lambda completions, **columns: [1.0] * len(completions) for _ in range(2))
    trainer = GRPOTrainer(str(tiny_model), [one, two], config(tmp_path), PROMPTS)
    assert trainer.objective.names == ["_lambda_", "_lambda__2"]


def test_errors(tiny_model, tmp_path):
    objective = Objective(vowels=vowels)
    cases = [
        ({"objective": objective, "reward_funcs": [vowels]}, "beside reward_funcs"),
        ({"objective": objective, "args": config(tmp_path, reward_weights=[1.0])}, "reward_weights was given beside"),
        ({"reward_funcs": [vowels], "gates": {"vowel": "vowels > 0"}}, "gates names 'vowel'"),
        ({"reward_funcs": [vowels], "method": "gdop"}, "did you mean 'gdpo'"),
        ({"reward_funcs": [vowels], "method_options": {"clp": 1}}, "did you mean 'clip'"),
    ]
    for arguments, said in cases:
        with pytest.raises(gdpo.Error, match=said):
            GRPOTrainer(str(tiny_model), **{"args": config(tmp_path), "train_dataset": PROMPTS, **arguments})


def test_scale_rewards_is_said_to_be_unused(tiny_model, tmp_path):
    with pytest.warns(UserWarning, match="scale_rewards='none' is not used"):
        GRPOTrainer(str(tiny_model), [vowels], config(tmp_path, scale_rewards="none"), PROMPTS)


def test_advantages_alone_are_replaced(tiny_model, tmp_path):
    """With TRL's own method (GRPO on binary sums, where TRL is right) training is TRL's, to rounding."""

    # Binary rewards: their means over 8 are exact in float32, so that TRL's ties are ties too.
    def even(completions, **columns):
        return [float(len(text) % 2) for text in completions]

    def vowel(completions, **columns):
        return [float(any(c in "aeiou" for c in text)) for text in completions]

    weights = []
    for kind in (trl.GRPOTrainer, GRPOTrainer):
        extra = {"method": "grpo"} if kind is GRPOTrainer else {}
        # SGD, since Adam makes a whole step of a rounding error where a gradient is 0.
        arguments = config(tmp_path / kind.__module__, max_steps=3, optim="sgd", learning_rate=1.0)
        trainer = kind(str(tiny_model), [vowel, even], arguments, PROMPTS, **extra)
        trainer.train()
        weights.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
    start = torch.cat(
        [p.flatten() for p in __import__("transformers").AutoModelForCausalLM.from_pretrained(tiny_model).parameters()]
    )
    assert (weights[0] - start).abs().max() > 1e-3
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-5)


SCRIPT = """
import os, sys
import datasets, torch
from test_trl import PROMPTS, config, digits, vowels
from gdpo.adapters.trl import GRPOTrainer
model, folder = sys.argv[1:]
trainer = GRPOTrainer(model, [vowels, digits], config(folder, per_device_train_batch_size=int(os.environ["ROWS"]), max_steps=1),
                      PROMPTS, rollouts_folder=folder + "/rollouts")
real = trainer._generate_and_score_completions
def generate(inputs):
    output = real(inputs)
    torch.save(output["advantages"], f"{folder}/advantages-{trainer.accelerator.process_index}.pt")
    return output
trainer._generate_and_score_completions = generate
trainer.train()
"""


@pytest.mark.slow
def test_two_processes(tiny_model, tmp_path):
    """Each process trains on its own slice of advantages computed over all of them."""
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "ROWS": "12", "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{Path(__file__).parent}"}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        str(tmp_path / "script.py"),
    ]
    done = subprocess.run(
        [*command, str(tiny_model), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    parts = [torch.load(tmp_path / f"advantages-{rank}.pt", weights_only=True) for rank in (0, 1)]
    frame = pl.read_parquet(tmp_path / "rollouts" / "step-000001.parquet")
    assert [len(part) for part in parts] == [12, 12]
    np.testing.assert_allclose(torch.cat(parts), frame["advantage"], atol=1e-6)
    scores = frame.select("reward/vowels", "reward/digits").to_numpy()
    np.testing.assert_allclose(gdpo.advantages(scores, 8), frame["advantage"], atol=1e-12)
    assert (frame.group_by("group").agg(pl.col("prompt").n_unique())["prompt"] == 1).all()


@pytest.mark.slow
def test_the_example_runs(tmp_path):
    script = Path(__file__).resolve().parents[2] / "examples" / "stock_trl.py"
    done = subprocess.run(
        [sys.executable, script, "--steps", "2"], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line[:3] for line in done.stdout.splitlines() if line[1:3] == " {"] == ["1 {", "2 {"]


def test_batch_norm_weighed_by_tokens(tiny_model, tmp_path):
    """verl's way, under TRL: the trainer passes the completions' lengths."""
    lengths = []

    def count(completions, completion_ids, **columns):
        lengths.append([len(ids) for ids in completion_ids])
        return [float(len(ids) % 3) for ids in completion_ids]

    trainer = GRPOTrainer(
        str(tiny_model), [vowels, count], config(tmp_path, max_steps=1), PROMPTS, method_options={"batch_norm": "token"}
    )
    seen = spy(trainer)
    trainer.train()
    for (scores, advantages), tokens in zip(seen, lengths, strict=True):
        expected = gdpo.advantages(scores.double(), 8, batch_norm="token", lengths=tokens)
        np.testing.assert_allclose(advantages, expected, atol=1e-6)
        assert len(set(tokens)) > 1
        assert not np.allclose(expected, gdpo.advantages(scores.double(), 8))
