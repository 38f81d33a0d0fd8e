"""Values from the papers and from arithmetic, as literals. No value here was computed by the code under test."""

import itertools
import json
import math

import numpy as np
import pytest

import gdpo


def advantages(rewards, groups, method="gdpo", **options):
    return gdpo.advantages(np.array(rewards, dtype=float), groups, method, **options)


def test_two_rollouts_grpo_cannot_tell():
    """GDPO paper, section 3: (0, 1) and (0, 2) get the same GRPO advantage."""
    for second in ([1, 0], [1, 1]):
        np.testing.assert_allclose(advantages([[0, 0], second], 2, "grpo", eps=0), [-0.70710678, 0.70710678], atol=1e-8)


def test_two_rollouts_gdpo_tells():
    one = advantages([[0, 0], [1, 0]], 2, "mo_grpo", eps=0)
    two = advantages([[0, 0], [1, 1]], 2, "mo_grpo", eps=0)
    np.testing.assert_allclose(one, [-0.70710678, 0.70710678], atol=1e-8)
    np.testing.assert_allclose(two, [-1.41421356, 1.41421356], atol=1e-8)


def test_a_batch_of_one_group_loses_it_again():
    for second in ([1, 0], [1, 1]):
        np.testing.assert_allclose(advantages([[0, 0], second], 2, eps=0), [-0.70710678, 0.70710678], atol=1e-8)


def test_a_batch_of_both_groups_keeps_it():
    found = advantages([[0, 0], [1, 0], [0, 0], [1, 1]], 2)
    np.testing.assert_allclose(found, [-0.547680128, 0.547680128, -1.095360257, 1.095360257], atol=1e-8)


def test_grpo_no_std_is_the_centred_sum():
    np.testing.assert_allclose(
        advantages([[1, 0], [0, 0], [1, 1], [0, 1]], 4, "grpo_no_std"), [0, -1, 1, 0], atol=1e-15
    )
    np.testing.assert_allclose(advantages([[1, 0], [0, 0], [1, 1], [0, 1]], 4, "dr_grpo"), [0, -1, 1, 0], atol=1e-15)


@pytest.mark.parametrize(("size", "top"), [(4, 1.5), (8, 2.4748737341529163), (16, 3.75)])
def test_one_success_in_a_group(size, top):
    """z = (G - 1) / sqrt(G)."""
    rewards = [[1.0]] + [[0.0]] * (size - 1)
    found = advantages(rewards, size, "mo_grpo", eps=0)
    assert found[0] == pytest.approx(top, abs=1e-12)
    assert found[1] == pytest.approx(-1 / math.sqrt(size), abs=1e-12)


def test_constant_sums_cancel_exactly_with_equal_weights_only():
    """Correction of the paper's section 3.1: r2 = C - r1 gives z2 = -z1."""
    rewards = [[1, 0], [1, 0], [0, 1]]
    for method in ("grpo", "grpo_no_std", "mo_grpo", "gdpo"):
        assert (advantages(rewards, 3, method) == 0).all()
    np.testing.assert_allclose(
        advantages(rewards, 3, weights=[1, 0.5]), [0.577234802, 0.577234802, -1.154469604], atol=1e-8
    )


def test_batch_norm_takes_a_common_factor_out():
    rewards = np.random.default_rng(0).integers(0, 3, (24, 3)).astype(float)
    one = advantages(rewards, 4, weights=[1, 2, 0.5], eps=0)
    np.testing.assert_allclose(one, advantages(rewards, 4, weights=[100, 200, 50], eps=0), rtol=1e-12, atol=1e-12)


def test_one_reward_is_grpo_then_batch_norm():
    rewards = [[1], [0], [0], [1], [1], [1], [1], [0]]
    expected = [
        0.935325831,
        -0.935325831,
        -0.935325831,
        0.935325831,
        0.539996154,
        0.539996154,
        0.539996154,
        -1.619988461,
    ]
    np.testing.assert_allclose(advantages(rewards, 4), expected, atol=1e-8)


def test_a_gap_of_a_millionth_is_amplified():
    """Inherent to the formula: a lone group of 8 whose rewards differ by 1e-6, among seven tied ones."""
    rewards = np.zeros((64, 1))
    rewards[3] = 1e-6
    assert advantages(rewards, 8).max() == pytest.approx(6.84, abs=0.005)


def distinct(size, count, method):
    """Distinct sorted advantage vectors over all multisets of ``size`` rollouts with ``count`` binary rewards."""
    rows = list(itertools.product((0.0, 1.0), repeat=count))
    groups = list(itertools.combinations_with_replacement(rows, size))
    rewards = np.array(groups).reshape(-1, count)
    found = gdpo.advantages(rewards, size, method, eps=0, batch_norm=False).reshape(-1, size)
    return len(np.unique(np.round(np.sort(found, axis=1), 6) + 0.0, axis=0))


