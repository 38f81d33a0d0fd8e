"""Where the answer stands in a text. Every mode takes the last match, in time linear in the text."""

from __future__ import annotations

import re
from typing import Literal, get_args

from gdpo.core.errors import Error
from gdpo.core.inputs import nearest

Extraction = Literal["answer_tags", "boxed", "hashes", "last_number"]
_NUMBER = re.compile(
    r"(?<!\w)(?<![0-9]\.)([-+]?\$?(?:(?:[0-9]{1,3}(?:,[0-9]{3})++|[0-9]++)(?:\.[0-9]++)?|(?<!\.)\.[0-9]++)(?:/[0-9]++)?+%?+)(\w*+)"
)
_UNIT = re.compile(r"(?!(?:st|nd|rd|th)$)[A-Za-z]{2,}")
_BOX = re.compile(r"\\\\(?!f?box)|\\[{}]|(\\(?:boxed|fbox)\s*\{)|[{}]")


def check_extraction(mode: str) -> None:
    """Raise ``Error`` for a mode that is not known."""
    if mode not in get_args(Extraction):
        raise Error(f"extraction is {mode!r}{nearest(str(mode), get_args(Extraction))}")


def extract(text: str, mode: str) -> str | None:
    r"""The answer, or None where there is none.

    ``answer_tags``: between the last ``</answer>`` and the ``<answer>`` before it. ``boxed``: in the last
    ``\boxed{...}`` whose braces close. ``hashes``: from the last ``####`` to the end of its line. ``last_number``: the
    last number.
    """
    if mode == "answer_tags":
        end = text.rfind("</answer>")
        start = text.rfind("<answer>", 0, end) if end >= 0 else -1
        found = text[start + len("<answer>") : end] if start >= 0 else None
    elif mode == "boxed":
        found = _boxed(text)
    elif mode == "hashes":
        start = text.rfind("####")
        found = text[start + 4 :].split("\n", 1)[0] if start >= 0 else None
    else:
        found = None
        for match in _NUMBER.finditer(text):
            if not match[2] or _UNIT.fullmatch(match[2]):  # 72km is a number, 2x and 2nd are none
                found = match[1]
    return found.strip() or None if found is not None else None


def _boxed(text: str) -> str | None:
    open_braces: list[tuple[int, int] | None] = []  # where a box and its content begin; None for any other brace
    last = (-1, 0, 0)
    for match in _BOX.finditer(text):
        if match[1]:
            open_braces.append((match.start(), match.end()))
        elif match[0] == "{":
            open_braces.append(None)
        elif match[0] == "}" and open_braces and (box := open_braces.pop()):
            last = max(last, (*box, match.start()))
    return text[last[1] : last[2]] if last[0] >= 0 else None
