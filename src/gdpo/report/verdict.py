"""What a run came to, in words and numbers: the first screen of its report."""

from __future__ import annotations

from dataclasses import dataclass

from gdpo.report.formats import Interval, Scale, change, fixed, joined, significant
from gdpo.report.run_data import Evaluation, RunData, Score


@dataclass(frozen=True)
class Dumbbell:
    """Where before and after stand on a line from 0 to 100 (per cent of its length), with 95 % whiskers."""

    before: float | None
    after: float | None
    before_low: float | None
    before_high: float | None
    after_low: float | None
    after_high: float | None
    left: str
    right: str


@dataclass(frozen=True)
class Row:
    """One line of the table of held-out scores; the texts are ready to print."""

    name: str
    colour: int | None
    """Number of the reward's colour; None for the line over all of them."""
    before: str
    before_stderr: str
    after: str
    after_stderr: str
    difference: str
    interval: str
    clear: str
    """``up``, ``down``, ``same`` or ``unknown``."""
    missing: str
    unit: str
    picture: Dumbbell | None


@dataclass(frozen=True)
class Verdict:
    """The headline of a run."""

    kind: str
    """``up``, ``down``, ``same`` or ``open`` (not enough to say)."""
    subject: str
    before: str
    after: str
    sentence: str
    detail: str


def score_rows(run: RunData, scales: dict[str, Scale]) -> list[Row]:
    """The line over all rewards, then one a reward that either evaluation knows."""
    before, after = run.before, run.after
    rows = []
    names = _together(before, after)
    if names:
        label = f"all of {joined(list(names))}"
        one, two = (evaluation.all_of if evaluation else None for evaluation in (before, after))
        rows.append(_row(label, None, one, two, Scale(share=True)))
    for index, name in enumerate(run.rewards):
        one, two = (evaluation.rewards.get(name) if evaluation else None for evaluation in (before, after))
        if one or two:
            rows.append(_row(name, index, one, two, scales[name]))
    return rows


def verdict(run: RunData, scales: dict[str, Scale]) -> Verdict:
    """The headline: the share of held-out answers on which everything asked for holds, before and after."""
    before, after = run.before, run.after
    names = _together(before, after)
    subject, scale = _subject(names), Scale(share=True)
    one, two = (evaluation.all_of if evaluation else None for evaluation in (before, after))
    if not names and run.rewards:
        name = run.rewards[0]
        subject, scale = f"Mean of {name} on held-out prompts", scales[name]
        one, two = (evaluation.rewards.get(name) if evaluation else None for evaluation in (before, after))
    shown = (scale.value(one.mean if one else None), scale.value(two.mean if two else None))
    difference = _difference(one, two)
    if difference is None:
        return Verdict("open", subject, *shown, _open_sentence(run), _basis(before or after))
    amount = f"{fixed(abs(100 * difference.mean))} points" if scale.share else significant(abs(difference.mean))
    if difference.low is None and difference.mean == 0:
        return Verdict("same", subject, *shown, "The same before and after.", _basis(after))
    if difference.low is None:
        sentence = f"{'Up' if difference.mean > 0 else 'Down'} {amount}; without a spread there is no interval."
        return Verdict("open", subject, *shown, sentence, _basis(after))
    span = f"95\u202f% interval {_span(difference, scale)}"
    if not difference.clear:
        return Verdict(
            "same", subject, *shown, f"No clear change: {amount} {_way(difference)}, {span}.", _basis(after, both=True)
        )
    word = "Up" if difference.mean > 0 else "Down"
    return Verdict(word.lower(), subject, *shown, f"{word} {amount}, {span}.", _basis(after, both=True))


def notices(run: RunData, rows: list[Row]) -> list[str]:
    """What a reader should know before believing the headline; sentences, the gravest first."""
    found = list(run.notes)
    done, total = len(run.metrics), run.total_steps
    last = run.steps[-1] if run.metrics else 0
    if total and last < total:
        found.append(f"The run stopped, or still runs, at step {last} of {total}.")
    if not done:
        found.append("No training step has been recorded.")
    for name, evaluation in (("before", run.before), ("after", run.after)):
        if evaluation is None:
            found.append(f"There is no held-out evaluation {name} training.")
    for row in rows:
        if row.clear == "down":
            found.append(
                f"{row.name} fell on held-out prompts: {row.difference} {row.unit}".rstrip() + f" ({row.interval})."
            )
    found += _training_notices(run)
    if run.after and run.after.truncated is not None and run.after.truncated > 0.1:
        found.append(
            f"{fixed(100 * run.after.truncated, 0)}\u202f% of the held-out completions ran into the length limit."
        )
    return found


