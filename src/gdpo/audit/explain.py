"""Why one rollout got its advantage: a sum over the rewards, with its group-mates beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdpo.audit.chunks import Chunk, chunks
from gdpo.audit.run import in_use, known_setting
from gdpo.core.errors import Error
from gdpo.core.estimators import method_of
from gdpo.core.inputs import nearest
from gdpo.rollouts.dump import Dump


@dataclass(frozen=True)
class Part:
    """One reward's part."""

    reward: str
    raw: float | None
    """As scored; None where missing."""
    gated: float | None
    """After its gate."""
    mean: float | None
    """Of the group."""
    std: float | None
    """Of the group."""
    live: bool
    """Whether the group's values differ."""
    normalized: float
    weight: float
    contribution: float
    """The parts add up to the advantage."""


@dataclass(frozen=True)
class Explanation:
    """How one rollout's advantage came about."""

    rollout: str
    step: int
    group: int
    method: str
    method_from: str
    parts: list[Part]
    combined: float
    """Before batch norm."""
    advantage: float
    recorded: float | None
    """The advantage that the dump holds; None where it holds none."""
    batch_norm: bool
    """Whether the method normalises over the batch."""
    mates: list[dict[str, Any]]
    """Every rollout of the group by falling advantage: ``rollout``, ``scores``, ``advantage``."""
    prompt: str | None
    completion: str | None

    def words(self) -> list[str]:
        """In words, a sentence a reward."""
        order = sorted(self.parts, key=lambda part: -abs(part.contribution))
        best = [mate["rollout"] for mate in self.mates].index(self.rollout) + 1
        lines = [
            f"rollout {self.rollout} got {self.advantage:+.4f} under {self.method}: number {best} of the "
            f"{len(self.mates)} rollouts of its prompt"
        ]
        return lines + [_sentence(part) for part in order]


def explain(dump: Dump, rollout: str, *, method: str | None = None, **known: Any) -> Explanation:
    """Explain one rollout.

    Args:
        dump: as a reader gives it.
        rollout: its id: the dump's own, else ``STEP-ROW``, rows of a step counted from 0.
        method: as for ``gdpo.audit.run.audit``.
        known: ``weights``, ``gates``, ``bounds``, ``options``, where the dump does not say them.

    Raises:
        Error: no such rollout, or what ``audit`` raises.
    """
    if not dump.rewards:
        raise Error("the dump has no score for each reward (only a total, if any), so there is nothing to add up")
    setting, how = known_setting(dump, **known), ""
    seen: list[str] = []
    for chunk in chunks(dump, target=1):
        if not how:
            setting, how = in_use(dump, setting, method, chunk)
        ids = chunk.ids()
        if rollout in ids:
            return _explained(chunk, setting, how, ids, ids.index(rollout))
        seen += ids[: 200 - len(seen)] if len(seen) < 200 else []
    raise Error(f"the dump has no rollout {rollout!r}{nearest(rollout, seen) if seen else ''}")


def _explained(chunk: Chunk, setting: Any, how: str, ids: list[str], row: int) -> Explanation:
    gated = setting.gated(chunk.scores)
    made = setting.estimate(chunk, gated)
    group = int(chunk.group[row])
    weights = np.broadcast_to(np.asarray(made.weights, dtype=np.float64), gated.shape)
    place = int(made.group[row])
    parts = [
        Part(
            name, _known(chunk.scores[row, k]), _known(gated[row, k]), _known(made.mean[place, k]),
            _known(made.std[place, k]), bool(made.live[place, k]), float(made.normalized[row, k]),
            float(weights[row, k]), float(made.contributions[row, k]),
        )
        for k, name in enumerate(setting.names)
    ]  # fmt: skip
    members = np.flatnonzero(chunk.group == group)
    members = members[np.argsort(-made.advantages[members], kind="stable")]
    mates = [
        {"rollout": ids[m], "scores": list(map(_known, chunk.scores[m])), "advantage": float(made.advantages[m])}
        for m in members
    ]  # fmt: skip
    recorded = chunk.column("advantage")
    whole = setting.options.get("batch_norm")
    return Explanation(
        ids[row], chunk.steps[int(chunk.label[group])], group, setting.method, how, parts, float(made.combined[row]),
        float(made.advantages[row]), None if recorded is None else _known(recorded[row]),
        method_of(setting.method).batch_norm if whole is None else bool(whole), mates,
        _text(chunk, "prompt", row), _text(chunk, "completion", row),
    )  # fmt: skip


def _sentence(part: Part) -> str:
    name = part.reward
    if part.raw is None:
        return f"{name} is missing, so it adds nothing"
    if part.gated is None:
        return f"{name} scored {part.raw:g}, but its gate does not hold: it is missing and adds nothing"
    gate = f" (its gate set {part.raw:g} to {part.gated:g})" if part.gated != part.raw else ""
    if not part.live:
        return f"{name} is {part.gated:g} for every rollout of the group{gate}, so it adds nothing"
    above = "above" if part.gated > (part.mean or 0.0) else "below"
    return (
        f"{name} scored {part.gated:g}{gate}, {above} the group's mean of {part.mean:.4g} (spread {part.std:.4g}): "
        f"z {part.normalized:+.4g}, weight {part.weight:g}, its part {part.contribution:+.4f}"
    )


def _known(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def _text(chunk: Chunk, column: str, row: int) -> str | None:
    if column not in chunk.rows.columns or chunk.rows[column][row] is None:
        return None
    return str(chunk.rows[column][row])


def to_dict(found: Explanation) -> Mapping[str, Any]:
    """As ``--json`` prints it."""
    from dataclasses import asdict

    return {"schema": 1, **asdict(found), "words": found.words()}
