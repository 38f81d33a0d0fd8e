"""An audit's page put together: what the template shows and what the script draws."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from gdpo.audit.findings import SEVERITIES
from gdpo.audit.kept import KeptGroup
from gdpo.audit.run import Audit
from gdpo.report.audit_cards import COLOURS, axis, cards, drift, percent, reward_colours
from gdpo.report.audit_conflicts import conflict_map
from gdpo.report.audit_rollouts import rollout_items
from gdpo.report.charts import Chart, curve, window
from gdpo.report.example_group import ExampleGroup, Pattern
from gdpo.report.formats import NONE, fixed, significant
from gdpo.report.run_page import Bar

_NOTICES = 8
_MOST_COLUMNS = 8
"""With more rewards than this, tables of one group show those that vary in it."""
_STRONGEST = 0.6
"""Opacity of the strongest colour behind a number that must stay readable."""


def audit_page(found: Audit, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Template context and embedded data of an audit's page.

    Args:
        found: the audit.
        path: where the dump was, as the user wrote it.
    """
    names = found.summary.rewards
    colours = reward_colours(found)
    charts = _charts(found, colours)
    items = rollout_items(found)
    context = {
        "title": f"Audit of {path}", "path": path, "name": Path(path).name or path,
        "found": found, "facts": _facts(found, path), "notices": _notices(found),
        "rows": [_row(found, name, colours[k]) for k, name in enumerate(names)] if found.measures else [],
        "findings": [_finding(one) for one in found.findings], "charts": charts, "rewards": names,
        "smooth": window(len(found.summary.steps)), "matrix": _matrix(found), "bars": _bars(found),
        "examples": [(example, _reach(example)) for example in _examples(found)], "shown": len(items["items"]),
        "reasons": items["reasons"], "unmeasured": sorted(found.unmeasured.items()), "cards": cards(found),
        "conflicts": conflict_map(found), "counts": _counts(found), "colours": colours, "drawn": COLOURS,
        "many": len(names) > _MOST_COLUMNS,
    }  # fmt: skip
    return context, {
        "rewards": names,
        "colours": colours,
        "charts": {c.key: c.data() for c in charts},
        "rollouts": items,
    }


def _facts(found: Audit, path: str) -> list[tuple[str, str]]:
    read = found.summary
    how = {"given": "given", "the dump": "from the dump", "its advantages": "from its advantages"}
    sizes = ", ".join(f"{size}" for size in sorted(read.group_sizes)[:4]) + ("…" if len(read.group_sizes) > 4 else "")
    return [
        ("path", path), ("format", read.format), ("rollouts", f"{read.rollouts:,}"),
        ("groups", f"{read.groups:,} of {sizes or NONE}"),
        ("steps", f"{len(read.steps):,}"),
        ("method", f"{found.method} ({how.get(found.method_from, found.method_from)})"),
    ]  # fmt: skip


def _notices(found: Audit) -> list[str]:
    read = found.summary
    notes = [f"{read.duplicates_dropped:,} rows repeat others and were left out."] if read.duplicates_dropped else []
    notes += [f"Not read: {text}" for text in read.skipped[:_NOTICES]]
    if len(read.skipped) > _NOTICES:
        notes.append(f"and {len(read.skipped) - _NOTICES} more that could not be read")
    return notes + read.notes


def _row(found: Audit, name: str, colour: int) -> dict[str, Any]:
    """A reward's line: mean, range, spread inside groups, dead groups, share of the advantage, missing."""
    measures = found.measures
    share = measures.get(f"dominance_{found.method}", {}).get(name)
    seen = measures["range"].get(name)
    dead = measures["dead_share"].get(name)
    return {
        "name": name, "colour": colour, "mean": significant(measures["mean"].get(name)),
        "range": f"{significant(seen[0])} to {significant(seen[1])}" if seen else NONE,
        "spread": significant(measures["group_std_mean"].get(name)), "dead": percent(dead),
        "dead_width": _width(dead), "share": percent(share), "share_width": _width(share),
        "missing": percent(measures["missing_share"].get(name)), "weight": significant(found.weights.get(name)),
        "drift": drift(measures["drift"].get(name)),
    }  # fmt: skip


def _counts(found: Audit) -> list[tuple[str, str]]:
    """(severity, how many findings have it), the worst first."""
    counts = [(severity, sum(one.severity == severity for one in found.findings)) for severity in SEVERITIES]
    return [(severity, f"{count} {severity}{'s' * (count != 1)}") for severity, count in counts if count]


def _finding(one: Any) -> dict[str, Any]:
    interval = f"{significant(one.interval[0])} to {significant(one.interval[1])}" if one.interval else None
    return {
        "id": one.id, "severity": one.severity, "what": one.what, "remedy": one.remedy, "measure": one.measure,
        "value": significant(one.value), "interval": interval, "cost": percent(one.cost) if one.cost else None,
        "rests": ", ".join(f"{count:,} {what}" for what, count in one.rests_on.items() if count),
        "evidence": [(key, _shown(value)) for key, value in one.evidence.items()], "rollouts": list(one.rollouts),
    }  # fmt: skip


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(entry)}" for key, entry in value.items())
    return ", ".join(map(_shown, value)) if isinstance(value, list) else str(value)


