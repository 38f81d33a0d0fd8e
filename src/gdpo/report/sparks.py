"""Small pictures drawn without a script: curves over steps, bands, bars. Each has its numbers and its words beside it.

Coordinates run from 0 to 100 both ways, y downwards; the template stretches them to the room there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gdpo.report.charts import Values, rounded
from gdpo.report.formats import NONE

_POINTS = 120
"""A small picture has no room for more."""


@dataclass(frozen=True)
class Spark:
    """One picture."""

    title: str
    note: str
    """What is most worth knowing of it, beside the title."""
    top: str
    """The value at the upper edge."""
    bottom: str
    left: str
    """What stands at the left end of the horizontal axis."""
    right: str
    middle: str = ""
    line: str = ""
    """An SVG path; empty where there is no curve."""
    bands: tuple[str, ...] = ()
    """SVG paths, the widest first."""
    bars: tuple[tuple[float, float, float, float], ...] = field(default=())
    """(x, y, width, height)."""
    zero: float | None = None
    """Where 0 lies, where the picture has such a line."""
    upright: bool = False
    """Whether that line is a vertical one."""
    words: str = ""
    """The picture for who cannot see it."""


def over_steps(
    title: str, places: tuple[str, Sequence[int]], values: Values, write: Callable[[float | None], str],
    bounds: tuple[float, float] | None = None,
) -> Spark | None:  # fmt: skip
    """A curve; None where there are fewer than two values.

    Args:
        title: what it shows.
        places: what the horizontal axis counts, and its S numbers.
        values: [S].
        write: a value as text, with its unit.
        bounds: of the vertical axis; None: those of the values.
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    if len(known) < 2:
        return None
    flat = min(known) == max(known)
    low, high = bounds or _around(known)
    middles, thin = _thinned(values)
    line = _path([(_x(at, len(values)), _y(value, low, high)) for at, value in zip(middles, thin, strict=True)])
    first, last = write(known[0]), write(known[-1])
    note = f"{first} throughout" if flat else f"{first} → {last}"
    words = f"{title}: {note}, between {write(min(known))} and {write(max(known))}"
    zero = _y(0.0, low, high) if low < 0 < high and not flat else None
    ends = ("", "") if flat and bounds is None else (write(high), write(low))
    return Spark(title, note, *ends, *_along(places), line=line, zero=zero, words=words)


def band_over_steps(
    title: str,
    places: tuple[str, Sequence[int]],
    quantiles: Sequence[Sequence[float]],
    write: Callable[[float | None], str],
) -> Spark | None:
    """Bands between pairs of quantiles; None with fewer than two known points.

    Args:
        title: what it shows.
        places: what the horizontal axis counts, and its S numbers; the first and the last are shown.
        quantiles: [S][Q], rising, an even number; the first and the last bound the widest band. NaN where unknown.
        write: a value as text.
    """
    known = [(at, row) for at, row in enumerate(quantiles) if all(map(math.isfinite, row))]
    if len(known) < 2:
        return None
    low, high = _around([0.0, *(value for _, row in known for value in row)])
    count, last = len(quantiles), len(known[0][1]) - 1

    def points(which: int) -> list[tuple[float, float | None]]:
        return [(_x(at, count), _y(row[which], low, high)) for at, row in known]

    bands = tuple(_path([*points(side), *reversed(points(last - side))]) + "Z" for side in range((last + 1) // 2))
    begins, ends = (f"{write(row[0])} to {write(row[-1])}" for row in (known[0][1], known[-1][1]))
    if all(value == 0 for _, row in known for value in row):
        return Spark(title, "0 throughout", "", "", *_along(places), zero=50.0,
                     words=f"{title}: 0 throughout")  # fmt: skip
    return Spark(title, begins if begins == ends else f"{begins} → {ends}", write(high), write(low),
                 *_along(places), bands=bands, zero=_y(0.0, low, high),
                 words=f"{title}: at first {begins}, at last {ends}")  # fmt: skip


def histogram(
    title: str, note: str, edges: Sequence[float], shares: Sequence[float], write: Callable[[float | None], str]
) -> Spark:
    """Bars about 0; the shares are of the rollouts, the highest bar reaches the upper edge."""
    top = max(shares, default=0.0)
    if not top > 0:
        return Spark(title, note, "", "", "", "", "0", zero=50.0, upright=True, words=f"{title}: {note}")
    count = max(len(shares), 1)
    width = 100.0 / count
    bars = tuple(
        (round(at * width + 0.06 * width, 2), round(100 - 100 * share / top, 2), round(0.88 * width, 2),
         round(100 * share / top, 2))
        for at, share in enumerate(shares) if share > 0
    )  # fmt: skip
    reach = write(edges[-1]) if len(edges) else NONE
    below, above = sum(shares[: count // 2]), sum(shares[count // 2 :])
    words = f"{title}: {100 * below:.1f} % of rollouts below 0, {100 * above:.1f} % above; {note}"
    return Spark(title, note, f"{100 * top:.3g} %", "0", write(edges[0]) if len(edges) else NONE, reach, "0",
                 bars=bars, zero=50.0, upright=True, words=words)  # fmt: skip


def _along(places: tuple[str, Sequence[int]]) -> tuple[str, str]:
    what, numbers = places
    return f"{what} {numbers[0]:,}", f"{numbers[-1]:,}"


def _thinned(values: Values) -> tuple[list[float], Values]:
    """At most ``_POINTS`` points: the mean of each stretch of equal length, at its middle."""
    stride = max(1, -(-len(values) // _POINTS))
    places, thin = [], []
    for start in range(0, len(values), stride):
        part = [value for value in values[start : start + stride] if value is not None and math.isfinite(value)]
        places.append(start + (min(start + stride, len(values)) - start - 1) / 2)
        thin.append(rounded(math.fsum(part) / len(part)) if part else None)
    return places, thin


def _around(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low < high:
        return low, high
    half = abs(low) / 2 or 1.0
    return low - half, high + half


def _x(at: float, count: int) -> float:
    return 100.0 * at / max(count - 1, 1)


def _y(value: float | None, low: float, high: float) -> float | None:
    return None if value is None else 100.0 - 100.0 * (value - low) / (high - low)


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    """Lines between neighbouring points; where one is unknown the pen is lifted."""
    parts, down = [], False
    for x, y in points:
        if y is None:
            down = False
            continue
        parts.append(f"{'L' if down else 'M'}{x:.4g} {y:.4g}")
        down = True
    return "".join(parts)
