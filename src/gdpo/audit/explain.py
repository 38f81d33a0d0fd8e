"""``explain``: one rollout's advantage as a sum, with its group-mates beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gdpo.audit.chunks import Chunk, Floats, chunks, joined
from gdpo.audit.examples import LONGEST, example
from gdpo.audit.keys import Changes
from gdpo.audit.run import in_use, known_setting
from gdpo.audit.setting import Setting
from gdpo.audit.tables import number
from gdpo.core.compute import Estimate
from gdpo.core.errors import Error
from gdpo.core.estimators import method_of
from gdpo.core.inputs import nearest
from gdpo.rollouts.dump import Dump


@dataclass(eq=False)
class Explanation:
    """Where one advantage comes from."""

    rollout: str
    step: int
    method: str
    method_from: str
    formula: str
    advantage: float
    recorded: float | None
    """What the dump says, where it does."""
    combined: float
    """Before batch norm."""
    norm: float | None
    """What the batch norm multiplies by (and, for rollouts without a value of their own, adds); None without one."""
    parts: list[dict[str, Any]]
    """A reward each: name, value, gated, mean, std (of the group), normalized, weight, contribution, present, live. The
    contributions add up to the advantage."""
    mates: list[dict[str, Any]]
    """Every rollout of the group, the best first: id, each reward's value, advantage."""
    texts: dict[str, str]
    words: list[str]
    """The same in sentences."""

    def to_dict(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {"schema": 1, **vars(self)}


def explain(dump: Dump, rollout: str, *, base: Changes | None = None) -> Explanation:
    """One rollout of a dump, by its id.

    Args:
        dump: as a reader gives it.
        rollout: an id as ``audit`` shows it, such as ``3-17``.
        base: what the run used, where the dump does not say it.

    Raises:
        Error: no such rollout; the message names ids that are near.
    """
    if not dump.rewards:
        raise Error("the dump has no score for each reward, and explain needs them")
    base = base or Changes()
    first = next(chunks(dump), None)
    if first is None:
        raise Error("the dump has no rollouts")
    setting, method_from = in_use(dump, known_setting(dump), base.method, first)
    setting = base.on(setting)
    seen: list[str] = []
    for batch in dump.batches():
        if not len(batch.scores):
            continue
        chunk = joined([batch])
        ids = chunk.ids()
        if rollout in ids:
            return _explained(chunk, setting, ids, ids.index(rollout), method_from)
        seen += ids[:200] if len(seen) < 2000 else []
    raise Error(f"there is no rollout {rollout!r} in the dump{nearest(rollout, seen[:2000]) if seen else ''}"[:300])


def _explained(chunk: Chunk, setting: Setting, ids: list[str], row: int, method_from: str) -> Explanation:
    gated = setting.gated(chunk.scores)
    made = setting.estimate(chunk, gated)
    group = int(chunk.group[row])
    parts = [_part(chunk, setting, gated, made, row, k) for k in range(len(setting.names))]
    advantage, combined = float(made.advantages[row]), float(made.combined[row])
    known = method_of(setting.method)
    recorded = chunk.column("advantage")
    found = None if recorded is None or np.isnan(recorded[row]) else float(recorded[row])
    norm = setting.options.get("batch_norm")
    normed = known.batch_norm if norm is None else bool(norm)
    shown = example(chunk, setting, made, row, ids[row])
    texts: dict[str, str] = {str(key): str(shown[key])[:LONGEST] for key in ("prompt", "completion") if key in shown}
    result = Explanation(
        ids[row], shown["step"], setting.method, method_from, known.formula, advantage, found, combined,
        advantage / combined if normed and combined else None, parts, _mates(chunk, setting, made, ids, group), texts,
        [],
    )  # fmt: skip
    result.words = _words(result, int(chunk.sizes[group]))
    return result


def _part(chunk: Chunk, setting: Setting, gated: Floats, made: Estimate, row: int, k: int) -> dict[str, Any]:
    name, group = setting.names[k], int(chunk.group[row])
    weights = np.broadcast_to(np.asarray(made.weights, dtype=np.float64), chunk.scores.shape)
    return {
        "reward": name, "value": number(chunk.scores[row, k]), "gated": number(gated[row, k]),
        "gate": setting.gates.get(name), "mean": number(made.mean[group, k]), "std": number(made.std[group, k]),
        "normalized": float(made.normalized[row, k]), "weight": float(weights[row, k]),
        "contribution": float(made.contributions[row, k]), "present": not np.isnan(gated[row, k]),
        "live": bool(made.live[group, k]),
    }  # fmt: skip


def _mates(chunk: Chunk, setting: Setting, made: Estimate, ids: list[str], group: int) -> list[dict[str, Any]]:
    rows = np.flatnonzero(chunk.group == group)
    order = rows[np.argsort(-np.asarray(made.advantages)[rows], kind="stable")]
    shown = [example(chunk, setting, made, int(row), ids[int(row)]) for row in order]
    return [
        {"rollout": one["rollout"], "advantage": one["advantage"],
         "rewards": {name: part["value"] for name, part in one["rewards"].items()},
         "completion": str(one.get("completion", ""))[:200]}
        for one in shown
    ]  # fmt: skip


def _words(found: Explanation, size: int) -> list[str]:
    rank = 1 + [mate["rollout"] for mate in found.mates].index(found.rollout)
    way = "pushed up" if found.advantage > 0 else "pushed down" if found.advantage < 0 else "left as it is"
    words = [f"Rollout {found.rollout} of step {found.step} is {way}, with an advantage of {found.advantage:+.4f}; "
             f"that is place {rank} of {size} in its group, by {found.method}."]  # fmt: skip
    for part in sorted(found.parts, key=lambda one: -abs(one["contribution"])):
        words.append(_sentence(part))
    if found.norm is not None:
        words.append(
            f"The batch norm takes the sum {found.combined:+.4f} to {found.advantage:+.4f} (times {found.norm:.4f})."
        )
    if found.recorded is not None and abs(found.recorded - found.advantage) > 0.01 * max(1.0, abs(found.advantage)):
        words.append(f"The dump says {found.recorded:+.4f}: it was made by another method, other weights or all "
                     "rollouts of a step of which some are not in the dump.")  # fmt: skip
    return words


def _sentence(part: dict[str, Any]) -> str:
    name = part["reward"]
    if not part["present"]:
        return f"{name} does not apply to it and adds nothing."
    if not part["weight"]:
        return f"{name} has weight 0 and adds nothing."
    if not part["live"]:
        return f"{name} is {part['gated']:g} for the whole group and adds nothing."
    side = "above" if part["gated"] > part["mean"] else "below" if part["gated"] < part["mean"] else "at"
    closed = part["gate"] is not None and part["value"] != part["gated"]
    gate = f" (its gate, {part['gate']}, is not open; without it {part['value']:g})" if closed else ""
    return (
        f"{name} is {part['gated']:g}{gate}, {side} the group's mean {part['mean']:.4g} (spread {part['std']:.4g}); "
        f"with weight {part['weight']:g} it adds {part['contribution']:+.4f}."
    )
