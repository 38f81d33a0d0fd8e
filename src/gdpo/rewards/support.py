"""What several rewards share: checks of options, libraries that are optional, and columns."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Sequence
from typing import Any

from gdpo.core.errors import Error
from gdpo.rewards.base import model_text


def check_whole(asking: str, argument: str, value: object, least: int = 1) -> None:
    """Raise ``Error`` unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Error(f"{asking} has {argument}={value!r}, but a whole number of at least {least} was expected")


def check_number(asking: str, argument: str, value: object, above: float = -math.inf) -> float:
    """``value`` as a finite number above ``above``, or ``Error``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < math.inf:
        beyond = "" if above == -math.inf else f" above {above:g}"
        raise Error(f"{asking} has {argument}={value!r}, but a finite number{beyond} was expected")
    return float(value)


def check_installed(asking: str, module: str, package: str) -> None:
    """Raise ``Error`` if a library that the reward needs is not installed; nothing is imported."""
    if importlib.util.find_spec(module) is None:
        raise Error(f'{asking} needs the library {package}: pip install "gdpo[rewards]"')


def optional(asking: str, module: str, package: str) -> Any:
    """The module of a library that only some rewards need.

    Raises:
        Error: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Error(f'{asking} needs the library {package} ({error}): pip install "gdpo[rewards]"') from None


def is_missing(value: object) -> bool:
    """None, NaN and blank text: no value."""
    return (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or (isinstance(value, str) and not value.strip())
    )


def prompt_text(prompt: object) -> str:
    """A prompt as plain text: itself, or its messages with their roles."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        return ""
    lines = []
    for message in prompt:
        if isinstance(message, dict):
            content = model_text([{"role": "assistant", "content": message.get("content")}])
            lines.append(f"{message.get('role', 'user')}: {content}")
    return "\n\n".join(lines)


def rows_of(values: Any, count: int) -> list[Any]:
    """One value a completion; None for each where the column is absent or of another length."""
    if values is None or isinstance(values, str) or not hasattr(values, "__len__") or len(values) != count:
        return [None] * count
    return list(values)
