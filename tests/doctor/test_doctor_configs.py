"""`gdpo doctor CONFIG` on configs written like each framework's public examples, and on hostile ones."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import gdpo
from gdpo.cli import app
from gdpo.doctor import trl as trl_doctor
from gdpo.doctor.settings import resolve, whole

TRL = """
# what `trl grpo --config` takes
model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
dataset_name: trl-lib/DeepMath-103K
output_dir: out
learning_rate: 1.0e-6
per_device_train_batch_size: 8
gradient_accumulation_steps: 4
num_generations: 8
max_completion_length: 1024
reward_funcs: [accuracy_reward, think_format_reward]
reward_weights: [1.0, 0.5]
beta: 0.001
"""
VERL = """#!/usr/bin/env bash
set -xeuo pipefail
train_batch_size=${TRAIN_BATCH_SIZE:-128}
rollout_n=${ROLLOUT_N:-4}
DATA=(
    algorithm.adv_estimator=gdpo
    +algorithm.gdpo_reward_keys='["accuracy_reward", "format_reward"]'
    +algorithm.gdpo_reward_weights='[1.0, 0.5]'
    data.train_files=$DATA_DIR/train.parquet
    data.train_batch_size=${train_batch_size}
)
ROLLOUT=(
    actor_rollout_ref.model.path="$MODEL_PATH"
    actor_rollout_ref.rollout.n=${rollout_n}
)
python3 -m verl.trainer.main_ppo "${DATA[@]}" "${ROLLOUT[@]}" "$@"
"""
VERL_GRPO = """set -x
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files="$HOME/data/gsm8k/train.parquet" \\
    data.train_batch_size=1024 \\
    actor_rollout_ref.rollout.n=5 \\
    algorithm.use_kl_in_reward=False \\
    trainer.logger='["console","wandb"]' $@
"""
NEMO = """
grpo:
  num_prompts_per_step: 32
  num_generations_per_prompt: 16
  adv_estimator:
    name: "grpo"
    normalize_rewards: true
    use_leave_one_out_baseline: true
  reward_shaping:
    max_response_length: ${policy.max_total_sequence_length}
policy:
  max_total_sequence_length: 512
  dynamic_batching:
    train_mb_tokens: ${mul:${policy.max_total_sequence_length}, ${policy.train_micro_batch_size}}
data:
  default:
    env_name: "math"
"""
NEMO_GDPO = """
defaults: grpo_math_1B.yaml
grpo:
  adv_estimator:
    name: "gdpo"
    normalize_rewards: true
    reward_weights: [1.0, 0.5, 0.25]
data:
  _override_: true
  default:
    env_name: "math_multi_reward"
