"""Where the answer stands in a text. Every mode takes the last match, in time linear in the text."""

from __future__ import annotations

import re
from typing import Literal, get_args

from gdpo.core.errors import Error
from gdpo.core.inputs import nearest

Extraction = Literal["answer_tags", "boxed", "hashes", "last_number"]
_NUMBER = re.compile(r"(?<![\w.,])[-+]?\$?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?:/[0-9]+)?(?![\w])%?")
_MOST_BOXES = 50


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
            found = match[0]
    return found.strip() or None if found is not None else None


def _boxed(text: str) -> str | None:
    end = len(text)
    for _ in range(_MOST_BOXES):
        start = max(text.rfind(r"\boxed{", 0, end), text.rfind(r"\fbox{", 0, end))
        if start < 0:
            return None
        opened = text.index("{", start) + 1
        depth = 1
        for position in range(opened, len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                return text[opened:position]
        end = start
    return None
