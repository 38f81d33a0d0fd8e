"""What a page shows of a dump beyond its measures: shapes, pulls, and whole groups with their texts.

All of it is kept during the one pass over the dump, and bounded: numbers are of the whole dump, texts of few groups.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gdpo.audit.chunks import Chunk, Floats
from gdpo.audit.pulls import Pulls
from gdpo.audit.shapes import PartShapes
from gdpo.audit.sums import Within
from gdpo.core.compute import Estimate

SAMPLED = 24
"""Groups chosen at random, each as likely as any other."""
TELLING = 3
"""Groups kept that one method tells apart and the other does not."""
MEMBERS = 16
"""Rollouts of a group that are kept; of a larger group those spread evenly over its advantages."""
LONGEST = 4000
"""Characters of a text that are kept."""
_PICTURED = 64
"""Larger groups make no picture."""


@dataclass(frozen=True)
class KeptRollout:
    """One rollout; R rewards."""

    name: str
    completion: str | None
    length: float | None
    advantage: float
    other: float | None
    """Advantage under the method compared with."""
    values: list[float | None]
    normalized: list[float]
    weights: list[float]
    contributions: list[float]


@dataclass(frozen=True)
class KeptGroup:
    """One group."""

    number: int
    """In the order read, from 0."""
    step: int
    group: int
    """In its step, from 0."""
    prompt: str | None
    size: int
    rollouts: list[KeptRollout]


@dataclass(eq=False)
class Kept:
    """What is kept of a dump."""

    shapes: PartShapes = field(default_factory=PartShapes)
    pulls: Pulls = field(default_factory=Pulls)
    groups: int = 0
    """Seen."""
    sampled: list[tuple[int, KeptGroup]] = field(default_factory=list)
    """(random key, group), the least keys."""
    pulled: dict[int, KeptGroup] = field(default_factory=dict)
    """Number -> the most telling group of a prompt in which rewards pull apart."""
    telling: list[tuple[int, int, bytes, KeptGroup]] = field(default_factory=list)
    """(how many more advantages one method has than the other, number, what it looks like, group)."""

    def add(self, chunk: Chunk, about: Within, own: Estimate, other: Estimate | None, gap: Floats | None) -> None:
        """See a chunk.

        Args:
            chunk: B rollouts in G groups.
            about: the rewards behind gates, within groups.
            own: what the method in use makes of it.
            other: what the method compared with does.
            gap: [G] by how many distinct advantages the two differ.
        """
        make = _Maker(chunk, own, other, self.groups)
        self.shapes.add(chunk, np.asarray(own.contributions, dtype=np.float64), about.present)
        for group in self.pulls.add(chunk, about, own.weights, self.groups):
            self.pulled[self.groups + group] = make.group(group)
        wanted = {at for _, at in self.pulls.best.values()}
        self.pulled = {number: kept for number, kept in self.pulled.items() if number in wanted}
        self._sample(make, len(chunk.starts))
        if gap is not None:
            self._tell(make, gap, about)
        self.groups += len(chunk.starts)

    def chosen(self) -> list[KeptGroup]:
        """The groups chosen at random, in the order read."""
        return sorted((group for _, group in self.sampled), key=lambda group: group.number)

    def _sample(self, make: _Maker, count: int) -> None:
        """The groups with the least keys of all: a fair sample of any length, read in one pass."""
        keys = _key(self.groups + np.arange(count))
        least = np.argsort(keys, kind="stable")[:SAMPLED].tolist()
        worst = self.sampled[-1][0] if len(self.sampled) >= SAMPLED else None
        fresh = [(int(keys[at]), make.group(at)) for at in least if worst is None or keys[at] < worst]
        self.sampled = sorted([*self.sampled, *fresh], key=lambda entry: entry[0])[:SAMPLED]

    def _tell(self, make: _Maker, gap: Floats, about: Within) -> None:
        sizes = make.chunk.sizes
        size = np.where((sizes >= 2) & (sizes <= _PICTURED), np.abs(gap), 0)
        least = self.telling[-1][0] if len(self.telling) >= TELLING else 0
        for group in np.argsort(-size, kind="stable")[: 8 * TELLING].tolist():
            if size[group] <= least:
                break
            rows = make.rows(group)
            look = b"".join(sorted(row.tobytes() for row in about.values[:, rows].T))
            if all(look != known for _, _, known, _ in self.telling):
                entry = int(size[group]), self.groups + group, look, make.group(group, _PICTURED)
                self.telling = sorted([*self.telling, entry], key=lambda one: (-one[0], one[1]))[:TELLING]
                least = self.telling[-1][0] if len(self.telling) >= TELLING else 0


@dataclass(frozen=True, eq=False)
class _Maker:
    """Takes groups out of a chunk."""

    chunk: Chunk
    own: Estimate
    other: Estimate | None
    first: int
    """Number of the chunk's first group."""

    def rows(self, group: int) -> Any:
        """Rows of a group."""
        return np.arange(self.chunk.starts[group], self.chunk.starts[group] + self.chunk.sizes[group])

    def group(self, group: int, most: int = MEMBERS) -> KeptGroup:
        """A group of the chunk with at most ``most`` of its rollouts."""
        chunk, rows = self.chunk, self.rows(group)
        shown = rows
        if len(rows) > most:
            ranked = rows[np.argsort(np.asarray(self.own.advantages)[rows], kind="stable")]
            shown = np.sort(ranked[np.linspace(0, len(rows) - 1, most).round().astype(int)])
        first = int(rows[0])
        return KeptGroup(
            self.first + group, chunk.steps[int(chunk.label[group])], chunk.place(first),
            text_of(chunk, "prompt", first), len(rows), [self.rollout(int(row)) for row in shown],
        )  # fmt: skip

    def rollout(self, row: int) -> KeptRollout:
        """One of the chunk's rollouts."""
        chunk, own, weights = self.chunk, self.own, np.asarray(self.own.weights, dtype=np.float64)
        length = chunk.column("length") if "length" in chunk.rows.columns else None
        other = None if self.other is None else float(np.asarray(self.other.advantages)[row])
        if "rollout" in chunk.rows.columns:
            name = str(chunk.rows["rollout"][row])
        else:
            name = f"{chunk.steps[int(chunk.batch_ids[row])]}-{row}"  # as ``Chunk.ids``
        return KeptRollout(
            name, text_of(chunk, "completion", row), None if length is None else _known(length[row]),
            float(np.asarray(own.advantages)[row]), other, [_known(value) for value in chunk.scores[row]],
            [float(value) for value in np.asarray(own.normalized)[row]],
            (weights[row] if weights.ndim == 2 else weights).tolist(),
            [float(value) for value in np.asarray(own.contributions)[row]],
        )  # fmt: skip


