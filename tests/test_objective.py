"""Objective: gates before normalisation, weights over time, scoring, state, and one object from Python and YAML."""

import asyncio
import json
import math

import numpy as np
import pytest

import gdpo
from gdpo import Objective, Progress, Reward
from gdpo.weights import ramp

NAN = math.nan


def constant(value):
    return lambda completions, **columns: [value for _ in completions]


def words(completions, **columns):
    return [float(len(text.split())) for text in completions]


@gdpo.reward(range=(0, 1))
def right(completions, answer, **columns):
    return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]


def test_gate_fills_with_zero_before_normalisation():
    """GDPO equation 8: the length reward of a wrong rollout is 0 before its group statistics are taken."""
    objective = Objective(correct=Reward(right), short=Reward(constant(1), given="correct >= 1"), method="mo_grpo")
    scores = np.array([[1, 1], [0, 1], [0, 1], [1, 0]], dtype=float)
    estimate = objective.advantages(scores, 4)
    np.testing.assert_array_equal(estimate.rewards, [[1, 1], [0, 0], [0, 0], [1, 0]])
    # One success in four: z = 1.5 and -0.5 (eps 1e-4 on a spread of 0.5).
    np.testing.assert_allclose(estimate.normalized[:, 1], [1.4997, -0.4999, -0.4999, -0.4999], atol=1e-4)
    np.testing.assert_array_equal(scores[:, 1], [1, 1, 1, 0])  # the caller's scores stay raw


def test_gate_with_missing_values():
    objective = Objective(correct=Reward(right), short=Reward(constant(1), given="correct >= 1"))
    gated = objective.gate([[NAN, 1], [1, NAN], [0, NAN], [0, 1]])
    np.testing.assert_array_equal(gated, [[NAN, NAN], [1, NAN], [0, NAN], [0, 0]])


def test_gate_floor_is_the_declared_minimum():
    """A penalty in [-1, 0] must not be lifted to 0, its best value, where the gate fails."""
    late = gdpo.reward(range=(-1, 0))(lambda completions, **columns: [-0.5 for _ in completions])
    objective = Objective(correct=Reward(right), late=Reward(late, given="correct >= 1"))
    np.testing.assert_array_equal(objective.gate([[1, -0.5], [0, -0.5]])[:, 1], [-0.5, -1])
    other = Objective(correct=Reward(right), late=Reward(late, given="correct >= 1", floor=-2))
    np.testing.assert_array_equal(other.gate([[1, -0.5], [0, -0.5]])[:, 1], [-0.5, -2])


def test_gates_read_raw_scores():
    """A gate on a gated reward looks at its raw score, so that the order of the gates does not matter."""
    objective = Objective(
        a=Reward(constant(1)), b=Reward(constant(1), given="a >= 1"), c=Reward(constant(1), given="b >= 1")
    )
    np.testing.assert_array_equal(objective.gate([[0, 1, 1]]), [[0, 0, 1]])


def test_gates_on_tensors():
    torch = pytest.importorskip("torch")
    objective = Objective(correct=Reward(right), short=Reward(constant(1), given="correct >= 1"))
    gated = objective.gate(torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float16))
    assert gated.dtype == torch.float16
    assert gated.tolist() == [[1, 1], [0, 0]]


def test_weights_follow_the_step():
    objective = Objective(a=Reward(constant(1), weight=2.0), b=Reward(constant(1), weight=ramp(0.2, 1.0, steps=100)))
    scores = np.array([[1, 0], [0, 1]], dtype=float)
    for step, expected in ((0, 0.2), (50, 0.6), (100, 1.0), (500, 1.0)):
        weights = objective.advantages(scores, 2, Progress(step)).weights
        np.testing.assert_allclose(weights, [2.0, expected], rtol=1e-12)


def test_ramp_can_begin_later():
    assert [ramp(1, 0, steps=10, begin=5).value(Progress(step)) for step in (0, 5, 10, 15, 99)] == [1, 1, 0.5, 0, 0]


