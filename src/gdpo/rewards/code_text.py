"""Where the program stands in a completion. Found by its marks in one pass; hostile text is never parsed here."""

from __future__ import annotations

from typing import Literal, get_args

from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.rewards.extraction import extract

CodeExtraction = Literal["fence", "whole", "answer_tags"]
_PYTHON = {"python", "python3", "py"}


def check_code_extraction(mode: str) -> None:
    """Raise ``Error`` for a mode that is not known."""
    if mode not in get_args(CodeExtraction):
        raise Error(f"extraction is {mode!r}{nearest(str(mode), get_args(CodeExtraction))}")


def program_of(text: str, mode: str) -> str:
    """The program in a completion; empty where there is none.

    ``fence``: the last block fenced as Python, else the last fenced block, else the whole text. ``answer_tags``: the
    same within the last ``<answer>...</answer>``. ``whole``: the text as it is.
    """
    if mode == "whole":
        return text
    if mode == "answer_tags":
        text = extract(text, "answer_tags") or ""
    return _fenced(text)


def _fenced(text: str) -> str:
    if "```" not in text:
        return text
    found: dict[bool, str] = {}
    opened: tuple[bool, int] | None = None
    at = 0
    for line in text.splitlines(keepends=True):
        mark = line.strip()
        if mark.startswith("```"):
            if opened is None:
                opened = mark[3:].strip().lower() in _PYTHON, at + len(line)
            elif mark == "```":
                found[opened[0]] = text[opened[1] : at]
                opened = None
        at += len(line)
    if opened is not None:  # cut off
        found[opened[0]] = text[opened[1] :]
    return found.get(True, found.get(False, text))
