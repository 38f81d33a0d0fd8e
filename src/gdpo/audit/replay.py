"""``replay``: the same rollouts under other settings, before and after."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gdpo.audit import measures
from gdpo.audit.chunks import Chunk, Floats, chunks
from gdpo.audit.collect import Collected, collect
from gdpo.audit.examples import example
from gdpo.audit.keys import Changes
from gdpo.audit.run import in_use, known_setting
from gdpo.audit.setting import Setting
from gdpo.audit.sums import pairs
from gdpo.audit.tables import by_name, collapse, number
from gdpo.core.errors import Error
from gdpo.rollouts.dump import Dump

SHOWN = 10
"""Rollouts that change most."""


@dataclass(eq=False)
class Replay:
    """What changed, and what would change."""

    rewards: tuple[str, ...]
    method_from: str
    before: dict[str, Any]
    after: list[dict[str, Any]]
    """One a setting: ``said`` (as it was written), ``method``, the measures of ``before``, ``sign_flips`` (share of the
    rollouts with an advantage before and after), ``correlation`` of the advantages, ``rollouts`` that change most."""

    def to_dict(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {"schema": 1, "rewards": list(self.rewards), "method_from": self.method_from, "before": self.before,
                "after": self.after}  # fmt: skip


def replay(dump: Dump, settings: Sequence[Changes], *, base: Changes | None = None) -> Replay:
    """The dump's rollouts under each of ``settings``, beside what the run did.

    Args:
        dump: as a reader gives it.
        settings: changes to the run's own setting.
        base: what the run used, where the dump does not say it.

    Raises:
        Error: a dump without rewards or rollouts, or a setting that does not fit.
    """
    if not dump.rewards:
        raise Error("the dump has no score for each reward, and replay needs them")
    first = next(chunks(dump), None)
    if first is None:
        raise Error("the dump has no rollouts")
    base = base or Changes()
    setting, method_from = in_use(dump, known_setting(dump), base.method, first)
    setting = base.on(setting)
    before = _measured(collect(_within(dump, base), setting, ()), setting)
    after = []
    for change in settings:
        changed = change.on(setting)
        entry = {"said": change.said, **_measured(collect(_within(dump, base), changed, ()), changed)}
        after.append(entry | _compared(dump, base, setting, changed))
    return Replay(setting.names, method_from, before, after)


def _within(dump: Dump, base: Changes) -> Any:
    """The chunks of the steps asked for."""
    return chunks(only_steps(dump, base.steps))


def only_steps(dump: Dump, steps: tuple[int, int] | None) -> Dump:
    """The part of a dump whose steps lie in the range, both ends included."""
    if steps is None:
        return dump
    read = dump.read
    return replace(dump, read=lambda: (batch for batch in read() if steps[0] <= batch.step <= steps[1]))


def _measured(found: Collected, setting: Setting) -> dict[str, Any]:
    whole, method, names = found.totals.whole(), setting.method, setting.names
    both = measures.correlation(whole)
    return {
        "method": method, "weights": dict(zip(names, setting.weight_list(), strict=True)), "gates": dict(setting.gates),
        "collapse": collapse(found, method)["ratio"], "resolution": number(measures.resolution(whole, method)),
        "dead_share": by_name(names, measures.dead_groups(whole)),
        "dominance": by_name(names, measures.dominance(whole, method)),
        "conflict": {
            f"{names[k]} and {names[other]}": number(both[at]) for at, (k, other) in enumerate(pairs(len(names)))
        },
        "cancellation": number(measures.cancellation(whole, method)),
        "unearned_share": by_name(names, measures.unearned(whole, method)),
    }  # fmt: skip


def _compared(dump: Dump, base: Changes, one: Setting, two: Setting) -> dict[str, Any]:
    """Sign flips, correlation, and the rollouts whose advantage moves most."""
    flips = pushed = total = 0
    moments = np.zeros(6)
    best: list[tuple[float, int, dict[str, Any]]] = []
    for chunk in _within(dump, base):
        made, other = one.estimate(chunk), two.estimate(chunk)
        a, b = np.asarray(made.advantages), np.asarray(other.advantages)
        flips += int((a * b < 0).sum())
        pushed += int(((a != 0) & (b != 0)).sum())
        moments += [len(a), a.sum(), b.sum(), a @ a, b @ b, a @ b]
        gap: Floats = np.abs(a - b)
        ids = chunk.ids()
        for row in np.argsort(-gap, kind="stable")[:SHOWN].tolist():
            if gap[row] > 0 and (len(best) < SHOWN or gap[row] > best[0][0]):
                heapq.heappush(best, (float(gap[row]), -(total + row), _moved(chunk, one, made, b, row, ids[row])))
                best = heapq.nsmallest(len(best), best)[-SHOWN:]
        total += len(a)
    names = {f"m_{name}": moments[at] for at, name in enumerate(("n", "x", "y", "xx", "yy", "xy"))}
    return {
        "sign_flips": flips / pushed if pushed else None,
        "correlation": number(measures.pearson(names, "m")),
        "rollouts": [entry for _, _, entry in sorted(best, key=lambda item: (-item[0], -item[1]))],
    }  # fmt: skip


def _moved(chunk: Chunk, setting: Setting, made: Any, after: Floats, row: int, name: str) -> dict[str, Any]:
    shown: Mapping[str, Any] = example(chunk, setting, made, row, name)
    return {**shown, "before": shown["advantage"], "after": float(after[row])}
