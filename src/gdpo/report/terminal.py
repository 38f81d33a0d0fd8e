"""The run in the terminal while it trains: a live view, or plain lines where nobody watches (a pipe, a log)."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gdpo.report.formats import MINUS, NONE, duration
from gdpo.report.run_data import number
from gdpo.report.text import one_text, plain_block, plain_line, turns

COLOURS = ("blue", "dark_orange", "green", "magenta", "yellow", "cyan", "white", "red")
_SPARKS = "▁▂▃▄▅▆▇█"
_HISTORY = 24
_PLAIN_SECONDS = 10.0
"""Where nobody watches, at most one line in this time, so that a log stays short; the first and last step always."""


class LiveView:
    """Shows how a run goes. A context manager; ``update`` once a step.

    On a terminal it is redrawn in place: step and time left, a line for each reward, a sample completion. Elsewhere it
    prints one plain line a step, fewer where steps are quick. Nothing a model wrote is taken as markup or as an escape
    sequence.

    Args:
        total_steps: number of steps of the whole run.
        reward_names: in the order to show.
        run_name: shown in the title.
        console: where to draw; None is standard output.
    """

    def __init__(
        self, total_steps: int, reward_names: Sequence[str], run_name: str, console: Console | None = None
    ) -> None:
        self.total_steps = max(int(total_steps), 0)
        self.reward_names = list(reward_names)
        self.run_name = run_name
        self.console = console if console is not None else Console()
        self._live: Live | None = None
        self._metrics: dict[str, float | None] = {}
        self._history: dict[str, deque[float]] = {name: deque(maxlen=_HISTORY) for name in self.reward_names}
        self._sample: Mapping[str, Any] | None = None
        self._started = 0.0
        self._first_step: int | None = None
        self._printed = -math.inf

    def __enter__(self) -> LiveView:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to draw."""
        if self.console.is_terminal and self._live is None:
            self._live = Live(self._render(), console=self.console, refresh_per_second=4, transient=False)
            self._live.start()

    def update(self, metrics: Mapping[str, Any], sample: Mapping[str, Any] | None = None) -> None:
        """Show one more step.

        Args:
            metrics: a line of ``metrics.jsonl`` (see the run folder); missing or NaN values are shown as a dash.
            sample: ``{"prompt": str, "completion": str or messages, "advantage": float}``, of which any may be absent;
                None keeps the last one.
        """
        self._metrics = {str(key): number(value) for key, value in metrics.items()}
        if sample is not None:
            self._sample = sample
        if self._first_step is None:
            self._first_step, self._started = self._step, time.monotonic()
        for name in self.reward_names:
            mean = self._metrics.get(f"rewards/{name}/mean")
            if mean is not None:
                self._history[name].append(mean)
        if self._live is not None:
            self._live.update(self._render())
        else:
            self._print_line()

    def message(self, text: str) -> None:
        """A line above the live view, or a plain line."""
        self.console.print(Text(plain_line(text, 2000)), soft_wrap=True)

    def stop(self) -> None:
        """Stop drawing; the last state stays on the screen. Safe to call twice."""
        if self._live is not None:
            self._live.update(self._render(), refresh=True)
            self._live.stop()
            self._live = None

    @property
    def _step(self) -> int:
        return int(self._metrics.get("step") or 0)

    def _seconds_left(self) -> float | None:
        """By the steps of this session only: a resumed run's earlier steps took no time now."""
        done = self._step - (self._first_step or 0)
        if done < 1 or self._step >= self.total_steps:
            return None
        # From the end of the first step on, which also paid for warming up.
        return (time.monotonic() - self._started) / done * (self.total_steps - self._step)

    def _render(self) -> RenderableType:
        width = min(self.console.width, 100)
        parts: list[RenderableType] = [self._title(), self._bar(width), self._rewards(width)]
        sample = self._sample_block(width)
        return Group(*parts, *([sample] if sample is not None else []))

    def _title(self) -> Text:
        title = Text(plain_line(self.run_name, 40), style="bold")
        title.append(f"  step {self._step} of {self.total_steps}", style="default not bold")
        left = self._seconds_left()
        if left is not None:
            title.append(f"  {spaced(duration(left))} left", style="dim not bold")
        return title

    def _bar(self, width: int) -> RenderableType:
        # In a grid, because a bar alone does not end its line.
        grid = Table.grid()
        grid.add_row(ProgressBar(total=max(self.total_steps, 1), completed=self._step, width=width))
        return grid

    def _rewards(self, width: int) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), width=width, header_style="dim")
        table.add_column("reward", ratio=1, no_wrap=True, overflow="ellipsis")
        for heading in ("mean", "trend", "tied groups", "of the advantage"):
            table.add_column(heading, justify="right" if heading != "trend" else "left", no_wrap=True)
        for index, name in enumerate(self.reward_names):
            values = self._history[name]
            table.add_row(
                Text(plain_line(name, 40), style=f"bold {COLOURS[index % len(COLOURS)]}"),
                _short(self._metrics.get(f"rewards/{name}/mean")),
                Text(f"{sparkline(values, 14):<14} {trend(values)}"),
                _percent(self._metrics.get(f"rewards/{name}/dead_share")),
                _percent(self._metrics.get(f"rewards/{name}/contribution_share")),
            )
        return table

    def _sample_block(self, width: int) -> Group | None:
        if self._sample is None:
            return None
        prompt = _text_of(self._sample.get("prompt"))
        completion = _text_of(self._sample.get("completion"))
        advantage = number(self._sample.get("advantage"))
        head = Text("sample", style="dim")
        if advantage is not None:
            head.append(f"  advantage {_signed(advantage)}")
        head.append("  " + plain_line(prompt, max(width - len(head) - 4, 10)), style="dim")
        body = Text(plain_block(completion, width - 2, 5) or "(empty)", no_wrap=True, overflow="ellipsis")
        return Group(Text(""), head, body)

    def _print_line(self) -> None:
        now = time.monotonic()
        ends = self._step in (self._first_step, self.total_steps)
        if not ends and now - self._printed < _PLAIN_SECONDS:
            return
        self._printed = now
        self.console.print(Text(self._line()), soft_wrap=True)

    def _line(self) -> str:
        parts = [f"step {self._step}/{self.total_steps}"]
        for name in self.reward_names:
            mean, dead = (self._metrics.get(f"rewards/{name}/{key}") for key in ("mean", "dead_share"))
            share = self._metrics.get(f"rewards/{name}/contribution_share")
            parts.append(f"{plain_line(name, 40)} {_short(mean)} (tied {_percent(dead)}, share {_percent(share)})")
        left = self._seconds_left()
        return "  ".join(parts + ([f"{spaced(duration(left))} left"] if left is not None else []))


