"""Numbers as a reader wants them, and the few statistics a report needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

MINUS = "\u2212"
NONE = "\u2013"
Z95 = 1.959963984540054

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T95 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval; ``low`` and ``high`` are None where there is no spread to tell it from."""

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def clear(self) -> bool:
        """Whether the interval exists and lies on one side of 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def t_quantile(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t; beyond 30 degrees by the first terms of its expansion."""
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    return Z95 + (Z95**3 + Z95) / (4 * degrees) + (5 * Z95**5 + 16 * Z95**3 + 3 * Z95) / (96 * degrees**2)


def t_interval(values: list[float]) -> Interval | None:
    """Mean of ``values`` with Student's t interval over them; None where there is none.

    Values that are all equal get no interval: one of width 0 would claim a certainty that a few seeds cannot give.
    """
    count = len(values)
    if not count:
        return None
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, None, None, 1)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    if std <= 1e-12 * max(1.0, abs(mean)):
        return Interval(mean, None, None, count)
    half = t_quantile(count - 1) * std / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def change(before: float | None, after: float | None, *stderrs: float | None) -> Interval | None:
    """``after - before`` with a 95 % normal interval, the two taken as independent.

    Both evaluations use the same prompts, whose difficulty they share; taking them as independent makes the interval
    wider than it need be, never narrower. Standard errors that are all 0 (no sample passed, or every one did) say
    nothing about other samples, so they give no interval.
    """
    if before is None or after is None:
        return None
    known = [stderr for stderr in stderrs if stderr is not None]
    if len(known) < len(stderrs) or not any(known):
        return Interval(after - before, None, None, 1)
    half = Z95 * math.sqrt(math.fsum(stderr**2 for stderr in known))
    return Interval(after - before, after - before - half, after - before + half, 2)


def fixed(value: float | None, digits: int = 1, sign: bool = False) -> str:
    """``value`` with ``digits`` decimals and a real minus; a dash where there is none; never "-0"."""
    if value is None or not math.isfinite(value):
        return NONE
    text = f"{value:+,.{digits}f}" if sign else f"{value:,.{digits}f}"
    if not text.strip("+-0.,"):
        text = text.lstrip("+-")
    return text.replace("-", MINUS)


def significant(value: float | None, digits: int = 3, sign: bool = False) -> str:
    """``value`` with about ``digits`` significant digits, plain between 0.001 and a million."""
    if value is None or not math.isfinite(value):
        return NONE
    size = abs(value)
    if size and not 1e-3 <= size < 1e6:
        return f"{value:{'+' if sign else ''}.{digits - 1}e}".replace("-", MINUS)
    decimals = digits - 1 - math.floor(math.log10(size)) if size else 0
    return fixed(value, min(max(decimals, 0), 4), sign)


def plain(value: float | None) -> str:
    """A score as short as it can be: ``1``, ``0.5``, ``−0.333``."""
    return NONE if value is None or not math.isfinite(value) else f"{value:.3g}".replace("-", MINUS)


@dataclass(frozen=True)
class Scale:
    """How one reward's values are written: shares as per cent and points, anything else as plain numbers."""

    share: bool

    def value(self, value: float | None) -> str:
        """A mean: ``62.4 %`` or ``3.21``."""
        if value is None:
            return NONE
        return f"{fixed(100 * value)}\u202f%" if self.share else significant(value)

    def spread(self, value: float | None) -> str:
        """A standard error in the same unit, without it."""
        if value is None:
            return NONE
        return fixed(100 * value) if self.share else significant(value, 2)

    def difference(self, value: float | None) -> str:
        """A signed difference: ``+12.3`` (points) or ``+0.31``."""
        if value is None:
            return NONE
        return fixed(100 * value, sign=True) if self.share else significant(value, sign=True)

    @property
    def unit(self) -> str:
        """What differences are counted in; empty for plain numbers."""
        return "points" if self.share else ""


def duration(seconds: float | None) -> str:
    """``42 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return NONE
    whole = round(seconds)
    if whole < 60:
        return f"{whole}\u202fs"
    if whole < 3600:
        return f"{whole // 60}\u202fmin {whole % 60:02d}\u202fs"
    return f"{whole // 3600}\u202fh {whole % 3600 // 60:02d}\u202fmin"


def joined(names: list[str] | tuple[str, ...]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
