"""Measures on batches small enough to count by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gdpo
from gdpo.audit.measures import contribution_share, dead_share, distinct_situations


def test_dead_share_counts_groups_that_could_be_judged():
    live = np.array([[True, False], [False, False], [True, True], [False, False]])
    np.testing.assert_allclose(dead_share(live), [0.5, 0.75])
    counts = np.array([[4, 0], [4, 1], [4, 4], [1, 4]])  # reward 1 is missing from the first two groups
    np.testing.assert_allclose(dead_share(live, counts), [1 / 3, 0.5])
    np.testing.assert_array_equal(np.isnan(dead_share(live, np.ones((4, 2)))), [True, True])


def test_contribution_share_of_a_reward_that_is_outvoted():
    """A = 2a + b with b = -a: reward a carries twice the variance, b takes as much away as it has."""
    a = np.array([1.0, -1.0, 1.0, -1.0])
    np.testing.assert_allclose(contribution_share(a, np.stack([2 * a, -a], 1)), [2, -1])
    assert np.isnan(contribution_share(np.zeros(4), np.zeros((4, 2)))).all()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 999))
def test_contribution_shares_add_up(seed):
    rewards = np.random.default_rng(seed).random((24, 3))
    estimate = gdpo.estimate(rewards, 4)
    assert contribution_share(estimate.advantages, estimate.contributions).sum() == pytest.approx(1)


def situations(rewards, method):
    estimate = gdpo.estimate(np.array(rewards, dtype=float), 2, method)
    return distinct_situations(estimate.group, estimate.live, estimate.combined[:, None]), distinct_situations(
        estimate.group, estimate.live, estimate.rewards
    )


def test_grpo_merges_what_gdpo_tells_apart():
    """The paper's example: (0, 1) and (0, 2), once in another order, beside a group that teaches nothing."""
    rewards = [[0, 0], [1, 0], [0, 0], [1, 1], [1, 1], [0, 0], [1, 1], [1, 1]]
    assert situations(rewards, "grpo_no_std") == (2, 2)
    assert situations(rewards, "mo_grpo") == (2, 2)
    estimate = gdpo.estimate(np.array(rewards, dtype=float), 2, "grpo", eps=0)
    assert distinct_situations(estimate.group, estimate.live, estimate.combined[:, None]) == 1


def test_no_live_group_is_no_situation():
    assert situations([[1, 1], [1, 1]], "gdpo") == (0, 0)
    assert distinct_situations(np.zeros(0, int), np.zeros((0, 2), bool), np.zeros((0, 2))) == 0


def test_missing_values_are_equal_to_each_other():
    rewards = [[np.nan, 1], [0, 0], [0, 0], [np.nan, 1], [0, 1], [0, 0]]
    assert situations(rewards, "gdpo")[1] == 2
