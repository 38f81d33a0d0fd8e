"""The same rollouts under other settings: what a change of method, weight or gate would have done to them."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gdpo.audit import measures
from gdpo.audit.chunks import chunks
from gdpo.audit.collect import collect
from gdpo.audit.detect_methods import collapse_interval
from gdpo.audit.evidence import Evidence
from gdpo.audit.run import in_use, known_setting
from gdpo.audit.setting import Setting
from gdpo.audit.tables import measure_table, number
from gdpo.audit.thresholds import Thresholds
from gdpo.core.errors import Error
from gdpo.rollouts.dump import Dump

SHOWN = 5


@dataclass(frozen=True)
class Replayed:
    """One setting on the dump's rollouts."""

    label: str
    """The change, as the user wrote it; "as it was" for the setting in use."""
    method: str
    measures: dict[str, Any]
    """``collapse``, ``resolution``, ``all_dead_share``, ``dominance`` by reward, ``conflict`` (correlation
    within groups by pair), ``unearned`` (of the primary reward), ``unearned_share`` by reward, ``cancellation``."""
    intervals: dict[str, Any]
    """99 %: ``collapse`` [low, high], ``resolution``, and ``dominance`` by reward; by bootstrap over groups."""
    sign_flips: float | None
    """Share of the rollouts that it pushes the other way than the setting in use."""
    silenced: float | None
    """Share that had an advantage and has none now."""
    woken: float | None
    """Share that had none and has one now."""
    correlation: float | None
    """Of the advantages with those in use."""
    changed: list[dict[str, Any]]
    """Rollouts that change most: ``rollout``, ``before``, ``after``."""


def replay(
    dump: Dump, changes: Mapping[str, Mapping[str, Any]], *, method: str | None = None, primary: str | None = None
) -> list[Replayed]:
    """Replay a dump.

    Args:
        dump: as a reader gives it.
        changes: label -> ``{"method", "weights", "gates", "bounds", "options"}`` to change, each optional.
        method: the method in use, where the dump does not show it.
        primary: the reward that ``unearned`` is about.

    Returns:
        The setting in use, then each change.

    Raises:
        Error: no rewards or rollouts, or a change that names none.
    """
    if not dump.rewards:
        raise Error("the dump has no score for each reward (only a total, if any), so nothing can be replayed")
    first = next(chunks(dump), None)
    if first is None:
        raise Error("the dump has no rollouts, so nothing can be replayed")
    base, _ = in_use(dump, known_setting(dump), method, first)
    settings = {label: changed(base, change) for label, change in changes.items()}
    compared = _compared(dump, base, settings)
    everything = {"as it was": base, **settings}
    return [
        Replayed(label, setting.method, *_measured(dump, setting, primary), **compared.get(label, _NONE))
        for label, setting in everything.items()
    ]


_NONE: dict[str, Any] = {"sign_flips": None, "silenced": None, "woken": None, "correlation": None, "changed": []}


def changed(base: Setting, change: Mapping[str, Any]) -> Setting:
    """The setting with what ``change`` says."""
    merged: dict[str, Any] = {
        name: {**getattr(base, name), **change[name]}
        for name in ("weights", "gates", "bounds", "options")
        if name in change
    }
    moving = base.moving and "weights" not in change
    made = replace(base, method=change.get("method", base.method), moving=moving, **merged)
    made.objective()  # names and conditions are checked now
    return made


def _compared(dump: Dump, base: Setting, settings: Mapping[str, Setting]) -> dict[str, dict[str, Any]]:
    """Each setting's advantages beside those in use, in one pass."""
    sums = {label: np.zeros(9) for label in settings}
    most: dict[str, list[tuple[float, str, float, float]]] = {label: [] for label in settings}
    for chunk in chunks(dump):
        before = base.estimate(chunk).advantages
        ids: list[str] | None = None
        for label, setting in settings.items():
            after = setting.estimate(chunk).advantages
            both, gap = (before != 0) & (after != 0), np.abs(after - before)
            sums[label] += [
                len(before), (both & (np.sign(before) != np.sign(after))).sum(), ((before != 0) & (after == 0)).sum(),
                ((before == 0) & (after != 0)).sum(), before.sum(), after.sum(), (before**2).sum(), (after**2).sum(),
                (before * after).sum(),
            ]  # fmt: skip
            ids = ids or chunk.ids()
            top = np.argsort(-gap, kind="stable")[:SHOWN].tolist()
            most[label] += [
                (float(gap[row]), ids[row], float(before[row]), float(after[row])) for row in top if gap[row] > 0
            ]
            most[label] = heapq.nlargest(SHOWN, most[label])
    return {label: _of_sums(sums[label], most[label]) for label in settings}


def _of_sums(sums: Any, most: Sequence[tuple[float, str, float, float]]) -> dict[str, Any]:
    count, flips, silenced, woken, one, two, one_squares, two_squares, product = sums
    spread = np.sqrt(max(one_squares - one * one / count, 0.0) * max(two_squares - two * two / count, 0.0))
    return {
        "sign_flips": float(flips / count), "silenced": float(silenced / count), "woken": float(woken / count),
        "correlation": float((product - one * two / count) / spread) if spread > 0 else None,
        "changed": [{"rollout": name, "before": before, "after": after} for _, name, before, after in most],
    }  # fmt: skip


def _measured(dump: Dump, setting: Setting, primary: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """(measures, intervals)."""
    found = collect(chunks(dump), setting, (setting.method,))
    table, method = measure_table(found), setting.method
    evidence = Evidence(found, dump.framework, Thresholds())
    resolution = evidence.measured(lambda sums: measures.resolution(sums, method))
    dominance = evidence.measured(lambda sums: measures.dominance(sums, method))
    return {
        "collapse": table["collapse"][method]["ratio"], "resolution": table["resolution"][method]["ratio"],
        "all_dead_share": table["all_dead_share"], "dominance": table[f"dominance_{method}"],
        "cancellation": table[f"cancellation_{method}"], "unearned_share": table["unearned_share"],
        "conflict": {" and ".join(pair["pair"]): pair["both_vary"] for pair in table["correlation"]},
        "unearned": None if primary is None else table["unearned_share"].get(primary),
    }, {
        "collapse": list(collapse_interval(evidence)), "resolution": [number(value) for value in resolution[1:]],
        "dominance": {
            name: [number(low), number(high)]
            for name, low, high in zip(setting.names, *dominance[1:], strict=True)
        },
    }  # fmt: skip
