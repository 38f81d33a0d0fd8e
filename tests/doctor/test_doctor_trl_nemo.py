"""The checks of TRL's and NeMo-RL's configs, written like their public examples."""

import sys
from pathlib import Path

import pytest

import gdpo
from gdpo.doctor import nemo_rl, trl

sys.path.insert(0, str(Path(__file__).parents[1] / "adapters"))
import nemo_rl_standin

PARENT = """
grpo:
  num_prompts_per_step: 32
  num_generations_per_prompt: 16
  adv_estimator:
    name: "grpo"
    normalize_rewards: true
    use_leave_one_out_baseline: true
"""
CHILD = """
defaults: grpo_math_1B.yaml
grpo:
  adv_estimator:
    name: "gdpo"
    use_leave_one_out_baseline: false
"""


def said(checks):
    return [(check.state, check.text) for check in checks]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "grpo_math_1B.yaml").write_text(PARENT)
    (tmp_path / "child.yaml").write_text(CHILD)
    return tmp_path


def test_nemo_rl_configs(folder):
    assert nemo_rl.recognises(PARENT)
    assert nemo_rl.recognises(CHILD)
    config = nemo_rl.read_config(folder / "child.yaml")
    assert config["grpo"]["num_generations_per_prompt"] == 16
    (state, text), (stays, _) = said(nemo_rl.check_config(config, "child.yaml"))
    assert state == "wrong"
    assert stays == "note"
    assert "NeMo-RL's own gdpo" in text
    (state, text), _ = said(nemo_rl.check_config(nemo_rl.read_config(folder / "grpo_math_1B.yaml"), "x"))
    assert state == "note"
    assert "by the sum of the rewards" in text


@pytest.mark.parametrize(
    ("estimator", "states", "text"),
    [
        (
            {"name": "gdpo", "gdpo": {"weights": {"a": 1, "b": 0.5}}, "use_leave_one_out_baseline": False},
            ["ok"],
            "'b': 0.5",
        ),
        ({"name": "gdpo", "gdpo": {"method": "dvao"}}, ["ok", "note"], "'dvao' of all components"),
        ({"name": "grpo", "gdpo": {}}, ["wrong"], "name is 'grpo' beside"),
        ({"name": "gdpo", "reward_weights": [1, 2], "gdpo": {}}, ["wrong"], "alphabetical"),
        ({"name": "gdpo", "reward_weights": [1, 2]}, ["wrong", "note"], "alphabetical.*7428"),
        ({"name": "gdpo", "gdpo": {"gate": {}}}, ["wrong"], "did you mean 'gates'"),
    ],
)
def test_nemo_rl_blocks(estimator, states, text):
    import re

    checks = said(nemo_rl.check_config({"grpo": {"adv_estimator": estimator}}, "x"))
    assert [state for state, _ in checks] == states
    assert re.search(text, checks[0][1])


def test_nemo_rl_what_else_is_in_the_config():
    grpo = {"adv_estimator": {"name": "gdpo", "gdpo": {}, "use_leave_one_out_baseline": False},
            "use_dynamic_sampling": True, "reward_scaling": {"enabled": True}, "num_generations_per_prompt": 1}  # fmt: skip
    assert [state for state, _ in said(nemo_rl.check_config({"grpo": grpo}, "x"))] == ["ok", "note", "note", "wrong"]


def test_nemo_rl_environment():
    [(state, text)] = said(nemo_rl.check_environment())
    assert state == "wrong"
    assert "cannot be imported" in text
    nemo_rl_standin.standin()
    try:
        [(state, text)] = said(nemo_rl.check(None, False))
        assert state == "ok"
    finally:
        nemo_rl_standin.leave()


TRL = """
model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
num_generations: 16
learning_rate: 5.0e-6
reward_funcs: [accuracy, format]
reward_weights: [1.0, 0.5]
"""


def test_trl_configs(tmp_path):
    assert trl.recognises(TRL)
    assert not trl.recognises(PARENT)
    assert not nemo_rl.recognises(TRL)
    (tmp_path / "grpo.yaml").write_text(TRL)
    checks = list(trl.check(tmp_path / "grpo.yaml", False))
    assert [check.state for check in checks] == ["note", "note", "ok"]
    assert "GDPOTrainer" in checks[0].remedy
    assert "learning rate: keep it" in checks[1].remedy
    wrong = said(trl.check_config({"reward_funcs": ["a"], "reward_weights": [1, 2], "num_generations": 1,
                                   "scale_rewards": "none", "multi_objective_aggregation": "normalize_then_sum"}))  # fmt: skip
    assert [state for state, _ in wrong] == ["note", "wrong", "wrong", "note", "note", "note"]
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(gdpo.Error, match="holds list"):
        list(trl.check(tmp_path / "list.yaml", False))
