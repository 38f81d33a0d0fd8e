"""Each planted fault is found by its id, and nothing else at severity warning or above; sound rewards are clean."""

from __future__ import annotations

import json
import threading

import planted
import pytest

from gdpo import rewards
from gdpo.audit.findings import at_or_above
from gdpo.lint import Subject, lint
from gdpo.lint.batch import from_rows, made_up

DATA = from_rows(
    [
        (
            f"row {k}",
            {
                "prompt": f"Q{k // 2}",
                "completion": f"{'so ' * k}<answer>{k if k % 2 else ''}</answer>",
                "answer": str(k),
            },
        )
        for k in range(8)
    ],
    "eight rows",
)


def checked(function, data=None):
    return lint([Subject(function.__name__, function, getattr(function, "range", None))], data)


FAULTS = {
    "raises": "raises",
    "drops_rows": "wrong-number-of-scores",
    "not_finite": "not-finite",
    "returns_words": "not-a-number",
    "out_of_bounds": "out-of-bounds",
    "random_judge": "not-deterministic",
    "by_place": "order-dependent",
    "relative_to_batch": "batch-dependent",
    "many_answers": "many-answers-rewarded",
    "backtracks": "slow-on-long-text",
    "mutates": "mutates-inputs",
    "half_for_the_right_answer": "gold-below-maximum",
    "first_digit_only": "damaged-gold-not-lower",
    "polite_unless_tagged": "empty-answer-rewarded",
    "zero_without_gold": "missing-gold-scored",
    "text_as_it_comes": "chat-scored-differently",
    "no_columns": "signature",
}


@pytest.mark.parametrize(("name", "id"), FAULTS.items())
def test_a_planted_fault_is_found_and_no_other(name, id):
    report = checked(getattr(planted, name))
    assert {finding.id for finding in at_or_above(report.findings, "warning")} == {id}, report.findings
    found = next(finding for finding in report.findings if finding.id == id)
    assert found.reward == name
    assert found.what.endswith(".")
    assert found.remedy
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(("name", "id"), [("slow", "slow"), ("constant", "constant")])
def test_a_planted_fault_is_found_on_data(name, id):
    report = checked(getattr(planted, name), DATA)
    assert {finding.id for finding in at_or_above(report.findings, "warning")} == {id}, report.findings


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("prints", {"prints"}),
        ("no_bounds", {"no-bounds"}),
        ("constant", {"constant"}),  # on rows that were made up, which it may not be meant for
        ("asynchronous", set()),
        ("as_open_r1_writes", {"reads-chat-only"}),
        ("shortest_right_of_the_group", {"group-dependent"}),
        ("reads_a_table", {"needs-columns"}),
    ],
)
def test_what_is_worth_knowing_is_a_note(name, ids):
    report = checked(getattr(planted, name))
    assert {finding.id for finding in report.findings} == ids
    assert {finding.severity for finding in report.findings} <= {"note"}


@pytest.mark.parametrize(
    "function",
    [rewards.math_answer(mode) for mode in ("answer_tags", "boxed", "hashes", "last_number")]
    + [rewards.integer_answer(mode) for mode in ("answer_tags", "boxed", "hashes", "last_number")]
    + [rewards.tags("think", "answer"), rewards.tags("think", "answer", strict=True)],
    ids=repr,
)
def test_our_rewards_are_clean(function):
    assert checked(function).findings == []


@pytest.mark.parametrize("function", [rewards.length_at_most(40), rewards.length_at_most(150, unit="characters")])
def test_length_alone_pays_an_empty_answer_which_is_said(function):
    """Documented: a limit on the length holds for an empty answer too; a gate is the remedy, and then nothing is said."""
    (finding,) = checked(function).findings
    assert (finding.id, finding.severity) == ("empty-answer-rewarded", "note")
    assert "given=" in finding.remedy
    assert lint([Subject("short", function, function.range, gated=True)]).findings == []


def test_inside_a_thread_and_a_running_loop():
    import asyncio

    found = []
    thread = threading.Thread(target=lambda: found.append(checked(planted.asynchronous).findings))
    thread.start()
    thread.join()

    async def inside():
        return checked(planted.asynchronous).findings

    assert found == [[]]
    assert asyncio.run(inside()) == []


def test_a_reward_that_hangs_is_ended(monkeypatch):
    from gdpo.lint import single

    def hangs(completions, **columns):
        while any("<script>" in rewards.model_text(c) for c in completions):
            pass
        return [planted.answered(c) for c in completions]

    monkeypatch.setattr(single, "_HOSTILE_SECONDS", 0.5)
    monkeypatch.setattr(single, "_HOSTILE_SECONDS_EACH", 0.2)
    report = lint([Subject("hangs", hangs, (0, 1))])
    assert [finding.id for finding in report.findings] == ["hangs"]
    assert "HTML" in report.findings[0].what


def test_made_up_rows_have_groups_of_right_and_wrong_answers():
    base = made_up()
    assert len(set(base.groups)) == 4
    scores = rewards.math_answer()(base.completions, **base.columns)
    for group in range(4):
        assert {score for score, at in zip(scores, base.groups, strict=True) if at == group} == {0.0, 1.0}
