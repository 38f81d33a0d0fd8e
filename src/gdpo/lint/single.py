"""Checks of one reward."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gdpo.audit.findings import Finding
from gdpo.lint import probes
from gdpo.lint.batch import Batch
from gdpo.lint.general import general_findings, named_exception, shown
from gdpo.lint.gold import check_gold
from gdpo.lint.ready import make_ready
from gdpo.lint.trial import Outcome, Subject, Trial, close
from gdpo.rewards import model_text

SLOW = 0.010
"""Seconds a completion, on ordinary texts."""
SLOW_ON_A_MEGABYTE = 2.0
_ALONE = 12
_HOSTILE_SECONDS = 40.0
_HOSTILE_SECONDS_EACH = 15.0

Scores = list[float | None]


@dataclass
class Verdict:
    """What was found about one reward."""

    findings: list[Finding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    """What could not be checked, and why."""
    base: Batch | None = None
    scores: Scores | None = None
    """[B] of the base batch; None where the reward could not be run."""
    completions: int = 0
    calls: int = 0


def check_reward(subject: Subject, base: Batch, *, made_up: bool) -> Verdict:
    """Try one reward on the rows of ``base``, and beside them on hostile texts.

    Args:
        subject: the reward.
        base: rows to try it on.
        made_up: whether these rows were made up, not a user's.
    """
    trial, verdict = Trial(subject, base), Verdict()
    verdict.findings += make_ready(trial, made_up)
    if verdict.findings:
        verdict.unchecked.append("anything that needs its scores, since it could not be run")
    else:
        verdict.base = trial.base
        verdict.scores = _check_scores(trial, verdict, made_up)
        verdict.findings += _hostile(trial)
        verdict.findings += _megabytes(trial)
    verdict.findings += general_findings(trial)
    verdict.calls = len(trial.outcomes)
    verdict.completions = sum(len(outcome.batch) for outcome in trial.outcomes)
    return verdict


def _check_scores(trial: Trial, verdict: Verdict, made_up: bool) -> Scores | None:
    """All that compares scores; returns those of the base batch."""
    first, second = (trial("ordinary texts", trial.base) for _ in range(2))
    if first.scores is None or second.scores is None:
        return None
    verdict.findings += _slow(trial, first, second)
    moved = [row for row, pair in enumerate(zip(first.scores, second.scores, strict=True)) if not close(*pair)]
    if moved:
        verdict.findings.append(
            Finding(
                "not-deterministic", "error", trial.subject.name, "The same batch scored twice gets different scores.",
                {"rows": moved, "first": first.scores[moved[0]], "second": second.scores[moved[0]]},
                "Fix the seed, sample at temperature 0, or cache by completion.",
            )
        )  # fmt: skip
        verdict.unchecked.append("order, batch, chat messages and gold answers, since scores change from call to call")
        return first.scores
    independent = list(_neighbours(trial, first.scores))
    verdict.findings += independent
    verdict.findings += _other_form(trial, first.scores)
    if len({score for score in first.scores if score is not None}) <= 1:
        verdict.findings.append(_constant(trial, first.scores, made_up))
    else:
        verdict.findings += _empty(trial, first.scores)
    if independent:
        verdict.unchecked.append("gold answers, since scores depend on the batch")
    else:
        findings, unchecked = check_gold(trial, made_up)
        verdict.findings += findings
        verdict.unchecked += unchecked
    return first.scores


def _slow(trial: Trial, *outcomes: Outcome) -> Iterator[Finding]:
    each = min(outcome.seconds for outcome in outcomes) / len(trial.base)
    if each > SLOW:
        yield Finding(
            "slow", "warning", trial.subject.name,
            f"It takes {1000 * each:.0f} ms a completion, over {1000 * SLOW:.0f} ms.",
            {"milliseconds a completion": round(1000 * each, 1), "completions": len(trial.base)},
            "Score the batch at once, in processes, or make it async so that it waits beside the others.",
            measure="seconds a completion", value=each,
        )  # fmt: skip


def _neighbours(trial: Trial, scores: Scores) -> Iterator[Finding]:
    """Whether a completion's score depends on where it stands, or on what stands beside it."""
    rows = list(range(len(scores)))
    random.Random(0).shuffle(rows)
    row = _first_difference(trial, "the batch in another order", rows, scores)
    if row is not None:
        yield Finding(
            "order-dependent", "error", trial.subject.name, "Scores depend on the order of the batch.",
            {"row": row, "score": scores[row], "completion": shown(trial.base.completions[row])},
            "Score each completion by its own text and columns, not by its place.",
        )  # fmt: skip
        return
    spread = sorted(rows[:_ALONE])  # shuffled: an even step would meet the same kind of text in every group
    apart = [[row] for row in spread] + [list(range(0, len(scores), 2)), list(range(1, len(scores), 2))]
    found = next((row for part in apart if (row := _first_difference(trial, "a part", part, scores)) is not None), None)
    if found is None:
        return
    groups = trial.base.groups
    whole = [[row for row, group in enumerate(groups) if group == wanted] for wanted in sorted(set(groups))[:6]]
    if 1 < len(set(groups)) < len(groups) and all(
        _first_difference(trial, "a group", part, scores) is None for part in whole
    ):
        yield Finding(
            "group-dependent", "note", trial.subject.name,
            "Scores depend on the other completions of the same prompt, not on those of other prompts.",
            {"row": found, "score": scores[found]}, "Keep whole groups in one call: no filter or split before it.",
        )  # fmt: skip
        return
    yield Finding(
        "batch-dependent", "warning", trial.subject.name,
        "A completion's score depends on the other completions of the batch.",
        {"row": found, "score": scores[found], "completion": shown(trial.base.completions[found])},
        "Compare within one prompt's completions only, or with a fixed scale: batches are cut differently by each "
        "trainer, process and evaluation.",
    )  # fmt: skip


