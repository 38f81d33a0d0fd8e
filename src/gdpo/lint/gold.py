"""Whether right answers earn the most, wrong ones less, lists of answers no more, and missing gold answers nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gdpo.audit.findings import Finding
from gdpo.lint import probes
from gdpo.lint.batch import EXTRAS, Batch
from gdpo.lint.general import named_exception, shown
from gdpo.lint.trial import Trial, close

_SEARCH_ROWS = 3
_MOST_ROWS = 64
_LONGEST = 20_000
_SHORT = 200
Scores = list[float | None]


@dataclass(frozen=True)
class Reading:
    """How a reward reads answers: columns of equal values that hold the gold answer, and the form of the completion."""

    columns: tuple[str, ...]
    form: str
    lift: float
    """Mean score of gold answers over that of damaged ones."""
    gold: float
    """Mean score of gold answers."""

    def __str__(self) -> str:
        return self.columns[0]


def check_gold(trial: Trial, made_up: bool) -> tuple[list[Finding], list[str]]:
    """(findings, what could not be checked). The column and the form are found by trying.

    Args:
        trial: a reward whose scores are reproducible and depend on each completion alone.
        made_up: whether the rows were made up.
    """
    readings = [reading for columns in _columns(trial.base) for reading in _readings(trial, columns)]
    best = max(readings, key=lambda reading: (reading.lift, reading.gold), default=None)
    if best is not None and best.lift > 1e-6:
        return [*_ranked(trial, best), *_missing(trial, best)], []
    highest: dict[tuple[str, ...], Reading] = {}
    for reading in sorted(readings, key=lambda reading: -reading.gold):
        highest.setdefault(reading.columns, reading)
    for reading in highest.values():
        if _uses(trial, reading):
            if close(reading.gold, trial.bounds[1]):
                return [*_ranked(trial, reading)], []
            if not made_up:
                return [_never(trial, reading)], []
    return [], ["gold answers, since no column was found whose answer changes the score"]


def _columns(base: Batch) -> list[tuple[str, ...]]:
    """Columns that may hold gold answers; those of equal values are tried as one."""
    found: dict[str, list[str]] = {}
    for name, values in base.columns.items():
        if name in ("prompts", "completion_ids", *EXTRAS):
            continue
        texts = [probes.answer_text(value) for value in values]
        if any(texts) and all(len(text) <= _LONGEST for text in texts if text):
            found.setdefault(repr(values), []).append(name)
    return [tuple(names) for names in found.values()]


def _rows(base: Batch, column: str, most: int) -> list[int]:
    """One row for each different gold answer and prompt."""
    first: dict[tuple[int, str], int] = {}
    for row, group in enumerate(base.groups):
        text = probes.answer_text(base.columns[column][row])
        if text:
            first.setdefault((group, text), row)
    return list(first.values())[:most]


def _readings(trial: Trial, columns: tuple[str, ...]) -> Iterator[Reading]:
    rows = _rows(trial.base, columns[0], _SEARCH_ROWS)
    forms = list(probes.WRAPPINGS)
    scores = trial.scores("gold answers in many forms", _search_batch(trial.base, columns[0], rows))
    if scores is None:
        return
    for k, form in enumerate(forms):
        pairs = [scores[2 * (k + len(forms) * index) :][:2] for index in range(len(rows))]
        known = [(gold, wrong) for gold, wrong in pairs if gold is not None and wrong is not None]
        if known:
            lift = sum(gold - wrong for gold, wrong in known) / len(known)
            yield Reading(columns, form, lift, sum(gold for gold, _ in known) / len(known))


def _search_batch(base: Batch, column: str, rows: list[int]) -> Batch:
    """For each row and form, the gold answer and a damaged one."""
    texts: list[str] = []
    for row in rows:
        answer = probes.answer_text(base.columns[column][row]) or ""
        for form in probes.WRAPPINGS:
            texts += [probes.wrap(form, answer), probes.wrap(form, probes.damaged(answer))]
    return base.saying(texts, [row for row in rows for _ in range(2 * len(probes.WRAPPINGS))])


def _uses(trial: Trial, reading: Reading) -> bool:
    """Whether scores change when the column holds other rows' answers."""
    rows = _rows(trial.base, reading.columns[0], _SEARCH_ROWS)
    batch = _search_batch(trial.base, reading.columns[0], rows)
    other = {name: [*batch.columns[name]] for name in reading.columns}
    turn = 2 * len(probes.WRAPPINGS)
    changed = {name: values[turn:] + values[:turn] for name, values in other.items()}
    before, after = (trial.scores("other gold answers", given) for given in (batch, batch.having(**changed)))
    return before is not None and after is not None and not all(map(close, before, after))


