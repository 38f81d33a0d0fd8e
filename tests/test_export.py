"""The same rewards in the shapes of verl, NeMo-RL and verifiers."""

from __future__ import annotations

import numpy as np
import pytest

import gdpo
from gdpo import Objective, Reward, export, rewards

RIGHT = "<think>x</think><answer>42</answer>"
NAN = float("nan")


@pytest.fixture
def objective():
    return Objective(
        correct=rewards.math_answer(),
        format=Reward(rewards.tags("think", "answer"), weight=0.5),
        short=Reward(rewards.length_at_most(40, unit="characters"), weight=0.25, given="correct >= 1"),
    )


def test_verl(objective):
    compute_score = export.verl(objective)
    found = compute_score("gsm8k", RIGHT, "42", {"index": 3})
    assert found == {"score": 1.75, "correct": 1.0, "format": 1.0, "short": 1.0}
    assert compute_score(data_source="gsm8k", solution_str="42", ground_truth="42", extra_info=None, reward_kwarg=1) == {
        "score": 0.0, "correct": 0.0, "format": 0.0, "short": 1.0
    }  # fmt: skip
    with pytest.warns(UserWarning, match="1 completions have no 'answer'"):
        missing = compute_score("gsm8k", RIGHT, None)
    assert missing["score"] == 0.5
    assert np.isnan(missing["correct"])


def test_verl_in_batches(objective):
    compute_score = export.verl(objective)
    found = compute_score(
        data_sources=["a", "b"],
        solution_strs=[RIGHT, "no"],
        ground_truths=["42", "42"],
        extra_infos=[{"answer": "41"}, {}],
    )
    assert [row["correct"] for row in found] == [0.0, 0.0]  # a column of the sample's own comes first
    assert [row["score"] for row in found] == [0.5, 0.0]
    with pytest.raises(gdpo.Error, match="1 values beside 2 solutions"):
        compute_score(solution_strs=["a", "b"], ground_truths=["1"])
    with pytest.raises(gdpo.Error, match="neither"):
        compute_score("gsm8k")


def test_nemo_rl(objective):
    torch = pytest.importorskip("torch")
    logs = [
        [{"role": "user", "content": "q", "token_ids": torch.tensor([1])}, {"role": "assistant", "content": RIGHT, "token_ids": torch.tensor([2])}],
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": "no"}, {"role": "environment", "content": RIGHT}],
    ]  # fmt: skip
    found = export.nemo_rl(objective)(logs, [{"ground_truth": "42"}, {"ground_truth": "42"}])
    assert {name: values.tolist() for name, values in found.items()} == {
        "reward/correct": [1.0, 0.0], "reward/format": [1.0, 0.0], "reward/short": [1.0, 1.0]
    }  # fmt: skip


def test_verifiers(objective):
    functions, weights = export.verifiers(objective)
    assert weights == [1.0, 0.5, 0.25]
    assert [function.__name__ for function in functions] == ["correct", "format", "short"]
    chat = [{"role": "assistant", "content": RIGHT}]
    assert [function(chat, answer="42", prompt="q", state={}) for function in functions] == [1.0, 1.0, 1.0]
    assert [
        function([{"role": "assistant", "content": "41"}], answer="42", info={"a": 1}) for function in functions
    ] == [0.0, 0.0, 0.0]


def test_names_are_gathered_whichever_sample_comes_first():
    """verl#7151: names absent from the first sample are no reason to lose or to raise."""
    samples = [
        {"acc": 1},
        {"score": 1, "acc": 0, "format": 1},
        {"acc": "unknown", "format": 0},
        {"score": 0, "acc": True},
    ]
    expected = np.array([[1, NAN], [0, 1], [NAN, 0], [1, NAN]])
    np.testing.assert_array_equal(export.rewards_of(samples, ["acc", "format"]), expected)
    np.testing.assert_array_equal(export.rewards_of(samples[::-1], ["acc", "format"]), expected[::-1])
