"""Against the installed TRL's own code, where that is right, and beside it where it is not.

TRL's formulas stand inside ``GRPOTrainer._generate_and_score_completions``. The real method is run here: generation is
replaced by fixed tokens and ``_calculate_rewards`` by a given matrix; everything from there on is TRL's.
"""

import numpy as np
import pytest
import trl
from trl_harness import trl_advantages

import gdpo

AGGREGATES = "multi_objective_aggregation" in trl.GRPOConfig.__dataclass_fields__
own_gdpo = pytest.mark.skipif(not AGGREGATES, reason="this TRL has no normalize_then_sum, and generates otherwise")


def rewards_of(kind, seed):
    generator = np.random.default_rng(seed)
    rewards = generator.integers(0, 2, (32, 3)).astype(float)
    if kind == "dense":
        rewards += generator.random((32, 3))
    if kind == "missing":
        rewards[generator.random(rewards.shape) < 0.15] = np.nan
        rewards[5] = np.nan
    return rewards


@own_gdpo
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("kind", ["binary", "dense"])
def test_gdpo_is_normalize_then_sum(trainer, monkeypatch, kind, size, seed):
    """Equal to 1e-5 where no group is tied as a whole by float32 residue."""
    rewards, weights = rewards_of(kind, seed), [1.0, 0.5, 2.0]
    theirs = trl_advantages(trainer, monkeypatch, rewards, size, "normalize_then_sum", weights=weights)
    np.testing.assert_allclose(gdpo.advantages(rewards, size, weights=weights), theirs, atol=1e-5)


@own_gdpo
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("scale", "method"), [("group", "grpo"), ("none", "grpo_no_std")])
def test_grpo_is_sum_then_normalize(trainer, monkeypatch, scale, method, seed):
    rewards, weights = rewards_of("binary", seed), [1.0, 0.5, 2.0]
    theirs = trl_advantages(trainer, monkeypatch, rewards, 4, "sum_then_normalize", scale, weights)
    np.testing.assert_allclose(gdpo.advantages(rewards, 4, method, weights=weights), theirs, atol=1e-5)


@own_gdpo
def test_missing_rewards_before_batch_norm_are_trls(trainer, monkeypatch):
    """Missing rewards leave mean and spread in both; TRL's batch norm then also centres and counts tied rollouts."""
    rewards = rewards_of("missing", 1)
    theirs = trl_advantages(trainer, monkeypatch, rewards, 4, "normalize_then_sum")
    ours = gdpo.advantages(rewards, 4)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert theirs[5] == ours[5] == 0


@own_gdpo
def test_where_trl_is_wrong(trainer, monkeypatch):
    """Constant groups of six at .1/.3 and .7/.9: every advantage is 0; TRL's float32 means give it .79.

    Should this fail, TRL has changed: move the case to the equalities above.
    """
    rewards = [[0.1, 0.3]] * 6 + [[0.7, 0.9]] * 6
    theirs = trl_advantages(trainer, monkeypatch, rewards, 6, "normalize_then_sum")
    assert np.abs(theirs).max() > 0.1
    assert (gdpo.advantages(np.array(rewards, dtype=np.float32), 6) == 0).all()


@own_gdpo
def test_the_fixture_runs_trls_code(trainer, monkeypatch):
    """The two-rollout example of the GDPO paper, by TRL: it would fail if the harness did not reach TRL's formulas."""
    theirs = trl_advantages(trainer, monkeypatch, [[0, 0], [1, 0], [0, 0], [1, 1]], 2, "normalize_then_sum")
    np.testing.assert_allclose(theirs, [-0.547680, 0.547680, -1.095360, 1.095360], atol=1e-4)


def binary(completions, **columns):
    return [float(len(text) % 2) for text in completions]


def vowel(completions, **columns):
    return [float(any(c in "aeiou" for c in text)) for text in completions]


@pytest.mark.parametrize(("aggregation", "method"), [("sum_then_normalize", "grpo"), ("normalize_then_sum", "gdpo")])
def test_twenty_steps_have_equal_losses(tiny_model, tmp_path, aggregation, method):
    """The same seed with ours and stock TRL, on rewards where TRL is right (binary: its float32 means are exact)."""
    import datasets

    from gdpo.trl import GDPOTrainer

    if not AGGREGATES and method == "gdpo":
        pytest.skip("this TRL has no normalize_then_sum")
    changes = {"multi_objective_aggregation": aggregation} if AGGREGATES else {}
    rows = datasets.Dataset.from_dict({"prompt": ["abc", "hello", "what", "no"]})
    losses, rewards = [], []
    for kind in (trl.GRPOTrainer, GDPOTrainer):
        args = trl.GRPOConfig(
            str(tmp_path / kind.__name__), use_cpu=True, max_steps=20, per_device_train_batch_size=32, num_generations=8,
            max_completion_length=8, logging_steps=1, gradient_checkpointing=False, save_strategy="no", report_to="none",
            disable_tqdm=True, learning_rate=0.05, optim="sgd", beta=0.04, seed=7, reward_weights=[1.0, 0.5],
            **changes,
        )  # fmt: skip
        extra = {"method": method} if kind is GDPOTrainer else {}
        trainer = kind(str(tiny_model), [binary, vowel], args, rows, **extra)
        trainer.train()
        lines = [line for line in trainer.state.log_history if "loss" in line]
        losses.append([line["loss"] for line in lines])
        rewards.append([line["reward"] for line in lines])
    assert len(losses[0]) == 20
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-6)
    np.testing.assert_allclose(losses[0], losses[1], atol=2e-5)
    assert np.abs(losses[0]).max() > 1e-3
