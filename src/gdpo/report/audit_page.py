"""An audit's page put together: what the template shows and what the script draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gdpo.audit.chunks import Chunk, chunks
from gdpo.audit.run import Audit
from gdpo.audit.setting import Setting
from gdpo.report.charts import Chart, curve, window
from gdpo.report.example_group import ExampleGroup, Pattern
from gdpo.report.formats import NONE, fixed, significant
from gdpo.report.run_page import Bar
from gdpo.report.text import turns
from gdpo.rollouts.dump import Dump

_TEXT_LIMIT = 2000
_GROUPS_TRIED = 2000
_LARGEST_GROUP = 64
_NOTICES = 8


def audit_page(found: Audit, dump: Dump, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Template context and embedded data of an audit's page.

    Args:
        found: the audit.
        dump: what was audited; a group to show is read from its first steps.
        path: where it was, as the user wrote it.
    """
    names = found.summary.rewards
    example = _example(found, dump)
    charts = _charts(found)
    items = _rollouts(found)
    context = {
        "title": f"Audit of {path}", "path": path, "name": Path(path).name or path,
        "found": found, "facts": _facts(found, path), "notices": _notices(found),
        "rows": [_row(found, name, k) for k, name in enumerate(names)] if found.measures else [],
        "findings": [_finding(one) for one in found.findings], "charts": charts, "rewards": names,
        "smooth": window(len(found.summary.steps)), "matrix": _matrix(found), "bars": _bars(found),
        "example": example, "reach": _reach(example), "shown": len(items["items"]),
        "unmeasured": sorted(found.unmeasured.items()),
    }  # fmt: skip
    return context, {"rewards": names, "charts": {c.key: c.data() for c in charts}, "rollouts": items}


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
        "spread": significant(measures["group_std_mean"].get(name)), "dead": _percent(dead),
        "dead_width": _width(dead), "share": _percent(share), "share_width": _width(share),
        "missing": _percent(measures["missing_share"].get(name)), "weight": significant(found.weights.get(name)),
        "drift": significant(measures["drift"].get(name), sign=True),
    }  # fmt: skip


def _finding(one: Any) -> dict[str, Any]:
    interval = f"{significant(one.interval[0])} to {significant(one.interval[1])}" if one.interval else None
    return {
        "id": one.id, "severity": one.severity, "what": one.what, "remedy": one.remedy, "measure": one.measure,
        "value": significant(one.value), "interval": interval, "cost": _percent(one.cost) if one.cost else None,
        "rests": ", ".join(f"{count:,} {what}" for what, count in one.rests_on.items() if count),
        "evidence": [(key, _shown(value)) for key, value in one.evidence.items()], "rollouts": list(one.rollouts),
    }  # fmt: skip


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(entry)}" for key, entry in value.items())
    return ", ".join(map(_shown, value)) if isinstance(value, list) else str(value)


def _charts(found: Audit) -> list[Chart]:
    series = found.series
    if len(series.get("step", [])) < 2:
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
        named = [(name, k, series[key][name]) for k, name in enumerate(found.summary.rewards)]
        named = [entry for entry in named if any(value is not None for value in entry[2])]
        if named:
            made.append(curve(f"audit/{key}", title, note, series["step"], named, **bounds))
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
                "kind": "plus" if (value or 0.0) >= 0 else "minus", "size": f"{abs(value or 0.0):.2f}",
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


def _example(found: Audit, dump: Dump) -> ExampleGroup | None:
    """The group of the first steps in which the method in use and the other one differ most in what they tell apart."""
    if found.evidence is None or len(found.summary.rewards) < 2:
        return None
    setting = found.evidence.found.setting
    other = setting.with_method("gdpo" if setting.method == "grpo" else "grpo")
    chunk = next(chunks(dump), None)
    if chunk is None:
        return None
    one, two = (np.asarray(s.estimate(chunk).advantages, dtype=np.float64) for s in (setting, other))
    best: tuple[int, int] | None = None
    for group in range(min(len(chunk.starts), _GROUPS_TRIED)):
        rows = _members(chunk, group)
        if not 2 <= len(rows) <= _LARGEST_GROUP:
            continue
        gap = abs(len(set(one[rows].round(6))) - len(set(two[rows].round(6))))
        if gap and (best is None or gap > best[0]):
            best = gap, group
    return None if best is None else _group(chunk, best[1], setting, other.method, one, two)


def _group(chunk: Chunk, group: int, setting: Setting, other: str, one: Any, two: Any) -> ExampleGroup:
    rows = _members(chunk, group)
    found: dict[str, list[int]] = {}
    for row in rows.tolist():
        found.setdefault(f"{chunk.scores[row].tolist()} {one[row]:.6f}", []).append(row)
    shared: dict[float, int] = {}
    for members in found.values():
        shared[round(two[members[0]], 6)] = shared.get(round(two[members[0]], 6), 0) + 1
    merged = sorted((value for value, count in shared.items() if count > 1), reverse=True)
    patterns = [
        Pattern(
            [None if np.isnan(score) else float(score) for score in chunk.scores[members[0]]], len(members),
            float(one[members[0]]), float(two[members[0]]),
            merged.index(round(two[members[0]], 6)) if round(two[members[0]], 6) in merged else None, members,
        )
        for members in found.values()
    ]  # fmt: skip
    return ExampleGroup(
        step=chunk.steps[int(chunk.label[group])], group=str(group), method=setting.method, other_method=other,
        rewards=list(setting.names), patterns=sorted(patterns, key=lambda p: (-p.own, -p.other)), rollouts=len(rows),
        own_distinct=len(set(one[rows].round(6))), other_distinct=len(set(two[rows].round(6))),
    )  # fmt: skip


def _members(chunk: Chunk, group: int) -> Any:
    return np.arange(chunk.starts[group], chunk.starts[group] + chunk.sizes[group])


def _reach(example: ExampleGroup | None) -> float:
    values = [] if example is None else [abs(v) for p in example.patterns for v in (p.own, p.other)]
    return max([*values, 1e-9])


def _rollouts(found: Audit) -> dict[str, Any]:
    """The rollouts that findings show, as the list of the page takes them."""
    names = found.summary.rewards
    showing: dict[str, list[str]] = {}
    for one in found.findings:
        for rollout in one.rollouts:
            showing.setdefault(rollout, []).append(one.id)
    prompts: list[Any] = []
    places: dict[str, int] = {}
    items = []
    for rollout, entry in found.examples.items():
        prompt = entry.get("prompt") or ""
        if prompt not in places:
            places[prompt] = len(prompts)
            prompts.append(turns(prompt, _TEXT_LIMIT))
        parts = entry["rewards"]
        items.append({
            "s": entry["step"], "l": None, "a": entry["advantage"], "g": str(entry["group"]),
            "t": ", ".join(showing.get(rollout, []))[:80], "r": rollout[:80], "p": places[prompt],
            "c": turns(entry.get("completion"), _TEXT_LIMIT), "v": [parts[name]["value"] for name in names],
            "w": [found.weights.get(name) for name in names], "k": [parts[name]["contribution"] for name in names],
        })  # fmt: skip
    return {"prompts": prompts, "items": items}


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{fixed(100 * value)}\u202f%"


def _width(value: float | None) -> str:
    return f"{100 * min(max(value or 0.0, 0.0), 1.0):.1f}%"
