"""The rollouts that show a finding, with their texts and parts; read again from the dump's first steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gdpo.audit.chunks import Chunk, Floats, chunks
from gdpo.audit.findings import Finding, plain
from gdpo.audit.setting import Setting
from gdpo.audit.sums import Within, within
from gdpo.core.compute import Estimate
from gdpo.rollouts.dump import Dump

SHOWN = 5
"""Rollouts a finding shows at most."""
LONGEST = 2000
"""Characters of a text that are kept."""
CHUNKS = 4
"""Chunks read for examples at most."""


def with_examples(dump: Dump, setting: Setting, findings: list[Finding]) -> tuple[list[Finding], dict[str, Any]]:
    """The findings with the ids of rollouts that show them, and those rollouts by id."""
    chosen: dict[int, list[str]] = {at: [] for at in range(len(findings))}
    examples: dict[str, Any] = {}
    if not findings:
        return findings, examples
    for read, chunk in enumerate(chunks(dump)):
        waiting = [at for at, ids in chosen.items() if len(ids) < SHOWN]
        if not waiting or read >= CHUNKS:
            break
        gated = setting.gated(chunk.scores)
        about, made, ids = within(chunk, gated), setting.estimate(chunk, gated), chunk.ids()
        for at in waiting:
            score = _score(findings[at], chunk, setting, about, made)
            for row in _best(score, chunk, SHOWN - len(chosen[at])):
                chosen[at].append(ids[row])
                examples.setdefault(ids[row], example(chunk, setting, made, int(row), ids[row]))
    return [replace(one, rollouts=tuple(chosen[at])) for at, one in enumerate(findings)], examples


def example(chunk: Chunk, setting: Setting, made: Estimate, row: int, name: str) -> dict[str, Any]:
    """One rollout as plain values."""
    text: dict[str, str] = {
        column: str(chunk.rows[column][row])[:LONGEST]
        for column in ("prompt", "completion")
        if column in chunk.rows.columns and chunk.rows[column][row] is not None
    }
    parts = {
        reward: {"value": plain(_known(chunk.scores[row, k])), "normalized": float(made.normalized[row, k]),
                 "contribution": float(made.contributions[row, k])}
        for k, reward in enumerate(setting.names)
    }  # fmt: skip
    return {
        "rollout": name, "step": chunk.steps[int(chunk.label[chunk.group[row]])], "group": chunk.place(row),
        "advantage": float(made.advantages[row]), "rewards": parts, **text,
    }  # fmt: skip


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _best(score: Floats, chunk: Chunk, count: int) -> Sequence[int]:
    """The rows of the highest positive scores, at most one a group where that is possible."""
    order = np.argsort(-np.nan_to_num(score, nan=-np.inf), kind="stable")[: 50 * count]
    order = order[score[order] > 0]
    rows: list[int] = []
    seen: set[int] = set()
    for row in order.tolist():
        group = int(chunk.group[row])
        if group not in seen:
            seen.add(group)
            rows.append(row)
    return (rows + [row for row in order.tolist() if row not in rows])[:count]


def _score(finding: Finding, chunk: Chunk, setting: Setting, about: Within, made: Estimate) -> Any:
    """[B] how well each rollout shows the finding; 0 or less: not at all."""
    size = np.abs(np.asarray(made.advantages)) + 1e-12
    ks = [setting.names.index(name) for name in finding.rewards]
    parts = np.asarray(made.contributions)
    live = chunk.spread(about.live)
    k = ks[0] if ks else 0
    match finding.id:
        case "dead" | "saturation":
            return about.present[k] * ~live[k] * 1.0
        case "no-signal":
            return 1.0 * ~live.any(axis=0)
        case "dominance" | "scale":  # pushed one way by this reward alone, against all the others
            rest = parts.sum(axis=1) - parts[:, k]
            return np.abs(parts[:, k]) * np.where(rest * parts[:, k] < 0, 1.0, 1e-3)
        case "conflict":
            opposite = about.z[ks[0]] * about.z[ks[1]] < 0
            return np.minimum(np.abs(about.z[ks[0]]), np.abs(about.z[ks[1]])) * opposite
        case "redundancy":
            return np.minimum(np.abs(parts[:, ks[0]]), np.abs(parts[:, ks[1]]))
        case "noise":
            small = about.std[k] < 1e-6 * max(float(np.abs(about.values[k]).max(initial=0.0)), 1e-300)
            return np.abs(parts[:, k]) * chunk.spread(small & about.live[k])
        case "missing" | "gate":
            return 1.0 * ~about.present[k] if finding.id == "missing" else 1.0 * (size > 0)
        case "unearned":
            return size * ~live[k]
        case "collapse":
            return _merged(chunk, about, made)
        case _:
            return np.abs(about.z[k])


def _merged(chunk: Chunk, about: Within, made: Estimate) -> Floats:
    """[B] 1 for rollouts with the advantage of a group-mate that has other rewards."""
    rounded = np.round(np.asarray(made.advantages), 9) + 0.0
    order = np.lexsort((*about.values, rounded, chunk.group))
    same = (np.diff(chunk.group[order]) == 0) & (np.diff(rounded[order]) == 0)
    other = (np.diff(about.values[:, order], axis=1) != 0).any(axis=0)
    score = np.zeros(len(order))
    pair = np.flatnonzero(same & other)
    score[order[pair]] = 1.0
    score[order[pair + 1]] = 1.0
    return score
