"""``audit``: one pass over a dump, and everything that can be said about it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

from gdpo.audit.chunks import Chunk, chunks
from gdpo.audit.collect import Collected, collect
from gdpo.audit.detect import findings
from gdpo.audit.evidence import Evidence
from gdpo.audit.examples import with_examples
from gdpo.audit.findings import SEVERITIES, Finding
from gdpo.audit.infer import reproducing
from gdpo.audit.setting import Setting, from_objective
from gdpo.audit.tables import measure_table, series_table
from gdpo.audit.thresholds import Thresholds
from gdpo.audit.verdict import verdict
from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.rollouts.dump import Dump, Summary

SCHEMA = 1
"""Version of ``Audit.to_dict``."""
ASSUMED = "grpo"
"""Where nothing says the method: what trainers do unless told otherwise."""
COMPARED = ("grpo", "gdpo")
"""Measured beside the method in use."""


@dataclass(eq=False)
class Audit:
    """What an audit found."""

    summary: Summary
    """What was read."""
    framework: str
    method: str
    """The method in use, under which the measures that depend on one were taken."""
    method_from: str
    """How it is known: "given", "the dump", "its advantages" or "assumed"."""
    weights: dict[str, float]
    primary: str | None
    measures: dict[str, Any]
    """By stable names; see ``gdpo.audit.tables``."""
    series: dict[str, Any]
    """The same by step, for charts."""
    verdict: str
    """One sentence."""
    enough: bool
    """Whether enough could be measured for a verdict."""
    findings: list[Finding]
    """The costliest first."""
    examples: dict[str, dict[str, Any]]
    """Rollouts that findings show, by id: step, group, texts, and each reward's value, normalised value and part."""
    unmeasured: dict[str, str]
    """Measure -> why it could not be taken."""
    evidence: Evidence | None = field(default=None, repr=False)
    """What it was computed from; for ``--against``. None where there was nothing to compute from."""

    def to_dict(self) -> dict[str, Any]:
        """As ``--json`` prints it, schema 1: what was read, then measures, verdict and findings."""
        read = asdict(self.summary)
        read["group_sizes"] = {str(size): count for size, count in sorted(self.summary.group_sizes.items())}
        return {
            "schema": SCHEMA, **read, "framework": self.framework, "method": self.method,
            "method_from": self.method_from, "primary": self.primary, "measures": self.measures,
            "unmeasured": self.unmeasured, "verdict": self.verdict, "enough": self.enough,
            "findings": [one.to_dict() for one in self.findings], "series": self.series, "examples": self.examples,
        }  # fmt: skip

    def worst(self) -> str | None:
        """The worst severity among the findings."""
        found = [severity for severity in SEVERITIES if any(one.severity == severity for one in self.findings)]
        return found[0] if found else None


def audit(
    dump: Dump, *, method: str | None = None, weights: Mapping[str, float] | None = None,
    gates: Mapping[str, str] | None = None, bounds: Mapping[str, tuple[float, float]] | None = None,
    options: Mapping[str, Any] | None = None, primary: str | None = None, seed: int = 0,
    thresholds: Mapping[str, Any] | None = None,
) -> Audit:  # fmt: skip
    """Measure a dump and say what its rewards teach.

    Args:
        dump: as a reader gives it (``gdpo.rollouts.open_dump``).
        method: the method that made the advantages; None: what the dump says, else whichever reproduces its advantages,
            else grpo.
        weights, gates, bounds, options: of the rewards and the method, where the dump does not say them.
        primary: the reward that matters most; None: the one that gates the others, where one does.
        seed: of the bootstrap.
        thresholds: other values of ``gdpo.audit.thresholds.Thresholds``.

    Raises:
        Error: an unknown method, reward or threshold; a dump without rewards.
    """
    limits = Thresholds().with_changes(thresholds or {})
    if not dump.rewards:
        for _ in dump.batches():  # so that the summary says what was read
            pass
        return _nothing(dump, "the dump has no score for each reward (only a total, if any)")
    setting = known_setting(dump, weights=weights, gates=gates, bounds=bounds, options=options)
    parts = chunks(dump)
    first = next(parts, None)
    if first is None:
        return _nothing(dump, "there are no rollouts")
    setting, method_from = in_use(dump, setting, method, first)
    primary = primary_of(setting, primary)
    found = collect(chain([first], parts), setting, COMPARED)
    return concluded(dump, found, limits, primary, method_from, seed)


def known_setting(
    dump: Dump, *, weights: Mapping[str, float] | None = None, gates: Mapping[str, str] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None, options: Mapping[str, Any] | None = None,
) -> Setting:  # fmt: skip
    """What the dump says of its run, and the caller's word before it."""
    names = tuple(dump.rewards)
    config = dump.settings.get("objective")
    given = {**dump.weights, **(weights or {})}
    setting = from_objective(names, config, given) if isinstance(config, Mapping) else Setting(names, weights=given)
    return replace(
        setting, gates={**setting.gates, **(gates or {})}, bounds={**setting.bounds, **(bounds or {})},
        options={**setting.options, **(options or {})}, moving=setting.moving and not weights,
    )  # fmt: skip


def in_use(dump: Dump, setting: Setting, method: str | None, first: Chunk) -> tuple[Setting, str]:
    """The setting with the method in use, and how that is known."""
    if method is not None:
        return setting.with_method(method), "given"
    if isinstance(dump.settings.get("objective"), Mapping):
        return setting, "the dump"
    inferred, _ = reproducing(first, setting)
    if inferred is not None:
        return setting.with_method(inferred), "its advantages"
    return setting.with_method(ASSUMED), "assumed"


def primary_of(setting: Setting, primary: str | None) -> str | None:
    """The reward that matters most: as given, else the one that gates others.

    Raises:
        Error: no such reward.
    """
    if primary is not None:
        if primary not in setting.names:
            raise Error(f"primary is {primary!r}, which is no reward{nearest(primary, setting.names)}")
        return primary
    gating = {name for condition in setting.objective().gates.values() for name in condition.names}
    return gating.pop() if len(gating) == 1 else None


def concluded(
    dump: Dump, found: Collected, limits: Thresholds, primary: str | None, method_from: str, seed: int
) -> Audit:
    """The audit of what was collected from a dump."""
    evidence = Evidence(found, dump.framework, limits, primary, seed)
    summary = copy.deepcopy(dump.summary)  # complete now; examples are read again, and not to the end
    shown, examples = with_examples(dump, found.setting, findings(evidence))
    sentence, enough = verdict(evidence, shown, method_from)
    return Audit(
        summary, dump.framework, found.setting.method, method_from,
        dict(zip(found.names, found.setting.weight_list(), strict=True)), primary, measure_table(found),
        series_table(found), sentence, enough, shown, examples, evidence.unmeasured, evidence,
    )  # fmt: skip


def _nothing(dump: Dump, why: str) -> Audit:
    return Audit(
        dump.summary, dump.framework, ASSUMED, "assumed", dict(dump.weights), None, {}, {},
        f"Not enough to say: {why}.", False, [], {}, {"everything": why},
    )  # fmt: skip
