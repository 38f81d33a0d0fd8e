"""The best way to pair two short lists."""

from __future__ import annotations

import math
from collections.abc import Sequence


def best_total(values: Sequence[Sequence[float]]) -> float:
    """The largest sum over pairs, where every row takes a different column, or none.

    The Hungarian method with potentials, O(rows^2 * columns).

    Args:
        values: [rows][columns], none negative.
    """
    if not values or not values[0]:
        return 0.0
    if len(values) > len(values[0]):
        values = list(zip(*values, strict=True))
    rows, columns = len(values), len(values[0])
    potential, price = [0.0] * (rows + 1), [0.0] * (columns + 1)
    taken, way = [0] * (columns + 1), [0] * (columns + 1)
    for row in range(1, rows + 1):
        taken[0], column = row, 0
        least, used = [math.inf] * (columns + 1), [False] * (columns + 1)
        while taken[column]:
            used[column] = True
            current, step, following = taken[column], math.inf, 0
            for other in range(1, columns + 1):
                if used[other]:
                    continue
                cost = -values[current - 1][other - 1] - potential[current] - price[other]
                if cost < least[other]:
                    least[other], way[other] = cost, column
                if least[other] < step:
                    step, following = least[other], other
            for other in range(columns + 1):
                if used[other]:
                    potential[taken[other]] += step
                    price[other] -= step
                else:
                    least[other] -= step
            column = following
        while column:
            taken[column], column = taken[way[column]], way[column]
    return sum(values[taken[column] - 1][column - 1] for column in range(1, columns + 1) if taken[column])