def test_score_collects_sync_and_async_rewards():
    async def judge(completions, **columns):
        await asyncio.sleep(0)
        return [None, 0.5]

    objective = Objective(words=words, right=Reward(right), judge=judge)
    expected = [[2, 1, NAN], [1, 0, 0.5]]
    np.testing.assert_array_equal(objective.score(["two words", "x"], answer=["two words", "y"]), expected)

    async def inside_a_loop():
        return objective.score(["two words", "x"], answer=["two words", "y"])

    np.testing.assert_array_equal(asyncio.run(inside_a_loop()), expected)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ([1.0], "returned 1 scores, but 2"),
        (3, "returned 3, but 2"),
        (["a", "b"], "returned 'a'"),
        ("ab", "returned 'ab', but 2"),
    ],
)
def test_wrong_results_name_the_reward(result, said):
    objective = Objective(odd=lambda completions, **columns: result)
    with pytest.raises(gdpo.Error, match=f"'odd' {said}"):
        objective.score(["x", "y"])


def test_a_raising_reward_is_named():
    def broken(completions, **columns):
        raise KeyError("answer")

    with pytest.raises(gdpo.Error, match="'broken' raised KeyError"):
        Objective(broken=broken).score(["x"])


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Objective(), "at least one reward"),
        (lambda: Objective(a=constant(1), method="gdop"), "did you mean 'gdpo'"),
        (lambda: Objective(a=3), "'a' is 3"),
        (lambda: Objective(a=Reward(constant(1), given="corect >= 1"), correct=constant(1)), "did you mean 'correct'"),
        (lambda: Objective(a=Reward(constant(1), weight=NAN)), "weight of 'a' is nan"),
        (lambda: Objective(a=Reward(constant(1), weight={"schedule": "rmap"})), "did you mean 'ramp'"),
        (lambda: Objective(a=Reward(constant(1), weight={"schedule": "ramp", "strat": 1})), "did you mean 'start'"),
        (lambda: Objective(a=Reward(constant(1), weight={"schedule": "ramp"})), "missing"),
        (lambda: Objective(a=constant(1), options={"clp": 3}), "did you mean 'clip'"),
        (lambda: Objective(a=constant(1), options={"clip": -3}), "clip is -3"),
        (lambda: Objective(a=Reward(constant(1), range=(1, 0))), "range of 'a'"),
        (lambda: Objective(a=constant(1), options={"rollouts": [1]}), "'rollouts' belongs to a batch"),
    ],
)
def test_errors(build, said):
    with pytest.raises(gdpo.Error, match=said):
        build()


YAML = """
method: gdpo
options: {clip: 3.0}
rewards:
  correct: {reward: math_answer, extraction: boxed, weight: 1.0}
  format: {reward: tags, args: [think, answer], weight: {schedule: ramp, start: 0.2, end: 1.0, steps: 100}}
  concise: {reward: length_at_most, n: 256, weight: 0.5, given: "correct >= 1"}
"""


def test_python_and_yaml_build_the_same_object():
    from_yaml = Objective.from_yaml(YAML)
    from_python = Objective(
        correct=Reward(gdpo.rewards.math_answer(extraction="boxed")),
        format=Reward(gdpo.rewards.tags("think", "answer"), weight=ramp(0.2, 1.0, steps=100)),
        concise=Reward(gdpo.rewards.length_at_most(256), weight=0.5, given="correct >= 1"),
        options={"clip": 3.0},
    )
    scores = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 0], [0, 0, 1]], dtype=float)
    for step in (0, 30):
        one, two = (o.advantages(scores, 4, Progress(step)) for o in (from_yaml, from_python))
        np.testing.assert_array_equal(one.advantages, two.advantages)
        np.testing.assert_array_equal(one.rewards, two.rewards)
    again = Objective.from_yaml(from_yaml.to_yaml())
    assert again.to_yaml() == from_yaml.to_yaml()
    written, config = again.config(), from_yaml.config()
    assert [entry.pop("range") for entry in written["rewards"].values()] == [[0.0, 1.0]] * 3
    assert written == config
    assert from_yaml.bounds() == [(0, 1)] * 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("math_answer", "maths_answer"), "did you mean 'math_answer'"),
        (("extraction", "extration"), "did you mean 'extraction'"),
        (("method", "metod"), "did you mean 'method'"),
        (("boxed", "box"), "did you mean 'boxed'"),
        (("n: 256", "n: 0"), "n=0"),
        (("rewards:", "rewards: [1]\nx:"), "no key 'x'"),
        (("{reward: tags", "{reward: [tags"), "cannot be read"),
    ],
)
def test_yaml_errors(change, said):
    with pytest.raises(gdpo.Error, match=said):
        Objective.from_yaml(YAML.replace(*change))


