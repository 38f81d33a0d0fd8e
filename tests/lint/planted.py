"""Rewards with one fault each. ``tests/lint/test_planted.py`` says which."""

from __future__ import annotations

import random
import re
import time

import gdpo
from gdpo.rewards import model_text


def answer_of(completion):
    found = re.findall(r"<answer>([^<]*)</answer>", model_text(completion))
    return found[-1].strip() if found else None


def answered(completion):
    return float(bool(answer_of(completion)))


@gdpo.reward(range=(0, 1))
def raises(completions, **columns):
    return [float(model_text(c).split("<answer>")[1].strip()[0].isdigit()) for c in completions]


@gdpo.reward(range=(0, 1))
def drops_rows(completions, **columns):
    return [answered(c) for c in completions if model_text(c).strip()]


@gdpo.reward(range=(0, 1))
def not_finite(completions, **columns):
    counts = [(model_text(c).count("the"), len(model_text(c).split())) for c in completions]
    return [the / words if words else float("nan") for the, words in counts]


@gdpo.reward(range=(0, 1))
def returns_words(completions, **columns):
    return ["good" if "\n" in model_text(c) else 0.0 for c in completions]


@gdpo.reward(range=(0, 1))
def out_of_bounds(completions, **columns):
    return [answered(c) * model_text(c).count("<") / 2 for c in completions]


@gdpo.reward(range=(0, 1))
def random_judge(completions, **columns):
    return [random.random() for _ in completions]


@gdpo.reward(range=(0, 1))
def by_place(completions, **columns):
    return [answered(c) / (1 + row) for row, c in enumerate(completions)]


@gdpo.reward(range=(0, 1))
def relative_to_batch(completions, **columns):
    marks = [answered(c) * len(model_text(c)) for c in completions]
    return [mark / max(max(marks), 1) for mark in marks]


@gdpo.reward(range=(0, 1))
def many_answers(completions, answer, **columns):
    pairs = zip(completions, answer, strict=True)
    return [float(gold in model_text(c).split()) if gold else None for c, gold in pairs]


@gdpo.reward(range=(0, 1))
def slow(completions, **columns):
    time.sleep(0.012 * len(completions))
    return [answered(c) for c in completions]


@gdpo.reward(range=(0, 1))
def backtracks(completions, **columns):
    # Quadratic: from every opening tag, it looks for a closing one to the end of the text.
    return [float(bool(re.search(r"<think>.+?</think>", model_text(c), re.DOTALL))) for c in completions]


@gdpo.reward(range=(0, 1))
def mutates(completions, **columns):
    found = [answered(c) for c in completions]
    completions.clear()
    return found


@gdpo.reward(range=(0, 1))
def half_for_the_right_answer(completions, answer, **columns):
    pairs = zip(completions, answer, strict=True)
    return [0.5 * (answer_of(c) == gold) if gold else None for c, gold in pairs]


@gdpo.reward(range=(0, 1))
def first_digit_only(completions, answer, **columns):
    pairs = zip(completions, answer, strict=True)
    return [float((answer_of(c) or "x")[0] == gold[0]) if gold else None for c, gold in pairs]


@gdpo.reward(range=(0, 1))
def polite_unless_tagged(completions, **columns):
    return [float("<answer>" not in model_text(c)) for c in completions]


@gdpo.reward(range=(0, 1))
def zero_without_gold(completions, answer, **columns):
    return [float(answer_of(c) == gold) for c, gold in zip(completions, answer, strict=True)]


@gdpo.reward(range=(0, 1))
def constant(completions, **columns):
    return [0.0 for _ in completions]


@gdpo.reward(range=(0, 1))
def text_as_it_comes(completions, **columns):
    return [float(bool(re.search(r"<answer>[^<]+</answer>$", str(c)))) for c in completions]


@gdpo.reward(range=(0, 1))
def no_columns(completions):
    return [answered(c) for c in completions]


@gdpo.reward(range=(0, 1))
def prints(completions, **columns):
    print("scoring", len(completions))
    return [answered(c) for c in completions]


def no_bounds(completions, **columns):
    return [answered(c) for c in completions]


@gdpo.reward(range=(0, 1))
async def asynchronous(completions, answer, **columns):
    return [float(answer_of(c) == gold) if gold else None for c, gold in zip(completions, answer, strict=True)]


@gdpo.reward(range=(0, 1))
def as_open_r1_writes(completions, solution, **kwargs):
    contents = [completion[0]["content"] or "" for completion in completions]
    found = [re.findall(r"<answer>([^<]*)</answer>", content) for content in contents]
    return [
        float(bool(answers) and answers[-1] == right) if right else None
        for answers, right in zip(found, solution, strict=True)
    ]


@gdpo.reward(range=(0, 1))
def shortest_right_of_the_group(completions, prompts, **columns):
    best = {}
    for prompt, c in zip(prompts, completions, strict=True):
        if answered(c):
            best[str(prompt)] = min(best.get(str(prompt), 10**9), len(model_text(c)))
    return [
        float(answered(c) > 0 and len(model_text(c)) == best[str(prompt)])
        for prompt, c in zip(prompts, completions, strict=True)
    ]


@gdpo.reward(range=(0, 1))
def reads_a_table(completions, **columns):
    return [float(model_text(c) in entry["allowed"]) for c, entry in zip(completions, columns["menu"], strict=True)]