def spaced(text: str) -> str:
    """``text`` with ordinary spaces: many terminals draw a narrow one as a box."""
    return text.replace("\u202f", " ").replace("\u00a0", " ")


def sparkline(values: Sequence[float] | deque[float], width: int) -> str:
    """The last ``width`` values as bars between their own least and greatest; a flat line where they are equal."""
    last = list(values)[-width:]
    if not last:
        return ""
    low, high = min(last), max(last)
    if high - low < 1e-9:
        return _SPARKS[3] * len(last)
    return "".join(_SPARKS[min(7, int(8 * (value - low) / (high - low)))] for value in last)


def trend(values: Sequence[float] | deque[float]) -> str:
    """↑ or ↓ where the later half of the values lies above or below the earlier by a tenth of their range, else →."""
    last = list(values)
    if len(last) < 4:
        return " "
    half = len(last) // 2
    earlier, later = sum(last[:half]) / half, sum(last[-half:]) / half
    if abs(later - earlier) <= 0.1 * (max(last) - min(last)):
        return "→"
    return "↑" if later > earlier else "↓"


def _text_of(value: object) -> str:
    """A prompt or completion, which may be text or a list of chat messages, as one text."""
    if isinstance(value, str):
        return one_text(turns(value, 4000)) if value.startswith("[") else value
    if isinstance(value, list):
        return "\n".join(str(part.get("content") or "") if isinstance(part, dict) else str(part) for part in value)
    return "" if value is None else str(value)


def _short(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}".replace("-", MINUS)


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", MINUS)


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f}%".replace("-", MINUS)
