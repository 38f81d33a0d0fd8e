"""Rewards together: duplicates, scales, sums, and what is decided elsewhere; on data and on made-up rows."""

from __future__ import annotations

import numpy as np
import pytest

from gdpo import rewards
from gdpo.lint import Subject, lint
from gdpo.lint.batch import from_rows
from gdpo.lint.sets import check_sets

GROUPS = np.repeat(np.arange(10), 4).tolist()
A, B, C = np.random.default_rng(0).integers(0, 2, (3, 40)).astype(float)


def ids(**scores):
    return sorted(f"{finding.id} {finding.reward or ''}".strip() for finding in check_sets(scores, GROUPS))


def test_independent_rewards_are_clean():
    assert ids(a=A, b=B, c=C) == []


def test_duplicates_are_found_whatever_their_scale_and_sign():
    assert ids(a=A, b=3 * A + 1) == ["duplicate-rewards"]
    assert ids(a=A, b=-A) == ["duplicate-rewards"]


def test_only_differences_within_a_group_count():
    """Prompts of different difficulty move both rewards; within a prompt they have nothing in common."""
    difficulty = 20.0 * np.asarray(GROUPS)
    assert ids(a=A + difficulty, b=B + difficulty) == []


def test_scales_that_lie_apart():
    assert ids(a=A, b=5 * B) == []
    assert ids(a=A, b=25 * B) == ["scale-ratio"]


def test_a_sum_of_others_up_to_a_constant_of_the_prompt():
    assert ids(a=A, b=B, total=A + B + np.asarray(GROUPS)) == ["sum-of-others total"]
    assert ids(a=A, b=B, c=C, total=A + B + C) == ["sum-of-others total"]
    assert ids(a=A, b=B, c=A + 0.5 * B) == []


def test_a_reward_that_only_differs_where_another_decides():
    tied = np.isin(GROUPS, [0, 1, 2, 3])
    deciding = np.where(tied, 1.0, np.tile([0, 1, 1, 0], 10))
    follower = np.where(tied, 0.0, np.tile([0, 0, 1, 1], 10))
    assert ids(correct=deciding, style=follower) == ["decided-elsewhere style"]
    assert ids(correct=deciding, style=np.tile([0.0, 0, 1, 1], 10)) == []


def test_missing_scores_and_constants_are_left_out():
    holes = [None if k % 3 else value for k, value in enumerate(A)]
    assert ids(a=holes, b=B, constant=[1.0] * 40, never=[None] * 40) == []
    assert ids(a=holes, b=A) == ["duplicate-rewards"]
    assert check_sets({"a": A}, GROUPS) == []
    assert check_sets({"a": A[:4], "b": A[:4]}, GROUPS[:4]) == []


def test_a_set_on_made_up_rows():
    shape, whole = rewards.tags("think", "answer"), rewards.integer_answer()

    def both(completions, **columns):
        return [a + b for a, b in zip(shape(completions, **columns), whole(completions, **columns), strict=True)]

    subjects = [Subject("shape", shape, (0, 1)), Subject("whole", whole, (0, 1)), Subject("both", both, (0, 2))]
    assert [(f.id, f.reward) for f in lint(subjects).findings] == [("sum-of-others", "both")]
    assert lint(subjects[:2]).findings == []


@pytest.mark.parametrize("chat", [False, True])
def test_gold_answers_of_data_that_cannot_be_earned_are_named_by_row(chat):
    def record(k):
        text = f"<think>{'hm ' * (k % 3)}</think>\n<answer>{k + k % 2}</answer>"
        said = [{"role": "assistant", "content": text}] if chat else text
        return {"prompt": f"Q{k}", "completion": said, "answer": "" if k == 5 else str(k)}

    def picky(completions, answer, **columns):  # reads no gold answer of two digits
        right = rewards.math_answer()(completions, answer=answer)
        return [0.0 if gold and len(gold) > 1 else score for score, gold in zip(right, answer, strict=True)]

    data = from_rows([(f"line {k}", record(k)) for k in range(14)], "rows.jsonl")
    (finding,) = lint([Subject("picky", picky, (0, 1))], data).findings[:1]
    assert (finding.id, finding.severity) == ("gold-below-maximum", "error")
    assert finding.evidence["rows"] == [10, 11, 12, 13]
    assert lint([Subject("correct", rewards.math_answer(), (0, 1))], data).findings == []
