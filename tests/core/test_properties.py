"""What must hold for any batch: checked by Hypothesis on every method that is registered."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gdpo
from gdpo.core.estimators import METHODS

ALL = sorted(METHODS)
BATCH_WIDE = ("dara", "grpo_batch_std", "saw", "sa_mrpo")
"""Methods in which a group's values depend on the whole batch before batch norm."""
NORMALISE_FIRST = [n for n in ALL if METHODS[n].family == "normalise first" and n not in ("saw", "sa_mrpo")]
SHIFTS = [n for n in ALL if n not in ("grpo_batch_std", "saw", "sa_mrpo")]
LOCAL = [n for n in ALL if n not in BATCH_WIDE]


def extra(method, count):
    """What a method cannot do without."""
    return {"bounds": [(-4.0, 4.0)] * count} if METHODS[method].needs else {}


NAN = float("nan")


@st.composite
def batches(draw, missing=True, values=None):
    """Rewards [B, R] and ids [B]; many ties, as rewards have."""
    rows, count, groups = draw(st.integers(1, 24)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    value = values or st.sampled_from([0.0, 1.0, 1.0, 0.5, 0.1, 0.7, -3.0, 2.25])
    if missing:
        value = st.one_of(value, value, value, st.just(NAN))
    rewards = draw(hnp.arrays(np.float64, (rows, count), elements=value))
    ids = draw(st.lists(st.integers(0, groups - 1), min_size=rows, max_size=rows))
    return rewards, np.array(ids)


def close(one, two, tolerance=1e-9):
    np.testing.assert_allclose(np.asarray(one), np.asarray(two), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("method", ALL)
@settings(deadline=None, max_examples=40)
@given(batch=batches(), seed=st.integers(0, 99))
def test_the_order_of_rollouts_does_not_matter(method, batch, seed):
    rewards, ids = batch
    order = np.random.default_rng(seed).permutation(len(ids))
    close(
        gdpo.advantages(rewards[order], ids[order], method, **extra(method, rewards.shape[1])),
        gdpo.advantages(rewards, ids, method, **extra(method, rewards.shape[1]))[order],
    )


@pytest.mark.parametrize("method", ALL)
@settings(deadline=None, max_examples=40)
@given(batch=batches())
def test_contributions_add_up(method, batch):
    rewards, ids = batch
    for options in ({}, {"clip": 1.0}, {"batch_norm": True}, {"batch_norm": False, "baseline": "leave-one-out"}):
        found = gdpo.estimate(rewards, ids, method, **options, **extra(method, rewards.shape[1]))
        np.testing.assert_allclose(found.contributions.sum(1), found.advantages, rtol=0, atol=1e-12)
        assert np.isfinite(found.advantages).all()
        assert (found.contributions[np.isnan(rewards)] == 0).all()
        np.testing.assert_array_equal(
            found.advantages, gdpo.advantages(rewards, ids, method, **options, **extra(method, rewards.shape[1]))
        )


@pytest.mark.parametrize("method", ALL)
@settings(deadline=None, max_examples=40)
@given(batch=batches())
def test_numpy_and_torch_agree(method, batch):
    rewards, ids = batch
    one, two = (
        gdpo.estimate(rewards, ids, method, **extra(method, rewards.shape[1])),
        gdpo.estimate(torch.tensor(rewards), torch.tensor(ids), method, **extra(method, rewards.shape[1])),
    )
    close(one.advantages, two.advantages)
    close(one.contributions, two.contributions)
    assert np.array_equal(one.live, two.live.numpy())


@pytest.mark.parametrize("method", ALL)
@settings(deadline=None, max_examples=30)
@given(groups=st.integers(1, 5), size=st.integers(1, 6), seed=st.integers(0, 999))
def test_dense_and_ragged_agree(method, groups, size, seed):
    generator = np.random.default_rng(seed)
    rewards = generator.integers(0, 3, (groups * size, 2)) / 2
    rewards[generator.random(rewards.shape) < 0.2] = NAN
    ids = np.repeat(np.arange(groups), size)
    for values, labels in ((rewards, ids), (torch.tensor(rewards), torch.tensor(ids))):
        close(
            gdpo.advantages(values, size, method, **extra(method, rewards.shape[1])),
            gdpo.advantages(values, labels, method, **extra(method, rewards.shape[1])),
        )


@pytest.mark.parametrize("method", SHIFTS)
@settings(deadline=None, max_examples=30)
@given(batch=batches(), seed=st.integers(0, 999))
def test_a_shift_of_a_reward_in_a_group_changes_nothing(method, batch, seed):
    """Shifts that are exact in binary, so that ties stay ties."""
    rewards, ids = batch
    shifts = np.random.default_rng(seed).integers(-64, 64, (ids.max() + 1, rewards.shape[1])) / 4.0
    rewards = np.round(rewards * 64) / 64
    close(
        gdpo.advantages(rewards + shifts[ids], ids, method, **extra(method, rewards.shape[1])),
        gdpo.advantages(rewards, ids, method, **extra(method, rewards.shape[1])),
    )


@pytest.mark.parametrize("method", NORMALISE_FIRST)
@settings(deadline=None, max_examples=30)
@given(batch=batches(), power=st.lists(st.integers(-30, 30), min_size=4, max_size=4))
def test_the_scale_of_a_reward_changes_nothing(method, batch, power):
    rewards, ids = batch
    scaled = rewards * 2.0 ** np.array(power[: rewards.shape[1]])
    close(
        gdpo.advantages(scaled, ids, method, eps=0, **extra(method, rewards.shape[1])),
        gdpo.advantages(rewards, ids, method, eps=0, **extra(method, rewards.shape[1])),
    )


@pytest.mark.parametrize("method", LOCAL)
@settings(deadline=None, max_examples=30)
@given(batch=batches(missing=False))
def test_before_batch_norm_a_group_depends_on_itself_alone(method, batch):
    rewards, ids = batch
    found = gdpo.advantages(rewards, ids, method, batch_norm=False, **extra(method, rewards.shape[1]))
    spoiled = rewards.copy()
    spoiled[ids != ids[0], -1] = NAN
    again = gdpo.advantages(spoiled, ids, method, batch_norm=False, **extra(method, rewards.shape[1]))
    close(found[ids == ids[0]], again[ids == ids[0]])


@pytest.mark.parametrize("method", ALL)
@settings(deadline=None, max_examples=40)
@given(batch=batches())
def test_tied_groups_and_lone_rollouts_get_exactly_zero(method, batch):
    rewards, ids = batch
    found = gdpo.estimate(rewards, ids, method, **extra(method, rewards.shape[1]))
    dead = ~found.live.any(axis=1)
    assert (found.advantages[dead[found.group]] == 0).all()
    counts = np.bincount(found.group)
    assert (found.advantages[counts[found.group] == 1] == 0).all()
    assert (found.advantages[np.isnan(rewards).all(axis=1)] == 0).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, torch.float16, torch.bfloat16, torch.float32])
