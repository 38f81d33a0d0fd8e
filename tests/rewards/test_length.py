"""Lengths: values from the papers' formulas, in tokens and in characters."""

from __future__ import annotations

import math

import pytest
from hostile import COMPLETIONS
from hypothesis import given, settings
from hypothesis import strategies as st

import gdpo
from gdpo import rewards


def of_lengths(score, lengths, **columns):
    return score([""] * len(lengths), completion_ids=[[0] * length for length in lengths], **columns)


def test_soft_overlong_is_dapos():
    """Eq. 13 with L_max 100 and L_cache 20."""
    score = rewards.soft_overlong(100, 20)
    assert of_lengths(score, [0, 80, 85, 90, 99, 100, 101, 5000]) == [0, 0, -0.25, -0.5, -0.95, -1, -1, -1]
    assert score.range == (-1.0, 0.0)
    assert score.__name__ == "soft_overlong_100_tokens"
    assert rewards.soft_overlong(4, 2, unit="characters")(["ab", "abc", "abcd"]) == [0, -0.5, -1]
    assert of_lengths(rewards.soft_overlong(10, 10), [0, 5, 10]) == [0, -0.5, -1]


def test_cosine_length_stays_beyond_its_maximum():
    """huggingface/open-r1#312: without the cap, twice the maximum earns as much as length 0."""
    score = rewards.cosine_length(maximum=1000, correct={"shortest": 1.0, "longest": 0.5})
    found = of_lengths(score, [0, 250, 500, 1000, 1500, 2000], correctness=[1] * 6)
    assert found == pytest.approx([1.0, 0.926776695, 0.75, 0.5, 0.5, 0.5], abs=1e-9)


def test_cosine_length_of_wrong_completions_and_of_unknown_ones():
    score = rewards.cosine_length(100, correct=(2, 1), wrong=(-10, 0))
    found = of_lengths(score, [0, 50, 100, 0, 7, 7, 7], correctness=[0, False, 0.5, True, None, math.nan, "?"])
    assert found == [-10, pytest.approx(-5), 0, 2, None, None, None]
    assert score.range == (-10.0, 2.0)
    assert of_lengths(rewards.cosine_length(100), [0, 100], correctness=[0, 0]) == [-1.0, -0.5]
    assert rewards.cosine_length(2, unit="characters")(["", "ab"], correctness=[1, 1]) == [1.0, 0.5]


def test_correctness_from_a_reward():
    score = rewards.cosine_length(100, correctness=rewards.math_answer(extraction="last_number"))
    found = score(["42", "41", "42"], completion_ids=[[], [], []], answer=["42", "42", None])
    assert found == [1.0, -1.0, None]
    assert "math_answer" in repr(score)


def test_target_length():
    assert of_lengths(rewards.target_length(100, 50), [100, 75, 125, 50, 150, 0]) == [1, 0.5, 0.5, 0, 0, 0]
    found = of_lengths(rewards.target_length(100, 50, shape="gaussian"), [100, 50, 150, 200])
    assert found == pytest.approx([1, 0.6065306597, 0.6065306597, 0.1353352832])
    assert rewards.target_length(3, 2, unit="characters")(["abc", "ab"]) == [1, 0.5]
    assert rewards.target_length(3, 2, unit="characters").__name__ == "target_length_3_characters"


def test_shortest_correct():
    score = rewards.shortest_correct()
    found = of_lengths(
        score, [10, 20, 5, 40, 8, 8], correctness=[1, 1, 0, None, 0, 0], prompts=["a", "a", "a", "a", "b", "b"]
    )
    assert found == [1, 0.5, 0, None, None, None]
    chats = [[{"role": "user", "content": text}] for text in ("a", "b", "a", "b")]
    assert of_lengths(score, [10, 30, 40, 15], correctness=[1] * 4, prompts=chats) == [1, 0.5, 0.25, 1]
    by_column = rewards.shortest_correct(correct="ok", group="id")
    assert of_lengths(by_column, [10, 40, 20], ok=[1, 1, 1], id=[7, 7, 8]) == [1, 0.25, 1]
    assert of_lengths(score, [0, 2], correctness=[1, 1], prompts=["a", "a"]) == [1, 0.5]


ANY = [
    rewards.soft_overlong(5, 2, unit="characters"), rewards.cosine_length(5, unit="characters"),
    rewards.target_length(5, 2, unit="characters"), rewards.target_length(5, 1e-300, "gaussian", unit="characters"),
    rewards.shortest_correct(unit="characters"),
]  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(COMPLETIONS, st.data())
def test_no_text_makes_a_reward_raise(completions, data):
    one = st.one_of(st.none(), st.floats(), st.booleans(), st.text(max_size=3), st.integers())
    correctness = data.draw(st.lists(one, min_size=len(completions), max_size=len(completions)))
    for score in ANY:
        found = score(completions, prompts=completions, correctness=correctness)
        assert len(found) == len(completions)
        assert all(value is None or score.range[0] <= value <= score.range[1] for value in found)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: rewards.soft_overlong(0, 1), "maximum=0"),
        (lambda: rewards.soft_overlong(10, 11), "buffer=11, but at most maximum=10"),
        (lambda: rewards.soft_overlong(10, 0), "buffer=0"),
        (lambda: rewards.cosine_length(10, correct=(1,)), "correct=\\(1,\\)"),
        (lambda: rewards.cosine_length(10, wrong={"short": 1, "long": 2}), "wrong=.*'shortest'"),
        (lambda: rewards.cosine_length(10, correct=(1, 1), wrong=(1, 1)), "for every completion"),
        (lambda: rewards.cosine_length(10, correctness=3), "correctness=3"),
        (lambda: rewards.target_length(10, 0), "width=0"),
        (lambda: rewards.target_length(10, math.nan), "width=nan"),
        (lambda: rewards.target_length(10, 1, "round"), "shape='round'"),
        (lambda: rewards.soft_overlong(10, 1, unit="words"), "unit='words'"),
        (lambda: rewards.soft_overlong(10, 1)(["a"]), "soft_overlong counts tokens, but no completion_ids"),
        (lambda: rewards.soft_overlong(10, 1)(["a"], completion_ids=[]), "0 entries, but 1"),
        (lambda: rewards.cosine_length(10, unit="characters")(["a"]), "column 'correctness'"),
        (lambda: rewards.shortest_correct(unit="characters")(["a"], correctness=[1]), "group=COLUMN"),
    ],
)
def test_errors(build, said):
    with pytest.raises(gdpo.Error, match=said):
        build()