def test_yaml_is_safe(tmp_path):
    hostile = f"method: !!python/object/apply:os.system ['touch {tmp_path}/x']\nrewards: {{}}"
    with pytest.raises(gdpo.Error):
        Objective.from_yaml(hostile)
    assert not (tmp_path / "x").exists()


def test_reward_from_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def even(completions, **columns):\n    return [float(len(c) % 2 == 0) for c in completions]\n"
        "def of_length(n):\n    return lambda completions, **columns: [float(len(c) == n) for c in completions]\n"
    )
    recipe = tmp_path / "objective.yaml"
    recipe.write_text("rewards:\n  even: {reward: 'mine.py:even'}\n  three: {reward: 'mine.py:of_length', n: 3}\n")
    objective = Objective.from_yaml(recipe)
    np.testing.assert_array_equal(objective.score(["ab", "abc"]), [[1, 0], [0, 1]])
    for spec, said in (("mine.py:odd", "no function 'odd'"), ("none.py:even", "does not exist")):
        recipe.write_text(f"rewards:\n  even: {{reward: '{spec}'}}\n")
        with pytest.raises(gdpo.Error, match=said):
            Objective.from_yaml(recipe)


def test_state_survives_json():
    objective = Objective(a=constant(1), b=Reward(constant(1), weight=ramp(0, 1, steps=5)))
    state = json.loads(json.dumps(objective.state_dict()))
    objective.load_state_dict(state)
    with pytest.raises(gdpo.Error, match="were expected"):
        Objective(a=constant(1)).load_state_dict(state)


def test_functions_carry_the_objectives_names():
    objective = Objective(first=words, second=Reward(right))
    assert [function.__name__ for function in objective.functions()] == ["first", "second"]
    assert objective.functions()[0](["a b"]) == [2.0]


def test_what_if_with_another_method():
    objective = Objective(a=constant(1), b=constant(1), options={"clip": 3.0})
    scores = np.array([[1, 1], [0, 0], [1, 0], [0, 0]], dtype=float)
    assert objective.advantages(scores, 4, method="grpo").method == "grpo"
    assert objective.advantages(scores, 4).method == "gdpo"


def test_one_rollout_that_raises_loses_its_own_score(caplog):
    def relative(completions, **columns):
        """Depends on its batch, and cannot stand one of its texts."""
        lengths = [1 / (len(text) - 3) for text in completions]
        return [length / max(lengths) for length in lengths]

    async def judge(completions, answer, **columns):
        if "bad" in completions:
            raise TimeoutError("judge")
        return [float(len(text)) for text in answer]

    objective = Objective(relative=relative, judge=judge, fine=constant(1))
    texts = ["four", "abcdefgh", "bad", "fives", *["sixsix"] * 7]
    with caplog.at_level("WARNING", "gdpo.rewards"):
        scores = objective.score(texts, answer=[text * 2 for text in texts], note="not a column")
    np.testing.assert_allclose(scores[:5, 0], [1, 0.2, NAN, 0.5, 1 / 3])
    np.testing.assert_array_equal(scores[:5, 1], [8, 16, NAN, 10, 12])
    assert (scores[:, 2] == 1).all()
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "'relative' raised ZeroDivisionError" in said
    assert "completion 2, 'bad'" in said
    assert "'judge' raised TimeoutError" in said
    named = objective.functions()[0]
    assert named(texts)[2] is None


def test_too_many_failures_stop_the_run():
    def broken(completions, **columns):
        if any(text.startswith("b") for text in completions):
            raise ValueError("no b")
        return [1.0] * len(completions)

    objective = Objective(broken=broken)
    assert np.isnan(objective.score(["b", "c"])).tolist() == [[True], [False]]  # one is never too many
    with pytest.raises(gdpo.Error, match=r"'broken' raised ValueError: no b \(on 3 of 10 completions\)"):
        objective.score(["b"] * 3 + ["c"] * 7)


