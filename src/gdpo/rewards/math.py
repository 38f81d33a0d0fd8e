"""Rewards for answers to mathematics."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

from gdpo.core.errors import Error
from gdpo.rewards import numbers
from gdpo.rewards.base import RewardFunction, column_values, factory, model_text, reward
from gdpo.rewards.extraction import Extraction, Match, check_extraction, extract
from gdpo.rewards.math_pool import shared_pool

_CHECK_SECONDS = 60.0
_LONGEST = 2000
"""An expression longer than this is no answer; parsers need seconds for it."""


@factory("math_answer")
def math_answer(
    extraction: Extraction = "answer_tags", gold: str = "answer", seconds: float = 12.0, match: Match = "last"
) -> RewardFunction:
    r"""1 if the extracted answer equals the gold answer, else 0; None where there is no gold answer to compare with.

    Plain numbers, fractions and lists of them are compared exactly; everything else by math-verify, as LaTeX, in
    processes that are ended when they take too long.

    Args:
        extraction: "answer_tags" (``<answer>``), "boxed" (``\boxed{}``), "hashes" (``####``) or "last_number".
        gold: the column with the right answers. GSM8K's form (working, then ``#### 42``) is read too, and a list means
            that any of its entries is right.
        seconds: limit for a whole batch of what math-verify has to decide; what is not decided by then scores 0.
        match: "last" or "first": which of several matches counts.
    """
    check_extraction(extraction, match)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise Error(f"math_answer has seconds={seconds!r}, but a positive number was expected")
    warned = {"gold": False, "late": False}

    @reward(range=(0, 1), name="math_answer")
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        golds = column_values(columns, gold, len(completions), "math_answer")
        scores: list[float | None] = []
        open_pairs: list[tuple[int, str, str]] = []
        for row, (completion, right) in enumerate(zip(completions, golds, strict=True)):
            options = _golds(right)
            if not options:
                scores.append(None)
                continue
            answer = extract(model_text(completion), extraction, match)
            quick = [0 if answer is None else compare_plain(option, answer) for option in options]
            scores.append(1.0 if 1 in quick else 0.0)
            if 1 not in quick and answer is not None:
                pairs = zip(options, quick, strict=True)
                open_pairs += [(row, option, answer) for option, verdict in pairs if verdict is None]
        late = _decide(open_pairs, scores, seconds)
        _warn_once(warned, "gold", sum(s is None for s in scores), f"have no {gold!r} that can be read: no score there")
        _warn_once(warned, "late", late, f"of math_answer were not decided within {seconds} s and score 0")
        return scores

    def usable(**columns: Any) -> list[bool]:
        options = [_golds(value) for value in columns[gold]]
        hard = [(o, o) for values in options for o in values if numbers.exact(numbers.clean(o)) is None]
        distinct = list(dict.fromkeys(pair for pair in hard if not numbers.is_words(numbers.clean(pair[0]))))
        verdicts, _ = shared_pool().compare([(numbers.clean(a), numbers.clean(b)) for a, b in distinct], _CHECK_SECONDS)
        unread = {pair[0] for pair, verdict in zip(distinct, verdicts, strict=True) if verdict is None}
        return [any(option not in unread for option in values) for values in options]

    score.usable = usable  # type: ignore[attr-defined]
    return score


@factory("integer_answer")
def integer_answer(extraction: Extraction = "answer_tags", match: Match = "last") -> RewardFunction:
    """1 if the extracted answer is an integer as written (a sign, digits, thousands separators), else 0.

    Args:
        extraction, match: as for ``math_answer``.
    """
    check_extraction(extraction, match)

    @reward(range=(0, 1), name="integer_answer")
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        answers = (extract(model_text(completion), extraction, match) for completion in completions)
        return [float(answer is not None and numbers.is_integer(answer)) for answer in answers]

    return score


def compare_plain(gold: str, answer: str) -> int | None:
    """1 or 0 where plain numbers, lists of them, clock times or equal text decide; None where mathematics is needed."""
    gold, answer = numbers.clean(gold), numbers.clean(answer)
    if gold == answer:
        return 1
    if not answer or len(answer) > _LONGEST:
        return 0
    if numbers.is_words(gold):  # math-verify multiplies letters, so that an anagram would be right
        return int(numbers.words(gold) == numbers.words(answer))
    if numbers.CLOCK.fullmatch(gold):
        return int(numbers.clock(gold) == numbers.clock(answer))
    percent = [
        text.removesuffix("%").removesuffix("\\").strip() if text.endswith("%") else None for text in (gold, answer)
    ]
    if percent[0] is not None and percent[1] is not None:
        return compare_plain(percent[0], percent[1])
    left, right = numbers.exact(gold), numbers.exact(answer)
    if left is not None and right is not None:
        if left == right:
            return 1
        # A rounded decimal beside a fraction is math-verify's to judge.
        both_decimal = numbers.is_decimal(gold) and (
            numbers.is_decimal(answer) or ("/" not in answer and "\\" not in answer)
        )
        return 0 if both_decimal else None
    return _compare_lists(gold, answer)


def _compare_lists(gold: str, answer: str) -> int | None:
    """Lists of plain numbers, element by element; math-verify would accept a part."""
    left, right = (re.split(r",\s+|;\s*", text) for text in (gold, answer))
    if len(left) < 2:
        return None
    values = [[numbers.exact(numbers.clean(part)) for part in parts] for parts in (left, right)]
    if None in values[0] or None in values[1]:
        return None
    return int(values[0] == values[1])


def _golds(value: object) -> list[str]:
    """The right answers that a gold value stands for; none where it is missing."""
    if isinstance(value, list | tuple):
        return [option for entry in value for option in _golds(entry)]
    if value is None or isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return []
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if "####" in text:
        text = text.rpartition("####")[2]
    if r"\boxed" in text:
        text = extract(text, "boxed") or ""
    text = text.strip()
    return [text] if text and len(text) <= _LONGEST else []


def _decide(open_pairs: list[tuple[int, str, str]], scores: list[float | None], seconds: float) -> int:
    """Let math-verify decide what is open, in place; returns how many ran out of time."""
    if not open_pairs:
        return 0
    distinct = list(dict.fromkeys((gold, answer) for _, gold, answer in open_pairs))
    cleaned = [(numbers.clean(gold), numbers.clean(answer)) for gold, answer in distinct]
    verdicts, late = shared_pool().compare(cleaned, seconds)
    known = dict(zip(distinct, verdicts, strict=True))
    unread: dict[int, bool] = {}
    for row, gold, answer in open_pairs:
        verdict = known[(gold, answer)]
        unread[row] = unread.get(row, True) and verdict is None
        if verdict == 1:
            scores[row] = 1.0
    for row, missing in unread.items():
        if missing and scores[row] != 1.0:
            scores[row] = None
    return late


def _warn_once(warned: dict[str, bool], kind: str, count: int, text: str) -> None:
    if count and not warned[kind]:
        warned[kind] = True
        warnings.warn(f"{count} completions {text} (said once)", stacklevel=4)
