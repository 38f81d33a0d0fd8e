"""Rewards for an assistant's turn: facts that it has to say, words that it must not, and fluent sentences.

What a turn has to say differs from prompt to prompt, so it stands in a column of the data.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdpo.core.errors import Error
from gdpo.rewards.base import RewardFunction, column_values, factory, model_text, reward
from gdpo.rewards.support import is_missing

_DOUBLED_ON_PURPOSE = frozenset({"had", "that", "bye", "very"})
_PAIRS = {")": "(", "]": "[", "}": "{", "\u201d": "\u201c", "\u00bb": "\u00ab"}
_CLOSERS = "\"')]}\u201d\u2019\u00bb"
_DOUBLED = re.compile(r"(?<!\w)([^\W\d_]+)(?=\s+\1(?!\w))")
_SPACING = re.compile(r"\s[,.;:!?](?!\w)|[,;:](?=[,.;:!?])|(?<!\.)\.\.(?!\.)|[^\S\n]{2,}")


@factory("contains")
def contains(gold: str = "resolution", exclude: str | None = None, partial: bool = False) -> RewardFunction:
    """1 if the completion says every fact that its row lists, else 0; None for a row that lists none.

    A fact is a word or phrase, a list of alternatives of which any counts, or ``{"any": [...], "none": [...]}``, which
    counts as said only where none of the second list is. Whole words, whatever their case; a number is not found in a
    longer one (40 in 40.5).

    Args:
        gold: the column with the facts: a list, its JSON as text, or one plain text.
        exclude: a column in the same form with what must not be said: any of it makes the score 0.
        partial: the share of the facts that are said instead of all or nothing.

    Example::

        contains()(["It comes on Friday."], resolution=['["Friday", ["40 euros", "EUR 40"]]'])  # [0.0]
    """
    _check_column("contains", "gold", gold)
    if exclude is not None:
        _check_column("contains", "exclude", exclude)

    @reward(range=(0, 1), name=f"contains_{gold}")
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        count = len(completions)
        wanted = column_values(columns, gold, count, "contains")
        barred = column_values(columns, exclude, count, "contains") if exclude else [None] * count
        scores: list[float | None] = []
        for completion, value, bar in zip(completions, wanted, barred, strict=True):
            facts = _facts(value)
            if not facts:
                scores.append(None)
                continue
            text = _folded(model_text(completion))
            share = sum(fact.said(text) for fact in facts) / len(facts)
            clean = not any(fact.said(text) for fact in _facts(bar))
            scores.append(float(clean) * (share if partial else float(share == 1)))
        return scores

    return score


@factory("says_none_of")
def says_none_of(column: str = "secret") -> RewardFunction:
    """1 if the completion says none of the words or phrases of its row, else 0; None for a row that lists none.

    It finds what is written out, not what is spelt or paraphrased. An empty completion says nothing and scores 1.

    Args:
        column: the column with what must not be said, in the form that ``contains`` reads.
    """
    _check_column("says_none_of", "column", column)

    @reward(range=(0, 1), name=f"says_none_of_{column}")
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        scores: list[float | None] = []
        for completion, value in zip(
            completions, column_values(columns, column, len(completions), "says_none_of"), strict=True
        ):
            facts = _facts(value)
            text = _folded(model_text(completion))
            scores.append(float(not any(fact.said(text) for fact in facts)) if facts else None)
        return scores

    return score


@factory("fluent")
def fluent(partial: bool = False) -> RewardFunction:
    r"""1 if the completion keeps five rules of written sentences, else 0; an empty one keeps none.

    1. The text and each sentence begin with a capital, a digit or a letter of a script without capitals (a sentence
       ends with ``.``, ``!`` or ``?`` and white space; ``e.g.`` and ``p.m.`` end none).
    2. The text ends with ``.``, ``!`` or ``?``, which quotes and brackets may follow.
    3. No word stands twice in a row, but for "had had", "that that", "bye bye" and "very very".
    4. Double quotes and brackets close in the order in which they opened.
    5. No white space before a mark, no two spaces in a row, no two marks in a row (``,,``, ``..``; ``...`` is one).

    It judges the form of plain sentences, as in a customer's chat. Verse, code and lists break it.

    Args:
        partial: the share of the five rules instead of all or nothing.
    """

    @reward(range=(0, 1), name="fluent")
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        shares = (_kept(model_text(completion).strip()) for completion in completions)
        return [share if partial else float(share == 1) for share in shares]

    return score


RULES: dict[str, Callable[[str], bool]] = {}
"""The rules of ``fluent`` by name."""


def _rule(check: Callable[[str], bool]) -> Callable[[str], bool]:
    RULES[check.__name__.strip("_")] = check
    return check


@_rule
def _starts(text: str) -> bool:
    first = next((letter for letter in text if letter.isalnum()), "")
    if not first or first.islower():
        return False
    words = text.split()
    return not any(map(_begins_small, words, words[1:]))


@_rule
def _ends(text: str) -> bool:
    return text.rstrip(_CLOSERS).endswith((".", "!", "?"))


@_rule
def _doubled(text: str) -> bool:
    return all(match[1] in _DOUBLED_ON_PURPOSE for match in _DOUBLED.finditer(text.casefold()))


@_rule
def _balanced(text: str) -> bool:
    waiting: list[str] = []
    for mark in text:
        if mark == '"':  # the same mark opens and closes
            if waiting and waiting[-1] == '"':
                waiting.pop()
            else:
                waiting.append(mark)
        elif mark in _PAIRS.values():
            waiting.append(mark)
        elif mark in _PAIRS and (not waiting or waiting.pop() != _PAIRS[mark]):
            return False
    return not waiting


@_rule
def _spacing(text: str) -> bool:
    return _SPACING.search(text) is None


def _kept(text: str) -> float:
    return sum(check(text) for check in RULES.values()) / len(RULES) if text else 0.0


def _begins_small(left: str, right: str) -> bool:
    """Whether the first of two neighbouring words ends a sentence and the second begins with a small letter.

    A full stop inside the first says that it is an abbreviation (``p.m.``) or a pause (``...``).
    """
    word = left.rstrip(_CLOSERS)
    if not word.endswith((".", "!", "?")) or "." in word[:-1]:
        return False
    return next((letter for letter in right if letter.isalnum()), "").islower()


@dataclass(frozen=True)
class _Fact:
    """What counts as said: any of some patterns and none of others."""

    any: tuple[re.Pattern[str], ...]
    none: tuple[re.Pattern[str], ...] = ()

    def said(self, text: str) -> bool:
        return any(pattern.search(text) for pattern in self.any) and not any(p.search(text) for p in self.none)


def _facts(value: object) -> list[_Fact]:
    """The facts of a column's value; entries without a word are left out."""
    if is_missing(value):
        return []
    if isinstance(value, str):
        return list(_facts_of_text(value))
    entries = list(value) if isinstance(value, Sequence) else [value]
    return [fact for fact in map(_fact, entries) if fact.any]