def _first_difference(trial: Trial, what: str, rows: list[int], scores: Scores) -> int | None:
    """The first of ``rows`` whose score is another when only they are scored, in this order; None where all agree."""
    found = trial.scores(what, trial.base.take(rows))
    if found is None:
        return None
    return next((row for row, score in zip(rows, found, strict=True) if not close(score, scores[row])), None)


def _other_form(trial: Trial, scores: Scores) -> Iterator[Finding]:
    """Whether text and chat messages are read alike."""
    if not any(isinstance(completion, str) for completion in trial.base.completions):
        return
    name = trial.subject.name
    remedy = "text = gdpo.rewards.model_text(completion) reads both."
    if trial.chat:
        yield Finding("reads-chat-only", "note", name, "It reads chat messages only, no plain text.", {}, remedy)
        return
    outcome = trial("chat messages", trial.base.as_chat(), keep=False)
    if outcome.scores is None:
        evidence = {"exception": named_exception(outcome.error)} if outcome.error else {}
        yield Finding("reads-text-only", "note", name, "It reads plain text only, no chat messages.", evidence, remedy)
        return
    row = next((row for row, pair in enumerate(zip(scores, outcome.scores, strict=True)) if not close(*pair)), None)
    if row is not None:
        yield Finding(
            "chat-scored-differently", "warning", name, "The same text gets another score as a chat message.",
            {"as text": scores[row], "as chat": outcome.scores[row], "text": shown(trial.base.completions[row])},
            remedy,
        )  # fmt: skip


def _constant(trial: Trial, scores: Scores, made_up: bool) -> Finding:
    value = next((score for score in scores if score is not None), None)
    rows = "made-up rows" if made_up else "rows of the data"
    what = "It never applies (None)" if value is None else f"Every score is {value:g}"
    return Finding(
        "constant", "note" if made_up else "warning", trial.subject.name,
        f"{what} on all {len(scores)} {rows}, so it teaches nothing there.",
        {"score": value, "rows": len(scores)},
        "Pass rows it is meant for: gdpo lint ... --data FILE." if made_up else "Check its form and columns.",
    )  # fmt: skip


