"""``gdpo audit``, ``replay`` and ``explain``: open the dump, measure it, print what was found."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from gdpo.audit.against import compare
from gdpo.audit.explain import explain, to_dict
from gdpo.audit.findings import at_or_above, check_severity
from gdpo.audit.replay import replay
from gdpo.audit.run import Audit, audit
from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.report.terminal_audit import print_audit
from gdpo.report.terminal_replay import print_comparison, print_explanation, print_replay
from gdpo.rollouts import Dump, open_dump
from gdpo.training.recipe import parse_override

KEYS = ("method", "primary", "seed", "steps", "weights", "gates", "bounds", "options", "thresholds")
"""What ``key=value`` may set; the last five take names, as in ``weights.format=0.5``."""


def run_audit(
    path: str, changes: Sequence[str], *, rewards: str | None = None, group_by: str | None = None,
    format: str | None = None, as_json: bool = False, html: str | None = None, fail_on: str | None = None,
    against: str | None = None,
) -> int:  # fmt: skip
    """Audit a dump and print the verdict; the status is 1 where a finding is at or above ``fail_on``.

    Args:
        path: as for ``gdpo.rollouts.open_dump``.
        changes: ``key=value``, see ``KEYS``; with ``against`` also ``against.key=value`` for the other dump.
        rewards: names of the reward columns, with commas between.
        group_by: the column of the groups.
        format: instead of the one recognised.
        as_json: print JSON only.
        html: where to write the page, too.
        fail_on: the severity from which on the status is 1; None: never.
        against: another dump, or the same: what changed from that one to this one is printed.

    Raises:
        Error: what cannot be read or is not understood.
    """
    threshold = None if fail_on is None else check_severity(fail_on)
    own = [text for text in changes if not text.startswith("against.")]
    others = [text.removeprefix("against.") for text in changes if text.startswith("against.")]
    if others and against is None:
        raise Error(f"against.{others[0]!s} is about the dump of --against, which is not given")
    reading = {"format": format, "rewards": rewards, "group_by": group_by}
    dump, found = _audited(path, own, reading)
    changed = None
    if against is not None:
        # What is said of this dump holds for the other, too, unless it is said otherwise.
        keys = {text.partition("=")[0] for text in others}
        shared = [text for text in own if text.partition("=")[0] not in keys and not text.startswith("steps=")]
        changed = compare(found, _audited(against, [*shared, *others], reading)[1])
    if html is not None:  # before anything is printed: a pipe that closes early costs no page
        from gdpo.report.html import write_audit_report

        write_audit_report(found, dump, str(path), Path(html))
    if as_json:
        extra = {} if changed is None else {"changes": [change.to_dict() for change in changed]}
        _print_json({**found.to_dict(), **extra})
    elif changed is None:
        print_audit(found, str(path), Console())
    else:
        print_comparison(changed, str(path), str(against), Console())
    if html is not None:
        print(html, file=sys.stderr if as_json else sys.stdout)
    return 0 if threshold is None else int(bool(at_or_above(found.findings, threshold)))


def _audited(path: str, changes: Sequence[str], reading: Mapping[str, Any]) -> tuple[Dump, Audit]:
    settings = parse(changes)
    steps = settings.pop("steps", None)
    dump = open_dump(path, **reading_of(reading))
    dump = dump if steps is None else dump.within(*steps)
    return dump, audit(dump, **settings)


def _print_json(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def run_explain(path: str, rollout: str, changes: Sequence[str], *, as_json: bool = False, **reading: Any) -> None:
    """Explain one rollout's advantage and print it; ``reading`` are options of ``open_dump``.

    Raises:
        Error: what cannot be read, or no such rollout.
    """
    settings = parse(changes)
    for key in ("primary", "seed", "thresholds"):
        if key in settings:
            raise Error(f"explain has no key {key!r}: method=, weights.NAME=, gates.NAME=, bounds.NAME= are its keys")
    steps = settings.pop("steps", None)
    dump = open_dump(path, **reading_of(reading))
    found = explain(dump if steps is None else dump.within(*steps), rollout, **settings)
    if as_json:
        _print_json(to_dict(found))
    else:
        print_explanation(found, Console())


def run_replay(
    path: str, changes: Sequence[str], *, as_json: bool = False, used: str | None = None, **reading: Any
) -> None:
    """Replay a dump under other settings and print the table; commas in ``method=`` and ``weights.NAME=`` sweep.

    Args:
        path: as for ``gdpo.rollouts.open_dump``.
        changes: ``key=value``; ``primary=`` and ``steps=`` hold for every setting.
        as_json: print JSON only.
        used: the method that the run used, where the dump does not show it.
        reading: options of ``open_dump``.

    Raises:
        Error: what cannot be read or is not understood.
    """
    sets, common = sweep(changes)
    dump = open_dump(path, **reading_of(reading))
    dump = dump if "steps" not in common else dump.within(*common["steps"])
    found = replay(dump, sets, method=used, primary=common.get("primary"))
    if as_json:
        _print_json({"schema": 1, "settings": [asdict(one) for one in found]})
    else:
        print_replay(found, Console())


def sweep(changes: Sequence[str]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """(label -> change, what holds for all: ``primary``, ``steps``) of ``key=value`` with commas, every combination.

    Raises:
        Error: nothing to change, or what ``parse`` raises.
    """
    axes: list[list[str]] = []
    common: list[str] = []
    for text in changes:
        key, equals, value = text.partition("=")
        if key.strip() in ("primary", "steps"):
            common.append(text)
        elif key.strip() == "method" or key.strip().startswith("weights."):
            axes.append([f"{key}{equals}{part.strip()}" for part in value.split(",") if part.strip()] or [text])
        else:
            axes.append([text])
    if not axes:
        raise Error("replay needs a change, such as method=gdpo or weights.format=0.3")
    sets = {}
    for combination in product(*axes):
        settings = parse(combination)
        for key in ("seed", "thresholds"):
            if key in settings:
                raise Error(f"replay has no key {key!r}: method=, weights.NAME=, gates.NAME=, bounds.NAME=, primary=")
        sets[" ".join(combination)] = settings
    return sets, parse(common)


def reading_of(reading: Mapping[str, Any]) -> dict[str, Any]:
    """Options of ``open_dump`` from those of the command line: rewards are names with commas between."""
    rewards = reading.get("rewards")
    names = None if rewards is None else [name.strip() for name in rewards.split(",") if name.strip()]
    return {**reading, "rewards": names}


def parse(changes: Sequence[str]) -> dict[str, Any]:
    """Arguments of ``audit`` from ``key=value``.

    Raises:
        Error: an unknown key, or a value of another kind.
    """
    settings: dict[str, Any] = {}
    for text in changes:
        key, value = parse_override(text)
        head, _, name = key.partition(".")
        if key == "steps":
            settings["steps"] = _steps(value)
            continue
        if head not in KEYS:
            raise Error(f"audit has no key {key!r}{nearest(head, KEYS)}")
        if head in ("method", "primary", "seed"):
            if name:
                raise Error(f"{key!r} is not understood: {head} takes no name")
            settings[head] = value
        elif not name:
            raise Error(f"{text!r} is not understood: {head}.NAME=VALUE was expected")
        else:
            settings.setdefault(head, {})[name] = tuple(value) if isinstance(value, list) else value
    _check(settings)
    return settings


def _steps(value: Any) -> tuple[int, int]:
    first, dots, last = str(value).partition("..")
    try:
        found = int(first), int(last if dots else first)
    except ValueError:
        raise Error(f"steps is {value!r}, but a step or a range such as 1..4 was expected") from None
    if found[0] > found[1]:
        raise Error(f"steps is {value!r}, but its first step is after its last")
    return found


def _check(settings: Mapping[str, Any]) -> None:
    for name, weight in settings.get("weights", {}).items():
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise Error(f"weights.{name} is {weight!r}, but a number was expected")
    for name, gate in settings.get("gates", {}).items():
        if not isinstance(gate, str):
            raise Error(f"gates.{name} is {gate!r}, but a condition such as 'correct >= 1' was expected")
    for name, bounds in settings.get("bounds", {}).items():
        if not isinstance(bounds, tuple) or len(bounds) != 2 or not bounds[0] < bounds[1]:
            raise Error(f"bounds.{name} is {bounds!r}, but [low, high] with low < high was expected")
    if not isinstance(settings.get("seed", 0), int):
        raise Error(f"seed is {settings['seed']!r}, but a whole number was expected")
