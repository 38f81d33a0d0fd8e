"""An audit in the terminal: what was read, the verdict, a table of the rewards, the findings."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gdpo.audit.findings import Finding
from gdpo.audit.run import Audit
from gdpo.report.formats import NONE, fixed, significant
from gdpo.report.terminal_findings import counted, print_wrapped
from gdpo.report.text import plain_line

_COLOURS = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
_MOST_SKIPPED = 5
_MOST_WEIGHTS = 8
_HEADS = ("mean", "spread", "dead", "share", "missing")
_LEGEND = "spread: mean std in a group; dead: tied groups; share: of the advantage"
_NUMBERS = 50
"""Columns that the numbers of the table take, five of at most 9 characters with a space before each."""
_NARROWEST = 64


def print_audit(found: Audit, path: str, console: Console) -> None:
    """Print an audit; the verdict comes first.

    Args:
        found: the audit.
        path: where the dump was, as the user wrote it.
        console: where to print.
    """
    print_wrapped(console, plain_line(found.verdict, 600), style="bold", indented=0)
    console.print()
    for text in _read(found, path):
        print_wrapped(console, text, style="dim", indented=0)
    console.print()
    if found.measures:
        console.print(_table(found, max(console.width, _NARROWEST)))
        print_wrapped(console, _LEGEND, style="dim", indented=0)
        for text in _told_apart(found):
            print_wrapped(console, text, indented=0)
        console.print()
    for finding in found.findings:
        print_finding(finding, console)
    left = [f"{name} ({why})" for name, why in found.unmeasured.items()]
    if left:
        print_wrapped(console, f"not measured: {'; '.join(left)}", style="dim", indented=0)
    console.print(Text(counted(found.findings)), soft_wrap=True)


def _read(found: Audit, path: str) -> list[str]:
    read = found.summary
    sizes = ", ".join(f"{count:,} of {size}" for size, count in sorted(read.group_sizes.items())[:4])
    sizes += ", ..." if len(read.group_sizes) > 4 else ""
    steps = f"{len(read.steps):,} steps" if len(read.steps) != 1 else "1 step"
    how = {"given": "as given", "the dump": "as the dump says", "its advantages": "which its advantages show",
           "assumed": "assumed"}.get(found.method_from, found.method_from)  # fmt: skip
    lines = [
        f"{plain_line(path, 200)}: {read.format}, {read.files} file{'s' * (read.files != 1)}, {read.rollouts:,} "
        f"rollouts in {read.groups:,} groups ({sizes}), {steps}",
        f"method {found.method}, {how}; {_weights(found)}",
    ]
    if read.duplicates_dropped:
        lines.append(f"{read.duplicates_dropped:,} rows repeat others and were left out")
    if read.skipped:
        more = len(read.skipped) - _MOST_SKIPPED
        shown = "; ".join(plain_line(text, 160) for text in read.skipped[:_MOST_SKIPPED])
        lines.append(f"not read: {shown}{f'; and {more} more' if more > 0 else ''}")
    return lines + [plain_line(note, 300) for note in read.notes]


def _weights(found: Audit) -> str:
    """The weights in few words: the one most rewards have, and those that have another."""
    values = list(found.weights.values())
    if not values:
        return "weights none"
    usual = max(dict.fromkeys(values), key=values.count)
    if values.count(usual) == len(values) and len(values) > 1:
        return f"all weights {usual:g}"
    others = [name for name, weight in found.weights.items() if weight != usual or len(values) <= _MOST_WEIGHTS]
    shown = ", ".join(f"{plain_line(name, 60)} {found.weights[name]:g}" for name in others[:_MOST_WEIGHTS])
    more = f" and {len(others) - _MOST_WEIGHTS} more" if len(others) > _MOST_WEIGHTS else ""
    rest = "" if len(values) <= _MOST_WEIGHTS else f", {usual:g} for the others"
    return f"weights {shown}{more}{rest}"


def _table(found: Audit, width: int) -> Table:
    """A row a reward: mean, spread inside groups, dead groups, its part in the advantage, missing."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("reward", no_wrap=True)
    for head in _HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    measures = found.measures
    dominance = measures.get(f"dominance_{found.method}", {})
    for name in found.summary.rewards:
        table.add_row(
            Text(middle_cut(plain_line(name, 200), width - _NUMBERS)), significant(measures["mean"].get(name)),
            significant(measures["group_std_mean"].get(name)), _percent(measures["dead_share"].get(name)),
            _percent(dominance.get(name)), _percent(measures["missing_share"].get(name)),
        )  # fmt: skip
    return table


def middle_cut(name: str, room: int) -> str:
    """A name in at most ``room`` characters; long ones often differ at the end only, so the middle goes."""
    if len(name) <= room:
        return name
    tail = room // 2
    return f"{name[: room - tail - 1]}…{name[-tail:]}"


def _told_apart(found: Audit) -> list[str]:
    parts = []
    for method, table in found.measures.get("collapse", {}).items():
        if table.get("ratio") is not None:
            parts.append(f"{method} {table['distinct_advantage_vectors']:,}")
            situations = table["distinct_reward_multisets"]
    return [f"different situations: {situations:,}; told apart by {', '.join(parts)}"] if parts else []


def print_finding(finding: Finding, console: Console) -> None:
    """Print one finding: what, its number, what shows it, and the remedy."""
    head = Text(f"{finding.severity:<7}", style=_COLOURS[finding.severity])
    head.append(f"  {finding.id}", style="default not bold")
    if finding.cost:
        head.append(f"  costs about {_percent(finding.cost)} of the signal", style="dim not bold")
    console.print(head, soft_wrap=True)
    print_wrapped(console, plain_line(finding.what, 600) + ".")
    if finding.value is not None and finding.interval is not None:
        low, high = finding.interval
        rests = ", ".join(f"{count:,} {what}" for what, count in finding.rests_on.items() if count)
        interval = f"[{significant(low)}, {significant(high)}]"
        print_wrapped(console, f"{finding.measure} {significant(finding.value)} {interval}, on {rests}", style="dim")
    if finding.rollouts:
        print_wrapped(console, f"see rollouts {', '.join(plain_line(r, 40) for r in finding.rollouts)}", style="dim")
    print_wrapped(console, f"→ {plain_line(finding.remedy, 600)}")
    console.print()


def _percent(value: Any) -> str:
    return NONE if value is None else f"{fixed(100 * value)} %"