def test_a_batch_that_raises_only_as_a_whole_keeps_the_scores(caplog):
    def flaky(completions, **columns):
        if len(completions) > 1:
            raise MemoryError("too large")
        return [2.0]

    with caplog.at_level("WARNING", "gdpo.rewards"):
        assert Objective(flaky=flaky).score(["a", "b"]).tolist() == [[2.0], [2.0]]
    assert "on no completion alone" in caplog.text


def test_passing_only():
    """What fails the gate is missing, so that the passing rollouts are compared with each other only."""
    objective = Objective(correct=Reward(right), short=Reward(constant(1), given="correct >= 1", failing="missing"))
    gated = objective.gate([[1, 5], [0, 9], [1, 3], [NAN, 2]])
    np.testing.assert_array_equal(gated, [[1, 5], [0, NAN], [1, 3], [NAN, NAN]])


def test_soft_gates():
    objective = Objective(
        quality=Reward(constant(1)), format=Reward(constant(1)),
        short=Reward(constant(1), given="soft(quality, 0.2, 0.8) and format >= 1", range=(-1, 1)),
    )  # fmt: skip
    scores = [[0.1, 1, 1], [0.5, 1, 1], [0.9, 1, 0.3], [0.9, 0, 1], [NAN, 1, 1], [NAN, 0, 1]]
    gated = objective.gate(scores)[:, 2]
    np.testing.assert_allclose(gated, [-1, 0, 0.3, -1, NAN, -1], atol=1e-12)
    for text in ("soft(quality, 1, 0)", "soft(1, 0, 1)", "soft(quality)", "hard(quality, 0, 1)"):
        with pytest.raises(gdpo.Error, match="condition"):
            Objective(quality=constant(1), short=Reward(constant(1), given=text))


def test_scale_of_one_reward():
    objective = Objective(a=constant(1), b=Reward(constant(1), scale="none"))
    scores = np.random.default_rng(0).random((12, 2))
    expected = gdpo.advantages(scores, 4, scale=["group", "none"])
    np.testing.assert_allclose(objective.advantages(scores, 4).advantages, expected, atol=1e-12)
    assert "scale: none" in objective.to_yaml()
    with pytest.raises(gdpo.Error, match="scale of 'b' is 'grup'.*'group'"):
        Objective(a=constant(1), b=Reward(constant(1), scale="grup"))


def test_levels():
    """By hand: the level's weighted sum of z is normalised in the group again, then counts as one reward."""
    scores = np.random.default_rng(1).integers(0, 3, (24, 3)).astype(float)
    scores[8:12, 1:] = 1.0  # the level is dead in one group
    objective = Objective(
        a=constant(1),
        b=Reward(constant(1), weight=0.5),
        c=constant(1),
        levels={"style": {"rewards": ["b", "c"], "weight": 0.7}},
    )
    found = objective.advantages(scores, 4)

    def z(values):
        grouped = values.reshape(-1, 4)
        centered = grouped - grouped.mean(1, keepdims=True)
        return (centered / (grouped.std(1, ddof=1, keepdims=True) + 1e-4)).reshape(-1)

    style = 0.5 * z(scores[:, 1]) + z(scores[:, 2])
    total = z(scores[:, 0]) + 0.7 * z(style)
    np.testing.assert_allclose(found.advantages, total / (total.std(ddof=1) + 1e-4), atol=1e-9)
    np.testing.assert_allclose(found.contributions.sum(1), found.advantages, atol=1e-12)
    assert (found.contributions[8:12, 1:] == 0).all()
    torch = pytest.importorskip("torch")
    np.testing.assert_allclose(objective.advantages(torch.tensor(scores), 4).advantages, found.advantages, atol=1e-12)
    assert objective.config()["levels"] == {"style": {"rewards": ["b", "c"], "weight": 0.7}}
    assert objective.advantages(scores, 4, method="grpo").names == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("levels", "method", "said"),
    [
        ({"x": ["a", "d"]}, "gdpo", "names 'd', which is no reward"), ({"x": ["a"], "y": ["a"]}, "gdpo", "stands in the levels"),
        ({"x": "a"}, "gdpo", "a list of rewards"), ({"x": {"rewards": ["a"], "weight": 0}}, "gdpo", "positive number"),
        ({"x": {"reward": ["a"]}}, "gdpo", "did you mean 'rewards'"), (["a"], "gdpo", "a mapping"),
        ({"x": ["a"]}, "grpo", "normalises each reward first"),
    ],
)  # fmt: skip
def test_wrong_levels(levels, method, said):
    with pytest.raises(gdpo.Error, match=said):
        Objective(a=constant(1), b=constant(1), levels=levels, method=method)


