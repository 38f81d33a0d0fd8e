"""Presets against the trainers' real code, and every arithmetic fault of theirs beside what we give."""

import importlib.util

import numpy as np
import pytest
import torch

import gdpo
from gdpo.core.presets import PRESETS, Preset

NAN = float("nan")


def make(rewards):
    return torch.tensor(np.asarray(rewards), dtype=torch.float32)


def batch(seed, size, missing=False):
    """Random rewards of several kinds and scales, ties among them."""
    generator = np.random.default_rng(seed)
    groups, count = int(generator.integers(2, 7)), int(generator.integers(1, 5))
    rewards = generator.random((groups * size, count))
    kind = generator.integers(0, 4, count)
    rewards = np.where(kind == 0, rewards > 0.5, np.where(kind == 1, rewards.round(1), rewards))
    rewards = np.where(kind == 3, rewards * 30, rewards)
    rewards[:size] = generator.integers(1, 100, count) / 100
    if missing:
        rewards[generator.random(rewards.shape) < 0.15] = NAN
        if count > 1 and seed % 2:
            rewards[size + 1] = NAN
    return make(rewards), generator.choice([0.3, 1.0, 2.0], count).tolist(), generator.integers(1, 60, len(rewards))


def assert_same(found, theirs):
    """To 1e-6 of the largest advantage or of 1; NaN where theirs is NaN."""
    found, theirs = (np.asarray(values, dtype=np.float64) for values in (found, theirs))
    assert (np.isnan(found) == np.isnan(theirs)).all()
    if not np.isnan(theirs).all():
        scale = max(1.0, np.nanmax(np.abs(theirs)))
        np.testing.assert_allclose(found / scale, theirs / scale, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gdpo", "grpo"])
def test_trl_on_a_thousand_batches(trainer, monkeypatch, method):
    from trl_harness import trl_advantages

    aggregation = {"gdpo": "normalize_then_sum", "grpo": "sum_then_normalize"}[method]
    for seed in range(1000):
        rewards, weights, _ = batch(seed, [2, 3, 4, 6, 7, 8][seed % 6], missing=seed % 3 == 0)
        size = [2, 3, 4, 6, 7, 8][seed % 6]
        theirs = trl_advantages(trainer, monkeypatch, rewards.numpy(), size, aggregation, weights=weights)
        assert_same(gdpo.preset("trl").advantages(rewards, size, weights, method=method), theirs)


needs_verl = pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed")


def verl_advantages(rewards, size, weights, lengths, method="gdpo"):
    from verl.trainer.ppo import core_algos

    lengths = torch.as_tensor(lengths)
    rows, longest = len(rewards), int(lengths.max())
    mask = (torch.arange(longest)[None, :] < lengths[:, None]).float()
    index = np.array([f"prompt {row // size}" for row in range(rows)], dtype=object)
    if method == "grpo":
        token_level = torch.zeros(rows, longest)
        token_level[torch.arange(rows), lengths - 1] = (rewards * torch.tensor(weights)).sum(1)
        return core_algos.compute_grpo_outcome_advantage(token_level, mask, index)[0][:, 0].numpy()
    names = [f"r{k}" for k in range(rewards.shape[1])]
    found, _ = core_algos.compute_gdpo_outcome_advantage(
        torch.zeros(rows, longest), mask, index,
        config={"gdpo_reward_keys": names, "gdpo_reward_weights": weights},
        non_tensor_batch={name: rewards[:, k].numpy() for k, name in enumerate(names)},
        batch={"prompts": torch.zeros(rows, 1), "attention_mask": torch.cat([torch.ones(rows, 1), mask], 1).long()},
    )  # fmt: skip
    return found[:, 0].numpy()


@needs_verl
@pytest.mark.slow
@pytest.mark.parametrize("method", ["gdpo", "grpo"])
def test_verl_on_a_thousand_batches(method):
    for seed in range(1000):
        size = [1, 2, 3, 4, 6, 7, 8][seed % 7]
        rewards, weights, lengths = batch(seed, size, missing=seed % 25 == 0 and method == "gdpo")
        theirs = verl_advantages(rewards, size, weights, lengths, method)
        found = gdpo.preset("verl").advantages(rewards, size, weights, method=method, lengths=lengths)
        assert_same(found, theirs)


@needs_verl
def test_verls_faults_are_verls():
    """The same three inputs as below, by verl's own code; should this fail, verl has changed."""
    constant = make([[0.7]] * 7 + [[0.3]] * 7)
    assert np.abs(verl_advantages(constant, 7, [1.0], [5] * 14)).max() > 0.9
    assert np.isnan(verl_advantages(make([[0.0], [1.0], [NAN], [1.0]]), 2, [1.0], [3] * 4)).all()


def test_constant_groups():
    """TRL 0.002, ms-swift 1.03, verl 0.98 where the right advantage is 0 (ESTIMATORS; each was run)."""
    pair = make([[0.7]] * 7 + [[0.1]] * 7)
    assert abs(gdpo.preset("ms_swift").advantages(pair, 7)).max() > 0.9
    assert abs(gdpo.preset("verl").advantages(pair, 7)).max() > 0.9
    assert 1e-4 < abs(gdpo.preset("trl").advantages(pair, 7)).max() < 1
    assert (gdpo.preset("paper").advantages(pair, 7) == 0).all()
    assert (gdpo.advantages(pair, 7) == 0).all()


def test_verl_token_weighting_flips_signs():
    """Response length alone moves an advantage, and where it goes with the reward changes signs."""
    generator = np.random.default_rng(0)
    rewards = make(generator.integers(0, 2, (64, 2)))
    lengths = np.where(rewards[:, 0] > 0, 200, 10)
    even = gdpo.preset("verl").advantages(rewards, 8)
    found = gdpo.preset("verl").advantages(rewards, 8, lengths=lengths)
    assert (torch.sign(even) * torch.sign(found) < 0).sum() > 4
    ours = gdpo.advantages(rewards, 8)
    assert (torch.sign(ours) * torch.sign(even) >= 0).all()
    token = gdpo.advantages(rewards, 8, batch_norm="token", lengths=lengths)  # the same weighting, asked for
    torch.testing.assert_close(token, found, rtol=0, atol=1e-3)


def test_verl_one_missing_reward_poisons_the_batch():
    rewards = make([[0.0], [1.0], [NAN], [1.0], [0.0], [1.0]])
    assert gdpo.preset("verl").advantages(rewards, 2).isnan().all()
    assert gdpo.advantages(rewards, 2).isfinite().all()


def test_verl_a_group_of_one_passes_its_raw_reward():
    rewards, ids = make([[0.9], [0.0], [1.0]]), ["alone", "pair", "pair"]
    assert gdpo.preset("verl").advantages(rewards, ids)[0] > 0.5
    assert gdpo.advantages(rewards, ids)[0] == 0


def test_nemo_rl_seven_and_one():
    """Seven equal rewards and one other: the others' spread is rounding, and divides (0.3 and 1.0 gave 7428).

    Which value does so depends on the processor's order of additions. On an offset of 1000 no spread is left.
    """
    from gdpo.core.presets import _group_normalized

    nemo = gdpo.preset("nemo_rl")
    values = torch.stack([make([[k / 100]] * 7 + [[1.0]]) for k in range(1, 100)])
    assert float(_group_normalized(nemo, values, nemo.eps).max()) > 1000
    assert float(gdpo.advantages(values.reshape(-1, 1), 8, "mo_grpo").max()) < 2.48
    offset = make([[1000.0], [1000.1], [1000.2], [1000.3]])
    plain = Preset(**{**nemo.__dict__, "leave_one_out": False})
    raw = _group_normalized(plain, offset[None], plain.eps)
    assert abs(float(abs(raw).max()) - 1.1619) > 0.3  # float32 squares near a million leave 0 or noise for a spread
    assert abs(gdpo.advantages(offset.double(), 4, "mo_grpo")).max() == pytest.approx(1.1619, abs=2e-3)


def test_nemo_rl_weights_go_by_the_alphabet():
    rewards = make([[0, 1], [1, 0], [1, 1], [0, 0]])
    names = ["style", "correct"]
    swapped = gdpo.preset("nemo_rl").advantages(rewards, 4, [10.0, 1.0], names=names)
    by_name = gdpo.preset("nemo_rl").advantages(rewards, 4, {"style": 1.0, "correct": 10.0}, names=names)
    torch.testing.assert_close(swapped, by_name)
    ours = gdpo.advantages(rewards, 4, weights=[10.0, 1.0], names=names)
    assert torch.sign(ours[0]) != torch.sign(swapped[0])


def test_nvlabs_a_missing_reward_is_zero():
    rewards = make([[1.0], [NAN], [1.0], [1.0]])
    assert gdpo.preset("nvlabs").advantages(rewards, 4)[1] < -1
    assert (gdpo.advantages(rewards, 4) == 0).all()


@pytest.mark.parametrize("seed", range(20))
def test_the_choices_of_the_paper_are_our_estimator(seed):
    """``_compute`` with the paper's choices is ``gdpo.advantages`` by another way."""
    rewards, weights, _ = batch(seed, 4, missing=True)
    same = Preset("same", "the paper's choices")
    found = same.advantages(rewards.double(), 4, weights)
    torch.testing.assert_close(found, gdpo.advantages(rewards.double(), 4, weights=weights), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize("method", ["gdpo", "grpo"])
def test_numpy_and_torch_agree(name, method):
    """Where no group is tied; ragged where the trainer can."""
    generator = np.random.default_rng(3)
    rewards = generator.random((24, 3)).astype(np.float32)
    for groups in (4, np.repeat([0, 1, 2, 3], [4, 5, 7, 8])):
        lengths = generator.integers(1, 9, 24)
        found = gdpo.preset(name).advantages(rewards, groups, [1.0, 2.0, 0.5], method=method, lengths=lengths)
        other = gdpo.preset(name).advantages(
            torch.tensor(rewards), groups, [1.0, 2.0, 0.5], method=method, lengths=lengths
        )
        assert found.dtype == np.float32
        # E[x^2] - E[x]^2 in float32 keeps few digits, and which ones depends on the order of the additions
        noisy = name == "nemo_rl"
        np.testing.assert_allclose(found, other.numpy(), rtol=2e-3 if noisy else 0, atol=2e-4 if noisy else 1e-5)


@pytest.mark.parametrize(
    ("a", "rewards", "groups", "lengths", "reason"),
    [
        ("trl", [[0.7]] * 7 + [[0.1]] * 7, 7, None, "tie"),
        ("ms_swift", [[0.7, 0.0]] * 7 + [[0.1, 0.0]] * 7, 7, None, "tie"),
        ("verl", [[0.0], [1.0], [NAN], [1.0]], 2, None, "missing reward"),
        ("nvlabs", [[1.0], [NAN], [1.0], [1.0]], 4, None, "missing reward"),
        ("verl", [[0.0], [1.0], [0.0], [1.0]], 2, [1, 50, 1, 50], "token weighting"),
        ("nemo_rl", [[0.0], [0.5], [1.0], [0.2], [0.1], [0.4], [0.2], [0.9]], 4, None, "leave-one-out"),
        ("nemo_rl", [[1000.0], [1000.1], [1000.2], [1000.3]], 4, None, "spread from E[x^2]"),
        ("verl", [[0.0, 0.0], [1e-4, 1.0], [1.0, 0.0], [0.0, 1.0]], 2, None, "eps"),
    ],
)  # fmt: skip
def test_difference_names_the_reason(a, rewards, groups, lengths, reason):
    found = gdpo.difference(make(rewards), groups, a=a, b="paper", lengths=lengths)
    assert found.rollouts
    assert found.reasons[found.rollouts[0]].startswith(reason)
    assert reason in str(found)
    assert PRESETS[a].version in str(found)


def test_no_difference():
    rewards = np.random.default_rng(0).random((32, 2))
    found = gdpo.difference(rewards, 8, a="nvlabs", b="trl")
    assert found.rollouts == []
    assert found.sign_flips == 0
    assert "0 of 32 rollouts differ" in str(found)


def test_bad_input():
    with pytest.raises(gdpo.Error, match=r"preset 'verI' is unknown; did you mean 'verl'\?"):
        gdpo.preset("verI")
    for call in (gdpo.preset("trl").advantages, lambda *args, **options: gdpo.difference(*args, a="trl", **options)):
        with pytest.raises(gdpo.Error, match="not a multiple of 3"):
            call(np.zeros((4, 2)), 3)
        with pytest.raises(gdpo.Error, match="2 were expected"):
            call(np.zeros((4, 2)), 2, weights=[1.0])
        with pytest.raises(gdpo.Error, match="'rloo', but presets know"):
            call(np.zeros((4, 2)), 2, method="rloo")
        with pytest.raises(gdpo.Error, match="one weight a reward"):
            call(np.zeros((4, 2)), 2, weights=np.ones((4, 2)))
