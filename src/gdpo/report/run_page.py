"""A run's report page put together: what the template shows and what the script draws."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gdpo.report.charts import Chart, Line, run_charts, window
from gdpo.report.example_group import ExampleGroup, find_example
from gdpo.report.formats import Scale, duration, fixed, significant
from gdpo.report.held_out import held_out
from gdpo.report.run_data import RunData, number, read_run, read_table
from gdpo.report.samples import Rollouts, choose, histogram, last_quarter, read_rollouts, read_texts, symmetric_edges
from gdpo.report.text import turns
from gdpo.report.verdict import notices, score_rows, verdict

ROLLOUT_CAP = 400
_TEXT_LIMIT = 4000
_TEXT_BUDGET = 900_000
"""Bytes of text that the rollouts of one page may hold together."""


@dataclass(frozen=True)
class Bar:
    """One bar of the picture of what a method can tell apart."""

    label: str
    count: int
    percent: float
    kind: str


@dataclass(frozen=True)
class Collapse:
    """How many situations were told apart over the whole run, out of how many there were."""

    situations: int
    own: int
    grpo: int | None
    groups: int
    bars: list[Bar]


def run_page(folder: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Template context and embedded data of the report of the run in ``folder``.

    Raises:
        Error: ``folder`` is not a run folder.
    """
    run = read_run(folder)
    rollouts = read_rollouts(run)
    scales = _scales(run, rollouts)
    sections = run_charts(run, scales)
    sections["advantages"] = _histograms(rollouts)
    example = find_example(rollouts, run.method) if rollouts.table.height else None
    if rollouts.unread:
        files = "file" if rollouts.unread == 1 else "files"
        run.notes.append(f"{rollouts.unread} rollout {files} could not be read.")
    rows = score_rows(run, scales)
    items = _rollout_payload(rollouts, example)
    charts = {chart.key: chart.data() for section in sections.values() for chart in section}
    context = {
        "title": f"{run.name}: {run.method} on {run.model}",
        "run": run,
        "verdict": verdict(run, scales),
        "rows": rows,
        "notices": notices(run, rows),
        "facts": _facts(run, rollouts),
        "sections": sections,
        "smooth": window(len(run.metrics)),
        "collapse": _collapse(run),
        "example": example,
        "reach": _reach(example),
        "rollouts_shown": len(items["items"]),
        "rollouts_total": rollouts.table.height,
        "held_out": held_out(run),
        "versions": _pairs(run.info.get("versions")),
        "machine": _pairs(run.info.get("machine")),
    }
    return context, {"rewards": run.rewards, "charts": charts, "rollouts": items}


def _scales(run: RunData, rollouts: Rollouts) -> dict[str, Scale]:
    """A reward is written as a share where no value seen anywhere lies outside 0 to 1."""
    scales = {}
    for name in run.rewards:
        means = [e.rewards[name].mean for e in (run.before, run.after) if e and name in e.rewards]
        seen = [value for value in [*means, *run.series(f"rewards/{name}/mean")] if value is not None]
        for column in (rollouts.column(f"reward/{name}"), *_held_out_columns(run, f"reward/{name}")):
            finite = column[np.isfinite(column)]
            seen += [float(finite.min()), float(finite.max())] if len(finite) else []
        scales[name] = Scale(share=bool(seen) and all(0.0 <= value <= 1.0 for value in seen))
    return scales


def _held_out_columns(run: RunData, name: str) -> list[np.ndarray[Any, Any]]:
    columns = []
    for which in ("before", "after"):
        frame = read_table(run.folder / "evaluations" / f"{which}.parquet", [name])
        if frame is not None and name in frame.columns and frame[name].dtype.is_numeric():
            columns.append(frame[name].fill_null(float("nan")).to_numpy().astype(np.float64))
    return columns


def _facts(run: RunData, rollouts: Rollouts) -> list[tuple[str, str]]:
    """The line of small facts under the headline."""
    facts = [("method", run.method), ("model", run.model), ("seed", run.seed)]
    if run.info.get("recipe"):
        facts.append(("recipe", str(run.info["recipe"])))
    done = f"{run.steps[-1]:,}" if run.metrics else "0"
    facts.append(("steps", f"{done} of {run.total_steps:,}" if run.total_steps else done))
    if rollouts.table.height:
        facts.append(("rollouts", f"{rollouts.table.height:,}"))
    seconds = [value for value in run.series("seconds") if value is not None]
    if seconds:
        facts.append(("training", duration(math.fsum(seconds))))
    if run.info.get("created"):
        facts.append(("started", str(run.info["created"])[:16].replace("T", " ")))
    return facts


def _pairs(value: object) -> list[tuple[str, str]]:
    return [(str(key), str(entry)) for key, entry in value.items()] if isinstance(value, dict) else []


