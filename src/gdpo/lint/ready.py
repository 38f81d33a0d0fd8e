"""Bringing a reward to score at all: text or chat messages, and the columns it needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gdpo.audit.findings import Finding
from gdpo.core.errors import Error
from gdpo.lint import probes
from gdpo.lint.general import named_exception
from gdpo.lint.trial import Outcome, Trial

_ORDINARY = "ordinary texts"
_MOST_ALONE = 64
_MISSING = (
    re.compile(r"column '([^']+)'"),
    re.compile(r"missing \d+ required (?:positional|keyword-only) arguments?: '(\w+)'"),
)


def make_ready(trial: Trial, made_up: bool) -> Iterator[Finding]:
    """Settle the form of the completions and the columns, in place; findings only where the reward cannot be run.

    A reward that raises on some of the ordinary rows goes on with the others; the calls that raised are kept.

    Args:
        trial: its ``base`` and ``chat`` are changed.
        made_up: whether the rows were made up here, so that columns may be added.
    """
    for _ in range(6):
        outcome = _either_form(trial)
        if outcome.error is None or outcome.late or _some_rows_work(trial):
            trial.outcomes += [outcome] if outcome.late else []
            return
        missing = _missing_column(outcome.error)
        if missing is None or missing in trial.base.columns:
            yield _cannot_run(trial, outcome, made_up)
            return
        if not made_up:
            yield _needs(trial, outcome, missing, made_up)
            return
        trial.base = trial.base.having(**{missing: list(trial.base.columns["answer"])})
    yield _needs(trial, outcome, missing, made_up)


def _either_form(trial: Trial) -> Outcome:
    """The base batch as text, else as chat messages; the first outcome where neither works."""
    first = trial(_ORDINARY, trial.base, keep=False)
    if first.error is None or first.late or not any(isinstance(entry, str) for entry in trial.base.completions):
        return first
    trial.chat = True
    second = trial(_ORDINARY, trial.base, keep=False)
    if second.error is None:
        return second
    trial.chat = False
    return first


def _some_rows_work(trial: Trial) -> bool:
    for chat in (False, True):
        trial.chat = chat
        rows = range(min(len(trial.base), _MOST_ALONE))
        alone = [trial(_ORDINARY, trial.base.take([row]), keep=False) for row in rows]
        working = [row for row, outcome in zip(rows, alone, strict=True) if outcome.error is None]
        if working:
            trial.outcomes += [outcome for outcome in alone if outcome.error is not None]
            trial.base = trial.base.take(working)
            return True
    trial.chat = False
    return False


def _missing_column(error: BaseException) -> str | None:
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        return error.args[0]
    if isinstance(error, TypeError | Error):
        return next((found[1] for pattern in _MISSING if (found := pattern.search(str(error)))), None)
    return None


def _cannot_run(trial: Trial, outcome: Outcome, made_up: bool) -> Finding:
    """No row works. Where the made-up columns may be the cause, that is no fault of the reward."""
    bare = trial.base.__class__(
        trial.base.completions,
        {name: trial.base.columns[name] for name in ("prompts", "completion_ids") if name in trial.base.columns},
    )
    without = trial(_ORDINARY, bare, keep=False)
    if made_up and named_exception(without.error) != named_exception(outcome.error):
        return _needs(trial, outcome, None, made_up)
    return Finding(
        "raises", "error", trial.subject.name, f"It raises {type(outcome.error).__name__} on every row.",
        {"exception": named_exception(outcome.error), "rows": len(trial.base)},
        "Nothing else could be checked: mend this first.",
    )  # fmt: skip


def _needs(trial: Trial, outcome: Outcome, missing: str | None, made_up: bool) -> Finding:
    columns = sorted(set(trial.base.columns) - {"completion_ids"})
    if not made_up:
        return Finding(
            "needs-columns", "error", trial.subject.name, f"It needs the column {missing!r}, which the data lacks.",
            {"exception": named_exception(outcome.error), "columns": columns},
            f"Add {missing!r} to the data, or name the reward's column in its options.",
        )  # fmt: skip
    what = "It could not be called on made-up rows"
    return Finding(
        "needs-columns", "note", trial.subject.name,
        f"{what}: it needs the column {missing!r}." if missing else f"{what}: it needs columns of another kind.",
        {"exception": named_exception(outcome.error), "tried": [n for n in columns if n in probes.GOLD_NAMES]},
        "Pass some of your rows: gdpo lint ... --data FILE.",
    )  # fmt: skip
