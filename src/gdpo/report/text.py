"""Untrusted text made fit to be shown: completions come from a model, and a model writes anything.

Escaping is left to whoever renders (Jinja2's autoescape, ``textContent``, rich's ``Text``). What stands here is what
escaping doesn't do: control characters made visible, lone surrogates replaced, endless texts cut with a note.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_C1 = re.compile(r"[\x80-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Marks that reorder or hide the text around them: a reader must see that they are there.
_INVISIBLE = re.compile("[\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def visible(text: str) -> str:
    """``text`` with control characters as their pictures (ESC is ␛) and reordering marks as their code (⟨U+202E⟩).

    Line feeds and tabs stay; a carriage return before a line feed goes; lone surrogates become U+FFFD, so the
    result can always be encoded.
    """
    text = text.replace("\r\n", "\n")
    text = _CONTROL.sub(lambda match: "\u2421" if match[0] == "\x7f" else chr(0x2400 + ord(match[0])), text)
    text = _C1.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)
    text = _INVISIBLE.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)
    return _SURROGATE.sub("\ufffd", text)


def plain_line(text: str, limit: int) -> str:
    """``text`` on one line of at most ``limit`` characters, without escape sequences or control characters."""
    text = _ANSI.sub("", text[: 8 * limit])
    text = " ".join(visible(text.replace("\r", " ")).split())
    return text if len(text) <= limit else text[: max(limit - 1, 0)].rstrip() + "…"


def plain_block(text: str, width: int, lines: int) -> str:
    """``text`` as at most ``lines`` lines of ``width`` characters, without escape sequences or control characters."""
    text = _ANSI.sub("", text[: 8 * width * lines])
    kept: list[str] = []
    for line in visible(text.replace("\r\n", "\n").replace("\r", "\n")).expandtabs(4).split("\n"):
        if line.strip():
            kept += [line[start : start + width] for start in range(0, len(line), width)]
    if len(kept) > lines:
        kept = kept[:lines]
        kept[-1] = kept[-1][: width - 1].rstrip() + "…"
    return "\n".join(kept)


def shorten(text: str, limit: int) -> str:
    """At most about ``limit`` characters of ``text``: its beginning and its end, and how much was left out between."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[… {len(text) - head - tail:,} characters left out …]\n{text[-tail:]}"


def turns(text: str | None, limit: int) -> list[list[str]]:
    """A prompt or completion as ``[role, text]`` pairs; plain text is one pair with an empty role.

    A JSON list of chat messages is taken apart; anything else that merely looks like one is shown as it is. All texts
    together have about ``limit`` characters.
    """
    if text is None:
        return []
    messages = _messages(text)
    if messages is None:
        return [["", visible(shorten(text, limit))]]
    share = max(limit // max(len(messages), 1), 200)
    shown = (
        messages
        if len(messages) <= 40
        else [*messages[:20], ("", f"[… {len(messages) - 40} messages …]"), *messages[-20:]]
    )
    return [[visible(role[:40]), visible(shorten(content, share))] for role, content in shown]


def one_text(pairs: Sequence[Sequence[str]]) -> str:
    """``turns`` as one text, roles on lines of their own."""
    return "\n".join(f"{role}:\n{content}" if role else content for role, content in pairs)


def _messages(text: str) -> list[tuple[str, str]] | None:
    if not text.startswith("[") or not text.rstrip().endswith("]"):
        return None
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, list) or not value:
        return None
    pairs = []
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return None
        content = message.get("content")
        extra = {key: part for key, part in message.items() if key not in ("role", "content") and part}
        body = content if isinstance(content, str) else "" if content is None else json.dumps(content)
        pairs.append((message["role"], body + ("\n" + json.dumps(extra) if extra else "")))
    return pairs
