"""Data made on the spot, one module a task; each row is a question and the columns that its rewards need.

A maker is ``rows(size, seed, **parameters)``: the same arguments give the same rows. A row is a mapping with
``question`` (text) and plain columns; what has a shape of its own (calls, tests) is JSON as text, so that every data
set keeps it as it is.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from gdpo.core.errors import Error
from gdpo.core.inputs import nearest

MAKERS = {
    "tool_calls": "gdpo.training.made.tool_calls",
    "short_reasoning": "gdpo.training.made.short_reasoning",
    "programs": "gdpo.training.made.programs",
    "dialogue": "gdpo.training.made.dialogue",
}
"""Module by name."""


def make(name: str, size: int, seed: int = 0, **parameters: Any) -> list[dict[str, Any]]:
    """Rows of the task ``name``.

    Args:
        name: a key of ``MAKERS``.
        size: how many rows; questions may repeat.
        seed: which rows.
        parameters: what the task takes.

    Raises:
        Error: an unknown task or parameter, or a parameter's value that the task does not take.
    """
    if name not in MAKERS:
        raise Error(f"there is no made task {name!r}{nearest(name, MAKERS)}")
    maker: Callable[..., list[dict[str, Any]]] = importlib.import_module(MAKERS[name]).rows
    known = [key for key in inspect.signature(maker).parameters if key not in ("size", "seed")]
    for key in parameters:
        if key not in known:
            raise Error(f"the made task {name!r} has no parameter {key!r}{nearest(key, known)}")
    return maker(size, seed, **parameters)
