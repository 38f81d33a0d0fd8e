"""A sweep's page put together: arms over seeds, paired differences, curves, and what is missing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gdpo.report.charts import Chart, Line, rolling, rounded, thinned, window
from gdpo.report.compare_data import ALL_OF, Arm, Member, Paired, Sweep, mean_curve, measure_label, paired, read_sweep
from gdpo.report.formats import NONE, Interval, Scale, duration, fixed, joined, significant


@dataclass(frozen=True)
class Cell:
    """One arm's held-out result on one measure; positions are per cent of the picture's width."""

    arm: str
    colour: int
    start: str
    mean: str
    interval: str
    count: int
    at: float | None
    low: float | None
    high: float | None
    dots: list[float]


@dataclass(frozen=True)
class Measure:
    """One measure: a line for each arm, and the differences from the first."""

    name: str
    cells: list[Cell]
    differences: list[Difference]
    left: str
    right: str


@dataclass(frozen=True)
class Difference:
    """One arm against the first, in words and seed by seed."""

    label: str
    amount: str
    verdict: str
    kind: str
    """``up``, ``down``, ``same`` or ``unknown``."""
    seeds: list[tuple[str, str]]


def compare_page(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Template context and embedded data of the page of the sweep in ``folder``.

    Raises:
        Error: ``folder`` is not a compare folder.
    """
    sweep = read_sweep(folder)
    scales = {measure: _scale(sweep, measure) for measure in sweep.measures}
    charts = _charts(sweep, scales)
    states = Counter(member.status for member in sweep.members)
    measures = [_measure(sweep, measure, scales[measure]) for measure in sweep.measures]
    context = {
        "title": f"{folder.resolve().name}: {joined([arm.name for arm in sweep.arms])}",
        "name": folder.resolve().name,
        "sweep": sweep,
        "headline": _headline(sweep, scales),
        "measures": measures,
        "comparisons": sum(len(measure.differences) for measure in measures),
        "charts": charts,
        "states": states,
        "unfinished": sum(count for status, count in states.items() if status != "done"),
        "members": [_listed(member, arm) for arm in sweep.arms for member in arm.members],
    }
    return context, {"rewards": [], "charts": {chart.key: chart.data() for chart in charts}}


def _scale(sweep: Sweep, measure: str) -> Scale:
    if measure == ALL_OF:
        return Scale(share=True)
    seen: list[float | None] = []
    for member in sweep.members:
        if member.run:
            evaluations = [e for e in (member.run.before, member.run.after) if e and measure in e.rewards]
            seen += [*member.run.series(f"rewards/{measure}/mean"), *(e.rewards[measure].mean for e in evaluations)]
    known = [value for value in seen if value is not None]
    return Scale(share=bool(known) and all(0.0 <= value <= 1.0 for value in known))


def _headline(sweep: Sweep, scales: dict[str, Scale]) -> list[Difference]:
    """The first measure's differences: what the sweep was run for."""
    if not sweep.measures:
        return []
    measure = sweep.measures[0]
    return [_difference(pair, scales[measure]) for pair in paired(sweep, measure)]


def _measure(sweep: Sweep, measure: str, scale: Scale) -> Measure:
    values = [
        value for arm in sweep.arms for which in ("after", "before") for value in arm.finals(measure, which).values()
    ]
    intervals = [interval for arm in sweep.arms if (interval := arm.interval(measure))]
    edges = values + [edge for i in intervals if i.low is not None and i.high is not None for edge in (i.low, i.high)]
    low, high = (0.0, 1.0) if scale.share else (min(edges, default=0.0), max(edges, default=1.0))
    if high <= low:
        high = low + 1.0
    cells = [_cell(arm, measure, scale, low, high) for arm in sweep.arms]
    differences = [_difference(pair, scale) for pair in paired(sweep, measure)]
    left, right = ("0", "100\u202f%") if scale.share else (significant(low), significant(high))
    return Measure(measure_label(sweep, measure), cells, differences, left, right)


def _cell(arm: Arm, measure: str, scale: Scale, low: float, high: float) -> Cell:
    def place(value: float | None) -> float | None:
        return None if value is None else round(3 + 94 * min(max((value - low) / (high - low), 0.0), 1.0), 2)

    finals = arm.finals(measure)
    interval, start = arm.interval(measure), arm.interval(measure, "before")
    dots = [spot for value in finals.values() if (spot := place(value)) is not None]
    return Cell(
        arm=arm.name,
        colour=arm.colour,
        start=scale.value(start.mean if start else None),
        mean=scale.value(interval.mean if interval else None),
        interval=_span(interval, scale),
        count=len(finals),
        at=place(interval.mean) if interval else None,
        low=place(interval.low) if interval else None,
        high=place(interval.high) if interval else None,
        dots=dots,
    )


