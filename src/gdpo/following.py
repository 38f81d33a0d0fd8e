"""``gdpo audit --follow``: a line a step while a training writes, and each finding when it appears."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from gdpo.audit.findings import Finding, at_or_above, check_severity
from gdpo.audit.follow import Follower
from gdpo.audit.run import Audit
from gdpo.auditing import parse, reading_of, run_audit
from gdpo.core.errors import Error
from gdpo.report.formats import significant
from gdpo.report.terminal_audit import print_finding
from gdpo.report.terminal_findings import print_wrapped
from gdpo.rollouts import open_dump
from gdpo.rollouts.find import states

SECONDS = 2.0
"""Between two looks."""
KNOWN = ("weights", "gates", "bounds", "options")
"""Keys that say what the run used."""


def run_follow(
    path: str, changes: Sequence[str], *, as_json: bool = False, html: str | None = None, fail_on: str | None = None,
    seconds: float = SECONDS, **reading: Any,
) -> int:  # fmt: skip
    """Audit a dump while it grows, until Ctrl-C or, for a run of ours, its end; then the whole audit.

    Args:
        path: a folder or file that a training writes; it may hold no rollouts yet.
        changes: as for ``run_audit``.
        as_json: a JSON object a look that brought something, each on a line of its own.
        html: where to write the page at the end.
        fail_on: the severity at which to stop at once, with status 1.
        seconds: between two looks.
        reading: options of ``open_dump``.

    Raises:
        Error: nothing there, or what cannot be read or is not understood.
    """
    threshold = None if fail_on is None else check_severity(fail_on)
    settings = parse(changes)
    if "steps" in settings:
        raise Error("steps= does not go with --follow, which reads every step")
    named = reading_of(reading)
    known: dict[str, Any] = {key: settings.pop(key) for key in KNOWN if key in settings}
    follower = Follower(lambda only: open_dump(path, only=only, **named), known=known, **settings)
    console, stopped = Console(), False
    shown: dict[Any, Finding] = {}
    try:
        for found, steps in _looks(follower, path, seconds):
            shown = _say(found, steps, shown, console, as_json)
            if threshold is not None and at_or_above(found.findings, threshold):
                stopped = True
                break
    except KeyboardInterrupt:
        print(file=sys.stderr)
    if follower.summary is None:
        raise Error(f"{path} got no rollouts while it was followed")
    if not as_json or html is not None:
        console.print()
        return run_audit(path, changes, as_json=as_json, html=html, fail_on=fail_on, **reading)
    return int(stopped)


def _looks(follower: Follower, path: str, seconds: float) -> Any:
    """(audit so far, new steps) for each look that brought some; ends when a run of ours has ended."""
    while True:
        ended = _ended(Path(path))
        try:
            steps = follower.look(states(path), last=ended)
        except Error:
            # A folder that is still empty, or a file of which no line is whole yet, is waited for.
            if follower.summary is not None or ended or not Path(path).exists():
                raise
            steps = []
        found = follower.audit() if steps else None
        if found is not None:
            yield found, steps
        if ended:
            return
        time.sleep(seconds)


def _ended(path: Path) -> bool:
    try:
        return bool(json.loads((path / "run.json").read_text(encoding="utf-8")).get("finished"))
    except (OSError, ValueError, AttributeError):
        return False


def _say(found: Audit, steps: list[int], shown: dict[Any, Finding], console: Console, as_json: bool) -> dict[Any, Any]:
    if as_json:
        print(json.dumps({"steps": steps, **found.to_dict()}, ensure_ascii=False, allow_nan=False), flush=True)
        return shown
    means = "  ".join(f"{name} {significant(_last(found, name))}" for name in found.weights)
    which = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    print_wrapped(console, f"{which}: {found.summary.rollouts:,} rollouts; {means}", indented=0)
    now = {(one.id, one.reward, one.rewards): one for one in found.findings}
    for key, finding in now.items():
        if key not in shown:
            print_finding(finding, console)
    for key, finding in shown.items():
        if key not in now:
            print_wrapped(console, f"no longer: {finding.id} {finding.reward or ''}", style="dim", indented=0)
    return now


def _last(found: Audit, name: str) -> float | None:
    values = found.series["mean"][name]
    return values[-1] if values else None
