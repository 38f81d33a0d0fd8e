"""The charts of a page as data: what the script draws, and the sentences that stand in for a picture."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from gdpo.report.formats import NONE, Scale, significant
from gdpo.report.run_data import RunData

_POINTS = 800

Values = list[float | None]


@dataclass(frozen=True)
class Line:
    """One curve; ``thin`` is each step, ``values`` the mean over a window of steps (the same where there are few)."""

    name: str
    colour: int
    values: Values
    thin: Values | None = None
    faint: bool = False
    """Drawn thin and without a label: one run among those whose mean is drawn thick."""


@dataclass(frozen=True)
class Chart:
    """Curves over steps, or bars over a value (``bars``)."""

    key: str
    title: str
    note: str
    x: list[float]
    lines: list[Line]
    percent: bool = False
    low: float | None = None
    high: float | None = None
    bars: bool = False
    x_label: str = "step"
    options: list[str] = field(default_factory=list)
    """Names of alternative data sets the reader can choose between; ``lines`` then holds one set after the other."""

    def data(self) -> dict[str, Any]:
        """What is embedded in the page."""
        return asdict(self)

    @property
    def summary(self) -> str:
        """The chart in words, for those who cannot see it: where each curve starts and ends."""
        scale = Scale(share=self.percent)
        parts = []
        for line in self.lines:
            known = [value for value in line.values if value is not None]
            text = f"{scale.value(known[0])} to {scale.value(known[-1])}" if known else NONE
            parts.append(f"{line.name}: {text}")
        return "; ".join(parts)


def run_charts(run: RunData, scales: dict[str, Scale]) -> dict[str, list[Chart]]:
    """The curves of a run by section: ``rewards``, ``signal`` and ``health``; a chart without a value is left out."""
    share = all(scales[name].share for name in run.rewards)
    low, high = (0.0, 1.0) if share else (None, None)
    bounds = {"percent": True, "low": 0.0, "high": 1.0}
    sections = {
        "rewards": [
            _by_reward(run, "mean", "Mean reward", "Each reward's mean over the step's rollouts, as scored.",
                       percent=share, low=low, high=high),
        ],
        "signal": [
            _by_reward(run, "dead_share", "Groups that teach nothing",
                       "Share of groups in which the reward is tied: it cannot push anything there.", **bounds),
            _by_reward(run, "group_std", "Spread inside groups",
                       "Mean standard deviation of the reward within a group, on its own scale.", low=0.0),
            _by_reward(run, "contribution_share", "Share of the advantage",
                       "How much of the advantage's variance each reward carries; the shares add up to 100 %.",
                       percent=True),
        ],
        "health": [
            _single(run, "completion_length", "Completion length", "Mean tokens a completion."),
            _single(run, "entropy", "Entropy", "Mean over tokens; falling to 0 means that nothing new is tried."),
            _single(run, "kl", "KL to the reference", "How far the policy moved from where it started."),
            _single(run, "loss", "Loss", "Near 0 by construction; watch for jumps, not for a trend."),
        ],
    }  # fmt: skip
    weights = _by_reward(run, "weight", "Weights", "The weight of each reward at each step.", low=0.0)
    if any(len(set(line.values)) > 1 for line in weights.lines):
        sections["signal"].append(weights)
    return {name: [chart for chart in charts if _drawn(chart)] for name, charts in sections.items()}


def window(count: int) -> int:
    """Number of steps a smooth curve averages over: a twentieth of the run, at least 1, odd."""
    return 2 * (count // 40) + 1


def rolling(values: Values, width: int) -> Values:
    """Centred mean over ``width`` steps of the values that are there; None stays None."""
    if width <= 1:
        return values
    half, result = width // 2, []
    for position, value in enumerate(values):
        near = [near for near in values[max(0, position - half) : position + half + 1] if near is not None]
        result.append(None if value is None else math.fsum(near) / len(near))
    return result


def thinned(steps: list[float], lines: list[Values]) -> tuple[list[float], list[Values]]:
    """At most ``_POINTS`` points: means over equal stretches of steps, at the stretch's last step."""
    stride = -(-len(steps) // _POINTS)
    if stride <= 1:
        return steps, lines
    starts = range(0, len(steps), stride)
    places = [steps[min(start + stride, len(steps)) - 1] for start in starts]
    return places, [[_mean(values[start : start + stride]) for start in starts] for values in lines]


def rounded(value: float | None) -> float | None:
    """Five significant digits: more than a picture shows, and half the bytes."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def curve(
    key: str, title: str, note: str, steps: list[int], named: list[tuple[str, int, Values]], **bounds: Any
) -> Chart:
    """A chart of one smooth and one thin line a name."""
    width = window(len(steps))
    smooth = [rolling(values, width) for _, _, values in named]
    places, every = thinned([float(step) for step in steps], [values for _, _, values in named] + smooth)
    lines = []
    for position, (name, colour, _) in enumerate(named):
        thin = [rounded(value) for value in every[position]]
        mean = [rounded(value) for value in every[position + len(named)]]
        lines.append(Line(name, colour, mean, thin if width > 1 else None))
    return Chart(key, title, note, places, lines, **bounds)


def _by_reward(run: RunData, key: str, title: str, note: str, **bounds: Any) -> Chart:
    named = [(name, index, run.series(f"rewards/{name}/{key}")) for index, name in enumerate(run.rewards)]
    named = [entry for entry in named if any(value is not None for value in entry[2])]
    return curve(key, title, note, run.steps, named, **bounds)


def _single(run: RunData, key: str, title: str, note: str) -> Chart:
    low = 0.0 if key in ("completion_length", "entropy") else None
    return curve(key, title, note, run.steps, [(title.lower(), -1, run.series(key))], low=low)


def _drawn(chart: Chart) -> bool:
    return any(value is not None for line in chart.lines for value in line.values)


def _mean(values: Values) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def describe(values: Values) -> str:
    """Mean of ``values`` in words; a dash where there is none."""
    return significant(_mean(values))
