"""A finding: what is wrong, the evidence for it, and the remedy. Made by the audit of a run and by ``gdpo lint``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from gdpo.core.errors import Error

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From the worst on."""
LONGEST_TEXT = 160
"""Characters of a text in the evidence; a longer one is cut."""
LONGEST_LIST = 20
"""Entries of a list in the evidence."""


@dataclass(frozen=True)
class Finding:
    """One thing that was found. Findings sort by severity, the worst first, then by reward and id.

    Args:
        id: stable name in kebab case, such as ``out-of-bounds``.
        severity: "error" (training on it goes wrong), "warning" (probably not meant) or "note" (worth knowing).
        reward: the reward it is about; None where it is about the run or about several.
        what: one sentence.
        evidence: plain values by name: numbers, row numbers, texts. Texts and lists are cut short here.
        remedy: one sentence, or a line of configuration.
        measure: the measure behind it, where there is one.
        value: that measure's value.
        interval: (low, high) of the value.
        threshold: from which value on it is a finding.
        rests_on: what the value rests on, such as ``{"steps": 8, "groups": 256, "rollouts": 2048}``.
        rewards: all rewards it is about, where there are several.
        method: the advantage method it holds under, where it depends on one.
        cost: share of the gradient signal that is lost or misdirected, from 0 to 1.
        rollouts: ids of the rollouts that show it.

    Raises:
        Error: an unknown severity.
    """

    id: str
    severity: Severity
    reward: str | None
    what: str
    evidence: Mapping[str, Any]
    remedy: str
    measure: str | None = None
    value: float | None = None
    interval: tuple[float, float] | None = None
    rollouts: tuple[str, ...] = field(default=())
    threshold: float | None = None
    rests_on: Mapping[str, int] = field(default_factory=dict)
    rewards: tuple[str, ...] = ()
    method: str | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        check_severity(self.severity)
        object.__setattr__(self, "evidence", {str(key): plain(value) for key, value in self.evidence.items()})

    def __lt__(self, other: Finding) -> bool:
        return self._order() < other._order()

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON holds it; what is absent (measure, value, interval and the like) is left out."""
        whole = {
            "id": self.id, "severity": self.severity, "reward": self.reward, "what": self.what,
            "evidence": dict(self.evidence), "remedy": self.remedy,
        }  # fmt: skip
        extra = {
            "measure": self.measure, "value": self.value, "interval": self.interval, "threshold": self.threshold,
            "rests_on": self.rests_on or None, "rewards": self.rewards or None, "method": self.method,
            "cost": self.cost, "rollouts": self.rollouts or None,
        }  # fmt: skip
        return whole | {key: plain(value) for key, value in extra.items() if value is not None}

    def _order(self) -> tuple[int, str, str, str]:
        return SEVERITIES.index(self.severity), self.reward or "", self.id, self.what


def check_severity(severity: object) -> Severity:
    """``severity`` if it is one.

    Raises:
        Error: it is none.
    """
    for known in SEVERITIES:
        if severity == known:
            return known
    raise Error(f"severity is {severity!r}, but one of {', '.join(SEVERITIES)} was expected")


def at_or_above(findings: Iterable[Finding], severity: Severity) -> list[Finding]:
    """The findings that are at least as bad as ``severity``."""
    allowed = SEVERITIES[: SEVERITIES.index(severity) + 1]
    return [finding for finding in findings if finding.severity in allowed]


def plain(value: object) -> Any:
    """``value`` as JSON can hold it: NumPy scalars as numbers, no NaN or infinity, texts and lists cut short."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        entries = list(value)
        cut = [plain(entry) for entry in entries[:LONGEST_LIST]]
        return cut if len(entries) <= LONGEST_LIST else [*cut, f"… {len(entries) - LONGEST_LIST} more"]
    return short_text(value if isinstance(value, str) else repr(value))


def short_text(text: str, limit: int = LONGEST_TEXT) -> str:
    """At most ``limit`` characters, lone surrogates replaced, so that it can be written anywhere."""
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return cut.encode("utf-8", "replace").decode("utf-8")
