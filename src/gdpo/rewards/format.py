"""Rewards for the shape of a completion."""

from __future__ import annotations

import bisect
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.rewards.base import RewardFunction, factory, model_text, reward
from gdpo.rewards.bounded import BoundedCheck
from gdpo.rewards.extraction import extract
from gdpo.rewards.schema import read_schema
from gdpo.rewards.scripts import SCRIPTS, script_share
from gdpo.rewards.support import check_whole

_FLAGS = {"i": re.I, "m": re.M, "s": re.S, "x": re.X, "a": re.A}
_JsonPlace = Literal["whole", "fence", "answer_tags"]


@factory("tags")
def tags(*names: str, strict: bool = False, opened: bool = False, partial: bool = False) -> RewardFunction:
    """1 if the completion is exactly these blocks, in this order, each once and not empty; else 0.

    Args:
        names: for example ``"think", "answer"`` for ``<think>...</think> <answer>...</answer>``.
        strict: exactly one line break between blocks and no white space around them; else any white space.
        opened: the chat template already writes the first opening tag. A prompt that is passed as text, or that ends
            with an assistant message, and ends with that tag is recognised without it.
        partial: where the format is not kept, the share of the tag marks that are there exactly once and in order (of
            the model's own marks, where the template wrote the first); all of them with a fault elsewhere, such as
            text around the blocks, lack half a mark.

    A tag's text inside another block is a fault: what reads the answer would be misled by it.
    """
    if not names:
        raise Error("tags needs at least one tag name, such as tags('think', 'answer')")
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][\w.-]*", name) or names.count(name) > 1:
            raise Error(f"tags has {name!r}, but different names of letters, digits, '_', '-' and '.' were expected")
    marks = [mark for name in names for mark in (f"<{name}>", f"</{name}>")]

    @reward(range=(0, 1), name="tags")
    def score(completions: list[Any], prompts: list[Any] | None = None, **columns: Any) -> list[float | None]:
        given = prompts if prompts is not None and len(prompts) == len(completions) else [None] * len(completions)
        scores: list[float | None] = []
        for completion, prompt in zip(completions, given, strict=True):
            text, begun = model_text(completion), opened or _ends_with(prompt, marks[0])
            kept = _well_formed(text, marks, strict, begun)
            scores.append(_share_of_marks(text, marks[begun:]) if partial and not kept else float(kept))
        return scores

    return score


@factory("matches")
def matches(regex: str, full: bool = True, flags: str = "", longest: int = 20_000) -> RewardFunction:
    """1 if the completion matches a regular expression of Python's ``re``, else 0.

    Args:
        regex: the expression.
        full: the whole completion has to match; else a match anywhere is enough.
        flags: letters as in ``(?...)``: "i" ignore case, "m" multiline, "s" dot matches line breaks, "x" verbose, "a"
            ASCII.
        longest: characters of a completion at most; a longer one scores 0.

    The search runs in a process of its own; a completion that needs over a second of processor time there scores 0.

    Raises:
        Error: an expression or flag that cannot be compiled.
    """
    if not isinstance(regex, str):
        raise Error(f"matches has regex={regex!r}, but a regular expression as text was expected")
    if not isinstance(flags, str) or set(flags) - set(_FLAGS):
        raise Error(f"matches has flags={flags!r}, but letters of {''.join(_FLAGS)!r} were expected")
    check_whole("matches", "longest", longest)
    value = sum(_FLAGS[letter] for letter in set(flags))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(regex, value)
    except (re.error, OverflowError, RecursionError, ValueError) as error:
        raise Error(f"matches has regex={regex!r}, which is no regular expression: {error}") from None
    check = BoundedCheck({"pattern": {"pattern": regex, "flags": value, "full": full}})
    return _checked("matches", check, lambda text: text if len(text) <= longest else None)


@factory("json_schema")
def json_schema(schema: Any, extraction: _JsonPlace = "whole", longest: int = 100_000) -> RewardFunction:
    """1 if the completion is JSON that a JSON schema allows, else 0. Needs the library jsonschema.

    Args:
        schema: a dict, its text as JSON, or the path of a JSON file. ``$ref`` stays within the schema; nothing is
            fetched. ``format`` is not checked.
        extraction: where the JSON stands: "whole" completion, the last code "fence" (three backticks, with or without
            ``json``), or "answer_tags" (``<answer>``).
        longest: characters of JSON at most; more score 0, as does nesting deeper than 100.

    The check runs in a process of its own; a completion that needs over a second of processor time there scores 0.

    Raises:
        Error: no jsonschema, or a schema that is none.
    """
    if extraction not in get_args(_JsonPlace):
        raise Error(f"json_schema has extraction={extraction!r}{nearest(str(extraction), get_args(_JsonPlace))}")
    check_whole("json_schema", "longest", longest)
    check = BoundedCheck({"schema": read_schema(schema)})

    def find(text: str) -> str | None:
        if extraction == "answer_tags":
            found = extract(text, "answer_tags")
        elif extraction == "fence":
            found = _last_fence(text)
        else:
            found = text.strip()
        return found if found is not None and len(found) <= longest else None

    return _checked("json_schema", check, find)


