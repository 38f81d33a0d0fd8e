"""Lint: every check of every reward, and of all together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gdpo.audit.findings import SEVERITIES, Finding
from gdpo.core.errors import Error
from gdpo.lint.batch import Batch, made_up
from gdpo.lint.sets import check_sets
from gdpo.lint.single import Verdict, check_reward
from gdpo.lint.trial import Subject


@dataclass(frozen=True)
class Report:
    """What ``lint`` found.

    Args:
        findings: the worst first.
        verdicts: by reward: how much was tried, and what could not be checked.
        rows: how many rows the rewards were tried on.
        data: where they come from; None where they were made up.
    """

    findings: list[Finding]
    verdicts: dict[str, Verdict]
    rows: int
    data: str | None

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON holds it."""
        return {
            "data": self.data,
            "rows": self.rows,
            "rewards": {
                name: {"completions": verdict.completions, "calls": verdict.calls, "unchecked": verdict.unchecked}
                for name, verdict in self.verdicts.items()
            },
            "counts": {severity: sum(f.severity == severity for f in self.findings) for severity in SEVERITIES},
            "findings": [finding.to_dict() for finding in self.findings],
        }


def lint(
    subjects: Sequence[Subject], data: Batch | None = None, *, origin: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Report:  # fmt: skip
    """Check rewards one by one and together. They are called some hundred times each; texts come from no model.

    Args:
        subjects: the rewards, each with a name of its own.
        data: rows to try them on; rows are made up where None.
        origin: where the data comes from.
        say: told what is being checked.

    Raises:
        Error: no reward, or two of the same name.
    """
    names = [subject.name for subject in subjects]
    if not names or len(set(names)) < len(names):
        raise Error(f"the rewards to lint are {names}, but at least one, each with a name of its own, was expected")
    base = data if data is not None else made_up()
    verdicts: dict[str, Verdict] = {}
    for subject in subjects:
        say(subject.name)
        verdicts[subject.name] = check_reward(subject, base, made_up=data is None)
    findings = [finding for verdict in verdicts.values() for finding in verdict.findings]
    whole = {
        name: verdict.scores for name, verdict in verdicts.items()
        if verdict.scores is not None and len(verdict.scores) == len(base)
    }  # fmt: skip
    findings += check_sets(whole, base.groups)
    return Report(sorted(findings), verdicts, len(base), origin if data is not None else None)