def _training_notices(run: RunData) -> list[str]:
    found = []
    quarter = max(1, -(-len(run.metrics) // 4))
    for name in run.rewards:
        dead = [value for value in run.series(f"rewards/{name}/dead_share")[-quarter:] if value is not None]
        if dead and sum(dead) / len(dead) >= 0.8:
            share = fixed(100 * sum(dead) / len(dead), 0)
            found.append(
                f"{name} was tied in {share}\u202f% of the groups over the last quarter of the steps: "
                "there it taught nothing."
            )
    broken = sum(1 for row in run.metrics if "loss" in row and row["loss"] is None)
    if broken:
        found.append(f"The loss was not a finite number in {broken} of {len(run.metrics)} steps.")
    return found


def _together(before: Evaluation | None, after: Evaluation | None) -> tuple[str, ...]:
    return (after.all_of_names if after else ()) or (before.all_of_names if before else ())


def _subject(names: tuple[str, ...]) -> str:
    if len(names) == 1:
        return f"Share of held-out answers on which {names[0]} holds"
    both = "both" if len(names) == 2 else "all"
    return f"Share of held-out answers on which {joined(list(names))} {both} hold"


def _difference(one: Score | None, two: Score | None) -> Interval | None:
    if one is None or two is None:
        return None
    return change(one.mean, two.mean, one.stderr, two.stderr)


def _open_sentence(run: RunData) -> str:
    if run.before is None and run.after is None:
        return "No held-out evaluation has been recorded, so there is nothing to compare yet."
    if run.after is None:
        return "There is no evaluation after training yet; this is where the model started."
    if run.before is None:
        return "There is no evaluation before training, so how far the model came is not known."
    return "One of the two evaluations has no score for this."


def _basis(evaluation: Evaluation | None, both: bool = False) -> str:
    if evaluation is None or not evaluation.prompts:
        return ""
    text = f"{evaluation.prompts:,} prompts that training never saw"
    if evaluation.samples:
        text += f", {evaluation.samples:,} samples"
    if evaluation.temperature is not None:
        text += f", temperature {evaluation.temperature:g}"
    if both:
        return text + ". Before and after are taken as independent, which makes the interval cautious."
    return text + "."


def _span(interval: Interval, scale: Scale) -> str:
    return f"{scale.difference(interval.low)} to {scale.difference(interval.high)}"


def _way(interval: Interval) -> str:
    return "higher" if interval.mean > 0 else "lower" if interval.mean < 0 else "different"


def _row(name: str, colour: int | None, one: Score | None, two: Score | None, scale: Scale) -> Row:
    one, two = one or Score(), two or Score()
    difference = _difference(one, two)
    clear = "unknown"
    if difference is not None and difference.low is not None:
        clear = ("up" if difference.mean > 0 else "down") if difference.clear else "same"
    missing = [
        f"{label} {significant(value)}" for label, value in (("before", one.missing), ("after", two.missing)) if value
    ]
    return Row(
        name=name,
        colour=colour,
        before=scale.value(one.mean),
        before_stderr=scale.spread(one.stderr),
        after=scale.value(two.mean),
        after_stderr=scale.spread(two.stderr),
        difference=scale.difference(difference.mean if difference else None),
        interval=_span(difference, scale) if difference and difference.low is not None else "",
        clear=clear,
        missing=", ".join(missing),
        unit=scale.unit,
        picture=_dumbbell(one, two, scale),
    )


def _dumbbell(one: Score, two: Score, scale: Scale) -> Dumbbell | None:
    bounds: list[float] = []
    for score in (one, two):
        if score.mean is not None:
            half = 1.96 * (score.stderr or 0.0)
            bounds += [score.mean - half, score.mean + half]
    if not bounds:
        return None
    low, high = (0.0, 1.0) if scale.share else (min(0.0, *bounds), max(0.0, *bounds))
    if high <= low:
        high = low + 1.0

    def place(value: float | None) -> float | None:
        if value is None:
            return None
        return round(3 + 94 * min(max((value - low) / (high - low), 0.0), 1.0), 2)

    def whisker(score: Score, side: float) -> float | None:
        return None if score.mean is None or score.stderr is None else place(score.mean + side * 1.96 * score.stderr)

    return Dumbbell(
        before=place(one.mean),
        after=place(two.mean),
        before_low=whisker(one, -1),
        before_high=whisker(one, 1),
        after_low=whisker(two, -1),
        after_high=whisker(two, 1),
        left="0" if scale.share else significant(low),
        right="100\u202f%" if scale.share else significant(high),
    )
