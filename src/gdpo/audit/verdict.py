"""The verdict: one sentence, and never "all fine" without evidence."""

from __future__ import annotations

from collections.abc import Sequence

from gdpo.audit.evidence import Evidence
from gdpo.audit.findings import Finding


def verdict(evidence: Evidence, findings: Sequence[Finding], method_from: str) -> tuple[str, bool]:
    """(sentence, whether enough could be measured)."""
    whole, limits = evidence.whole, evidence.limits
    several, live = int(whole["several"]), int(whole["live_groups"])
    steps, rollouts = len(evidence.found.totals.steps), int(whole["rollouts"])
    assumed = f" ({evidence.method} is assumed; method=NAME says otherwise)" if method_from == "assumed" else ""
    if several < limits.groups:
        groups = int(whole["groups"])
        one = several == 0
        why = (
            f"one rollout a group ({groups} groups), and advantages compare the rollouts of a group"
            if one
            else f"{several} groups of two rollouts or more, and at least {limits.groups} are needed"
        )
        return f"Not enough to say: {why}.", False
    grave = [one for one in findings if one.severity != "note"]
    if grave:
        first = grave[0].what
        rest = len(findings) - 1
        more = f"; {rest} more finding{'s' * (rest != 1)}" if rest else ""
        return f"{first[:1].upper()}{first[1:]}{more}{assumed}.", True
    notes = f" beyond {len(findings)} note{'s' * (len(findings) != 1)}" if findings else ""
    if live < limits.groups_for_fine:
        return (
            f"Not enough to say: nothing wrong was found{notes}, but only {live} groups vary at all, and "
            f"{limits.groups_for_fine} are needed for that to mean something{assumed}."
        ), False
    left = f"; not measured: {', '.join(evidence.unmeasured)}" if evidence.unmeasured else ""
    return (
        f"Nothing wrong was found{notes} in {rollouts:,} rollouts, {live:,} groups that vary and {steps:,} "
        f"step{'s' * (steps != 1)}{left}{assumed}."
    ), True