@pytest.mark.parametrize(
    ("method", "counts"),
    [
        ("grpo", [2, 4, 7, 11, 16, 22, 29, 37, 46, 56]),
        ("grpo_no_std", [3, 6, 10, 15, 21, 28, 36, 45, 55, 66]),
        ("mo_grpo", [3, 6, 14, 26, 38, 59, 81, 109, 145, 186]),
    ],
)
def test_distinct_advantages_of_two_binary_rewards(method, counts):
    """GDPO paper, figure 3: groups of 2 to 11."""
    assert [distinct(size, 2, method) for size in range(2, 12)] == counts


@pytest.mark.parametrize(
    ("method", "counts"),
    [
        ("grpo", [7, 14, 23, 41, 56]),
        ("grpo_no_std", [10, 20, 35, 56, 84]),
        ("mo_grpo", [14, 45, 127, 318, 722]),
    ],
)
def test_distinct_advantages_of_groups_of_four(method, counts):
    """Two to six binary rewards."""
    assert [distinct(4, rewards, method) for rewards in range(2, 7)] == counts


@pytest.mark.slow
@pytest.mark.parametrize(("method", "counts"), [("grpo", [89, 119]), ("grpo_no_std", [120, 165])])
def test_distinct_advantages_of_seven_and_eight_rewards(method, counts):
    assert [distinct_by_sums(rewards, method) for rewards in (7, 8)] == counts


def distinct_by_sums(count, method):
    """Methods that sum first see a rollout's sum only: four sums of 0..count stand for all groups of four."""
    groups = np.array(list(itertools.combinations_with_replacement(range(count + 1), 4)), dtype=float)
    rows = np.array([[1.0] * int(s) + [0.0] * (count - int(s)) for s in groups.ravel()])
    found = gdpo.advantages(rows, 4, method, eps=0, batch_norm=False).reshape(-1, 4)
    return len(np.unique(np.round(np.sort(found, axis=1), 6) + 0.0, axis=0))


def test_a_dense_auxiliary_reward_takes_over_where_the_outcome_is_dead():
    """Successes of 5 %, a dense length reward: 59 % of sum |A| where success is tied; 58 % with the length shrunk 100 times.

    How the length is distributed was not said; a uniform one comes within two points.
    """
    generator = np.random.default_rng(0)
    success = (generator.random((40_000, 1)) < 0.05).astype(float)
    length = generator.random((40_000, 1))
    dead = np.ptp(success.reshape(-1, 8), axis=1) == 0
    for scale, share in ((1.0, 0.59), (0.01, 0.58)):
        found = np.abs(advantages(np.hstack([success, scale * length]), 8)).reshape(-1, 8).sum(axis=1)
        assert found[dead].sum() / found.sum() == pytest.approx(share, abs=0.02)


def test_dvao_identity_and_bound():
    """sum_k [w_k sigma_k / sum_l w_l sigma_l] z_k = c / sum_l w_l sigma_l at eps 0, and abs(DVAO) <= abs(GRPO)."""
    rewards = [[1, 0.2], [0, 0.4], [1, 0.9], [0, 0.1]]
    found = gdpo.estimate(np.array(rewards), 4, "dvao", weights=[1.0, 0.5], eps=0)
    # c = (.4, -.5, .75, -.65); sigma = sqrt(1/3), sqrt(.38/3); D = .57735027 + .5 * .35590261 = .75530157
    np.testing.assert_allclose(found.advantages, [0.52958979, -0.66198724, 0.99298086, -0.86058341], atol=1e-7)
    spread = np.array([0.57735027, 0.5 * 0.35590261])
    np.testing.assert_allclose(found.normalized @ (spread / spread.sum()), found.advantages, atol=1e-7)
    generator = np.random.default_rng(0)
    for _ in range(100):
        batch = generator.random((8, 3))
        small, large = (np.abs(advantages(batch, 4, method, eps=0)) for method in ("dvao", "grpo"))
        assert (small <= large + 1e-12).all()


def test_corr_grpo_of_one_reward():
    """R = 1 has D = 1: [0, 1, 1, 0] gives +-0.5 as eps goes to 0; two copies of it give the same once more."""
    np.testing.assert_allclose(advantages([[0], [1], [1], [0]], 4, "corr_grpo", eps=0), [-0.5, 0.5, 0.5, -0.5])
    np.testing.assert_allclose(
        advantages([[0, 0], [1, 1], [1, 1], [0, 0]], 4, "corr_grpo", eps=0), [-0.5, 0.5, 0.5, -0.5]
    )


def test_a_million_offset_keeps_twelve_digits():
    """The error of a float32 mean is 5e-4 at 1e3, 0.05 at 1e5, 0.29 at 1e6."""
    near = np.random.default_rng(0).integers(0, 8, (64, 2)) / 8
    for offset in (1e3, 1e5, 1e6):
        np.testing.assert_allclose(advantages(near + offset, 8), advantages(near, 8), rtol=0, atol=1e-12)
        exact = (near + offset).astype(np.float32)  # eighths are exact on these offsets
        found = gdpo.advantages(exact, 8)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, advantages(near, 8), rtol=0, atol=1e-6)


