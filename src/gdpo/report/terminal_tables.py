"""What a finished evaluation or run says in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gdpo.report.formats import NONE, Scale, duration, joined
from gdpo.report.run_data import Evaluation, RunData, parse_evaluation, read_run
from gdpo.report.terminal import COLOURS, spaced
from gdpo.report.text import plain_line
from gdpo.report.verdict import Row, score_rows, verdict


def print_evaluation(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None = None, console: Console | None = None
) -> None:
    """A table of held-out scores; with both evaluations also the change and its 95 % interval.

    Args:
        before: the content of ``evaluations/before.json``, or None.
        after: the content of ``evaluations/after.json``, or None.
        console: where to print; None is standard output.
    """
    console = console if console is not None else Console()
    one, two = (parse_evaluation(value) if value is not None else None for value in (before, after))
    rows = score_rows(*_scored(one, two))
    if not rows:
        console.print("No held-out scores.")
        return
    if console.is_terminal:
        console.print(_title(one, two))
        console.print(_table(rows, one, two))
    else:
        for row in rows:
            console.print(Text(_row_line(row, one, two)), soft_wrap=True)


def print_summary(run_folder: Path, report: Path | None = None, console: Console | None = None) -> None:
    """The last lines of a run: its headline, how long it took, and where its report and model lie.

    Raises:
        Error: ``run_folder`` is not a run folder.
    """
    console = console if console is not None else Console()
    for line in summary_lines(run_folder, report):
        console.print(Text(spaced(line)), soft_wrap=True)


def summary_lines(run_folder: Path, report: Path | None = None) -> list[str]:
    """What ``print_summary`` prints.

    Raises:
        Error: ``run_folder`` is not a run folder.
    """
    run = read_run(run_folder)
    scales = _scales(run.rewards, run.before, run.after)
    headline = verdict(run, scales)
    lines = [
        plain_line(f"{headline.subject}: {headline.before} before, {headline.after} after. {headline.sentence}", 400)
    ]
    seconds = [value for value in run.series("seconds") if value is not None]
    steps = f"{run.steps[-1]} steps" if run.metrics else "no steps"
    lines.append(f"{steps} in {duration(sum(seconds))}" if seconds else steps)
    if report is not None:
        lines.append(f"report  {report}")
    if (run_folder / "model").is_dir():
        lines.append(f"model   {run_folder / 'model'}")
    return lines


def _scored(before: Evaluation | None, after: Evaluation | None) -> tuple[RunData, dict[str, Scale]]:
    names = list(dict.fromkeys(name for evaluation in (before, after) if evaluation for name in evaluation.rewards))
    run = RunData(
        folder=Path(), info={}, name="", method="", model="", seed="", rewards=names, recipe_text="", total_steps=None,
        metrics=[], before=before, after=after, rollout_files=[],
    )  # fmt: skip
    return run, _scales(names, before, after)


def _scales(names: list[str], *evaluations: Evaluation | None) -> dict[str, Scale]:
    scales = {}
    for name in names:
        means = [e.rewards[name].mean for e in evaluations if e is not None and name in e.rewards]
        known = [mean for mean in means if mean is not None]
        scales[name] = Scale(share=bool(known) and all(0.0 <= mean <= 1.0 for mean in known))
    return scales


def _table(rows: list[Row], before: Evaluation | None, after: Evaluation | None) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("held-out reward", overflow="fold")
    for heading, there in (("before", before), ("after", after)):
        if there is not None:
            table.add_column(heading, justify="right", no_wrap=True)
    if before is not None and after is not None:
        table.add_column("change", justify="right", no_wrap=True)
        table.add_column("95 % interval", justify="right", no_wrap=True)
    for row in rows:
        style = "bold" if row.colour is None else COLOURS[row.colour % len(COLOURS)]
        cells = [Text(plain_line(row.name, 60), style=style)]
        cells += [Text(spaced(row.before))] if before is not None else []
        cells += [Text(spaced(row.after))] if after is not None else []
        if before is not None and after is not None:
            tint = {"up": "green", "down": "red"}.get(row.clear, "default")
            cells += [Text(row.difference, style=tint), Text(row.interval or NONE)]
        table.add_row(*cells)
    return table


def _title(before: Evaluation | None, after: Evaluation | None) -> Text:
    names = [name for name, there in (("before", before), ("after", after)) if there is not None]
    some = after or before
    count = f", {some.prompts} prompts" if some is not None and some.prompts else ""
    return Text(f"Held-out evaluation {joined(names)} training{count}", style="bold")


def _row_line(row: Row, before: Evaluation | None, after: Evaluation | None) -> str:
    parts = [f"held-out {plain_line(row.name, 60)}:"]
    parts += [f"before {row.before}"] if before is not None else []
    parts += [f"after {row.after}"] if after is not None else []
    if before is not None and after is not None:
        parts.append(f"change {row.difference}" + (f" ({row.interval})" if row.interval else ""))
    return spaced(" ".join(parts))