def _histograms(rollouts: Rollouts) -> list[Chart]:
    """Advantages, then each reward's part in them on the same bins; the last quarter of the steps, and all steps."""
    advantages = rollouts.column("advantage")
    if not np.isfinite(advantages).any():
        return []
    late, first, last = last_quarter(rollouts)
    sets = [(f"steps {first} to {last}", late), ("all steps", np.ones(len(late), dtype=bool))]
    options = [name for name, _ in sets]
    columns = [(name, index, rollouts.column(f"contribution/{name}")) for index, name in enumerate(rollouts.rewards)]
    columns = [entry for entry in columns if np.isfinite(entry[2]).any()]
    edges = symmetric_edges([advantages, *(column for _, _, column in columns)])
    centers = [float(f"{value:.5g}") for value in (edges[:-1] + edges[1:]) / 2]
    charts = []
    for name, colour, column in [("advantage", -1, advantages), *columns]:
        lines = [Line(option, colour, list(histogram(column[rows], edges))) for option, rows in sets]
        title = "Advantages" if colour < 0 else name
        charts.append(
            Chart(f"parts/{colour}", title, _spread_note(column, late), centers, lines, low=0.0, bars=True,
                  x_label="advantage" if colour < 0 else "part in the advantage", options=options)
        )  # fmt: skip
    top = max(value or 0.0 for chart in charts[1:] for line in chart.lines for value in line.values) if columns else 0.0
    return [charts[0], *(Chart(**{**vars(chart), "high": top}) for chart in charts[1:])]


def _spread_note(column: np.ndarray[Any, Any], late: np.ndarray[Any, Any]) -> str:
    finite = column[late & np.isfinite(column)]
    if not len(finite):
        return "No values in the last quarter of the steps."
    zero = 100.0 * float(np.mean(finite == 0.0))
    return f"Spread {significant(float(finite.std()))}; exactly 0 for {fixed(zero)}\u202f% of rollouts (last quarter)."


def _collapse(run: RunData) -> Collapse | None:
    """Sums over steps, as DESIGN.md's "collapse" asks: ratios of sums, never means of ratios."""
    totals = {}
    for key in ("distinct_reward_vectors", "distinct_advantages", "distinct_advantages_grpo", "live_groups"):
        values = [value for value in run.series(key) if value is not None]
        totals[key] = int(sum(values)) if values else None
    situations, own = totals["distinct_reward_vectors"], totals["distinct_advantages"]
    if not situations or own is None:
        return None
    grpo = None if run.method == "grpo" else totals["distinct_advantages_grpo"]
    bars = [
        Bar("different situations among the rollouts", situations, 100.0, "all"),
        Bar(f"told apart by {run.method}", own, 100.0 * own / situations, "own"),
    ]
    if grpo is not None:
        bars.append(Bar("told apart by grpo", grpo, 100.0 * grpo / situations, "other"))
    return Collapse(situations, own, grpo, totals["live_groups"] or 0, bars)


def _reach(example: ExampleGroup | None) -> float:
    """Largest advantage of the example on either side, for its bars."""
    if example is None:
        return 1.0
    return max([abs(value) for pattern in example.patterns for value in (pattern.own, pattern.other)] + [1e-9])


def _rollout_payload(rollouts: Rollouts, example: ExampleGroup | None) -> dict[str, Any]:
    """The rollouts to read, their prompts stored once; texts are cut shorter until all of them fit the budget."""
    rows = choose(rollouts, ROLLOUT_CAP, example.rows if example else [])
    texts = read_texts(rollouts, rows) if rows else {}
    limit = _TEXT_LIMIT
    while True:
        prompts, items = _items(rollouts, rows, texts, limit)
        size = sum(
            len(part.encode("utf-8", "replace"))
            for item in [*prompts, *(i["c"] for i in items)]
            for pair in item
            for part in pair
        )
        if size <= _TEXT_BUDGET or limit <= 100:
            return {"prompts": prompts, "items": items}
        limit = max(100, int(limit * 0.7))


def _items(
    rollouts: Rollouts, rows: list[int], texts: dict[int, dict[str, str | None]], limit: int
) -> tuple[list[list[list[str]]], list[dict[str, Any]]]:
    columns = {
        key: [rollouts.column(f"{part}/{name}") for name in rollouts.rewards]
        for key, part in (("v", "reward"), ("w", "weight"), ("k", "contribution"))
    }
    single = {key: rollouts.column(name) for key, name in (("s", "step"), ("l", "length"), ("a", "advantage"))}
    groups = rollouts.table["group"].to_list() if "group" in rollouts.table.columns else []
    places: dict[str, int] = {}
    prompts: list[list[list[str]]] = []
    items = []
    for row in rows:
        text = texts.get(row, {})
        prompt = text.get("prompt") or ""
        if prompt not in places:
            places[prompt] = len(prompts)
            prompts.append(turns(prompt, limit // 2))
        item: dict[str, Any] = {key: _short(column[row]) for key, column in single.items()}
        item |= {key: [_short(column[row]) for column in parts] for key, parts in columns.items()}
        item["g"] = str(groups[row]) if groups else ""
        item["t"] = (text.get("task") or "")[:80]
        item["r"] = (text.get("rollout") or "")[:80]
        item["p"] = places[prompt]
        item["c"] = turns(text.get("completion"), limit)
        items.append(item)
    return prompts, items


def _short(value: object) -> float | None:
    known = number(float(value)) if isinstance(value, float | np.floating) else None
    return None if known is None else float(f"{known:.6g}")


def as_data(value: Any) -> Any:
    """A dataclass as a mapping."""
    return asdict(value)