@factory("language")
def language(script: str | Sequence[str] = "latin", at_least: float = 0.9, partial: bool = False) -> RewardFunction:
    """1 if enough of the completion's letters are of a script, by their Unicode names, else 0; 0 without any letter.

    Args:
        script: a name such as "latin", "cyrillic", "greek", "han", "kana", "hangul", "arabic", "hebrew" or
            "devanagari", or several of which any counts (Japanese is "han" and "kana").
        at_least: share of the letters, above 0 and up to 1.
        partial: below it the share divided by ``at_least`` instead of 0.

    Letters of mathematics and modifiers are of no script and not counted.
    """
    wanted = [script] if isinstance(script, str) else list(script)
    for name in wanted:
        if name not in SCRIPTS:
            raise Error(f"language has script={name!r}{nearest(str(name), SCRIPTS)}")
    if not wanted:
        raise Error("language has script=[], but at least one name such as 'latin' was expected")
    if isinstance(at_least, bool) or not isinstance(at_least, int | float) or not 0 < at_least <= 1:
        raise Error(f"language has at_least={at_least!r}, but a number above 0 and up to 1 was expected")

    @reward(range=(0, 1), name=f"language_{'_'.join(wanted)}")
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        shares = (script_share(model_text(completion), wanted) for completion in completions)
        return [1.0 if share >= at_least else share / at_least if partial else 0.0 for share in shares]

    return score


def _checked(name: str, check: BoundedCheck, find: Callable[[str], str | None]) -> RewardFunction:
    """A reward that is 1 where what ``find`` takes from the text passes the check, 0 where not or where it is None."""
    warned: set[str] = set()

    @reward(range=(0, 1), name=name)
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        found = [find(model_text(completion)) for completion in completions]
        rows = [row for row, text in enumerate(found) if text is not None]
        passed, late = check([text for text in found if text is not None])
        scores: list[float | None] = [0.0] * len(completions)
        for row, verdict in zip(rows, passed, strict=True):
            scores[row] = None if verdict is None else float(verdict)
        if late and name not in warned:
            warned.add(name)
            left = sum(verdict is None for verdict in passed)
            rest = f", and {left} after them were not looked at and have no score" if left else ""
            warnings.warn(f"{late} completions took {name} too long and score 0{rest} (said once)", stacklevel=3)
        return scores

    return score


def _last_fence(text: str) -> str | None:
    """What stands between the last two lines that begin with three backticks."""
    end = text.rfind("\n```")
    if end < 0:
        return None
    start = text.rfind("```", 0, end)
    if start < 0 or (start > 0 and text[start - 1] != "\n"):
        return None
    first, _, content = text[start + 3 : end + 1].partition("\n")
    return content.strip() if first.strip().lower() in ("", "json", "json5", "jsonc") else None


def _share_of_marks(text: str, marks: list[str]) -> float:
    """The longest run of marks in order, of those that are there once, by all; half a mark less than 1 at most."""
    places = [text.find(mark) for mark in marks if text.count(mark) == 1]
    longest: list[int] = []  # the smallest end of an increasing run of each length
    for place in places:
        at = bisect.bisect_left(longest, place)
        longest[at : at + 1] = [place]
    return min(len(longest), len(marks) - 0.5) / len(marks)


def _well_formed(text: str, marks: list[str], strict: bool, opened: bool) -> bool:
    if opened:
        text = marks[0] + text
    if any(text.count(mark) != 1 for mark in marks):
        return False
    if not strict:
        text = text.strip()
    for block in range(0, len(marks), 2):
        opening, closing = marks[block], marks[block + 1]
        end = text.find(closing)
        if not text.startswith(opening) or end < 0 or not text[len(opening) : end].strip():
            return False
        text = text[end + len(closing) :]
        if block + 2 < len(marks):
            if strict and not text.startswith("\n"):
                return False
            text = text[1:] if strict else text.lstrip()
    return text == ""


def _ends_with(prompt: object, mark: str) -> bool:
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict) and prompt[-1].get("role") == "assistant":
        prompt = model_text(prompt)
    return isinstance(prompt, str) and prompt.rstrip().endswith(mark)
