"""Findings in the terminal: what, the evidence, the remedy; readable at 80 columns and in a pipe."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from gdpo.audit.findings import SEVERITIES, Finding
from gdpo.report.text import plain_line

_COLOURS = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
_WIDEST = 100
_INDENT = 9
_LONGEST_VALUE = 200


def print_findings(findings: Sequence[Finding], console: Console | None = None) -> None:
    """Print findings in the order given, each as a head line, a sentence, evidence and remedy.

    Args:
        findings: what to print; nothing where empty.
        console: where to print; None is standard output.
    """
    console = console if console is not None else Console()
    for finding in findings:
        head = Text(f"{finding.severity:<7}", style=_COLOURS[finding.severity])
        about = [plain_line(finding.reward, 60)] if finding.reward else []
        head.append("  " + "  ".join([*about, finding.id]), style="default not bold")
        console.print(head, soft_wrap=True)
        _print_indented(console, plain_line(finding.what, 400))
        for key, value in finding.evidence.items():
            _print_indented(console, f"{plain_line(key, 40)}: {_value(value)}", style="dim")
        _print_indented(console, f"→ {plain_line(finding.remedy, 400)}")
        console.print()


def counted(findings: Sequence[Finding]) -> str:
    """``1 error, 2 warnings`` or ``no findings``."""
    counts = [(sum(f.severity == severity for f in findings), severity) for severity in SEVERITIES]
    return ", ".join(f"{n} {word}{'s' * (n != 1)}" for n, word in counts if n) or "no findings"


def _print_indented(console: Console, text: str, style: str = "") -> None:
    # Wrapped here, since rich would fill every line with spaces up to the width.
    width = max(min(console.width, _WIDEST), 30)
    indent = " " * _INDENT
    for line in textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False):
        console.print(Text(line, style=style), soft_wrap=True)


def _value(value: Any) -> str:
    if isinstance(value, list):
        text = ", ".join(str(entry) for entry in value)
    elif isinstance(value, Mapping):
        text = ", ".join(f"{key} {entry}" for key, entry in value.items())
    else:
        text = str(value)
        if text != text.strip() or not text:  # quoted, so that white space and emptiness are seen
            text = json.dumps(text, ensure_ascii=False)
    return plain_line(text, _LONGEST_VALUE)