def _ranked(trial: Trial, reading: Reading) -> Iterator[Finding]:
    """Gold answers at the maximum, damaged ones below, many answers below."""
    base, name = trial.base, trial.subject.name
    rows = _rows(base, reading.columns[0], _MOST_ROWS)
    answers = [probes.answer_text(base.columns[reading.columns[0]][row]) or "" for row in rows]
    gold = _said(trial, "gold answers", rows, answers, lambda text: probes.wrap(reading.form, text))
    wrong = _said(trial, "damaged answers", rows, answers, lambda t: probes.wrap(reading.form, probes.damaged(t)))
    if gold is None or wrong is None:
        return
    top = trial.bounds[1]
    evidence: dict[str, Any] = {"column": str(reading), "form": reading.form}
    unread = [k for k, score in enumerate(gold) if score is None]
    below = [k for k, score in enumerate(gold) if score is not None and score < top and not close(score, top)]
    equal = [k for k in range(len(rows)) if k not in below and not _lower(wrong[k], gold[k])]
    if unread:
        yield Finding(
            "gold-not-read", "warning", name, f"{len(unread)} of {len(rows)} gold answers earn no score.",
            evidence | {"rows": [rows[k] for k in unread], "gold": answers[unread[0]]},
            "Mend or drop these rows: they teach nothing.",
        )  # fmt: skip
    if below:
        some = len(below) + len(unread) < len(rows)
        yield Finding(
            "gold-below-maximum", "error" if some else "warning", name,
            f"{len(below)} of {len(rows)} gold answers score less than the maximum of {top:g}.",
            evidence | {"rows": [rows[k] for k in below], "gold": answers[below[0]], "score": gold[below[0]]},
            "Mend these gold answers, or what compares them." if some
            else "Let the right answer earn the maximum, or declare the range that can be reached.",
        )  # fmt: skip
    if equal:
        yield Finding(
            "damaged-gold-not-lower", "error", name,
            f"{len(equal)} of {len(rows)} wrong answers score no less than the gold answer.",
            evidence | {
                "rows": [rows[k] for k in equal], "gold": answers[equal[0]],
                "wrong answer": probes.damaged(answers[equal[0]]), "score": wrong[equal[0]],
            },
            "Compare the whole answer with the gold answer.",
        )  # fmt: skip
    else:
        yield from _many(trial, reading, rows, answers, gold)


def _lower(wrong: float | None, gold: float | None) -> bool:
    return gold is None or wrong is None or (wrong < gold and not close(wrong, gold))


def _said(trial: Trial, what: str, rows: list[int], answers: list[str], form: Callable[[str], str]) -> Scores | None:
    return trial.scores(what, trial.base.saying([form(answer) for answer in answers], rows))


def _many(trial: Trial, reading: Reading, rows: list[int], answers: list[str], gold: Scores) -> Iterator[Finding]:
    """A completion that lists many answers must not score as the right one does."""
    kinds: dict[str, list[tuple[int, str]]] = {}
    for k, answer in enumerate(answers):
        others = [text for text in dict.fromkeys(answers) if text != answer and len(text) <= _SHORT][:10]
        others += [str(n) for n in range(1, 41) if str(n) != answer and len(answer) <= _SHORT]
        for kind, text in probes.many_answers(reading.form, answer, others).items():
            kinds.setdefault(kind, []).append((k, text))
    for kind, entries in kinds.items():
        batch = trial.base.saying([text for _, text in entries], [rows[k] for k, _ in entries])
        scores = trial.scores("many answers at once", batch) or [None] * len(entries)
        paid = [
            (k, text) for (k, text), score in zip(entries, scores, strict=True)
            if score is not None and not _lower(score, gold[k])
        ]  # fmt: skip
        if 2 * len(paid) > len(entries):
            k, text = paid[0]
            yield Finding(
                "many-answers-rewarded", "error", trial.subject.name,
                f"A completion that lists many answers scores as the right one does ({kind}).",
                {
                    "column": str(reading), "gold": answers[k], "completion": text, "score": gold[k],
                    "rows": f"{len(paid)} of {len(entries)}",
                },
                "Read one answer (the last, in its tags or box) and compare it as a whole.",
            )  # fmt: skip
            return


def _missing(trial: Trial, reading: Reading) -> Iterator[Finding]:
    """A row without a gold answer must give None, or the model learns from nothing."""
    rows = _rows(trial.base, reading.columns[0], 1)
    answer = probes.answer_text(trial.base.columns[reading.columns[0]][rows[0]]) or ""
    texts = [probes.wrap(reading.form, answer), "", probes.wrap(reading.form, "None")]
    for absent in (None, ""):
        batch = trial.base.saying(texts, rows * len(texts))
        batch = batch.having(**{name: [absent] * len(texts) for name in reading.columns})
        outcome = trial("a missing gold answer", batch, keep=False)
        scored = [(score, text) for score, text in zip(outcome.scores or [], texts, strict=False) if score is not None]
        if outcome.error is not None or scored:
            found = {"score": scored[0][0], "completion": shown(scored[0][1])} if scored else {}
            found |= {"exception": named_exception(outcome.error)} if outcome.error else {}
            yield Finding(
                "missing-gold-scored", "error", trial.subject.name,
                f"A row whose {reading} is {absent!r} {'gets a score' if scored else 'makes it raise'}.",
                {"column": str(reading), "value": absent, **found},
                "Return None where there is no gold answer.",
            )  # fmt: skip
            return


def _never(trial: Trial, reading: Reading) -> Finding:
    return Finding(
        "gold-below-maximum", "warning", trial.subject.name,
        f"No gold answer reaches the maximum of {trial.bounds[1]:g} in any form that was tried.",
        {"column": str(reading), "best form": reading.form, "score": reading.gold, "forms": list(probes.WRAPPINGS)},
        "Check by hand that the right answer can earn it.",
    )  # fmt: skip
