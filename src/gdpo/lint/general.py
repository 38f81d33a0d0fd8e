"""What every call of a reward must keep to, read from the calls that were made."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from gdpo.audit.findings import Finding, short_text
from gdpo.lint.trial import Outcome, Subject, Trial, is_score, keywords
from gdpo.rewards import model_text

_BY_TRAINER = ("prompts", "completion_ids", "trainer_state")
_MODEL_TEXT = "Read completions with gdpo.rewards.model_text and give malformed text the floor, not an exception."


def general_findings(trial: Trial) -> Iterator[Finding]:
    """Findings on the reward's signature and on everything that it returned, raised, printed or changed."""
    yield from _signature(trial.subject)
    for check in (_raises, _late, _count, _numbers, _bounds, _prints, _mutates):
        yield from check(trial.subject, trial.outcomes)


def named_exception(error: BaseException | None) -> str:
    """``TypeError: what it says`` on one line."""
    return short_text(f"{type(error).__name__}: {' '.join(str(error).split())}")


def shown(completion: Any) -> str:
    """A completion for the evidence."""
    return short_text(completion if isinstance(completion, str) else repr(completion))


def _signature(subject: Subject) -> Iterator[Finding]:
    named, open_ended = keywords(subject.function)
    if named and "completions" not in named:
        yield Finding(
            "signature", "error", subject.name, "No argument is named completions, by which trainers pass them.",
            {"arguments": sorted(named)}, "def reward(completions, **columns): ...",
        )  # fmt: skip
    elif not open_ended and (refused := [name for name in _BY_TRAINER if name not in named]):
        yield Finding(
            "signature", "error", subject.name, "It refuses columns that trainers pass to every reward.",
            {"refused": refused, "arguments": sorted(named)}, "Add **columns to its arguments.",
        )  # fmt: skip


def _raises(subject: Subject, outcomes: list[Outcome]) -> Iterator[Finding]:
    raised = [outcome for outcome in outcomes if outcome.error is not None and not outcome.late]
    if raised:
        first = raised[0]
        yield Finding(
            "raises", "error", subject.name, f"It raises {type(first.error).__name__} on {first.what}.",
            {
                "exception": named_exception(first.error), "completion": shown(first.batch.completions[0]),
                "on": list(dict.fromkeys(outcome.what for outcome in raised)),
            },
            _MODEL_TEXT,
        )  # fmt: skip


def _late(subject: Subject, outcomes: list[Outcome]) -> Iterator[Finding]:
    late = [outcome for outcome in outcomes if outcome.late]
    if late:
        first = late[0]
        yield Finding(
            "hangs", "error", subject.name, f"It does not come back on {first.what} and was ended.",
            {
                "seconds": round(first.seconds, 1), "completion": shown(first.batch.completions[0]),
                "completions": len(first.batch),
            },
            "Look for a regular expression that backtracks, or limit what is parsed by its length and by time.",
        )  # fmt: skip


def _count(subject: Subject, outcomes: list[Outcome]) -> Iterator[Finding]:
    for outcome in outcomes:
        if outcome.error is None and outcome.scores is None:
            values = outcome.values
            found = f"{len(values)} scores" if values is not None else type(outcome.result).__name__
            yield Finding(
                "wrong-number-of-scores", "error", subject.name,
                f"It returns {found} for {len(outcome.batch)} completions on {outcome.what}.",
                {"returned": shown(outcome.result), "completions": len(outcome.batch)},
                "Return a list with one score a completion, None where the reward does not apply.",
            )  # fmt: skip
            return


def _numbers(subject: Subject, outcomes: list[Outcome]) -> Iterator[Finding]:
    odd = [
        (outcome, row, value)
        for outcome in outcomes
        for row, value in enumerate(outcome.values or [])
        if value is not None and not is_score(value)
    ]
    infinite = [entry for entry in odd if isinstance(entry[2], float) and not math.isfinite(entry[2])]
    words = [entry for entry in odd if entry not in infinite]
    for found, name, what in ((words, "not-a-number", "no number"), (infinite, "not-finite", "NaN or an infinity")):
        if found:
            outcome, row, value = found[0]
            yield Finding(
                name, "error", subject.name, f"It returns {what} for a completion of {outcome.what}.",
                {"value": value, "row": row, "completion": _at(outcome, row), "times": len(found)},
                "Return a finite number, or None where the reward does not apply.",
            )  # fmt: skip


def _bounds(subject: Subject, outcomes: list[Outcome]) -> Iterator[Finding]:
    if subject.bounds is None:
        yield Finding(
            "no-bounds", "note", subject.name, "It declares no bounds, so saturation and floors cannot be judged.",
            _seen(outcomes), "@gdpo.reward(range=(LOW, HIGH)), or range: [LOW, HIGH] in the recipe.",
        )  # fmt: skip
        return
    low, high = subject.bounds
    outside = [
        (outcome, row, score)
        for outcome in outcomes
        for row, score in enumerate(outcome.scores or [])
        if score is not None and not low - 1e-9 <= score <= high + 1e-9
    ]
    if outside:
        outcome, row, score = max(outside, key=lambda entry: max(low - entry[2], entry[2] - high))
        yield Finding(
            "out-of-bounds", "error", subject.name, f"It scores {score:g}, outside its declared {low:g} to {high:g}.",
            {"score": score, "bounds": [low, high], "completion": _at(outcome, row), "times": len(outside)},
            "Clip the score to the range, or declare the range that it has.",
        )  # fmt: skip


def _prints(subject: Subject, outcomes: list[Outcome]) -> Iterator[Finding]:
    loud = [outcome for outcome in outcomes if outcome.printed.strip()]
    if loud:
        yield Finding(
            "prints", "note", subject.name, "It prints while it scores, once a call in every process of a run.",
            {"printed": loud[0].printed.strip(), "calls": f"{len(loud)} of {len(outcomes)}"},
            "Take the print out, or use log_extra, which TRL passes.",
        )  # fmt: skip


def _mutates(subject: Subject, outcomes: list[Outcome]) -> Iterator[Finding]:
    changed = [outcome for outcome in outcomes if outcome.mutated]
    if changed:
        names = sorted({name for outcome in changed for name in outcome.mutated})
        yield Finding(
            "mutates-inputs", "error", subject.name,
            f"It changes its inputs ({', '.join(names)}), which the other rewards and the log read after it.",
            {"changed": names, "calls": f"{len(changed)} of {len(outcomes)}"}, "Work on a copy.",
        )  # fmt: skip


def _seen(outcomes: list[Outcome]) -> dict[str, Any]:
    scores = [score for outcome in outcomes for score in outcome.scores or [] if score is not None]
    return {"least seen": min(scores), "most seen": max(scores)} if scores else {}


def _at(outcome: Outcome, row: int) -> str:
    """The completion of a row, where the result has one entry a row."""
    completions = outcome.batch.completions
    return short_text(model_text(completions[row]) or shown(completions[row])) if row < len(completions) else ""