def _empty(trial: Trial, scores: Scores) -> Iterator[Finding]:
    """Whether an answer that is empty earns more than the floor."""
    if trial.subject.gated:
        return
    groups = trial.base.groups
    rows = [groups.index(group) for group in sorted(set(groups))[:4]]
    beside = [row for row in rows for _ in probes.NO_ANSWER]
    texts = list(probes.NO_ANSWER) * len(rows)
    found = trial.scores("an empty answer", trial.base.saying(texts, beside)) or []
    low = trial.bounds[0]
    paid = [(score, text) for score, text in zip(found, texts, strict=False) if score is not None and score > low]
    paid = [(score, text) for score, text in paid if not close(score, low)]
    if not paid:
        return
    score, text = max(paid)
    length = _counts_length_alone(trial, scores)
    yield Finding(
        "empty-answer-rewarded", "note" if length else "warning", trial.subject.name,
        f"An empty answer earns {score:g}, above the floor of {low:g}"
        + (", since it looks at length alone." if length else "."),
        {"completion": text, "score": score, "floor": low},
        'Gate it: given="correct >= 1".' if length else 'Give it the floor, or gate it: given="correct >= 1".',
    )  # fmt: skip


def _counts_length_alone(trial: Trial, scores: Scores) -> bool:
    """Whether scores stay when every letter becomes an x."""
    texts = [re.sub(r"\S", "x", model_text(completion)) for completion in trial.base.completions]
    found = trial.scores("letters replaced", Batch(texts, trial.base.columns))
    return found is not None and all(map(close, found, scores))


def _hostile(trial: Trial) -> Iterator[Finding]:
    """Hostile texts at once, and one by one where that raises; the calls are judged by the general checks."""
    kinds: list[tuple[dict[str, object], bool]] = [(dict(probes.HOSTILE), trial.chat)]
    if trial.chat or trial("chat messages", trial.base.take([0]).as_chat(), keep=False).error is None:
        kinds.append((dict(probes.HOSTILE_MESSAGES), True))
    before = trial.chat
    for texts, chat in kinds:
        trial.chat = chat
        batch = trial.base.saying(list(texts.values()), [0] * len(texts))
        together = trial("hostile texts", batch, keep=False, seconds=_HOSTILE_SECONDS)
        if together.error is None:
            trial.outcomes.append(together)
            continue
        for row, name in enumerate(texts):
            if trial(name, batch.take([row]), seconds=_HOSTILE_SECONDS_EACH).late:
                break
    trial.chat = before
    return iter(())


def _megabytes(trial: Trial) -> Iterator[Finding]:
    for name, make in probes.HUGE.items():
        batch = trial.base.saying([make()], [0])
        what = f"a completion of 1 MB ({name})"
        outcome = trial(what, batch, keep=False, seconds=3 * SLOW_ON_A_MEGABYTE)
        seconds = outcome.seconds
        if seconds > SLOW_ON_A_MEGABYTE and not outcome.late:  # another process may have been in the way
            seconds = min(seconds, trial(what, batch, keep=False, seconds=3 * SLOW_ON_A_MEGABYTE).seconds)
        if not outcome.late:
            trial.outcomes.append(outcome)
        if seconds > SLOW_ON_A_MEGABYTE:
            yield Finding(
                "slow-on-long-text", "error", trial.subject.name,
                f"A completion of 1 MB ({name}) takes {'over ' if outcome.late else ''}{seconds:.1f} s.",
                {"seconds": round(seconds, 2), "completion": shown(batch.completions[0])},
                "Make it linear in the text (str.find, possessive quantifiers), or score long texts by their end.",
                measure="seconds", value=seconds,
            )  # fmt: skip
            return
