"""``gdpo audit``, ``gdpo replay`` and ``gdpo explain``: from the command line to what is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gdpo.audit.against import compare
from gdpo.audit.explain import explain
from gdpo.audit.findings import at_or_above, check_severity
from gdpo.audit.keys import Changes, parse, sweep
from gdpo.audit.replay import only_steps, replay
from gdpo.audit.run import Audit, audit
from gdpo.core.errors import Error
from gdpo.rollouts import open_dump
from gdpo.rollouts.dump import Dump


def opened(path: str, reading: Mapping[str, Any], said: Changes) -> Dump:
    """The dump at a path, with the weights and the steps that were said."""
    rewards = reading.get("rewards")
    dump = open_dump(
        path, format=reading.get("format"), rewards=rewards.split(",") if rewards else None,
        group_by=reading.get("group_by"), weights=said.weights or None,
    )  # fmt: skip
    return only_steps(dump, said.steps)


def run_audit(
    path: str, words: Sequence[str], reading: Mapping[str, Any], *, against: str | None, as_json: bool,
    fail_on: str | None,
) -> int:  # fmt: skip
    """Audit, print, and return the status: 1 where a finding is at or above ``fail_on``, else 0."""
    threshold = None if fail_on is None else check_severity(fail_on)
    said = parse([word for word in words if not word.startswith("against.")])
    found = _audited(path, reading, said)
    changes = None
    if against is not None:
        own = parse([word.removeprefix("against.") for word in words if word.startswith("against.")] or list(words))
        changes = compare(found, _audited(against, reading, own))
    if as_json:
        extra = {} if changes is None else {"changes": [change.to_dict() for change in changes]}
        _print_json({**found.to_dict(), **extra})
    else:
        from gdpo.report.terminal_audit import print_audit, print_comparison

        print_audit(found) if changes is None else print_comparison(changes)
    return int(threshold is not None and bool(at_or_above(found.findings, threshold)))


def _audited(path: str, reading: Mapping[str, Any], said: Changes) -> Audit:
    return audit(
        opened(path, reading, said), method=said.method, weights=said.weights or None, gates=said.gates,
        bounds=said.bounds, options=said.options, primary=said.primary, thresholds=said.thresholds,
    )  # fmt: skip


def run_replay(path: str, words: Sequence[str], reading: Mapping[str, Any], *, used: str | None, as_json: bool) -> int:
    """Replay under every combination of the settings, print, and return 0."""
    steps = [word for word in words if word.startswith("steps=")]
    rest = [word for word in words if word not in steps]
    if not rest:
        raise Error("nothing to change: a setting such as method=gdpo or weights.format=0.3 was expected")
    base = parse([*steps, *([f"method={used}"] if used else [])])
    found = replay(opened(path, reading, Changes()), sweep(rest), base=base)
    if as_json:
        _print_json(found.to_dict())
    else:
        from gdpo.report.terminal_audit import print_replay

        print_replay(found)
    return 0


def run_explain(path: str, rollout: str, words: Sequence[str], reading: Mapping[str, Any], *, as_json: bool) -> int:
    """Explain one rollout, print, and return 0."""
    said = parse(words)
    found = explain(opened(path, reading, said), rollout, base=said)
    if as_json:
        _print_json(found.to_dict())
    else:
        from gdpo.report.terminal_audit import print_explanation

        print_explanation(found)
    return 0


def _print_json(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False)
    sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")
    sys.stdout.flush()
