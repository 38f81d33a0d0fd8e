"""What the frameworks' checks have in common."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gdpo.core.errors import Error
from gdpo.core.inputs import nearest

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


def run_doctor(framework: str | None, config: str | None, *, workers: bool, say: Callable[[str], None]) -> int:
    """Check, and say line by line; status 1 if anything is wrong, else 0.

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
    if framework not in FRAMEWORKS and config is None and Path(framework).exists():
        framework, config = _framework_of(Path(framework)), framework
    if framework not in FRAMEWORKS:
        raise Error(f"there is no check of {framework!r}{nearest(framework, FRAMEWORKS)}")
    module: Any = importlib.import_module(FRAMEWORKS[framework])
    wrong = 0
    for check in module.check(config if config is None else Path(config), workers):
        wrong += check.state == "wrong"
        for line in check.lines():
            say(line)
    say(f"{wrong} wrong" if wrong else "nothing wrong")
    return int(wrong > 0)


def read_text(path: Path) -> str:
    """A config's text.

    Raises:
        Error: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Error(f"the config {path} cannot be read: {error}") from None


def _framework_of(path: Path) -> str:
    text = read_text(path)
    for name, module in FRAMEWORKS.items():
        if importlib.import_module(module).recognises(text):
            return name
    raise Error(f"{path} is no config that `gdpo doctor` knows; name the framework: {', '.join(FRAMEWORKS)}")
