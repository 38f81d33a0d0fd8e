"""What the frameworks' checks have in common."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.doctor.settings import read_text

FRAMEWORKS: dict[str, str] = {"trl": "gdpo.doctor.trl", "verl": "gdpo.doctor.verl", "nemo-rl": "gdpo.doctor.nemo_rl"}
"""Name on the command line -> module."""


State = Literal["ok", "note", "wrong"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    state: State
    text: str
    remedy: str = ""
    """What to set or run; lines of its own."""

    def lines(self) -> list[str]:
        """As printed."""
        mark = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}[self.state]
        return [f"{mark} {self.text}", *(f"        {line}" for line in self.remedy.splitlines())]


OTHERS = (
    (r"^rlhf_type\s*:", "a config of ms-swift, for which there is no adapter (docs/frameworks.md)"),
    (
        r"^(compute_environment|distributed_type)\s*:",
        "Accelerate's launch settings; give the training's YAML",
    ),
    (r"^objective\s*:", "a recipe of gdpo itself: `gdpo train FILE --show` checks it"),
)
"""What else people have, and what to say of it."""


def run_doctor(framework: str | None, config: str | None, *, workers: bool, say: Callable[[str], None]) -> int:
    """Check, and say line by line; status 1 if anything is wrong, else 0.

    Where only a config is named, a framework that is not installed here is a note: configs are written anywhere.

    Args:
        framework: a name of ``FRAMEWORKS``, or a config alone, whose framework is then found; None lists them.
        config: a config of that framework, or None.
        workers: whether to start worker processes and look into one.

    Raises:
        Error: an unknown framework, a file that does not exist or that no framework recognises.
    """
    if framework is None:
        for name in FRAMEWORKS:
            say(f"gdpo doctor {name} [CONFIG]  {importlib.import_module(FRAMEWORKS[name]).WHAT}")
        return 0
    strict = framework in FRAMEWORKS
    if not strict and config is None and Path(framework).exists():
        framework, config = _framework_of(Path(framework)), framework
    if framework not in FRAMEWORKS:
        raise Error(f"there is no check of {framework!r}{nearest(framework, FRAMEWORKS)}")
    module: Any = importlib.import_module(FRAMEWORKS[framework])
    wrong = 0
    for check in module.check(None if config is None else Path(config), workers, strict):
        wrong += check.state == "wrong"
        for line in check.lines():
            say(line)
    say(f"{wrong} wrong" if wrong else "nothing wrong")
    return int(wrong > 0)


def not_installed(name: str, module: str) -> Check | None:
    """The note where a framework's module is not here at all; None where it is, and can be checked."""
    if importlib.util.find_spec(module) is not None:
        return None
    return Check("note", f"{name} is not installed here, so only the config was checked",
                 "run this in the training environment, too")  # fmt: skip


def _framework_of(path: Path) -> str:
    text = read_text(path)
    for name, module in FRAMEWORKS.items():
        if importlib.import_module(module).recognises(text):
            return name
    for pattern, what in OTHERS:
        if re.search(pattern, text, re.MULTILINE):
            raise Error(f"{path} is {what.replace('FILE', str(path))}")
    if not text.strip():
        raise Error(f"the config {path} is empty")
    raise Error(f"{path} is no config that `gdpo doctor` knows; name the framework: {', '.join(FRAMEWORKS)}")
