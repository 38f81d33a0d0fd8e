"""Every gold answer of GSM8K, in every way of writing it."""

from __future__ import annotations

import json
import time

import pytest
from support import SHARED

from gdpo import rewards

FOLDER = SHARED / "data" / "gsm8k"
FORMS = {
    "answer_tags": "<think>{working}</think>\n<answer>{answer}</answer>",
    "boxed": r"{working} So the answer is $\boxed{{{answer}}}$.",
    "hashes": "{working}\n#### {answer}",
    "last_number": "{working} The answer is {answer}.",
}
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="GSM8K lies beside a developer's checkout only"),
]


@pytest.fixture(scope="module")
def rows():
    lines = [line for name in ("train", "test") for line in (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()]
    return [json.loads(line)["answer"].split("#### ") for line in lines]


@pytest.mark.parametrize("extraction", FORMS)
def test_gold_answers_score_one_and_the_answer_plus_one_scores_zero(rows, extraction):
    assert len(rows) == 8792
    score = rewards.math_answer(extraction=extraction)
    gold = [answer.strip() for _, answer in rows]
    written = [FORMS[extraction].format(working=working, answer=answer.strip()) for working, answer in rows]
    started = time.monotonic()
    assert set(score(written, answer=gold)) == {1.0}
    assert time.monotonic() - started < 20
    more = [str(int(answer.replace(",", "")) + 1) for answer in gold]
    wrong = [FORMS[extraction].format(working=working, answer=m) for (working, _), m in zip(rows, more, strict=True)]
    assert set(score(wrong, answer=gold)) == {0.0}
    whole = [f"{working}#### {answer}" for working, answer in rows]  # the data set's own column as the gold answer
    assert set(score(written, answer=whole)) == {1.0}
