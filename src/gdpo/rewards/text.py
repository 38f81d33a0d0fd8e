"""Rewards for the words of a completion: repetition, variety, likeness to a reference, words asked for."""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np

from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.rewards.base import RewardFunction, column_values, factory, model_text, reward
from gdpo.rewards.scripts import WITHOUT_SPACES, tokens
from gdpo.rewards.support import check_installed, check_whole, is_missing, optional

Measure = Literal["rouge1", "rouge2", "rougeL", "bleu", "chrf"]
_LONGEST_TOKENS = 1_000
"""ROUGE looks at so many tokens: the longest common subsequence takes time by the product of the lengths."""
_LONGEST_CHARACTERS = 20_000
"""BLEU and chrF look at so many characters."""
_WORD = re.compile(rf"[{WITHOUT_SPACES}]|[^\W{WITHOUT_SPACES}]+")


@factory("repetition")
def repetition(n: int = 3) -> RewardFunction:
    """The share of the completion's n-grams that repeat an earlier one: 1 - distinct / all. More is worse.

    It is meant as a penalty: give it a negative weight. Words are what white space parts; scripts that write no spaces
    (Chinese, Japanese, Thai) count by characters. A text shorter than ``n`` repeats nothing and scores 0.

    Args:
        n: words a n-gram.
    """
    check_whole("repetition", "n", n)

    @reward(range=(0, 1), name=f"repetition_{n}")
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        shares = (distinct_share(tokens(model_text(completion)), n) for completion in completions)
        return [0.0 if share is None else 1 - share for share in shares]

    return score


@factory("distinct")
def distinct(n: int = 2) -> RewardFunction:
    """The share of distinct n-grams among the completion's (distinct-n); None for a text shorter than ``n``.

    Source: https://arxiv.org/abs/1510.03055. Words as for ``repetition``. It favours short texts, as any such share.

    Args:
        n: words a n-gram.
    """
    check_whole("distinct", "n", n)

    @reward(range=(0, 1), name=f"distinct_{n}")
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        return [distinct_share(tokens(model_text(completion)), n) for completion in completions]

    return score


@factory("similarity")
def similarity(gold: str = "reference", measure: Measure = "rougeL") -> RewardFunction:
    """How alike the completion and a reference are, from 0 (nothing shared) to 1 (the same); None without a reference.

    Args:
        gold: the column with the references; of a list the most alike counts.
        measure: "rouge1", "rouge2" or "rougeL" (F-measure, by rouge-score; words in lower case, scripts without spaces
            by characters), "bleu" or "chrf" (of the sentence, by sacrebleu, divided by 100; BLEU over the orders that
            the completion is long enough for).

    ROUGE looks at the first 1,000 words of either text, BLEU and chrF at the first 20,000 characters.

    Raises:
        Error: an unknown measure, or its library is not installed.
    """
    if measure not in get_args(Measure):
        raise Error(f"similarity has measure={measure!r}{nearest(str(measure), get_args(Measure))}")
    if measure.startswith("rouge"):
        check_installed("similarity", "rouge_score", "rouge-score")
    else:
        check_installed("similarity", "sacrebleu", "sacrebleu")

    @reward(range=(0, 1), name=f"similarity_{measure}")
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        compare = _comparer(measure)
        scores: list[float | None] = []
        for completion, given in zip(
            completions, column_values(columns, gold, len(completions), "similarity"), strict=True
        ):
            listed = given if isinstance(given, list | tuple) else [given]
            references = [str(reference) for reference in listed if not is_missing(reference)]
            text = model_text(completion)
            scores.append(max((_alike(compare, reference, text) for reference in references), default=None))
        return scores

    return score


@factory("words")
def words(include: Sequence[str] = (), exclude: Sequence[str] = (), partial: bool = False) -> RewardFunction:
    """1 if every word of ``include`` is in the completion and none of ``exclude``, else 0.

    Whole words or phrases, whatever their case; in scripts that write no spaces a word counts anywhere.

    Args:
        include: words that have to be there.
        exclude: words that must not.
        partial: the share of ``include`` that is there; 0 all the same with a word of ``exclude``.
    """
    wanted, barred = ([_word_pattern(word) for word in _words(name, given)]
                      for name, given in (("include", include), ("exclude", exclude)))  # fmt: skip
    if not wanted and not barred:
        raise Error("words has neither include nor exclude, but at least one word was expected")

    @reward(range=(0, 1), name="words")
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        scores: list[float | None] = []
        for completion in completions:
            text = _folded(model_text(completion))
            found = sum(pattern.search(text) is not None for pattern in wanted)
            share = found / len(wanted) if wanted else 1.0
            clean = not any(pattern.search(text) for pattern in barred)
            scores.append(float(clean) * (share if partial else float(share == 1)))
        return scores

    return score