"""


def doctor(tmp_path, text, name="run.yaml", *arguments):
    path = tmp_path / name
    path.write_bytes(text) if isinstance(text, bytes) else path.write_text(text)
    done = CliRunner().invoke(app, ["doctor", *arguments, str(path), "--no-workers"])
    return done.exit_code, done


def said(tmp_path, text, name="run.yaml", status=0):
    code, done = doctor(tmp_path, text, name)
    assert code == status, done.output
    return done.stdout


@pytest.fixture
def absent(monkeypatch):
    """No framework is installed: what a laptop sees."""
    found = importlib.util.find_spec
    frameworks = ("trl", "verl", "nemo_rl")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in frameworks else found(name))


def test_trl(tmp_path):
    text = said(tmp_path, TRL)
    assert "rewards are summed before they are normalised (GRPO)" in text
    assert "from gdpo.trl import GDPOTrainer, GRPOConfig  # was: from trl import GRPOConfig, GRPOTrainer" in text
    assert "here 4 groups of 8 a process" in text
    assert "(arXiv 2601.05242) trains GRPO and GDPO with the same settings" in text
    assert text.splitlines()[-1] == "nothing wrong"


def test_the_lines_for_trl_work(tmp_path, monkeypatch):
    """The launcher that the doctor prints takes the same YAML to our trainer."""
    import trl
    import trl.scripts.grpo as script

    import gdpo.trl

    text = said(tmp_path, TRL)
    lines = [line.strip() for line in text.splitlines()]
    launcher = lines[lines.index("import gdpo.trl, trl") : lines.index("import gdpo.trl, trl") + 4]
    seen = {}

    def main(script_args, training_args, model_args, *rest):
        from trl import GRPOTrainer

        seen.update(trainer=GRPOTrainer, weights=training_args.reward_weights, functions=script_args.reward_funcs)

    monkeypatch.setattr(trl, "GRPOTrainer", trl.GRPOTrainer)
    monkeypatch.setattr(script, "main", main)
    monkeypatch.setattr(sys, "argv", ["gdpo_grpo.py", "--config", str(tmp_path / "run.yaml"), "--use_cpu"])
    exec("\n".join(launcher), {})
    assert seen["trainer"] is gdpo.trl.GDPOTrainer
    assert seen["weights"] == [1.0, 0.5]
    assert seen["functions"] == ["accuracy_reward", "think_format_reward"]


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        ("reward_weights: [1.0, 0.5, 2]", ["WRONG config: 3 reward_weights for 2 rewards", "reward_weights: [1.0, 1.0]"]),
        ("reward_weights: 1.0 0.5", ["WRONG config: reward_weights is '1.0 0.5', but a list of numbers"]),
        ("reward_weights: [0, 0.0]", ["WRONG config: every weight is 0"]),
        ("num_generations: 1", ["WRONG config: num_generations is 1: a group of one has advantage 0"]),
        ("generation_batch_size: 30", ["WRONG config: generation_batch_size 30 is no multiple of num_generations 8"]),
        ("generation_batch_size: 64\nsteps_per_generation: 2", ["WRONG config: generation_batch_size and steps_per"]),
        ("multi_objective_aggregation: normalise_then_sum", ["WRONG config: multi_objective_aggregation is 'normalise"]),
        ("reward_weight: [1, 1]", ["'reward_weight' is no setting of TRL's; did you mean 'reward_weights'?"]),
    ],
)  # fmt: skip
def test_what_is_wrong_for_trl(tmp_path, change, texts):
    keys = [line.split(":")[0] for line in change.splitlines()]
    kept = [line for line in TRL.splitlines() if not any(line.startswith(f"{key}") for key in keys)]
    text = said(tmp_path, "\n".join([*kept, change]), status=1)
    for wanted in texts:
        assert wanted in text


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ("multi_objective_aggregation: normalize_then_sum", "one of 0.79, by float32 rounding"),
        ("scale_rewards: false", "GDPOTrainer(..., method='grpo_no_std')"),
        ("scale_rewards: batch", "GDPOTrainer(..., method='grpo_batch_std')"),
        ("mask_truncated_completions: true", "exclude_truncated=True"),
        ("loss_type: dr_grpo", "is about the loss's length"),
        ("generation_batch_size: 8", "alone it takes back what GDPO told apart"),
        ("per_device_train_batch_size: 3", "12 rollouts a process are no whole groups of 8"),
        ("reward_funcs: accuracy_reward\nreward_weights: [1.0]", "there is one reward"),
        ("reward_model_name_or_path: my/model\nreward_weights: [1, 1, 1]", "nothing wrong"),
        ("num_generations: ${generations}", "num_generations=${generations} is known to the run only"),
        ("num_generations: ${seed}\nseed: 16", "here 2 groups of 16"),
    ],
)
def test_what_is_worth_knowing_for_trl(tmp_path, change, wanted):
    keys = [line.split(":")[0] for line in change.splitlines()]
    kept = [line for line in TRL.splitlines() if line.split(":")[0] not in keys]
    assert wanted in said(tmp_path, "\n".join([*kept, change]))


def test_verl(tmp_path, absent):
    text = said(tmp_path, VERL, "run.sh", status=1)
    assert "stops on the v1 trainer with KeyError 'prompts'" in text
    assert "'+algorithm.gdpo.rewards=[accuracy_reward,format_reward]'" in text
    assert "'+algorithm.gdpo.weights={accuracy_reward: 1.0, format_reward: 0.5}'" in text
    assert "here 128 groups of 4" in text
    assert "note  verl is not installed here" in text
    text = said(tmp_path, VERL.replace("[1.0, 0.5]", "[1.0, 0.5, 2]"), "run.sh", status=1)
    assert "3 gdpo_reward_weights for 2 gdpo_reward_keys" in text
    text = said(tmp_path, VERL_GRPO, "grpo.sh")
    assert "adv_estimator is 'grpo' and there is no algorithm.gdpo" in text
    assert "here 1024 groups of 5" in text
    text = said(tmp_path, VERL_GRPO.replace("rollout.n=5", "rollout.n=1"), "grpo.sh", status=1)
    assert "rollout.n is 1: a group of one has advantage 0" in text
    text = said(tmp_path, VERL_GRPO.replace("rollout.n=5", "rollout.name=vllm"), "grpo.sh")
    assert "verl's default is 1" in text


def test_verl_yaml_with_defaults_and_interpolation(tmp_path, absent):
    text = said(tmp_path, """
