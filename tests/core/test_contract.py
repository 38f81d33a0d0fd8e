"""The central contract on both libraries: ties, missing values, dtypes, ids, options, errors."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import gdpo
from gdpo.core.estimators import METHODS

NAN = float("nan")
ALL = sorted(METHODS)


def extra(method, count=2):
    """What a method cannot do without."""
    return {"bounds": [(-4.0, 4.0)] * count} if METHODS[method].needs else {}


DTYPES = [("numpy", d) for d in ("float16", "float32", "float64")] + [
    ("torch", d) for d in ("float16", "bfloat16", "float32", "float64")
]


def make(values, library="numpy", dtype="float64"):
    values = np.asarray(values, dtype=float)
    return torch.tensor(values).to(getattr(torch, dtype)) if library == "torch" else values.astype(dtype)


def numbers(values):
    return np.asarray(values.double() if isinstance(values, torch.Tensor) else values, dtype=float)


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize(("library", "dtype"), DTYPES)
@pytest.mark.parametrize("method", ALL)
def test_constant_groups_get_exactly_zero(method, library, dtype, batch_norm):
    """0.7 seven times has no exact float mean: TRL gives 0.002, ms-swift 1.03, verl 0.98 (groups of 6)."""
    generator = np.random.default_rng(1)
    for size in range(2, 11):
        values = np.repeat(np.arange(1, 100)[:, None] / 100, size, axis=0).reshape(-1, 1)
        alone = np.hstack([values, values[::-1]])
        options = {"batch_norm": batch_norm, **extra(method)}
        assert (numbers(gdpo.advantages(make(alone, library, dtype), size, method, **options)) == 0).all()
        among = np.vstack([alone, generator.random((size * 3, 2))])
        found = numbers(gdpo.advantages(make(among, library, dtype), size, method, **options))
        assert (found[: len(alone)] == 0).all()
        assert not np.signbit(found[: len(alone)]).any()
        assert (found[len(alone) :] != 0).any()


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("method", ALL)
def test_weights_by_rollout_may_all_be_0_in_a_batch(method, library):
    """Levels and confidences can come to nothing in a batch: that gives 0, and the norm of a stream goes on."""
    rewards = make([[1, 0], [0, NAN], [1, 1], [0, 1]], library)
    nothing, norm = make(np.zeros((4, 2)), library), gdpo.RunningNorm()
    for options in ({}, {"eps": 0.0}, {"running": norm}, {"baseline": "leave-one-out", "clip": 1.0}):
        found = gdpo.estimate(rewards, 2, method, nothing, **options, **extra(method))
        assert numbers(found.advantages).tolist() == [0.0] * 4
        assert not numbers(found.contributions).any()
        assert numbers(found.weights).shape == (4, 2)
    after = numbers(gdpo.advantages(rewards, 2, method, nothing + 1.0, running=norm, **extra(method)))
    assert np.isfinite(after).all()
    assert after.any()


@pytest.mark.parametrize("method", ALL)
def test_a_tied_reward_contributes_nothing_beside_a_live_one(method):
    found = gdpo.estimate(make([[0.7, 1], [0.7, 0], [0.7, 1]] * 3), 3, method, **extra(method))
    assert (found.contributions[:, 0] == 0).all()
    assert (found.live == [[False, True]] * 3).all()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_missing_rewards(library):
    """TRL issue 2832 (maths and code in one batch), verl (one NaN), TRL pull request 5902 (nothing to score)."""
    half = [[1, NAN], [0, NAN], [1, NAN], [0, NAN], [NAN, 1], [NAN, 0], [NAN, 0], [NAN, 0]]
    expected = [
        0.935325831,
        -0.935325831,
        0.935325831,
        -0.935325831,
        1.619988461,
        -0.539996154,
        -0.539996154,
        -0.539996154,
    ]
    np.testing.assert_allclose(numbers(gdpo.advantages(make(half, library), 4)), expected, atol=1e-8)
    one = [[1, 1], [0, NAN], [1, 0], [0, 0]]
    np.testing.assert_allclose(
        numbers(gdpo.advantages(make(one, library), 4)),
        [1.322789044, -0.56690959, 0.188969863, -0.944849317],
        atol=1e-8,
    )
    nothing = [[1, 1], [0, 0], [NAN, NAN], [1, 0]]
    found = numbers(gdpo.advantages(make(nothing, library), 4))
    np.testing.assert_allclose(found, [0.999942258, -0.999942258, 0, 0], atol=1e-8)
    assert found[2] == 0


def test_a_group_of_one_gets_zero():
    found = gdpo.advantages(make([[100, 0], [1, 0], [0, 1], [1, 1]]), ["x", "y", "y", "y"])
    np.testing.assert_allclose(found, [0, -0.707020174, -0.707020174, 1.414040349], atol=1e-8)
    assert found[0] == 0


def test_an_offset_of_a_million_costs_no_digits():
    rewards = [[1000001, 0], [1000000, 1], [1000003, 0], [1000002, 1]]
    expected = [-1.191846546, -0.281454258, 0.281454258, 1.191846546]
    np.testing.assert_allclose(gdpo.advantages(make(rewards), 4), expected, atol=1e-8)
    np.testing.assert_allclose(gdpo.advantages(make(rewards, "torch", "float32"), 4).double(), expected, atol=1e-6)


def test_scales_far_apart():
    base = make(np.random.default_rng(3).integers(0, 2, (16, 2)))
    scaled = base * [1e-9, 1e9]
    one, two = (gdpo.advantages(r, 4, eps=0) for r in (base, scaled))
    np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "ids",
    [
        ["b", "a", "b", "a", "b"],
        [7, -3, 7, -3, 7],
        np.array([2**62, 1, 2**62, 1, 2**62]),
        [(1, "x"), (2,), (1, "x"), (2,), (1, "x")],
        np.array(["b", "a", "b", "a", "b"]),
        torch.tensor([5, 1, 5, 1, 5]),
        np.array([1, 0, 1, 0, 1], dtype=np.uint8),
        ["b", 1, "b", 1, "b"],
    ],
)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_ids_of_any_kind(ids, library):
    rewards = make([[1, 0], [0, 2], [0, 1], [1, 3], [1, 1]], library)
    expected = [-0.471356042, -1.154618481, -0.471356042, 1.154618481, 0.942712084]
    np.testing.assert_allclose(numbers(gdpo.advantages(rewards, ids)), expected, atol=1e-8)
    estimate = gdpo.estimate(rewards, ids)
    assert np.asarray(estimate.group).tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    "values",
    [
        np.array([[1, 0], [0, 0], [1, 1], [0, 1]]),
        np.array([[1, 0], [0, 0], [1, 1], [0, 1]], dtype=bool),
        [[1, 0], [0, 0], [1, 1], [0, 1]],
        torch.tensor([[1, 0], [0, 0], [1, 1], [0, 1]]),
        torch.tensor([[True, False], [False, False], [True, True], [False, True]]),
        np.asfortranarray(np.array([[1.0, 0], [0, 0], [1, 1], [0, 1]])),
        np.array([[1, 9, 0, 9], [0, 9, 0, 9], [1, 9, 1, 9], [0, 9, 1, 9]], dtype=float)[:, ::2],
        {"a": [1, 0, 1, 0], "b": [0, 0, 1, 1]},
    ],
)
def test_inputs_of_any_kind(values):
    """Integers and booleans give float64."""
    found = gdpo.advantages(values, 4, "mo_grpo", eps=0)
    np.testing.assert_allclose(numbers(found), [0, -1.73205081, 1.73205081, 0], atol=1e-8)
    assert str(found.dtype).endswith("float64")
    assert isinstance(found, torch.Tensor) == isinstance(values, torch.Tensor)


def test_read_only_input_stays_as_it_is():
    rewards = make([[1, 0], [0, NAN], [1, 1]])
    rewards.flags.writeable = False
    before = rewards.copy()
    gdpo.estimate(rewards, 3)
    np.testing.assert_array_equal(rewards, before)


def test_none_is_missing():
    np.testing.assert_array_equal(
        gdpo.advantages([[1, None], [0, 1], [1, 0]], 3), gdpo.advantages([[1, NAN], [0, 1], [1, 0]], 3)
    )


@pytest.mark.parametrize("method", ALL)
def test_small_batches(method):
    assert gdpo.advantages(np.zeros((0, 2)), 4, method).shape == (0,)
    assert gdpo.advantages(torch.zeros((0, 2), dtype=torch.float16), [], method).dtype == torch.float16
    assert gdpo.advantages([[3.0, 1.0]], 1, method, **extra(method)).tolist() == [0.0]
    many = np.random.default_rng(0).random((8, 25))
    found = gdpo.estimate(many, 4, method, **extra(method, 25))
    np.testing.assert_allclose(found.contributions.sum(1), found.advantages, atol=1e-12)


def test_weights_by_position_name_and_rollout_agree():
    rewards = {"a": [1, 0, 1, 0.0], "b": [0, 0, 1, 1.0]}
    one = gdpo.advantages(rewards, 4, weights=[0.7, 0.3])
    np.testing.assert_array_equal(one, gdpo.advantages(rewards, 4, weights={"b": 0.3, "a": 0.7}))
    np.testing.assert_allclose(one, gdpo.advantages(rewards, 4, weights=[[0.7, 0.3]] * 4), atol=1e-15)
    np.testing.assert_array_equal(
        one,
        gdpo.advantages([[1, 0], [0, 0], [1, 1], [0, 1.0]], 4, weights=torch.tensor([0.7, 0.3], dtype=torch.float64)),
    )


@pytest.mark.parametrize("method", ALL)
def test_a_penalty_is_the_flipped_reward(method):
    rewards = make(np.random.default_rng(5).random((12, 2)))
    flipped = rewards * [1, -1]
    one = gdpo.estimate(rewards, 4, method, weights=[1, -0.5], **extra(method))
    two = gdpo.estimate(flipped, 4, method, weights=[1, 0.5], **extra(method))
    np.testing.assert_allclose(one.advantages, two.advantages, atol=1e-14)
    np.testing.assert_allclose(one.normalized * [1, -1], two.normalized, atol=1e-14)
    np.testing.assert_allclose(one.weights, [1, -0.5])


@pytest.mark.parametrize("method", ALL)
def test_weight_zero_is_absent(method):
    rewards = make(np.random.default_rng(6).random((12, 3)))
    rewards[2, [0, 2]] = NAN  # only the reward of weight 0 is left: this rollout takes no part
    one = gdpo.estimate(rewards, 4, method, weights=[1, 0, 2], **extra(method, 3))
    two = gdpo.estimate(rewards[:, [0, 2]], 4, method, weights=[1, 2], **extra(method))
    np.testing.assert_array_equal(one.advantages, two.advantages)
    assert (one.contributions[:, 1] == 0).all()


@pytest.mark.parametrize("method", ALL)
def test_batch_ids_are_separate_calls(method):
    rewards = make(np.random.default_rng(7).random((16, 2)))
    labels = ["maths"] * 8 + ["code"] * 8
    found = gdpo.advantages(rewards, 4, method, batch_ids=labels, **extra(method))
    parts = [gdpo.advantages(rewards[part], 4, method, **extra(method)) for part in (slice(0, 8), slice(8, 16))]
    np.testing.assert_allclose(found, np.concatenate(parts), atol=1e-14)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("method", ALL)
def test_segments_count_once(method, library):
    rewards = make(np.random.default_rng(8).random((6, 2)), library)
    rows = [0, 1, 1, 1, 2, 3, 4, 4, 5]
    groups = np.array([0, 0, 0, 1, 1, 1])
    found = gdpo.estimate(
        rewards[rows],
        groups[rows],
        method,
        rollouts=[f"r{row}" for row in rows],
        include=np.ones(9, bool),
        **extra(method),
    )
    once = gdpo.estimate(rewards, groups, method, **extra(method))
    np.testing.assert_allclose(numbers(found.advantages), numbers(once.advantages)[rows], atol=1e-14)
    np.testing.assert_allclose(numbers(found.contributions), numbers(once.contributions)[rows], atol=1e-14)


@pytest.mark.parametrize("method", ALL)
def test_excluded_is_missing(method):
    rewards = make(np.random.default_rng(9).random((8, 2)))
    missing = rewards.copy()
    missing[[1, 6]] = NAN
    keep = np.ones(8, dtype=bool)
    keep[[1, 6]] = False
    np.testing.assert_array_equal(
        gdpo.advantages(rewards, 4, method, include=keep, **extra(method)),
        gdpo.advantages(missing, 4, method, **extra(method)),
    )
    assert (
        gdpo.advantages(torch.tensor(rewards), 4, method, include=torch.tensor(keep), **extra(method))[[1, 6]] == 0
    ).all()


def test_a_segmented_rollout_counts_once():
    """miles 2378, slime 2062: counting segments as rollouts gives 0.730 and -1.095."""
    found = gdpo.advantages([[1], [1], [1], [0], [0]], ["q"] * 5, rollouts=["a", "a", "a", "b", "c"])
    np.testing.assert_allclose(found, [1.15458506] * 3 + [-0.57729253] * 2, atol=1e-8)


def test_leave_one_out_keeps_the_spread():
    """NeMo-RL 1518: a leave-one-out std too divides by 0 + eps."""
    rewards = [[1], [0], [0], [0]]
    found = gdpo.estimate(rewards, 4, baseline="leave-one-out")
    np.testing.assert_allclose(found.combined, [1.99960008] + [-0.66653336] * 3, atol=1e-8)
    np.testing.assert_allclose(found.advantages, [1.499887486] + [-0.499962495] * 3, atol=1e-8)


def test_an_excluded_infinity_is_no_error():
    assert gdpo.advantages([[np.inf], [1.0], [0.0]], 3, include=[False, True, True])[0] == 0


def test_an_infinity_that_may_not_be_looked_at_stays_in_its_group(monkeypatch):
    """On a GPU values are not checked: the group gets NaN, every other group is as if it were not there."""
    monkeypatch.setattr("gdpo.core.batch.readable", lambda array: False)
    rewards = torch.tensor([[np.inf, 0], [1, 1], [0, 0], [1, 0], [0, 1], [1, 1.0]], dtype=torch.float64)
    for method in ALL:
        found = gdpo.advantages(rewards, 2, method, **extra(method))
        assert found[:2].isnan().all()
        assert found[2:].isfinite().all()
        if method not in ("dara", "saw", "sa_mrpo"):  # whose weights count that group's other, finite reward
            np.testing.assert_allclose(found[2:], gdpo.advantages(rewards[2:], 2, method, **extra(method)), atol=1e-14)
    monkeypatch.undo()
    with pytest.raises(gdpo.Error, match="'reward_0' is inf at row 0"):
        gdpo.validate(rewards, 2)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gdpo.advantages([1.0, 2.0], 2), r"shape \(2,\)"),
        (lambda: gdpo.advantages([["a"], ["b"]], 2), "cannot be read as numbers"),
        (lambda: gdpo.advantages(np.zeros((2, 1), complex), 2), "complex128"),
        (lambda: gdpo.advantages([[1.0], [2.0]], 0), "groups is 0"),
        (lambda: gdpo.advantages([[1.0], [2.0]], True), "groups is True"),
        (lambda: gdpo.advantages([[1.0], [2.0]], "ab"), "groups is 'ab'"),
        (lambda: gdpo.advantages([[1.0], [2.0]], [1]), r"\(1,\)"),
        (lambda: gdpo.advantages([[1.0], [2.0]], [[1], [2]]), r"groups is \[1\] at row 0"),
        (lambda: gdpo.advantages([[1.0], [2.0]], ["a", None]), "groups is None at row 1"),
        (lambda: gdpo.advantages([[1.0], [2.0]], [1.0, NAN]), "groups is nan at row 1"),
        (lambda: gdpo.advantages([[1.0], [2.0]], 2, "gdpoo"), "did you mean 'gdpo'"),
        (lambda: gdpo.advantages([[1.0], [2.0]], 2, clp=3), "did you mean 'clip'"),
        (lambda: gdpo.advantages([[1.0], [2.0]], 2, kappa=3), "no option 'kappa'"),
        (lambda: gdpo.advantages([[1.0], [2.0]], 2, eps=-1), "eps is -1"),
        (lambda: gdpo.advantages([[1.0], [2.0]], 2, eps="x"), "eps is 'x'"),
        (lambda: gdpo.advantages([[1.0], [2.0]], 2, ddof=2), "ddof is 2"),
        (lambda: gdpo.advantages([[1.0], [2.0]], 2, clip=0), "clip is 0"),
        (lambda: gdpo.advantages([[1.0], [2.0]], 2, batch_norm="yes"), "batch_norm is 'yes'"),
        (lambda: gdpo.advantages([[1.0], [2.0]], 2, baseline="median"), "baseline is 'median'"),
        (lambda: gdpo.advantages([[1.0], [2.0]], 2, scale="grp"), "scale is 'grp'"),
        (lambda: gdpo.advantages([[1.0], [2.0]], 2, scale=["group", "group"]), "1 were expected"),
        (lambda: gdpo.advantages([[1.0], [2.0]], 2, std_floor=-1), "std_floor is -1"),
        (lambda: gdpo.advantages([[1.0], [2.0]], 2, names=["a", "b"]), "names has 2 entries, but 1"),
        (lambda: gdpo.advantages([[1.0, 2.0]] * 2, 2, names=["a", "a"]), "'a' twice"),
        (lambda: gdpo.advantages([[1.0]] * 2, 2, weights=[NAN]), "weight of 'reward_0' is nan"),
        (lambda: gdpo.advantages([[1.0]] * 2, 2, weights=[[1], [-1]]), "both signs"),
        (lambda: gdpo.advantages([[1.0]] * 2, 2, weights=[[1], [NAN]]), "nan at row 1"),
        (lambda: gdpo.advantages([[1.0]] * 2, 2, weights=[[1]] * 3), "3 rows, but 2"),
        (lambda: gdpo.advantages({"a": [1.0, 2.0]}, 2, weights={"b": 1}), "'b', which is no reward"),
        (lambda: gdpo.advantages({"a": [1.0, 2.0], "b": [1, 2]}, 2, weights={"b": 1}), "no value for reward 'a'"),
        (lambda: gdpo.advantages({"a": [1.0, 2.0], "b": [1]}, 2), "different lengths"),
        (lambda: gdpo.advantages([[1.0]] * 2, 2, bounds=[(1, 0)]), "bounds of 'reward_0'"),
        (lambda: gdpo.advantages([[1.0]] * 2, 2, include=[True]), r"include has shape \(1,\)"),
        (lambda: gdpo.advantages([[1.0], [0.0]], 2, rollouts=["a", "a"]), "row 1 has other rewards than row 0"),
        (lambda: gdpo.advantages([[1.0], [-np.inf]], 2, names=["length"]), "'length' is -inf at row 1"),
        (lambda: gdpo.advantages(torch.tensor([[1.0], [np.inf]]), 2), "inf at row 1"),
    ],
)
def test_errors_name_the_value_and_what_was_expected(call, said):
    with pytest.raises(gdpo.Error, match=said):
        call()


def test_a_method_of_ones_own():
    """Ten lines: a registered function is a method everywhere."""
    from gdpo.core.estimators import ALIASES

    @gdpo.estimator("half_grpo", family="sum first", batch_norm=False, formula="c / 2", source="this test")
    def half(batch, *, divisor=2.0):
        c = batch.combine(batch.deviation)
        return c.divided(batch.xp.full_like(c.total, divisor))

    try:
        rewards = make([[1, 0], [0, 0], [1, 1], [0, 1]])
        np.testing.assert_allclose(gdpo.advantages(rewards, 4, "half_grpo"), [0, -0.5, 0.5, 0])
        np.testing.assert_allclose(gdpo.advantages(rewards, 4, "half_grpo", divisor=4.0), [0, -0.25, 0.25, 0])
        found = gdpo.estimate(rewards, 4, "half_grpo", batch_norm=True)
        np.testing.assert_allclose(found.contributions.sum(1), found.advantages, atol=1e-12)
    finally:
        METHODS.pop("half_grpo")
    assert "half_grpo" not in ALIASES


def test_a_method_from_a_file(tmp_path):
    """Known by ``file.py:name``, in an objective too, which writes where it came from."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import gdpo\n"
        "@gdpo.estimator('square_root')\n"
        "def square_root(batch):\n"
        '    """BN(sum_k sqrt(w_k) z_k)."""\n'
        "    return batch.combine(lambda k: batch.normalized(k).times(batch.weights[k].value ** -0.5))\n"
    )
    rewards = make([[1, 0], [0, 0], [1, 1], [0, 1]])
    try:
        found = gdpo.advantages(rewards, 4, f"{file}:square_root", weights=[4.0, 1.0])
        np.testing.assert_allclose(found, gdpo.advantages(rewards, 4, weights=[2.0, 1.0]), atol=1e-12)
        np.testing.assert_allclose(gdpo.advantages(rewards, 4, "square_root", weights=[4.0, 1.0]), found)
        objective = gdpo.Objective(method=f"{file}:square_root", a=gdpo.Reward(abs), b=gdpo.Reward(abs))
        assert objective.config()["method"] == f"{file}:square_root"
        assert METHODS["square_root"].formula == "BN(sum_k sqrt(w_k) z_k)."
        with pytest.raises(gdpo.Error, match=r"the file registers \['square_root'\]"):
            gdpo.advantages(rewards, 4, f"{file}:other")
        with pytest.raises(gdpo.Error, match="does not exist"):
            gdpo.advantages(rewards, 4, "nowhere.py:other")
        file.with_name("broken.py").write_text("1 / 0")
        with pytest.raises(gdpo.Error, match="raised ZeroDivisionError when it was read"):
            gdpo.advantages(rewards, 4, f"{tmp_path}/broken.py:x")
    finally:
        METHODS.pop("square_root", None)


def test_a_registered_name_is_not_taken_over():
    with pytest.raises(gdpo.Error, match="method 'gdpo' is registered already"):
        gdpo.estimator("gdpo")(lambda batch: None)


def test_gradients_and_autocast_leave_it_alone():
    rewards = torch.rand(16, 3, requires_grad=True)
    plain = gdpo.advantages(rewards.detach(), 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gdpo.advantages(rewards, 4)
    assert not found.requires_grad
    assert torch.equal(found, plain)


def test_importing_gdpo_is_light():
    heavy = ["torch", "polars", "pydantic", "transformers", "trl", "rich", "typer", "yaml", "jinja2"]
    code = f"import sys, gdpo; print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
