"""Repetition, variety, likeness and words: values by hand, and what hostile text costs."""

from __future__ import annotations

import random

import pytest
from hostile import COMPLETIONS, check_megabytes
from hypothesis import given, settings
from hypothesis import strategies as st

import gdpo
from gdpo import rewards
from gdpo.rewards.text import distinct_share

MEASURES = ("rouge1", "rouge2", "rougeL", "bleu", "chrf")


def test_repetition_sees_scripts_without_spaces():
    """jingyaogong/minimind#832: split by white space, a Chinese text is one word and never repeats."""
    texts = [
        "你好你好你好你好你好",
        "今天天气很好我们去公园",
        "one two three one two three one two three",
        "one two",
        "",
    ]
    assert rewards.repetition(3)(texts) == pytest.approx([0.75, 0, 0.571428571, 0, 0], abs=1e-6)
    assert rewards.repetition(1)(["a b a b", "ข้าข้า"]) == [0.5, 0.5]


def test_distinct():
    assert rewards.distinct(1)(["a b a b", "a", "", "你你"]) == [0.5, 1, None, 0.5]
    assert rewards.distinct(2)(["a b a b", "a"]) == [pytest.approx(2 / 3), None]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13, 64])
def test_ngrams_of_long_texts_are_counted_as_those_of_short_ones(n):
    draw = random.Random(n)
    parts = [draw.choice("ab") for _ in range(120_000)]
    parts[50_000:50_100] = [str(number) for number in range(100)]
    expected = len({tuple(parts[start : start + n]) for start in range(len(parts) - n + 1)}) / (len(parts) - n + 1)
    assert distinct_share(parts, n) == expected


@pytest.mark.parametrize("measure", ["rouge1", "rouge2", "rougeL", "bleu"])
def test_the_same_is_one_and_nothing_shared_is_zero(measure):
    """modelscope/ms-swift#10148: a score from 0 to 1 was compared with thresholds of 10 and 20."""
    action = "Action: search\nAction Input: New York weather"
    texts = [action, "alpha beta gamma", "今天天气", "Привет", "", "..."]
    found = rewards.similarity(gold="reference", measure=measure)(
        texts, reference=[action, "delta epsilon zeta", "今天天气", "Привет", "a", "..."]
    )
    assert found == [1, 0, 1, 1, 0, 1]
    assert rewards.similarity(measure=measure).range == (0.0, 1.0)


@pytest.mark.parametrize(
    ("measure", "text", "reference", "expected"),
    [
        ("rouge1", "the cat sat", "the cat ran far", 2 * 2 / 7), ("rouge2", "the cat sat", "the cat ran far", 2 * 1 / 5),
        ("rougeL", "a c b d", "a b c d", 0.75), ("rouge1", "THE CAT!", "the cat", 1), ("rouge1", "明天下雨", "明天晴", 4 / 7),
        ("bleu", "a b c d", "a b c d e", 0.7788007831), ("chrf", "cats", "dogs", 0.04166666666666666),
    ],
)  # fmt: skip
def test_similarity_by_hand(measure, text, reference, expected):
    if measure == "chrf":
        found = rewards.similarity(measure=measure)([text, reference], reference=[reference] * 2)
        assert 0 < found[0] < 0.2
        assert found[1] == 1
        return
    assert rewards.similarity(measure=measure)([text], reference=[reference]) == [pytest.approx(expected)]


def test_similarity_without_a_reference_and_with_several():
    score = rewards.similarity(gold="gold", measure="rouge1")
    assert score(["a b"] * 5, gold=[None, "", float("nan"), [], ["x", None, "a b"]]) == [None, None, None, None, 1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I like the Café and tea.", 1), ("CAFÉ, TEA", 1), ("cafe\u0301 tea", 1), ("cafés tea", 0), ("tea", 0),
        ("café tea coffee", 0), ("café tea coffees", 1), ("café steam", 0), ("", 0), ("café-tea", 1), ("café_tea", 0),
    ],
)  # fmt: skip
def test_words(text, expected):
    assert rewards.words(include=["café", "Tea"], exclude=["coffee"])([text]) == [expected]


def test_words_partly_in_phrases_and_in_other_scripts():
    score = rewards.words(include=["a", "b", "c d"], exclude=["x"], partial=True)
    assert score(["a b c\nd", "a b c", "a", "", "a b c d x"]) == [1, pytest.approx(2 / 3), pytest.approx(1 / 3), 0, 0]
    assert rewards.words(["天气"])(["今天天气很好", "今天"]) == [1, 0]
    assert rewards.words(["नम"])(["नम है", "नमस्ते", "नमि"]) == [1, 0, 0]
    assert rewards.words(exclude=["bad"])(["", "bad", "badly"]) == [1, 0, 1]
    assert rewards.words(["straße"])(["STRASSE"]) == [1]
    assert rewards.words(["C++", "a.b"])(["C++ a.b", "C a.b", "C++ axb"]) == [1, 0, 0]


ANY = [
    rewards.repetition(1), rewards.repetition(3), rewards.repetition(1000), rewards.distinct(1), rewards.distinct(2),
    rewards.words(["the", "你"], ["x"]), rewards.words(["café"], partial=True),
]  # fmt: skip
ALIKE = [rewards.similarity(measure=measure) for measure in MEASURES]


@settings(deadline=None, max_examples=150)
@given(COMPLETIONS, st.data())
def test_no_text_makes_a_reward_raise(completions, data):
    one = st.one_of(st.none(), st.text(), st.integers(), st.lists(st.one_of(st.text(), st.none()), max_size=2))
    reference = data.draw(st.lists(one, min_size=len(completions), max_size=len(completions)))
    for score in ANY + ALIKE:
        found = score(completions, reference=reference)
        assert len(found) == len(completions)
        assert all(value is None or 0.0 <= value <= 1.0 for value in found)


@pytest.mark.parametrize("score", ANY + ALIKE, ids=repr)
def test_megabytes(score):
    check_megabytes(score, reference=["a b 你 " * 20_000])


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: rewards.repetition(0), "repetition has n=0"),
        (lambda: rewards.repetition(-1), "repetition has n=-1"),
        (lambda: rewards.distinct(0), "distinct has n=0"),
        (lambda: rewards.similarity(measure="rogueL"), "did you mean 'rougeL'"),
        (lambda: rewards.similarity()(["a"]), "column 'reference'"),
        (lambda: rewards.words(), "neither include nor exclude"),
        (lambda: rewards.words("word"), "include='word'"),
        (lambda: rewards.words(["a", " "]), "' ' in include"),
    ],
)
def test_errors(build, said):
    with pytest.raises(gdpo.Error, match=said):
        build()


@pytest.mark.parametrize(("measure", "package"), [("rouge1", "rouge-score"), ("bleu", "sacrebleu")])
def test_libraries_missing(measure, package, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(gdpo.Error, match=rf"similarity needs the library {package}.*gdpo\[rewards\]"):
        rewards.similarity(measure=measure)