def _charts(found: Audit, colours: list[int]) -> list[Chart]:
    series, (what, numbers) = found.series, axis(found)
    if len(numbers) < 2:
        return []
    made = []
    for key, title, note, bounds in (
        ("mean", "Mean reward", "Each reward's mean over the step's rollouts.", {}),
        ("dead_share", "Groups that teach nothing", "Share of groups in which the reward is tied.",
         {"percent": True, "low": 0.0, "high": 1.0}),
        ("influence", "Share of the push", "Each reward's share of the sum of |parts| under the method in use.",
         {"percent": True, "low": 0.0, "high": 1.0}),
        ("spread", "Spread inside groups", "Mean standard deviation of the reward within a group.", {"low": 0.0}),
    ):  # fmt: skip
        named = [(name, colours[k], series[key][name]) for k, name in enumerate(found.summary.rewards)]
        named = [entry for entry in named if any(value is not None for value in entry[2])]
        if named:
            made.append(curve(f"audit/{key}", title, note, numbers, named, x_label=what, **bounds))
    return made


def _matrix(found: Audit) -> list[list[dict[str, Any]]]:
    """[R][R] correlations of the rewards within groups, for a table; empty where there are fewer than two."""
    names = found.summary.rewards
    if len(names) < 2 or not found.measures:
        return []
    known = {}
    for entry in found.measures["correlation"]:
        one, two = entry["pair"]
        known[one, two] = known[two, one] = entry["both_vary"]
    rows = []
    for one in names:
        cells = []
        for two in names:
            value = 1.0 if one == two else known.get((one, two))
            cells.append({
                "text": NONE if value is None else fixed(value, 2), "own": one == two,
                "kind": "plus" if (value or 0.0) >= 0 else "minus", "size": f"{_STRONGEST * abs(value or 0.0):.2f}",
            })  # fmt: skip
        rows.append(cells)
    return rows


def _bars(found: Audit) -> list[Bar]:
    bars: list[Bar] = []
    for method, table in found.measures.get("collapse", {}).items():
        total = table["distinct_reward_multisets"]
        if not total:
            return []
        if not bars:
            bars.append(Bar("different situations among the groups", total, 100.0, "all"))
        told = table["distinct_advantage_vectors"]
        kind = "own" if method == found.method else "other"
        bars.append(Bar(f"told apart by {method}", told, 100.0 * told / total, kind))
    return bars


def _examples(found: Audit) -> list[ExampleGroup]:
    """Groups in which the method in use and the other one differ most in what they tell apart."""
    if found.evidence is None or len(found.summary.rewards) < 2:
        return []
    setting = found.evidence.found.setting
    other = "gdpo" if setting.method == "grpo" else "grpo"
    colours, telling = reward_colours(found), found.evidence.found.kept.telling
    return [_group(group, list(setting.names), colours, setting.method, other) for *_, group in telling]


def _group(group: KeptGroup, names: list[str], colours: list[int], method: str, other: str) -> ExampleGroup:
    """A group as a picture; rewards that are equal in all its rollouts are left out where there are many."""
    vary = [k for k in range(len(names)) if len({one.values[k] for one in group.rollouts}) > 1]
    shown = vary if len(names) > _MOST_COLUMNS else list(range(len(names)))
    found: dict[str, list[int]] = {}
    for row, one in enumerate(group.rollouts):
        found.setdefault(f"{one.values} {one.advantage:.6f}", []).append(row)
    own, two = (
        [round(one.advantage, 6) for one in group.rollouts],
        [round(one.other or 0.0, 6) for one in group.rollouts],
    )
    merging, seen = (other, two) if len(set(two)) < len(set(own)) else (method, own)
    shared = Counter(seen[rows[0]] for rows in found.values())
    merged = sorted((value for value, count in shared.items() if count > 1), reverse=True)
    patterns = []
    for rows in found.values():
        first = group.rollouts[rows[0]]
        mark = merged.index(seen[rows[0]]) if seen[rows[0]] in merged else None
        values = [first.values[k] for k in shown]
        patterns.append(Pattern(values, len(rows), own[rows[0]], two[rows[0]], mark, rows))
    return ExampleGroup(
        step=group.step, group=str(group.group), method=method, other_method=other, rewards=[names[k] for k in shown],
        patterns=sorted(patterns, key=lambda p: (-p.own, -p.other)), rollouts=group.size,
        own_distinct=len(set(own)), other_distinct=len(set(two)), merging=merging, colours=[colours[k] for k in shown],
        left_out=len(names) - len(shown),
    )  # fmt: skip


def _reach(example: ExampleGroup) -> float:
    return max([*(abs(v) for p in example.patterns for v in (p.own, p.other)), 1e-9])


def _width(value: float | None) -> str:
    return f"{100 * min(max(value or 0.0, 0.0), 1.0):.1f}%"
