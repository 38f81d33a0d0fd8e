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

from gdpo.audit.explain import explain, to_dict
from gdpo.audit.findings import at_or_above, check_severity
from gdpo.audit.replay import replay
from gdpo.audit.run import Audit, audit
from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.report.terminal_audit import print_audit
from gdpo.report.terminal_replay import print_explanation, print_replay
from gdpo.rollouts import Dump, open_dump
from gdpo.training.recipe import parse_override

KEYS = ("method", "primary", "seed", "weights", "gates", "bounds", "options", "thresholds")
"""What ``key=value`` may set; the last five take names, as in ``weights.format=0.5``."""


def run_audit(
    path: str, changes: Sequence[str], *, rewards: str | None = None, group_by: str | None = None,
    format: str | None = None, as_json: bool = False, html: str | None = None, fail_on: str | None = None,
) -> int:  # fmt: skip
    """Audit a dump and print the verdict; the status is 1 where a finding is at or above ``fail_on``.

    Args:
        path: as for ``gdpo.rollouts.open_dump``.
        changes: ``key=value``, see ``KEYS``.
        rewards: names of the reward columns, with commas between.
        group_by: the column of the groups.
        format: instead of the one recognised.
        as_json: print JSON only.
        html: where to write the page, too.
        fail_on: the severity from which on the status is 1; None: never.

    Raises:
        Error: what cannot be read or is not understood.
    """
    threshold = None if fail_on is None else check_severity(fail_on)
    settings = parse(changes)
    dump = open_dump(path, **_names({"format": format, "rewards": rewards, "group_by": group_by}))
    found = audit(dump, **settings)
    if as_json:
        sys.stdout.write(json.dumps(found.to_dict(), ensure_ascii=False, indent=2, allow_nan=False) + "\n")
    else:
        print_audit(found, str(path), Console())
    if html is not None:
        from gdpo.report.html import write_audit_report

        write_audit_report(found, dump, str(path), Path(html))
        print(html, file=sys.stderr if as_json else sys.stdout)
    return 0 if threshold is None else int(bool(at_or_above(found.findings, threshold)))


def run_explain(path: str, rollout: str, changes: Sequence[str], *, as_json: bool = False, **reading: Any) -> None:
    """Explain one rollout's advantage and print it; ``reading`` are options of ``open_dump``.

    Raises:
        Error: what cannot be read, or no such rollout.
    """
    settings = parse(changes)
    for key in ("primary", "seed", "thresholds"):
        if key in settings:
            raise Error(f"explain has no key {key!r}: method=, weights.NAME=, gates.NAME=, bounds.NAME= are its keys")
    found = explain(open_dump(path, **_names(reading)), rollout, **settings)
    if as_json:
        sys.stdout.write(json.dumps(to_dict(found), ensure_ascii=False, indent=2, allow_nan=False) + "\n")
    else:
        print_explanation(found, Console())


def run_replay(path: str, changes: Sequence[str], *, as_json: bool = False, **reading: Any) -> None:
    """Replay a dump under other settings and print the table; commas in ``method=`` and ``weights.NAME=`` sweep.

    Raises:
        Error: what cannot be read or is not understood.
    """
    sets, primary = sweep(changes)
    found = replay(open_dump(path, **_names(reading)), sets, primary=primary)
    if as_json:
        out = {"schema": 1, "settings": [asdict(one) for one in found]}
        sys.stdout.write(json.dumps(out, ensure_ascii=False, indent=2, allow_nan=False) + "\n")
    else:
        print_replay(found, Console())


def sweep(changes: Sequence[str]) -> tuple[dict[str, dict[str, Any]], str | None]:
    """(label -> change, primary) of ``key=value`` with commas, every combination.

    Raises:
        Error: nothing to change, or what ``parse`` raises.
    """
    axes: list[list[str]] = []
    primary = None
    for text in changes:
        key, equals, value = text.partition("=")
        if key.strip() == "primary":
            primary = value.strip()
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
    return sets, primary


def _names(reading: Mapping[str, Any]) -> dict[str, Any]:
    rewards = reading.get("rewards")
    names = None if rewards is None else [name.strip() for name in rewards.split(",") if name.strip()]
    return {**reading, "rewards": names}


def audit_dump(
    dump: Any, *, rewards: Sequence[str] | None = None, group_by: str | None = None, format: str | None = None,
    **settings: Any,
) -> Audit:  # fmt: skip
    """Audit a dump from Python.

    Args:
        dump: a path as for ``gdpo.rollouts.open_dump``, a ``Dump``, or a data frame of polars or pandas: a row a
            rollout.
        rewards: the reward columns, where they are not those recognised.
        group_by: the column of the groups.
        format: instead of the one recognised.
        settings: as for ``gdpo.audit.run.audit``.

    Raises:
        Error: what cannot be read or is not understood.
    """
    if isinstance(dump, Dump):
        return audit(dump, **settings)
    if hasattr(dump, "columns") and not isinstance(dump, str | Path):
        import tempfile

        import polars as pl

        frame = dump if isinstance(dump, pl.DataFrame) else pl.from_pandas(dump)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "frame.parquet"
            frame.write_parquet(path)
            return audit(open_dump(path, format=format, rewards=rewards, group_by=group_by), **settings)
    return audit(open_dump(dump, format=format, rewards=rewards, group_by=group_by), **settings)


def parse(changes: Sequence[str]) -> dict[str, Any]:
    """Arguments of ``audit`` from ``key=value``.

    Raises:
        Error: an unknown key, or a value of another kind.
    """
    settings: dict[str, Any] = {}
    for text in changes:
        key, value = parse_override(text)
        head, _, name = key.partition(".")
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