def text_of(chunk: Chunk, column: str, row: int) -> str | None:
    """A text of a rollout, cut where it is long; None where the dump has none."""
    if column not in chunk.rows.columns:
        return None
    value = chunk.rows[column][row]
    return None if value is None else cut(str(value))


def cut(text: str, most: int = LONGEST) -> str:
    """At most about ``most`` characters: beginning and end, and how much was left out between them.

    A list of chat messages is cut message by message, so that it can still be read as one.
    """
    if len(text) <= most:
        return text
    messages = _messages(text)
    if messages is not None and len(messages) <= most // 100:
        share = most // len(messages)
        return json.dumps([{**message, "content": cut(message["content"], share)} for message in messages])
    head, tail = most * 2 // 3, most // 3
    return f"{text[:head]}\n[… {len(text) - head - tail:,} characters left out …]\n{text[-tail:]}"


def _messages(text: str) -> list[Mapping[str, Any]] | None:
    if not text.startswith("[{"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        return None
    return found if all(isinstance(one.get("content"), str) for one in found) else None


def texts(groups: Iterable[KeptGroup]) -> bool:
    """Whether any rollout of the groups has a text."""
    return any(one.completion is not None for group in groups for one in group.rollouts)


def _key(number: Any) -> Any:
    """Numbers that look random, the same at every run (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = (number.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