def distinct_share(parts: Sequence[str], n: int) -> float | None:
    """Distinct n-grams by all; None where there is none. Time and memory do not grow with ``n``."""
    count = len(parts) - n + 1
    if count < 1:
        return None
    if n * count <= 100_000:
        return len(set(zip(*(parts[start:] for start in range(n)), strict=False))) / count
    # Doubling: the number of an n-gram is that of the pair of its halves, which overlap where n is no power of two.
    known: dict[str, int] = {}
    numbers = np.fromiter((known.setdefault(part, len(known)) for part in parts), dtype=np.int64, count=len(parts))
    length = 1
    while length < n:
        step = min(length, n - length)
        pairs = numbers[:-step] * (int(numbers.max()) + 1) + numbers[step:]
        numbers = np.unique(pairs, return_inverse=True)[1]
        length += step
    return len(np.unique(numbers)) / count


def _alike(compare: Callable[[str, str], float], reference: str, text: str) -> float:
    if not text.strip():
        return 0.0
    if " ".join(reference.split()) == " ".join(text.split()):
        return 1.0  # also where a measure sees no words, or rounds
    return min(1.0, max(0.0, compare(reference, text)))


def _comparer(measure: Measure) -> Callable[[str, str], float]:
    if measure.startswith("rouge"):
        return functools.partial(_rouge, _rouge_scorer(measure), measure)
    metrics = optional("similarity", "sacrebleu.metrics", "sacrebleu")
    if measure == "chrf":
        metric = metrics.CHRF()
        return lambda reference, text: float(metric.sentence_score(_cut(text), [_cut(reference)]).score / 100)
    by_tokenizer = {name: metrics.BLEU(effective_order=True, tokenize=name) for name in ("13a", "zh")}

    def bleu(reference: str, text: str) -> float:
        # Only the reference decides, so that no completion chooses how it is measured.
        name = "zh" if re.search(rf"[{WITHOUT_SPACES}]", reference) else "13a"
        return float(by_tokenizer[name].sentence_score(_cut(text), [_cut(reference)]).score / 100)

    return bleu


def _rouge(scorer: Any, measure: str, reference: str, text: str) -> float:
    return float(scorer.score(reference, text)[measure].fmeasure)


@functools.cache
def _rouge_scorer(measure: str) -> Any:
    """rouge-score with words of any alphabet; its own tokenizer keeps a to z and digits only."""
    module = optional("similarity", "rouge_score.rouge_scorer", "rouge-score")

    class Words:
        def tokenize(self, text: str) -> list[str]:
            # No word is longer than the cut, so that a megabyte of one word costs nothing either.
            return [word[:100] for word in _WORD.findall(text[: 100 * _LONGEST_TOKENS].lower())[:_LONGEST_TOKENS]]

    return module.RougeScorer([measure], tokenizer=Words())


def _cut(text: str) -> str:
    return text[:_LONGEST_CHARACTERS].encode("utf-8", "replace").decode()


def _words(argument: str, given: object) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise Error(f"words has {argument}={given!r}, but a list of words was expected")
    for word in given:
        if not isinstance(word, str) or not word.strip():
            raise Error(f"words has {word!r} in {argument}, but words were expected")
    return list(given)


def _word_pattern(word: str) -> re.Pattern[str]:
    folded = _folded(word.strip())
    inside = rf"\w{_marks()}"
    spaceless = re.compile(rf"[{WITHOUT_SPACES}]")
    before = "" if spaceless.match(folded[0]) else rf"(?<![{inside}])"
    after = "" if spaceless.match(folded[-1]) else rf"(?![{inside}])"
    spaced = r"\s+".join(re.escape(part) for part in folded.split())
    return re.compile(f"{before}{spaced}{after}")


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", text.casefold())


@functools.cache
def _marks() -> str:
    r"""Combining marks, which ``\w`` leaves out, as the inside of a character class."""
    ranges: list[list[int]] = []
    for code in range(0x300, sys.maxunicode + 1):
        if unicodedata.category(chr(code)).startswith("M"):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"{chr(low)}-{chr(high)}" for low, high in ranges)
