"""``gdpo lint``: load the rewards and the rows, check them, print what was found."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from gdpo import rewards
from gdpo.audit.findings import at_or_above, check_severity
from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.lint import Report, Subject, lint
from gdpo.lint.batch import Batch, from_rows
from gdpo.objective import Objective
from gdpo.report.terminal_findings import counted, print_findings
from gdpo.report.text import plain_line

if TYPE_CHECKING:
    from gdpo.training.recipe import Recipe

_RECIPE_ROWS = 64


def run_lint(targets: Sequence[str], data: str | None, *, as_json: bool, fail_on: str) -> int:
    """Check, print, and return the status: 1 where a finding is at or above ``fail_on``, else 0.

    Args:
        targets: rewards (``file.py:function`` or a registered name), or one recipe with ``key=value`` changes.
        data: a file with rows; None takes the recipe's own data, or rows that are made up.
        as_json: print JSON only.
        fail_on: the severity from which on the status is 1.

    Raises:
        Error: a target, file or severity that is not understood.
    """
    threshold = check_severity(fail_on)
    subjects, rows, origin = load(targets)
    if data is not None:
        rows, origin = _file(Path(data)), data
    progress = Console(stderr=True)
    quiet = as_json or not progress.is_terminal
    report = lint(subjects, rows, origin=origin, say=lambda name: None if quiet else progress.print(f"checking {name}"))
    if as_json:
        sys.stdout.write(json.dumps(report.to_dict(), ensure_ascii=False, indent=2, allow_nan=False) + "\n")
    else:
        _print(report)
    return int(bool(at_or_above(report.findings, threshold)))


def load(targets: Sequence[str]) -> tuple[list[Subject], Batch | None, str | None]:
    """(rewards, rows, where the rows come from) of what the command line names.

    Raises:
        Error: nothing named, or something that is neither a reward nor a recipe.
    """
    changes = [target for target in targets if "=" in target and ".py:" not in target]
    named = [target for target in targets if target not in changes]
    if not named:
        raise Error("nothing to lint: file.py:function, or a recipe, was expected")
    if len(named) == 1 and not _is_reward(named[0]):
        return _recipe(named[0], changes)
    if changes:
        raise Error(f"{changes[0]!r} changes a recipe, but rewards are linted here")
    subjects: list[Subject] = []
    for target in named:
        if not _is_reward(target):
            raise Error(f"{target!r} is no reward (file.py:function); a recipe is linted alone")
        function = rewards.build(target)
        name = str(getattr(function, "__name__", type(function).__name__))
        taken = [subject.name for subject in subjects]
        subjects.append(Subject(name if name not in taken else target, function, _bounds(target, function)))
    return subjects, None, None


def _is_reward(target: str) -> bool:
    return ".py:" in target or target in rewards.REGISTRY


def _bounds(target: str, function: object) -> tuple[float, float] | None:
    """The declared range, checked as an objective does."""
    return Objective(reward=function).bounds()[0]


def _recipe(target: str, changes: Sequence[str]) -> tuple[list[Subject], Batch | None, str | None]:
    """The rewards of a recipe or objective, and the recipe's rows where they can be had without a download."""
    from gdpo.training import recipe as recipes

    path = Path(target)
    if path.suffix in (".yaml", ".yml") and path.is_file() and not _whole_recipe(path):
        if changes:
            raise Error(f"{changes[0]!r} changes a recipe, but {target} holds an objective only")
        return _subjects(Objective.from_yaml(path)), None, None
    if path.suffix not in (".yaml", ".yml") and target not in recipes.names():
        raise Error(f"{target!r} is neither a reward (file.py:function) nor a recipe{nearest(target, recipes.names())}")
    recipe = recipes.load(target, changes)
    rows = _rows(recipe)
    return _subjects(recipe.build_objective()), rows, f"recipe {recipe.recipe}" if rows is not None else None


def _whole_recipe(path: Path) -> bool:
    import yaml

    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return True  # the recipe's reader says what is wrong
    return isinstance(tree, dict) and "data" in tree


def _subjects(objective: Objective) -> list[Subject]:
    return [
        Subject(name, entry.function, bounds, gated=entry.given is not None)
        for (name, entry), bounds in zip(objective.rewards.items(), objective.bounds(), strict=True)
    ]


def _rows(recipe: Recipe) -> Batch | None:
    """Rows of the recipe's data; None where they would have to be downloaded, or their maker is not installed."""
    import importlib.util

    from gdpo.training import tasks

    source = recipe.data.source
    if source == "hub" or (source == "reasoning_gym" and importlib.util.find_spec("reasoning_gym") is None):
        return None
    settings = recipe.data.model_copy(update={"size": min(recipe.data.size, _RECIPE_ROWS)})
    task = tasks.load(settings, held_out=1)
    return from_rows([(f"row {k + 1}", row) for k, row in enumerate(task.train)], f"recipe {recipe.recipe}")


def _file(path: Path) -> Batch:
    import polars as pl

    from gdpo.training.tables import read_rows

    if not path.is_file():
        raise Error(f"data file {path} does not exist" if not path.exists() else f"data {path} is no file")
    try:
        rows = read_rows(path)
    except (OSError, UnicodeDecodeError, pl.exceptions.PolarsError) as error:
        raise Error(f"data file {path} cannot be read: {' '.join(str(error).split())[:200]}") from None
    return from_rows(rows, str(path))


def _print(report: Report) -> None:
    console = Console()
    print_findings(report.findings, console)
    where = f"{report.rows} rows of {report.data}" if report.data else f"{report.rows} made-up rows"
    for name, verdict in report.verdicts.items():
        found = [finding for finding in report.findings if finding.reward == name]
        tried = f"{verdict.completions:,} completions in {verdict.calls} calls"
        console.print(Text(f"{plain_line(name, 60)}: {counted(found)} ({tried})"))
        for reason in verdict.unchecked:
            console.print(Text(f"  not checked: {reason}", style="dim"))
    several = [finding for finding in report.findings if finding.reward is None]
    if len(report.verdicts) > 1:
        console.print(Text(f"the rewards together: {counted(several)}"))
    console.print(Text(f"{counted(report.findings)}; on {where} and hostile texts"))
