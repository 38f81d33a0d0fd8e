"""From measures to findings: each has a number, an interval from a bootstrap over groups, a cost and a remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gdpo.audit import detect_methods as methods
from gdpo.audit import detect_rewards as rewards
from gdpo.audit.evidence import Evidence
from gdpo.audit.findings import Finding


def findings(evidence: Evidence) -> list[Finding]:
    """All findings, the costliest first."""
    if evidence.whole["several"] < evidence.limits.groups:
        return []
    found = [one for detect in DETECTORS for one in detect(evidence)]
    saturated = {one.reward for one in found if one.id == "saturation"}
    # Saturation says why a reward is mostly tied; one that is tied nearly everywhere is called dead as well.
    found = [one for one in found if not (one.id == "dead" and one.severity != "error" and one.reward in saturated)]
    return sorted(found, key=lambda one: (-(one.cost or 0.0), one))


DETECTORS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    rewards.dead, rewards.no_signal, rewards.saturation, rewards.noise, rewards.length, rewards.gates, rewards.missing,
    rewards.drift, methods.dominance, methods.scale, methods.conflict_and_redundancy, methods.merged, methods.unearned,
)  # fmt: skip