defaults: [ppo_trainer, _self_]
n: 4
algorithm:
  adv_estimator: gdpo
  gdpo: {rewards: [correct, format], weights: {format: "${format_weight}"}}
format_weight: 0.25
actor_rollout_ref: {rollout: {n: "${n}"}}
data: {train_batch_size: "${oc.env:BATCH}"}
""")  # fmt: skip
    assert "asks for 'gdpo' of the rewards {'correct': 1.0, 'format': 0.25}" in text
    assert "what it inherits from ppo_trainer is not read here" in text
    assert "data.train_batch_size=${oc.env:BATCH} is known to the run only" in text
    text = said(tmp_path, "algorithm: {adv_estimator: gdpo, gdpo: {weights: {a: '${oc.env:W}'}}}")
    assert "algorithm.gdpo holds values known to the run only" in text


def test_nemo_rl(tmp_path, absent):
    text = said(tmp_path, NEMO)
    assert "trains by the sum of the rewards" in text
    assert "env_name: math_multi_reward" in text
    assert "here 32 groups of 16" in text
    (tmp_path / "grpo_math_1B.yaml").write_text(NEMO)
    text = said(tmp_path, NEMO_GDPO, "gdpo_math_1B.yaml", status=1)
    assert "[1.0, 0.5, 0.25] go to the rewards in the alphabetical order of their names" in text
    assert "7428" in text
    assert "and remove reward_weights" in text
    (tmp_path / "grpo_math_1B.yaml").write_text(NEMO.replace("prompt: 16", "prompt: 2"))
    text = said(tmp_path, NEMO_GDPO, "gdpo_math_1B.yaml", status=1)
    assert "in groups of two it normalises nothing" in text
    (tmp_path / "grpo_math_1B.yaml").unlink()
    text = said(tmp_path, NEMO_GDPO, "gdpo_math_1B.yaml", status=1)
    assert "what it inherits from grpo_math_1B.yaml is not beside it, so not read" in text
    old = "grpo: {num_prompts_per_step: 8, num_generations_per_prompt: 8, normalize_rewards: true, use_gdpo: true}"
    assert "a NeMo-RL before the estimators" in said(tmp_path, old, status=1)


def test_the_lines_for_nemo_rl_can_be_set(tmp_path, absent):
    text = said(tmp_path, NEMO)
    lines = text.splitlines()
    place = lines.index("        grpo:")
    (tmp_path / "grpo_math_1B.yaml").write_text(NEMO)
    change = "defaults: grpo_math_1B.yaml\n" + "\n".join(line[8:] for line in lines[place : place + 5])
    assert "asks for 'gdpo' of the rewards {'correctness': 1.0, 'format': 0.5}" in said(tmp_path, change, "child.yaml")


@pytest.mark.parametrize(
    ("text", "name", "wanted"),
    [
        ("", "run.yaml", "is empty"),
        ("# nothing but a comment\n", "run.yaml", "is no config that `gdpo doctor` knows"),
        ("- num_generations: 8\n- reward_funcs: []\n", "run.yaml", "is no config that"),
        (b"\x00\x01\xff\xfe\x80", "run.yaml", "is no text (UTF-8)"),
        (b"\x7fELF\x00num_generations: 8", "run.yaml", ""),
        ("num_generations: [8\n", "run.yaml", "is no YAML"),
        ("num_generations: 8\n---\nnum_generations: 8\n", "run.yaml", "is no YAML"),
        ("num_generations: !!python/object/apply:os.system ['true']\n", "run.yaml", "is no YAML"),
        ("num_generations: many\n", "run.yaml", "num_generations is 'many', but a whole number was expected"),
        ("num_generations: 8\nreward_funcs: {a: 1}\n", "run.yaml", "reward_funcs is {'a': 1}, but a list"),
        ("num_generations: " + "[" * 3000, "run.yaml", "is no YAML"),
        ("num_generations: &x [*x]\n", "run.yaml", ""),
        ("algorithm: '${base}'\nactor_rollout_ref: {}\n", "run.yaml", "algorithm is '${base}', but a mapping was expected"),
        ("algorithm: [1]\nactor_rollout_ref: 3\n", "run.yaml", "algorithm is [1], but a mapping was expected"),
        ("grpo: [num_generations_per_prompt]\n", "run.yaml", "grpo is ['num_generations_per_prompt'], but a mapping"),
        ("grpo: {adv_estimator: gdpo, adv_estimator: gdpo}\n", "run.yaml", "grpo.adv_estimator is 'gdpo', but a mapping"),
        ("defaults: run.yaml\ngrpo: {adv_estimator: {name: gdpo}}\n", "run.yaml", "inherits from itself"),
        ("rlhf_type: grpo\nnum_generations: 8\n", "run.yaml", "a config of ms-swift"),
        ("compute_environment: LOCAL_MACHINE\nnum_processes: 8\n", "run.yaml", "Accelerate's launch settings"),
        ("objective: {rewards: {}}\n", "run.yaml", "a recipe of gdpo itself"),
        ("echo python -m verl.trainer.main_ppo\n", "run.sh", "holds neither YAML settings nor overrides"),
    ],
)  # fmt: skip
def test_hostile_and_odd_configs(tmp_path, absent, text, name, wanted):
    """One clear sentence and exit code 2; never a traceback."""
    code, done = doctor(tmp_path, text, name)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        assert isinstance(done.exception, gdpo.Error), repr(done.exception)
        sentence = str(done.exception)
    else:
        assert code == 2, done.output
        sentence = done.stderr
    assert wanted in sentence
    assert len(sentence.strip().splitlines()) == 1
    assert len(sentence) < 500


def test_aliases_do_not_multiply(tmp_path, absent):
    """A file whose aliases stand for 10^9 entries is read in no time."""
    lines = ["num_generations: 8", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 10)]
    assert "nothing wrong" in said(tmp_path, "\n".join(lines))


def test_only_a_named_framework_has_to_be_here(tmp_path, absent):
    for text, file in ((TRL, "a.yaml"), (VERL_GRPO, "a.sh"), (NEMO, "b.yaml")):
        assert "is not installed here, so only the config was checked" in said(tmp_path, text, file)
    if "nemo_rl" not in sys.modules:
        code, done = doctor(tmp_path, NEMO, "b.yaml", "nemo-rl")
        assert code == 1
        assert "NeMo-RL cannot be imported here" in done.stdout


def test_reading_values():
    config = resolve({"a": "${b.c}", "b": {"c": "${d}"}, "d": 3, "e": "${e}", "f": "${x}", "g": 2.0})
    assert config["a"] == 3
    assert whole(config, "a") == 3
    assert whole(config, "g") == 2
    assert whole(config, "e") is None
    assert whole(config, "f") is None
    assert whole(config, "b.x.y") is None
    with pytest.raises(gdpo.Error, match="d is 3, but a mapping"):
        whole(config, "d.x")


def test_what_is_said_of_the_size_of_advantages():
    """Root mean squares: GDPO 1; GRPO sqrt((G-1)/G x share of groups that vary)."""
    generator = np.random.default_rng(0)
    rewards = generator.integers(0, 2, (64, 8, 2)).astype(float)
    rewards[::2] = 1.0  # half the groups are tied
    live = (rewards.sum(2).std(1) > 0).mean()
    flat = rewards.reshape(-1, 2)
    ours, grpo = gdpo.advantages(flat, 8), gdpo.advantages(flat, 8, method="grpo")
    assert np.sqrt((ours**2).mean()) == pytest.approx(1, abs=2e-3)
    assert np.sqrt((grpo**2).mean()) == pytest.approx(np.sqrt(7 / 8 * live), abs=2e-3)
    varied = ours.reshape(64, 8)[1::2]
    assert np.sqrt((varied**2).mean()) == pytest.approx(1.41, abs=0.02)


def test_recognises():
    assert trl_doctor.recognises(TRL)
    assert not trl_doctor.recognises(NEMO)
    assert not trl_doctor.recognises(VERL)
    assert not trl_doctor.recognises("rlhf_type: grpo\nnum_generations: 8")
