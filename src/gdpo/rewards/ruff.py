"""How many findings ruff has in programs; it reads them as text and runs nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from gdpo.core.errors import Error

_OPTIONS = [
    "check", "--isolated", "--no-cache", "--ignore-noqa", "--exit-zero", "--quiet", "--select", "E,F,W,B,SIM",
    "--target-version", "py312", "--output-format", "concise",
]  # fmt: skip
_FINDING = re.compile(rb"p(\d+)\.py:\d+:\d+: (\S+)")
_LONGEST_LINE = 4096
_LARGE = 200_000


def findings(programs: Sequence[str], seconds: float) -> list[int | None]:
    """[programs] findings; None where the program does not parse or ruff was not done with it in time.

    Args:
        programs: any texts.
        seconds: limit for all of them.

    Raises:
        Error: ruff is not installed.
    """
    found: list[int | None] = [None] * len(programs)
    if not programs:
        return found
    deadline = time.monotonic() + seconds
    command = _command()
    # Text that makes ruff crash or hang costs its own score only: large texts alone, and all alone where a batch fails.
    small = [row for row, program in enumerate(programs) if len(program) <= _LARGE]
    batches = [small] if small else []
    batches += [[row] for row, program in enumerate(programs) if len(program) > _LARGE]
    while batches:
        rows = batches.pop(0)
        left = deadline - time.monotonic()
        if left <= 0:
            break
        share = left / 2 if len(rows) > 1 else min(left, 1.5)
        counts = _check(command, [programs[row] for row in rows], share)
        if counts is not None:
            for row, count in zip(rows, counts, strict=True):
                found[row] = count
        elif len(rows) > 1:
            half = len(rows) // 2
            batches += [rows[:half], rows[half:]]
    return found


def _command() -> str:
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    found = shutil.which("ruff", path=path)
    if found is None:
        raise Error("code_style needs ruff, which is not installed: pip install ruff")
    return found


def _check(command: str, programs: Sequence[str], seconds: float) -> list[int | None] | None:
    """Findings of one call of ruff; None where it did not end well."""
    with tempfile.TemporaryDirectory(prefix="gdpo-") as folder:
        for number, program in enumerate(programs):
            Path(folder, f"p{number}.py").write_bytes(program.encode("utf-8", "replace"))
        process = subprocess.Popen(
            [command, *_OPTIONS, "."], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            counts: list[int | None] = [0] * len(programs)
            assert process.stdout is not None
            with process.stdout as lines:
                while line := lines.readline(_LONGEST_LINE):
                    match = _FINDING.match(line)
                    if match is None:
                        continue
                    number, before = int(match[1]), counts[int(match[1])]
                    counts[number] = None if before is None or match[2].startswith(b"invalid-syntax") else before + 1
            return counts if process.wait() == 0 else None
        finally:
            timer.cancel()
            process.kill()
            process.wait()