@settings(deadline=None, max_examples=20)
@given(batch=batches())
def test_statistics_are_taken_in_float64(dtype, batch):
    """A low-precision input gives the float64 result of the same values, rounded once."""
    rewards, ids = batch
    low = rewards.astype(dtype) if not isinstance(dtype, torch.dtype) else torch.tensor(rewards).to(dtype)
    found = gdpo.advantages(low, ids)
    exact = gdpo.advantages(low.astype(np.float64) if isinstance(low, np.ndarray) else low.double(), ids)
    assert found.dtype == low.dtype
    rounded = exact.astype(dtype) if isinstance(exact, np.ndarray) else exact.to(dtype)
    np.testing.assert_array_equal(
        np.asarray(torch.as_tensor(found).double()), np.asarray(torch.as_tensor(rounded).double())
    )


@settings(deadline=None, max_examples=60)
@given(value=st.floats(-1e300, 1e300), size=st.integers(2, 9), count=st.integers(1, 3))
def test_any_constant_ties(value, size, count):
    for method in ALL:
        assert (gdpo.advantages(np.full((size, count), value), size, method, **extra(method, count)) == 0).all()


COMMON_FACTOR = {"corr_grpo": "scales", "grpo_no_std": "scales", "mo_grpo": "scales", "rloo": "scales"}
"""What a common factor on all weights does at eps 0; in every other method nothing."""


