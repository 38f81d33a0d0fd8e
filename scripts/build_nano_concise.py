"""Make `nano-concise`, the small model of the recipe `concise`: it reasons right more often than not, at some length.

It is trained from scratch on `gdpo.training.made.short_reasoning`, with working of three lengths: clean first, then
with faults mixed in on purpose (slips, broken tags), so that `gdpo train concise` has something to learn for every
reward. Questions reserved for held-out evaluation are never used.

    OMP_NUM_THREADS=1 python scripts/build_nano_concise.py

The same seed, thread count and versions give the same weights.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import nano_common

from gdpo.training.made import short_reasoning
from gdpo.training.tasks import is_reserved

CLEAN = 0.70
"""Share of the training after which faults come in."""
LENGTHS = {"long": 60, "middle": 25, "short": 15}
BROKEN, WRONG, WRONG_SHORT = 0.55, 0.22, 0.32
"""Shares of examples with a fault of form, a slip, and a slip in the shortest working, once faults come in."""
FRAGMENTS = [
    "<think>", "</think>", "<answer>", "</answer>", "What is ", "the largest of ", " + ", " = ", " or ", ": ", ", ",
    "; check: ", "; so ", " Done.",
]  # fmt: skip
ABOUT = """
The small model of the recipe `concise`: it writes working between `<think>` and `</think>` and a number between
`<answer>` and `</answer>`, for sums of three to five numbers up to 20 and for the largest of such lists. Its working is
often longer than it has to be, its form often broken and its result sometimes wrong, on purpose, so that reinforcement
learning has something to do.

Where its slice of the task ends: numbers up to 20 and sums up to 100, each number one token; three to five terms; these
two kinds of questions in these words. For more, take a larger model (`gdpo train concise model=...`).
"""


def phrases() -> list[str]:
    """Numbers to 100 and the task's turns of phrase."""
    return [*FRAGMENTS, *(str(number) for number in range(10, 101))]


def examples(rng: random.Random, done: float) -> Iterator[tuple[str, str]]:
    while True:
        for row in short_reasoning.rows(64, rng.randrange(1 << 40)):
            if not is_reserved(row["question"]):
                yield row["question"], completion(row["question"], rng, done >= CLEAN)


def completion(question: str, rng: random.Random, faults: bool) -> str:
    numbers = [int(digits) for digits in re.findall(r"\d+", question)]
    length = rng.choices(list(LENGTHS), weights=list(LENGTHS.values()))[0]
    slip = faults and rng.random() < (WRONG_SHORT if length == "short" else WRONG)
    working, result = reason(numbers, "+" in question, length, rng if slip else None)
    if not faults or rng.random() >= BROKEN:
        return f"<think>{working}</think><answer>{result}</answer>"
    forms = [
        f"<think>{working}</think><answer>{result}</answer> Done.",
        f"{working}<answer>{result}</answer>",
        f"<think>{working}<answer>{result}</answer>",
        f"<answer>{result}</answer><think>{working}</think>",
        f"<think>{working}</think>{result}",
    ]
    return rng.choices(forms, weights=[4, 3, 3, 1, 1])[0]


def reason(numbers: list[int], adding: bool, length: str, slips: random.Random | None) -> tuple[str, int]:
    """Working of a length, and where it ends; with ``slips``, one step goes wrong and the rest follows from it."""
    last = len(numbers) - 1
    wrong_step = (slips.randint(1, last) if adding else last) if slips else 0
    totals, steps, total = [], [], numbers[0]
    for index, number in enumerate(numbers[1:], 1):
        before = total
        total = total + number if adding else max(total, number)
        if slips and index == wrong_step:
            total = max(1, total + slips.choice([-10, -2, -1, 1, 2, 10])) if adding else min(before, number)
        totals.append(str(total))
        steps.append(f"{before} + {number} = {total}" if adding else f"{before} or {number}: {total}")
    if length == "short":
        return ", ".join(totals), total
    working = ", ".join(steps)
    if length == "long":
        again, _ = reason(numbers[::-1], adding, "middle", None)
        working += f"; check: {again}; so {total}"
    return working, total


def main() -> None:
    args = nano_common.arguments(__doc__, "nano-concise", steps=1000)
    nano_common.build(
        args, phrases(), examples, recipe="concise", task="short_reasoning", script="build_nano_concise.py",
        about=ABOUT,
    )  # fmt: skip


if __name__ == "__main__":
    main()
