"""Every file in examples/ runs, or is what its framework reads."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import gdpo
from gdpo.adapters import slime
from gdpo.adapters.verl_config import Settings
from gdpo.cli import app

FOLDER = Path(__file__).resolve().parents[1] / "examples"
RIGHT, WRONG = "<think>2 + 2 is 4</think><answer>4</answer>", "<think>?</think><answer>5</answer>"


@pytest.fixture
def by_name():
    spec = importlib.util.spec_from_file_location("scores_by_name", FOLDER / "scores_by_name.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["verl_gdpo.yaml", "nemo_rl_gdpo.yaml"])
def test_the_doctor_finds_nothing_wrong(name, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda m: None if m in ("verl", "nemo_rl") else found(m))
    done = CliRunner().invoke(app, ["doctor", str(FOLDER / name)])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == "nothing wrong"
    assert "asks for 'gdpo' of the rewards" in done.stdout


def test_scores_by_name(by_name):
    assert by_name.scores(RIGHT, "4") == {"correct": 1.0, "format": 1.0, "concise": 1.0}
    assert by_name.scores(WRONG, 4) == {"correct": 0.0, "format": 1.0, "concise": 1.0}
    assert by_name.scores("4", None) == {"correct": None, "format": 0.0, "concise": 1.0}
    done = subprocess.run([sys.executable, FOLDER / "scores_by_name.py"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("{'score': 3.0, 'correct': 1.0, 'format': 1.0, 'concise': 1.0}")


def test_verl(by_name):
    """The names of the block are those that the reward function returns."""
    config = yaml.safe_load((FOLDER / "verl_gdpo.yaml").read_text())
    found = Settings.from_config(config)
    assert set(found.names) <= set(by_name.compute_score("x", RIGHT, "4"))
    function = config["reward"]["custom_reward_function"]
    assert (FOLDER.parent / function["path"]).is_file()
    assert hasattr(by_name, function["name"])


@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed")
def test_verl_composes_by_hydra():
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(FOLDER), version_base=None):
        config = compose("verl_gdpo")
    found = Settings.from_config(config)
    assert found.names == ["correct", "format", "concise"]
    assert config.trainer.use_v1 is True
    assert config.reward.custom_reward_function.name == "compute_score"
    assert config.actor_rollout_ref.rollout.n == 8


def test_slime(by_name, tmp_path):
    config = yaml.safe_load((FOLDER / "slime_gdpo.yaml").read_text())
    args = SimpleNamespace(**config, n_samples_per_prompt=4, advantage_estimator="grpo", save=str(tmp_path))
    texts = [RIGHT, WRONG, "4", RIGHT, WRONG, WRONG, "5", RIGHT]
    samples = [
        SimpleNamespace(group_index=row // 4, prompt="2+2", response=text, response_length=9, label="4",
                        remove_sample=False, metadata={})
        for row, text in enumerate(texts)
    ]  # fmt: skip
    for sample in samples:
        sample.reward = asyncio.run(by_name.custom_rm(args, sample))
    _raw, processed = slime.post_process(args, samples)
    scores = np.array([list(by_name.scores(text, "4").values()) for text in texts])
    scores[scores[:, 0] < 1, 2] = 0.0
    np.testing.assert_allclose(processed, gdpo.advantages(scores, 4, weights=[1.0, 0.2, 0.5]))
    slime._run[id(args)][1].writer.flush()
    assert gdpo.rollouts.open_dump(tmp_path / "rollouts").rewards == ["correct", "format", "concise"]


def test_stock_trl_is_tested_with_its_adapter():
    """The TRL script runs in tests/adapters/test_trl.py."""
    text = (FOLDER.parent / "tests" / "adapters" / "test_trl.py").read_text()
    assert '"examples" / "stock_trl.py"' in text
