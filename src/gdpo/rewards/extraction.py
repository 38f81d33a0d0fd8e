"""Where the answer stands in a text: the last match of a mode, or the first, in time linear in the text."""

from __future__ import annotations

import re
from typing import Literal, get_args

from gdpo.core.errors import Error
from gdpo.core.inputs import nearest

Extraction = Literal["answer_tags", "boxed", "hashes", "last_number"]
Match = Literal["last", "first"]
_NUMBER = re.compile(
    r"(?<!\w)(?<![0-9]\.)([-+]?\$?(?:(?:[0-9]{1,3}(?:,[0-9]{3})++|[0-9]++)(?:\.[0-9]++)?|(?<!\.)\.[0-9]++)(?:/[0-9]++)?+%?+)(\w*+)"
)
_UNIT = re.compile(r"(?!(?:st|nd|rd|th)$)[A-Za-z]{2,}")
_BOX = re.compile(r"\\\\(?!f?box)|\\[{}]|(\\(?:boxed|fbox)\s*\{)|[{}]")


def check_extraction(mode: str, match: str = "last") -> None:
    """Raise ``Error`` for a mode or match that is not known."""
    for what, value, known in (("extraction", mode, get_args(Extraction)), ("match", match, get_args(Match))):
        if value not in known:
            raise Error(f"{what} is {value!r}{nearest(str(value), known)}")


def extract(text: str, mode: str, match: str = "last") -> str | None:
    r"""The answer, or None where there is none.

    ``answer_tags``: between the last ``</answer>`` and the ``<answer>`` before it. ``boxed``: in the last
    ``\boxed{...}`` whose braces close. ``hashes``: from the last ``####`` to the end of its line. ``last_number``: the
    last number. With ``match="first"`` each is the first of its kind instead.
    """
    first = match == "first"
    if mode == "answer_tags":
        found = _tagged(text, first)
    elif mode == "boxed":
        found = _boxed(text, first)
    elif mode == "hashes":
        start = text.find("####") if first else text.rfind("####")
        found = text[start + 4 :].split("\n", 1)[0] if start >= 0 else None
    else:
        found = None
        for number in _NUMBER.finditer(text):
            if not number[2] or _UNIT.fullmatch(number[2]):  # 72km is a number, 2x and 2nd are none
                found = number[1]
                if first:
                    break
    return found.strip() or None if found is not None else None


def _tagged(text: str, first: bool) -> str | None:
    if first:
        start = text.find("<answer>")
        end = text.find("</answer>", start) if start >= 0 else -1
        return text[start + len("<answer>") : end] if end >= 0 else None
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end) if end >= 0 else -1
    return text[start + len("<answer>") : end] if start >= 0 else None


def _boxed(text: str, first: bool = False) -> str | None:
    open_braces: list[tuple[int, int] | None] = []  # where a box and its content begin; None for any other brace
    found: list[tuple[int, int, int]] = []
    for match in _BOX.finditer(text):
        if match[1]:
            open_braces.append((match.start(), match.end()))
        elif match[0] == "{":
            open_braces.append(None)
        elif match[0] == "}" and open_braces and (box := open_braces.pop()):
            found.append((*box, match.start()))
    _, start, end = (min if first else max)(found, default=(0, 0, -1))
    return text[start:end] if end >= 0 else None
