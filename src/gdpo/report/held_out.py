"""Held-out completions before and after training, side by side for the same prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gdpo.report.formats import plain
from gdpo.report.run_data import RunData, number, read_table
from gdpo.report.text import turns

_CAP = 24
_LIMIT = 1500
_PROMPT_LIMIT = 800


@dataclass(frozen=True)
class Side:
    """One completion with its scores, ready to print."""

    completion: list[list[str]]
    scores: list[str]
    length: str


@dataclass(frozen=True)
class Pair:
    """The same prompt before and after; ``kind`` is ``better``, ``worse`` or ``same`` by the sum of the rewards."""

    kind: str
    task: str
    prompt: list[list[str]]
    before: Side
    after: Side

    @property
    def long(self) -> bool:
        """Whether the prompt doesn't fit the one line that announces the pair."""
        return len(self.prompt) != 1 or len(self.prompt[0][1]) > 160 or "\n" in self.prompt[0][1]


@dataclass(frozen=True)
class HeldOut:
    """The pairs shown, and how all prompts fared."""

    pairs: list[Pair]
    counts: dict[str, int]
    prompts: int


def held_out(run: RunData) -> HeldOut | None:
    """Pairs of the first sample of each prompt; None unless both evaluations kept their completions."""
    before, after = (_first_samples(run, which) for which in ("before", "after"))
    if not before or not after:
        return None
    kinds: dict[str, list[tuple[str, str]]] = {"better": [], "worse": [], "same": []}
    for key in before:
        if key in after:
            kinds[_kind(run, before[key], after[key])].append(key)
    counts = {kind: len(keys) for kind, keys in kinds.items()}
    total = sum(counts.values())
    if not total:
        return None
    pairs = [_pair(run, kind, before[key], after[key]) for kind, key in _spread(kinds)]
    return HeldOut(pairs, counts, total)


def _first_samples(run: RunData, which: str) -> dict[tuple[str, str], dict[str, Any]]:
    columns = ["task", "prompt", "completion", "length", *(f"reward/{name}" for name in run.rewards)]
    frame = read_table(run.folder / "evaluations" / f"{which}.parquet", columns)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    if frame is None or "prompt" not in frame.columns:
        return found
    for row in frame.unique(["prompt"], keep="first", maintain_order=True).iter_rows(named=True):
        found.setdefault((str(row.get("task") or ""), str(row["prompt"])), row)
    return found


def _kind(run: RunData, before: dict[str, Any], after: dict[str, Any]) -> str:
    one, two = (sum(number(row.get(f"reward/{name}")) or 0.0 for name in run.rewards) for row in (before, after))
    return "same" if abs(two - one) < 1e-9 else "better" if two > one else "worse"


def _spread(kinds: dict[str, list[tuple[str, str]]]) -> list[tuple[str, tuple[str, str]]]:
    """At most ``_CAP`` pairs: a third of each kind, and what one kind leaves free goes to the others."""
    chosen: list[tuple[str, tuple[str, str]]] = []
    depth = 0
    while len(chosen) < _CAP and any(depth < len(keys) for keys in kinds.values()):
        chosen += [(kind, keys[depth]) for kind, keys in kinds.items() if depth < len(keys)]
        depth += 1
    order = {"better": 0, "worse": 1, "same": 2}
    return sorted(chosen[:_CAP], key=lambda entry: order[entry[0]])


def _pair(run: RunData, kind: str, before: dict[str, Any], after: dict[str, Any]) -> Pair:
    return Pair(
        kind,
        str(before.get("task") or ""),
        turns(before.get("prompt"), _PROMPT_LIMIT),
        _side(run, before),
        _side(run, after),
    )


def _side(run: RunData, row: dict[str, Any]) -> Side:
    length = number(row.get("length"))
    return Side(
        completion=turns(row.get("completion"), _LIMIT),
        scores=[plain(number(row.get(f"reward/{name}"))) for name in run.rewards],
        length="" if length is None else f"{length:g} tokens",
    )