@functools.lru_cache(maxsize=512)
def _facts_of_text(text: str) -> tuple[_Fact, ...]:
    if text.lstrip().startswith(("[", "{")):
        try:
            read = json.loads(text)
        except (ValueError, RecursionError):
            read = text
        if not isinstance(read, str):
            return tuple(_facts(read))
    return (_fact(text),)


def _fact(entry: object) -> _Fact:
    if isinstance(entry, Mapping):
        return _Fact(_patterns(entry.get("any")), _patterns(entry.get("none")))
    return _Fact(_patterns(entry))


def _patterns(given: object) -> tuple[re.Pattern[str], ...]:
    listed = given if isinstance(given, list | tuple) else [given]
    return tuple(_phrase(str(phrase)) for phrase in listed if not is_missing(phrase))


@functools.lru_cache(maxsize=4096)
def _phrase(phrase: str) -> re.Pattern[str]:
    folded = _folded(phrase.strip())
    before, after = r"(?<!\w)", r"(?!\w)"
    if folded[0].isdigit():
        before += r"(?<!\d[.,])"
    if folded[-1].isdigit():
        after += r"(?![.,]\d)"
    if not folded[0].isalnum():
        before = ""
    if not folded[-1].isalnum():
        after = ""
    return re.compile(before + r"\s+".join(re.escape(part) for part in folded.split()) + after)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", text.casefold())


def _check_column(asking: str, argument: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise Error(f"{asking} has {argument}={value!r}, but the name of a column was expected")
