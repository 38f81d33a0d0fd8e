"""A replay and an explanation in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gdpo.audit.against import Change
from gdpo.audit.explain import Explanation
from gdpo.audit.replay import Replayed
from gdpo.report.formats import NONE, fixed, plain, significant
from gdpo.report.terminal_findings import print_wrapped
from gdpo.report.text import plain_block, plain_line

_MATES = 16
_LABEL = 20
"""Longer settings are named by letters."""


def print_replay(found: Sequence[Replayed], console: Console) -> None:
    """A row a setting, the one in use first; then what changes most under each. Long settings are named by letters."""
    names = list(found[0].measures["dominance"])
    marks = _marks([one.label for one in found])
    for one, mark in zip(found, marks, strict=True):
        if mark != one.label:
            print_wrapped(console, f"{mark}  {plain_line(one.label, 300)}", indented=0)
    if marks != [one.label for one in found]:
        console.print()
    rows = [_cells(one, found) for one in found]
    shares = [{plain_line(name, 20): _percent(one.measures["dominance"][name]) for name in names} for one in found]
    room = console.width - max(map(len, marks))
    if sum(max(len(head), 7) + 2 for head in [*rows[0], *shares[0]]) <= room:
        _print_table(marks, [row | share for row, share in zip(rows, shares, strict=True)], console)
    else:
        _print_table(marks, rows, console)
        for heads in _fitting(list(shares[0]), room):
            _print_table(marks, [{head: share[head] for head in heads} for share in shares], console)
    print_wrapped(
        console, "told apart: situations the method gives different advantages, of all; cancelled: what rewards take "
        "from each other; under each reward's name, its share of the advantage.", style="dim", indented=0,
    )  # fmt: skip
    for one, mark in zip(found[1:], marks[1:], strict=True):
        if not one.changed:
            print_wrapped(console, f"{mark}: no rollout changes", indented=0)
            continue
        moved = ", ".join(
            f"{plain_line(entry['rollout'], 30)} {fixed(entry['before'], 2, True)} to {fixed(entry['after'], 2, True)}"
            for entry in one.changed
        )
        print_wrapped(console, f"{mark}: most changed are {moved}", indented=0)


def _marks(labels: Sequence[str]) -> list[str]:
    """Short names of the settings: themselves where all are short, else the first one's and A, B, C, ..."""
    if all(len(label) <= _LABEL for label in labels):
        return [plain_line(label, _LABEL) for label in labels]
    count = len(labels) - 1
    letters = [chr(ord("A") + at) if count <= 26 else f"S{at + 1}" for at in range(count)]
    return [plain_line(labels[0], _LABEL), *letters]


def _cells(one: Replayed, found: Sequence[Replayed]) -> dict[str, str]:
    """Head -> what stands under it, before the rewards' shares."""
    measures = one.measures
    cells = {"told apart": _percent(measures["collapse"]), "resolution": _percent(measures["resolution"]),
             "cancelled": _percent(measures["cancellation"])}  # fmt: skip
    if any(other.measures["unearned"] is not None for other in found):
        cells["unearned"] = _percent(measures["unearned"])
    return cells | {"sign flips": _percent(one.sign_flips)}


def _print_table(marks: Sequence[str], rows: Sequence[dict[str, str]], console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("setting", no_wrap=True)
    for head in rows[0]:
        table.add_column(head, justify="right", no_wrap=True)
    for mark, cells in zip(marks, rows, strict=True):
        table.add_row(mark, *cells.values())
    console.print(table)


def _fitting(heads: list[str], room: int) -> list[list[str]]:
    """Columns in parts of at most ``room`` characters."""
    parts: list[list[str]] = [[]]
    for head in heads:
        if parts[-1] and sum(max(len(one), 7) + 2 for one in [*parts[-1], head]) > room:
            parts.append([])
        parts[-1].append(head)
    return parts


def print_explanation(found: Explanation, console: Console) -> None:
    """In words, then numbers, then the group."""
    first, *rest = found.words()
    console.print(Text(plain_line(first, 300), style="bold"))
    for line in rest:
        print_wrapped(console, plain_line(line, 400), indented=2)
    console.print()
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("reward")
    for head in ("score", "gated", "mean", "spread", "z", "weight", "part"):
        table.add_column(head, justify="right")
    for part in found.parts:
        table.add_row(
            plain_line(part.reward, 30), plain(part.raw), plain(part.gated), significant(part.mean),
            significant(part.std), fixed(part.normalized, 3, True), plain(part.weight),
            fixed(part.contribution, 4, True),
        )  # fmt: skip
    table.add_row("advantage", "", "", "", "", "", "", Text(fixed(found.advantage, 4, True), style="bold"))
    console.print(table)
    norm = "after batch norm" if found.batch_norm else "no batch norm"
    tail = f"; the dump recorded {fixed(found.recorded, 4, True)}" if found.recorded is not None else ""
    print_wrapped(console, f"combined {fixed(found.combined, 4, True)} before, {norm}{tail}", style="dim", indented=0)
    console.print()
    _print_mates(found, console)
    for what, text in (("prompt", found.prompt), ("completion", found.completion)):
        if text:
            console.print(Text(what, style="dim"))
            console.print(Text(plain_block(text, max(console.width, 30), 12)))


def print_comparison(changes: Sequence[Change], path: str, against: str, console: Console) -> None:
    """What surely changed from one dump to another; then how many measures did not."""
    sure = [change for change in changes if change.sure]
    print_wrapped(
        console, f"{plain_line(path, 100)} against {plain_line(against, 100)}: {len(sure)} of {len(changes)} measures "
        "changed beyond what the groups drawn explain (99 % intervals)", indented=0,
    )  # fmt: skip
    if not sure:
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("measure")
    table.add_column("of")
    for head in ("this", "against", "difference", "interval"):
        table.add_column(head, justify="right")
    for one in sure:
        low, high = one.interval
        table.add_row(
            plain_line(one.measure, 24), plain_line(one.about, 30), significant(one.value), significant(one.against),
            significant(one.difference), f"{significant(low)} to {significant(high)}",
        )  # fmt: skip
    console.print()
    console.print(table)


def _print_mates(found: Explanation, console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim", title=None)
    table.add_column("rollout")
    for part in found.parts:
        table.add_column(plain_line(part.reward, 20), justify="right")
    table.add_column("advantage", justify="right")
    place = [mate["rollout"] for mate in found.mates].index(found.rollout)
    shown: list[dict[str, Any]] = found.mates[:_MATES]
    if place >= _MATES:
        shown = [*shown[:-1], found.mates[place]]
    for mate in shown:
        own = mate["rollout"] == found.rollout
        cells = [plain(score) for score in mate["scores"]]
        mark = "▸ " if own else "  "
        table.add_row(
            mark + plain_line(mate["rollout"], 30),
            *cells,
            fixed(mate["advantage"], 4, True),
            style="bold" if own else "",
        )
    console.print(table)
    if len(found.mates) > len(shown):
        console.print(Text(f"  and {len(found.mates) - len(shown)} more", style="dim"))


def _percent(value: Any) -> str:
    return NONE if value is None else f"{fixed(100 * value)} %"
