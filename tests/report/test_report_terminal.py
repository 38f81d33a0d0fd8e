from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gdpo.report.terminal import LiveView, sparkline, trend
from gdpo.report.terminal_tables import print_evaluation, print_summary

NAMES = ["correct", "format"]
SAMPLE = {
    "prompt": "What is [bold]3[/bold] + 4?",
    "completion": "\x1b]0;evil\x07[red]x[/nope]\x1b[2J\n\x00<answer>7</answer>",
    "advantage": -1.25,
}


def _metrics(step: int, mean: float) -> dict[str, Any]:
    row: dict[str, Any] = {"step": step, "loss": float("nan")}
    for name in NAMES:
        row |= {
            f"rewards/{name}/mean": mean,
            f"rewards/{name}/dead_share": 0.25,
            f"rewards/{name}/contribution_share": 0.5,
        }
    return row


def test_live_view_fits_and_takes_nothing_as_markup() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, color_system=None)
    with LiveView(10, NAMES, "[red]run[/x]", console=console) as view:
        for step in range(1, 7):
            view.update(_metrics(step, step / 10), SAMPLE)
        view.message("[bold]saved[/x]")
    text = out.getvalue()
    last = text[text.rindex("[red]run[/x]") :]
    assert "step 6 of 10" in last
    assert "0.600" in last
    assert "25%" in last
    assert "▁" in last
    assert "↑" in last
    assert "[red]x[/nope]" in last
    assert "advantage −1.25" in last
    assert "␀<answer>7" in last
    assert "evil" not in text
    assert "\x1b[2J" not in text
    assert "[bold]saved[/x]" in text
    lines = [line for line in last.split("\n") if "\x1b" not in line]
    assert max(map(len, lines)) <= 80


def test_plain_lines_where_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 2))
    monkeypatch.setattr("gdpo.report.terminal.time.monotonic", lambda: next(clock))
    out = io.StringIO()
    with LiveView(40, NAMES, "run", console=Console(file=out, width=80)) as view:
        for step in range(1, 41):
            view.update(_metrics(step, 0.5), SAMPLE)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("step 1/40  correct 0.500 (tied 25%, share 50%)  format 0.500")
    assert lines[-1].startswith("step 40/40")
    assert "left" not in lines[-1]
    assert 4 <= len(lines) < 40
    assert "\x1b" not in out.getvalue()


def test_missing_metrics_are_dashes() -> None:
    out = io.StringIO()
    with LiveView(0, NAMES, "run", console=Console(file=out, width=80)) as view:
        view.update({"step": 1}, None)
    assert "correct – (tied –, share –)" in out.getvalue()


def test_sample_of_messages() -> None:
    out = io.StringIO()
    with LiveView(3, NAMES, "run", console=Console(file=out, force_terminal=True, width=80, color_system=None)) as view:
        view.update(
            {"step": 1},
            {"prompt": [{"role": "user", "content": "asked"}], "completion": [{"role": "a", "content": "said"}, 4]},
        )
    assert "asked" in out.getvalue()
    assert "said" in out.getvalue()


def test_sparkline_and_trend() -> None:
    assert sparkline([0.0, 0.5, 1.0], 10) == "▁▅█"
    assert sparkline([2.0, 2.0], 10) == "▄▄"
    assert sparkline([5.0, 0.0, 1.0], 2) == "▁█"
    assert sparkline([], 5) == ""
    assert trend([0.1, 0.2, 0.3, 0.4]) == "↑"
    assert trend([0.4, 0.3, 0.2, 0.1]) == "↓"
    assert trend([0.4, 0.1, 0.1, 0.4]) == "→"
    assert trend([1.0]) == " "


def test_evaluation_tables(run_folder: Path) -> None:
    before, after = (
        json.loads((run_folder / "evaluations" / f"{name}.json").read_text()) for name in ("before", "after")
    )
    out = io.StringIO()
    print_evaluation(before, after, Console(file=out, force_terminal=True, width=80, color_system=None))
    text = out.getvalue()
    assert "Held-out evaluation before and after training, 64 prompts" in text
    assert "95 % interval" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    plain = io.StringIO()
    print_evaluation(before, None, Console(file=plain, width=80))
    assert plain.getvalue().splitlines()[0].startswith("held-out all of correct and format: before ")
    empty = io.StringIO()
    print_evaluation(None, None, Console(file=empty))
    assert empty.getvalue() == "No held-out scores.\n"


def test_summary(run_folder: Path) -> None:
    out = io.StringIO()
    print_summary(run_folder, run_folder / "report.html", Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("Share of held-out answers on which correct and format both hold: ")
    assert lines[1] == "60 steps in 1 min 30 s"
    assert lines[2] == f"report  {run_folder / 'report.html'}"
