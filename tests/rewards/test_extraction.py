"""Where an answer stands in a text, and how numbers are written."""

from __future__ import annotations

import time

import pytest

import gdpo
from gdpo import rewards
from gdpo.rewards.extraction import extract
from gdpo.rewards.math import compare_plain


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("the point (3,4)", "4"), ("So it is...72", "72"), ("costs .5", ".5"), ("It weighs 10.5kg.", "10.5"),
        ("1,000km", "1,000"), ("a 1,234,567.89!", "1,234,567.89"), ("x=-5", "-5"), ("10-5", "5"), ("-$5", "-$5"),
        ("half is 1/2.", "1/2"), ("20%", "20%"), ("the 2nd", None), ("2x", None), ("v2", None), ("5²", None),
        ("٣", None), ("36 + 36 = 72.\n", "72"), ("7 apples, 1,0000", "7"),
    ],
)  # fmt: skip
def test_last_number(text, found):
    assert extract(text, "last_number") == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"), (r"\boxed {5}", "5"), (r"\fbox{5}", "5"), (r"\\boxed{5}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"), (r"\boxed{\left\{x\right.}", r"\left\{x\right."), (r"\boxed{3} \boxed{4", "3"),
        (r"} \boxed{3}", "3"), (r"\boxed{\boxed{3}}", "3"), (r"\boxed{}", None), (r"\boxed 5", None), (r"\boxed{ {3}", None),
        (r"\boxed{a\\b}", r"a\\b"),
    ],
)  # fmt: skip
def test_boxed(text, found):
    assert extract(text, "boxed") == found


def test_every_mode_reads_a_megabyte_in_well_under_two_seconds():
    unclosed = r"\boxed{" * 50 + "a" * 1_000_000
    texts = [unclosed, "{}" * 500_000, "1,000" + ",000" * 250_000 + "0", "9" * 1_000_000, "1/" * 500_000, "." * 1_000_000,
             "<answer>" * 125_000, "</answer>" * 110_000, "####" * 250_000, "1,0000," * 140_000, "5" * 999_999 + "x"]  # fmt: skip
    for mode in ("answer_tags", "boxed", "hashes", "last_number"):
        for text in texts:
            started = time.perf_counter()
            extract(text, mode)
            assert time.perf_counter() - started < 2, (mode, text[:10])


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("3", "3 thirds", None), ("5", "5 factorial", None), ("7", "7 divided by seven", None), ("2", "2 millions", None),
        ("5", "5 seconds", 1), ("5", "5 square meters", 1), ("3 pm", "3 am", 0), ("3 pm", "03:00 P.M.", 1),
        ("12:00", "12:00", 1), ("2:30", "2:30 pm", 0), ("3/2", "1 1/2", 1), ("11/2", "1 1/2", None), ("-3/2", "-1 1/2", 1),
        ("7", "*7*", 1), ("7", "= 7", 1), ("7", "== 7", None), ("12", "1 2", None),
        ("Mary", "Army", 0), ("Mary", r"\text{mary}", 1), (r"\text{New York}", "new  york", 1), ("xyz", "zyx", None),
    ],
)  # fmt: skip
def test_plain_comparison(gold, answer, verdict):
    """None: mathematics decides."""
    assert compare_plain(gold, answer) == verdict


@pytest.mark.parametrize("answer", ["1 2 3 4 5", "1$ or $2$ or $3", r"\boxed{3} \boxed{4}", r"3 \text{ or } 4", "3,4", "x=3, x=4",
                                    "3 thirds", "3 factorials", "3 millions", "(3,4)", "3..4", "3 3"])  # fmt: skip
def test_a_list_of_guesses_is_no_answer(answer):
    from gdpo.rewards import math_answer

    assert math_answer()([f"<answer>{answer}</answer>"], answer=["3"]) == [0]


@pytest.mark.parametrize(
    ("text", "mode", "first", "last"),
    [
        ("<answer>1</answer><answer>2</answer>", "answer_tags", "1", "2"), (r"\boxed{1} \boxed{\boxed{2}}", "boxed", "1", "2"),
        (r"\boxed{1 \boxed{2}", "boxed", "2", "2"), ("#### 1\n#### 2", "hashes", "1", "2"), ("1 and 2x and 3", "last_number", "1", "3"),
        ("<answer>1", "answer_tags", None, None), ("none", "boxed", None, None), ("", "last_number", None, None),
    ],
)  # fmt: skip
def test_first_and_last_match(text, mode, first, last):
    assert extract(text, mode, "first") == first
    assert extract(text, mode) == last


def test_wrong_match():
    with pytest.raises(gdpo.Error, match="match is 'frist'.*'first'"):
        rewards.math_answer(match="frist")