def test_completions_need_not_be_the_first_argument():
    """TRL passes everything by name, so its rewards are often written (prompts, completions, ...)."""

    def trl_style(prompts, completions, **columns):
        return [float(len(p) + len(c)) for p, c in zip(prompts, completions, strict=True)]

    def another_name(texts, **columns):
        return [float(len(text)) for text in texts]

    objective = Objective(trl_style=trl_style, another_name=another_name)
    assert objective.score(["a", "bb"], prompts=["x", "yyy"]).tolist() == [[2, 1], [5, 2]]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("method", ["gdpo", "mo_grpo", "saw", "dara", "gd2po", "rvpo"])
def test_every_level_tied(library, method):
    """All rewards inside levels and nothing varies in a batch: advantages of 0, and the objective can be built."""
    objective = Objective(a=Reward(constant(1)), b=Reward(constant(1), weight=-1), c=Reward(constant(1)), method=method,
                          levels={"one": ["a", "b"], "two": ["c"]})  # fmt: skip
    scores = np.repeat([[0.7, 0.1, NAN], [1.0, 0.3, 0.3]], 4, axis=0)
    moving = scores.copy()
    moving[0, 0] = 1.0
    if library == "torch":
        torch = pytest.importorskip("torch")
        scores, moving = torch.tensor(scores), torch.tensor(moving)
    estimate = objective.advantages(scores, 4)
    assert np.asarray(estimate.advantages).tolist() == [0.0] * 8
    assert not np.asarray(estimate.contributions).any()
    assert not np.asarray(estimate.live).any()
    assert not np.asarray(objective.advantages(scores, 4, method="grpo").advantages).any()
    assert np.asarray(objective.advantages(moving, 4).advantages)[:4].any()


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("levels", [None, {"both": ["a", "b"]}])
def test_schedules_that_are_0_for_a_time(library, levels):
    """A curriculum may begin with nothing: advantages of 0 until a weight rises."""
    objective = Objective(
        a=Reward(constant(1), weight=ramp(0, 1, steps=10, begin=5)), b=Reward(constant(1), weight=0), levels=levels
    )
    scores = np.array([[1.0, 0.0], [0.0, NAN], [1.0, 1.0], [1.0, 0.0]])
    if library == "torch":
        scores = pytest.importorskip("torch").tensor(scores, dtype=pytest.importorskip("torch").float32)
    for step, moves in ((0, False), (5, False), (6, True), (100, True)):
        estimate = objective.advantages(scores, 2, Progress(step))
        assert np.isfinite(np.asarray(estimate.advantages)).all()
        assert bool(np.asarray(estimate.advantages).any()) == moves
        assert type(estimate.advantages) is type(scores)
        assert bool(np.asarray(estimate.weights).any()) == moves
    for method in gdpo.core.estimators.METHODS:
        if method != "sa_mrpo":
            assert not np.asarray(objective.advantages(scores, 2, method=method).advantages).any()


def test_constant_weights_of_0_are_a_mistake():
    for levels in (None, {"both": ["a", "b"]}):
        with pytest.raises(gdpo.Error, match="every weight is 0"):
            Objective(a=Reward(constant(1), weight=0), b=Reward(constant(1), weight=0.0), levels=levels)
    for weights in ([0, 0], (0.0, 0.0), {"a": 0, "b": 0}, np.zeros(2)):
        with pytest.raises(gdpo.Error, match="every weight is 0"):
            gdpo.advantages({"a": [1, 0], "b": [0, 1]}, 2, weights=weights)
