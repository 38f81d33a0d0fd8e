"""Every remedy's line, put where it belongs: TRL's config and our trainer, our blocks' parsers, a recipe."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex

import numpy as np
import pytest
from typer.testing import CliRunner

import gdpo
from gdpo.adapters.nemo_rl_config import read_settings
from gdpo.adapters.verl_config import Settings
from gdpo.audit import remedies
from gdpo.cli import app
from gdpo.doctor import nemo_rl, verl
from gdpo.rollouts import open_dump, rollout_frame
from gdpo.rollouts.writer import write_frame

NAMES = ["correct", "format"]
WEIGHTS = {"correct": 1.0, "format": 0.25}


def lines(framework):
    return [
        remedies.use_gdpo(framework, NAMES),
        remedies.set_weights(framework, WEIGHTS, ["format"]),
        remedies.gate(framework, "format", "correct >= 1"),
        remedies.skip_silent_groups(framework),
    ]


def overrides(line):
    """The words of a line that are overrides."""
    return re.sub(r", (launched by|or factors) .*| in gdpo's block .*", "", line)


def settings(framework, tmp_path, *chosen):
    """The overrides of some lines as nested mappings."""
    path = tmp_path / "run.sh"
    path.write_text("\n".join(overrides(line) for line in chosen))
    return verl.read_config(path)


def called(line, name):
    """Keywords of the call ``name(...)`` in a line."""
    found = re.search(rf"{name}\(.*?\)(?=$|,| |;)", line)
    tree = ast.parse(found[0].replace("..., ", "")).body[0].value
    return {keyword.arg: ast.literal_eval(keyword.value) for keyword in tree.keywords}


def test_trl(tiny_model, tmp_path):
    from datasets import Dataset
    from trl import GRPOConfig

    from gdpo.trl import GDPOTrainer

    method, weights, gate, silent = lines("trl")
    chosen = called(method, "GRPOConfig") | called(weights, "GRPOConfig") | called(silent, "GRPOConfig")
    assert chosen == {
        "multi_objective_aggregation": "normalize_then_sum", "reward_weights": [1, 0.25], "num_generations": 16,
    }  # fmt: skip
    assert weights.endswith("# correct, format")
    config = GRPOConfig(str(tmp_path), use_cpu=True, per_device_train_batch_size=16, report_to="none", **chosen)
    more = called(gate, "GDPOTrainer") | called(silent, "GDPOTrainer")

    def correct(completions, **columns):
        return [1.0 for _ in completions]

    def format(completions, **columns):
        return [1.0 for _ in completions]

    data = Dataset.from_dict({"prompt": ["a", "b"]})
    trainer = GDPOTrainer(str(tiny_model), [correct, format], config, train_dataset=data, **more)
    assert trainer.objective.gates["format"].text == "correct >= 1"
    assert [weight.value(None) for weight in trainer.objective.weights.values()] == [1, 0.25]


def test_verl(tmp_path):
    method, weights, gate, silent = lines("verl")
    assert weights.endswith(", or factors in compute_score")
    found = Settings.from_config(settings("verl", tmp_path, method, weights, gate, silent))
    assert found.names == NAMES
    assert found.objective.weights["format"].value(None) == 0.25
    assert found.objective.gates["format"].text == "correct >= 1"
    assert Settings.from_config(settings("verl", tmp_path, method)).names == NAMES
    assert Settings.from_config(settings("verl", tmp_path, weights)).names == NAMES


@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed")
def test_verl_by_hydra():
    """On verl's own config, by Hydra's own rules: with and without the block there already."""
    from hydra import compose, initialize_config_module

    method, weights, gate, silent = lines("verl")
    words = [word for line in (method, weights, gate, silent) for word in shlex.split(overrides(line))]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=words)
        found = Settings.from_config(config)
        assert found.names == NAMES
        assert found.objective.weights["format"].value(None) == 0.25
        assert found.objective.gates["format"].text == "correct >= 1"
        assert config.algorithm.filter_groups.enable is True


def test_nemo_rl(tmp_path):
    method, weights, gate, silent = lines("nemo_rl")
    for line in (method, weights):
        assert line.endswith("launched by python -m gdpo.adapters.nemo_rl")
    config = settings("nemo_rl", tmp_path, method, weights, gate, silent)
    found = read_settings(config["grpo"]["adv_estimator"])
    assert found.objective.weights["format"].value(None) == 0.25
    assert found.objective.gates["format"].text == "correct >= 1"
    assert config["grpo"]["use_dynamic_sampling"] is True
    checks = list(nemo_rl.check_config(config, "x"))
    assert [check.state for check in checks if check.state != "note"] == ["ok"]
    alone = settings("nemo_rl", tmp_path, method)["grpo"]["adv_estimator"]
    assert read_settings(alone).objective is None  # every component of the batch, weight 1


def test_ours():
    method, weights, gate, _ = lines("gdpo")
    done = CliRunner().invoke(app, ["train", "math", *shlex.split(f"{method} {weights} {gate}"), "--show"])
    assert done.exit_code == 0, done.output
    assert "weight: 0.25" in done.stdout
    assert "given: correct >= 1" in done.stdout


def test_a_run_of_gdpo_train_gets_its_recipe_s_lines(tmp_path):
    """It trains by TRL, but what its user changes is the recipe."""
    frame = rollout_frame(
        step=1, prompts=["p"] * 4, completions=["x"] * 4, lengths=[1] * 4, names=NAMES, scores=np.eye(4)[:, :2],
        group=np.zeros(4, int), estimate=gdpo.estimate(np.eye(4)[:, :2], 4, names=NAMES), task="",
    )  # fmt: skip
    write_frame(frame, tmp_path / "rollouts" / "step-000001.parquet", {"gdpo.framework": "trl 1.16.0"})
    assert open_dump(tmp_path / "rollouts").framework == "trl"
    (tmp_path / "run.json").write_text("{}")
    assert open_dump(tmp_path / "rollouts").framework == "gdpo"
    assert open_dump(tmp_path).framework == "gdpo"


def test_the_others():
    assert lines("ms_swift")[:2] == ["--scale_rewards gdpo", "--reward_weights 1 0.25  # correct, format"]
    assert lines("ms_swift")[3] == "--dynamic_sample true"
    assert "weights=[1, 0.25]" in lines("verifiers")[1]
    for framework in ("areal", "", "tinker"):
        method, weights, gate, _ = lines(framework)
        assert "method=gdpo" in method
        assert weights == "multiply in the reward function: format by 0.25"
        assert "in the reward function: format at its lowest wherever correct >= 1 does not hold" in gate
