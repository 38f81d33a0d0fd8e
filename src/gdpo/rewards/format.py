"""Rewards for the shape of a completion."""

from __future__ import annotations

import re
from typing import Any

from gdpo.core.errors import Error
from gdpo.rewards.base import RewardFunction, factory, model_text, reward


@factory("tags")
def tags(*names: str, strict: bool = False, opened: bool = False) -> RewardFunction:
    """1 if the completion is exactly these blocks, in this order, each once and not empty; else 0.

    Args:
        names: for example ``"think", "answer"`` for ``<think>...</think> <answer>...</answer>``.
        strict: exactly one line break between blocks and no white space around them; else any white space.
        opened: the chat template already writes the first opening tag. A prompt that is passed as text, or that ends
            with an assistant message, and ends with that tag is recognised without it.

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
        return [
            float(_well_formed(model_text(completion), marks, strict, opened or _ends_with(prompt, marks[0])))
            for completion, prompt in zip(completions, given, strict=True)
        ]

    return score


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