@pytest.mark.parametrize("method", ALL)
@settings(deadline=None, max_examples=30)
@given(batch=batches(), factor=st.sampled_from([0.25, 4.0, 1024.0]))
def test_a_common_factor_on_the_weights(method, batch, factor):
    rewards, ids = batch
    weights = np.array([1.0, 0.5, 2.0, 0.3])[: rewards.shape[1]]
    options = {"eps": 0, **extra(method, rewards.shape[1])}
    found = gdpo.advantages(rewards, ids, method, factor * weights, **options)
    plain = gdpo.advantages(rewards, ids, method, weights, **options)
    close(found, plain * (factor if method in COMMON_FACTOR else 1.0), 1e-7 if method == "gd2po" else 1e-9)


@pytest.mark.parametrize("method", ALL)
@settings(deadline=None, max_examples=30)
@given(batch=batches(), seed=st.integers(0, 99))
def test_the_names_and_the_order_of_groups_do_not_matter(method, batch, seed):
    rewards, ids = batch
    generator = np.random.default_rng(seed)
    new = generator.permutation(100)[:5]
    order = np.argsort(new[ids], kind="stable")
    expected = gdpo.advantages(rewards, ids, method, **extra(method, rewards.shape[1]))[order]
    for names in (new[ids][order], np.array([f"group {n}" for n in new])[ids][order], list(map(str, new[ids][order]))):
        close(gdpo.advantages(rewards[order], names, method, **extra(method, rewards.shape[1])), expected)


@pytest.mark.parametrize("method", [n for n in ALL if n not in BATCH_WIDE])
@settings(deadline=None, max_examples=30)
@given(batch=batches(missing=False), seed=st.integers(0, 99))
def test_a_missing_value_leaves_other_groups_unchanged(method, batch, seed):
    """Before batch norm, and after it where the spread of the batch is given (a stream that has seen much)."""
    rewards, ids = batch
    row = seed % len(ids)
    holed = rewards.copy()
    holed[row, seed % rewards.shape[1]] = NAN
    others = ids != ids[row]
    options = {"batch_norm": False, **extra(method, rewards.shape[1])}
    one, two = (gdpo.advantages(values, ids, method, **options) for values in (rewards, holed))
    # corr_grpo divides by the square root of a sum of correlations that can cancel: rounding counts 1 / eps there.
    np.testing.assert_allclose(one[others], two[others], rtol=1e-11 if method == "corr_grpo" else 0, atol=1e-13)


@pytest.mark.parametrize("method", ALL)
@settings(deadline=None, max_examples=20)
@given(batch=batches(), kind=st.sampled_from(["strided", "read-only", "reversed", "Fortran", "column slice"]))
def test_how_the_input_lies_in_memory_does_not_matter(method, batch, kind):
    rewards, ids = batch
    options = extra(method, rewards.shape[1])
    expected = gdpo.advantages(rewards, ids, method, **options)
    if kind == "strided":
        other = np.repeat(rewards, 2, axis=0)[::2]
    elif kind == "reversed":
        other = rewards[::-1].copy()[::-1]
    elif kind == "Fortran":
        other = np.asfortranarray(rewards)
    elif kind == "column slice":
        other = np.hstack([rewards, rewards])[:, : rewards.shape[1]]
    else:
        other = rewards.copy()
        other.setflags(write=False)
    before = other.copy()
    np.testing.assert_array_equal(gdpo.advantages(other, ids, method, **options), expected)
    np.testing.assert_array_equal(other, before)
    if kind in ("strided", "Fortran", "column slice"):
        tensor = torch.tensor(before)
        tensor = tensor.T.contiguous().T if kind == "Fortran" else tensor
        close(gdpo.advantages(tensor, torch.tensor(ids), method, **options), expected)


@settings(deadline=None, max_examples=60)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), seed=st.integers(0, 999))
def test_strips_of_any_height_give_the_same(sizes, seed):
    """Ragged groups are cut into strips; where they are cut decides nothing."""
    from gdpo.core import groups as room

    generator = np.random.default_rng(seed)
    ids = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    rewards = generator.integers(0, 3, (len(ids), 2)) / 2
    rewards[generator.random(rewards.shape) < 0.2] = NAN
    expected = gdpo.estimate(rewards, ids)
    found, original = [], room._height
    try:
        for height in (1, 2, 7, 64):
            room._height = lambda sizes, height=height: height
            found.append(gdpo.estimate(rewards, ids))
            found.append(gdpo.estimate(torch.tensor(rewards), ids))
    finally:
        room._height = original
    for other in found:
        close(other.advantages, expected.advantages)
        close(other.contributions, expected.contributions)
        assert np.array_equal(np.asarray(other.live), expected.live)
