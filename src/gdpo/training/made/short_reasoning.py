"""Short reasoning: sums of a few small numbers and the largest of a list, where working can be shorter or longer.

A row has ``question`` and ``answer``. How long the working gets is left to the model: the answer can be told at once,
by running totals, or in written steps with a check.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from gdpo.core.errors import Error

KINDS = ("sum", "max")


def rows(
    size: int, seed: int, terms: Sequence[int] = (3, 5), largest: int = 20, kinds: Sequence[str] = KINDS
) -> list[dict[str, Any]]:
    """Rows of the task.

    Args:
        size: how many.
        seed: which.
        terms: fewest and most numbers in a question, 2 to 20.
        largest: numbers go from 1 to this.
        kinds: "sum" (``What is 3 + 14 + 7?``), "max" (``What is the largest of 3, 14, 7?``), each as often.

    Raises:
        Error: a value out of these bounds.
    """
    ends = list(terms) if isinstance(terms, list | tuple) else []
    if len(ends) != 2 or not all(_whole(end) for end in ends) or not 2 <= ends[0] <= ends[1] <= 20:
        raise Error(f"short_reasoning has terms={terms!r}, but two whole numbers within 2 to 20 were expected")
    if not _whole(largest) or largest < 1:
        raise Error(f"short_reasoning has largest={largest!r}, but a whole number of at least 1 was expected")
    if not isinstance(kinds, list | tuple) or not kinds or any(kind not in KINDS for kind in kinds):
        raise Error(f"short_reasoning has kinds={kinds!r}, but some of {', '.join(KINDS)} were expected")
    rng = random.Random(seed)
    made = []
    for _ in range(size):
        kind = rng.choice(kinds)
        numbers = [rng.randint(1, largest) for _ in range(rng.randint(*ends))]
        made.append(sum_row(numbers) if kind == "sum" else max_row(numbers))
    return made


def sum_row(numbers: Sequence[int]) -> dict[str, Any]:
    """A question for the sum of the numbers."""
    return {"question": f"What is {' + '.join(map(str, numbers))}?", "answer": str(sum(numbers))}


def max_row(numbers: Sequence[int]) -> dict[str, Any]:
    """A question for the largest of the numbers."""
    return {"question": f"What is the largest of {', '.join(map(str, numbers))}?", "answer": str(max(numbers))}


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