def _span(interval: Interval | None, scale: Scale) -> str:
    if interval is None or interval.low is None or interval.high is None:
        return NONE
    if scale.share:
        return f"{fixed(100 * max(interval.low, 0.0))} to {fixed(100 * min(interval.high, 1.0))}"
    return f"{significant(interval.low)} to {significant(interval.high)}"


def _difference(pair: Paired, scale: Scale) -> Difference:
    """Says "higher" or "lower" only where the interval leaves 0 out."""
    label = f"{pair.arm.name} compared with {pair.base.name}"
    seeds = [(seed, scale.difference(value)) for seed, value in pair.differences.items()]
    interval = pair.interval
    if interval is None:
        return Difference(label, NONE, "no seed is finished on both sides yet", "unknown", seeds)
    amount = f"{scale.difference(interval.mean)} {scale.unit}".strip()
    if interval.low is None and interval.count > 1:
        verdict = f"the same on all {interval.count} seeds, so there is no spread to tell an interval from"
        return Difference(label, amount, verdict, "unknown", seeds)
    if interval.low is None:
        return Difference(
            label, amount, "one seed on both sides: no interval, so nothing can be concluded", "unknown", seeds
        )
    reach = f"{scale.difference(interval.low)} to {scale.difference(interval.high)}"
    span = f"95\u202f% interval {reach}, n\u00a0=\u00a0{interval.count}\u00a0seeds"
    if not interval.clear:
        return Difference(label, amount, f"no clear difference ({span})", "same", seeds)
    kind = "up" if interval.mean > 0 else "down"
    return Difference(label, amount, f"{'higher' if kind == 'up' else 'lower'} ({span})", kind, seeds)


def _charts(sweep: Sweep, scales: dict[str, Scale]) -> list[Chart]:
    charts = []
    for reward in (measure for measure in sweep.measures if measure != ALL_OF):
        share = scales[reward].share
        charts.append(
            _curves(sweep, f"rewards/{reward}/mean", reward, "Mean reward over the step's rollouts.", percent=share,
                    low=0.0 if share else None, high=1.0 if share else None)
        )  # fmt: skip
    note = "Share of groups in which every reward is tied."
    charts.append(_curves(sweep, "dead_share", "Groups that teach nothing", note, percent=True, low=0.0, high=1.0))
    charts.append(_curves(sweep, "completion_length", "Completion length", "Mean tokens a completion.", low=0.0))
    return [chart for chart in charts if chart.lines]


def _curves(sweep: Sweep, key: str, title: str, note: str, **bounds: Any) -> Chart:
    """Thick the mean over an arm's runs, thin each run; all smoothed over the same window of steps."""
    every = sorted({step for member in sweep.members if member.run for step in member.run.steps})
    width = window(len(every))
    x, lines = [float(step) for step in every], []
    for arm in sweep.arms:
        runs = [
            member.run for member in arm.members if member.run and any(v is not None for v in member.run.series(key))
        ]
        if not runs:
            continue
        steps, mean, each = mean_curve(runs, key)
        spread = [dict(zip(steps, rolling(values, width), strict=True)) for values in [mean, *each]]
        places, values = thinned([float(step) for step in every], [[one.get(step) for step in every] for one in spread])
        x = places
        short = [[rounded(value) for value in column] for column in values]
        lines.append(Line(arm.name, arm.colour, short[0]))
        lines += [Line(arm.name, arm.colour, column, faint=True) for column in short[1:] if len(runs) > 1]
    note += " Thick: mean over seeds; thin: each seed." if any(line.faint for line in lines) else ""
    note += f" Smoothed over {width} steps." if width > 1 else ""
    return Chart(key, title, note, x, lines, **bounds)


def _listed(member: Member, arm: Arm) -> dict[str, Any]:
    run = member.run
    seconds = [value for value in run.series("seconds") if value is not None] if run else []
    return {
        "arm": arm.name,
        "colour": arm.colour,
        "seed": member.seed,
        "status": member.status,
        "steps": f"{run.steps[-1]:,}" if run and run.metrics else NONE,
        "seconds": duration(sum(seconds)) if seconds else NONE,
        "folder": member.folder,
        "link": quote(member.report) if member.report else None,
        "all": Scale(share=True).value(member.final(ALL_OF)),
    }
