"""Audits, replays and explanations in the terminal; readable at 80 columns and in a pipe."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from gdpo.audit.against import Change
from gdpo.audit.explain import Explanation
from gdpo.audit.findings import Finding
from gdpo.audit.replay import Replay
from gdpo.audit.run import Audit
from gdpo.report.terminal_findings import print_findings
from gdpo.report.text import plain_block, plain_line

_NAME = 18
_NOTES = 8


def print_audit(audit: Audit, console: Console | None = None) -> None:
    """The verdict on one screen, findings below."""
    console = console or Console()
    _print_summary(audit, console)
    _wrapped(console, audit.verdict, "bold")
    console.print()
    if audit.measures:
        _print_rewards(audit, console)
    print_findings([_readable(one) for one in audit.findings], console)


def print_replay(replay: Replay, console: Console | None = None) -> None:
    """One line a setting, then what each changes."""
    console = console or Console()
    names = [plain_line(name, 12) for name in replay.rewards]
    rows = [("now: " + replay.before["method"], replay.before)] + [(one["said"], one) for one in replay.after]
    head = ["", "collapse", "resolution", "cancel", "flips", *(f"dom {name}" for name in names)]
    table = [head]
    for said, one in rows:
        flips = one.get("sign_flips")
        table.append([
            plain_line(said, 40), _share(one["collapse"]), _share(one["resolution"]), _share(one["cancellation"]),
            "" if flips is None else _share(flips), *(_share(one["dominance"][name]) for name in replay.rewards),
        ])  # fmt: skip
    _print_table(table, console)
    for one in replay.after:
        _print_changes(replay, one, console)


def print_explanation(found: Explanation, console: Console | None = None) -> None:
    """In words, then numbers, then the group."""
    console = console or Console()
    for sentence in found.words:
        _wrapped(console, sentence)
    console.print()
    table = [["reward", "value", "mean", "spread", "z", "weight", "adds"]]
    for part in found.parts:
        table.append([
            plain_line(part["reward"], _NAME), *(_number(part[key]) for key in ("gated", "mean", "std", "normalized")),
            _number(part["weight"]), f"{part['contribution']:+.4f}",
        ])  # fmt: skip
    table.append(["advantage", "", "", "", "", "", f"{found.advantage:+.4f}"])
    _print_table(table, console)
    names = list(found.mates[0]["rewards"]) if found.mates else []
    mates = [["group", *(plain_line(name, 12) for name in names), "advantage"]]
    for mate in found.mates:
        mark = "→ " if mate["rollout"] == found.rollout else "  "
        mates.append([mark + plain_line(mate["rollout"], 20), *(_number(v) for v in mate["rewards"].values()),
                      f"{mate['advantage']:+.4f}"])  # fmt: skip
    _print_table(mates, console)
    if found.texts.get("completion"):
        console.print(Text(plain_block(found.texts["completion"], 76, 8), style="dim"), soft_wrap=True)


def print_comparison(changes: Sequence[Change], console: Console | None = None) -> None:
    """What changed surely; how many did not."""
    console = console or Console()
    sure = [change for change in changes if change.sure]
    table = [["what changed", "", "this", "against", "difference", "interval"]]
    for one in sure:
        low, high = one.interval
        table.append([one.measure, plain_line(one.about, 24), _number(one.value), _number(one.against),
                      f"{one.difference:+.3g}", f"[{low:+.3g}, {high:+.3g}]"])  # fmt: skip
    if sure:
        _print_table(table, console)
    console.print(Text(f"{len(sure)} of {len(changes)} measures changed beyond what the groups drawn explain"))


def _print_summary(audit: Audit, console: Console) -> None:
    read = audit.summary
    sizes = ", ".join(f"{count} of {size}" for size, count in sorted(read.group_sizes.items())[:4])
    console.print(Text(
        f"{read.format}: {read.rollouts:,} rollouts, {read.groups:,} groups ({sizes}), {len(read.steps):,} steps; "
        f"method {audit.method} ({audit.method_from})"), soft_wrap=True)  # fmt: skip
    dropped = [f"{read.duplicates_dropped:,} repeated rows dropped"] if read.duplicates_dropped else []
    for line in [*dropped, *read.notes[:_NOTES], *(f"skipped: {what}" for what in read.skipped[:_NOTES])]:
        _wrapped(console, f"- {plain_line(line, 300)}", "dim")


def _print_rewards(audit: Audit, console: Console) -> None:
    measures = audit.measures
    table = [["reward", "weight", "mean", "spread", "dead", "missing", "dominance", "with length"]]
    for name in audit.weights:
        table.append([
            plain_line(name, _NAME), _number(audit.weights[name]), _number(measures["mean"].get(name)),
            _number(measures["group_std_mean"].get(name)), _share(measures["dead_share"].get(name)),
            _share(measures["missing_share"].get(name)), _share(measures[f"dominance_{audit.method}"].get(name)),
            _number(measures["length_correlation"].get(name)),
        ])  # fmt: skip
    _print_table(table, console)


def _print_changes(replay: Replay, one: Mapping[str, Any], console: Console) -> None:
    before = replay.before
    changed = [
        f"{label} {_share(before[key].get(name))} → {_share(one[key].get(name))} ({plain_line(name, 30)})"
        for key, label in (("unearned_share", "unearned"), ("dead_share", "dead"))
        for name in before[key]
        if before[key][name] != one[key].get(name)
    ]
    _wrapped(console, f"{plain_line(one['said'], 60)}: correlation of the advantages {_number(one['correlation'])}"
             + ("; " + "; ".join(changed) if changed else ""))  # fmt: skip
    table = [["rollout", "step", *(plain_line(name, 12) for name in replay.rewards), "before", "after"]]
    for row in one["rollouts"][:5]:
        values = [_number(part["value"]) for part in row["rewards"].values()]
        table.append([plain_line(row["rollout"], 20), str(row["step"]), *values, f"{row['before']:+.3f}",
                      f"{row['after']:+.3f}"])  # fmt: skip
    if len(table) > 1:
        _print_table(table, console)


def _readable(finding: Finding) -> Finding:
    """With its number, interval and rollouts among the evidence."""
    from dataclasses import replace

    low, high = finding.interval or (0.0, 0.0)
    rests = finding.rests_on
    number = f"{_number(finding.value)} [{_number(low)}, {_number(high)}], threshold {_number(finding.threshold)}"
    shown = {finding.measure or "value": number, **finding.evidence,
             "rests on": f"{rests.get('groups', 0):,} groups, {rests.get('steps', 0):,} steps"}  # fmt: skip
    if finding.cost:
        shown["costs"] = f"{_share(finding.cost)} of the signal"
    if finding.rollouts:
        shown["rollouts"] = ", ".join(finding.rollouts)
    return replace(finding, evidence=shown)


def _print_table(rows: Sequence[Sequence[str]], console: Console) -> None:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for at, row in enumerate(rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        console.print(Text("  ".join(cells).rstrip(), style="dim" if at == 0 else ""), soft_wrap=True)
    console.print()


def _wrapped(console: Console, text: str, style: str = "") -> None:
    for line in textwrap.wrap(plain_line(text, 1000), max(min(console.width, 100), 40), break_on_hyphens=False):
        console.print(Text(line, style=style), soft_wrap=True)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.3g}%"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