@pytest.mark.parametrize("scales", [(1e-9, 1e9), (1e9, 1e-9), (1e-9, 1e-9)])
def test_very_different_scales(scales):
    """Normalised first, a reward of 1e-9 counts as much as one of 1e9 where eps is 0."""
    rewards = np.random.default_rng(1).integers(0, 5, (32, 2)).astype(float)
    np.testing.assert_allclose(
        advantages(rewards * scales, 8, eps=0), advantages(rewards, 8, eps=0), rtol=1e-12, atol=1e-12
    )


def test_more_than_twenty_rewards():
    """A copy of a reward is that reward with twice the weight."""
    rewards = np.random.default_rng(2).integers(0, 2, (24, 12)).astype(float)
    np.testing.assert_allclose(
        advantages(np.hstack([rewards, rewards]), 6, eps=0), advantages(rewards, 6, eps=0), atol=1e-12
    )
    found = gdpo.estimate(np.hstack([rewards, rewards]), 6, "corr_grpo")
    np.testing.assert_allclose(found.contributions.sum(1), found.advantages, atol=1e-12)


def test_eps_in_the_variance():
    """[0, 1] in a group of two has variance 0.5: 0.5 / sqrt(0.5 + 0.14) = 0.625."""
    found = advantages([[0], [1]], 2, "mo_grpo", eps=0.14, eps_in="variance")
    np.testing.assert_allclose(found, [-0.625, 0.625], atol=1e-12)


def test_batch_norm_by_tokens():
    """Values -.5, .5, .5, -.5 that weigh 1, 3, 1, 1 tokens: mean 1/6, variance (6/5) * .25 * 8/9 = 4/15."""
    found = advantages(
        [[0], [1], [1], [0]], 2, "reinforce_pp_baseline", eps=0, batch_norm="token", lengths=[1, 3, 1, 1]
    )
    spread = math.sqrt(4 / 15)
    np.testing.assert_allclose(found, np.array([-2 / 3, 1 / 3, 1 / 3, -2 / 3]) / spread, atol=1e-12)


def test_a_stream_is_one_batch_in_the_end():
    """Exact mode: after three batches the statistics are those of all three together."""
    generator = np.random.default_rng(0)
    parts, norm = [generator.integers(0, 3, (12, 2)).astype(float) for _ in range(3)], gdpo.RunningNorm()
    streamed = [gdpo.advantages(part, 4, "rvpo", running=norm) for part in parts]
    whole = gdpo.advantages(np.vstack(parts), 4, "rvpo")
    np.testing.assert_allclose(streamed[0], gdpo.advantages(parts[0], 4, "rvpo"), atol=1e-12)
    np.testing.assert_allclose(streamed[2], whole[24:], atol=1e-12)
    again = gdpo.RunningNorm()
    again.load_state_dict(json.loads(json.dumps(norm.state_dict())))
    one, two = (gdpo.advantages(parts[1], 4, "rvpo", running=state) for state in (norm, again))
    np.testing.assert_array_equal(one, two)
    import torch

    tensor = gdpo.RunningNorm()
    for part in parts:
        found = gdpo.advantages(torch.tensor(part), 4, "rvpo", running=tensor)
    np.testing.assert_allclose(found.numpy(), streamed[2], atol=1e-12)


def test_a_stream_that_forgets():
    """decay 0.5 after spreads 1 and then 3 (in halves): the weight of the first batch is half of the second's."""
    norm = gdpo.RunningNorm(0.5)
    gdpo.advantages([[-1.0], [1.0]] * 2, 2, "reinforce_pp_baseline", ddof=0, eps=0, running=norm)
    found = gdpo.advantages([[-3.0], [3.0]] * 2, 2, "reinforce_pp_baseline", ddof=0, eps=0, running=norm)
    np.testing.assert_allclose(found, [-3 / math.sqrt(19 / 3), 3 / math.sqrt(19 / 3)] * 2, atol=1e-12)
    for state in ({}, {"labels": {"": [1.0]}}, {"decay": 2, "labels": {}}, {"labels": {"": [1, 2, 3, math.nan]}}):
        with pytest.raises(gdpo.Error, match="expected"):
            norm.load_state_dict(state)
    for decay in (0, 1.5, "x", True):
        with pytest.raises(gdpo.Error, match="decay is"):
            gdpo.RunningNorm(decay)
    with pytest.raises(gdpo.Error, match="running is 3"):
        gdpo.advantages([[1.0], [0.0]], 2, running=3)


def test_streams_by_label():
    norm, rewards = gdpo.RunningNorm(), [[0.0], [1.0], [0.0], [5.0]]
    gdpo.advantages(rewards, 2, "reinforce_pp_baseline", batch_ids=["maths", "maths", "code", "code"], running=norm)
    swapped = ["code", "code", "maths", "maths"]
    found = gdpo.advantages(rewards, 2, "reinforce_pp_baseline", batch_ids=swapped, running=norm)
    assert sorted(norm.state_dict()["labels"]) == ["code", "maths"]
    # both labels have now seen spreads .5 and 2.5: variance (2 * .25 + 2 * 6.25) / 3
    np.testing.assert_allclose(found, np.array([-0.5, 0.5, -2.5, 2.5]) / (math.sqrt(13 / 3) + 1e-4), atol=1e-12)
