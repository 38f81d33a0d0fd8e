"""Calling a reward on trial: with a time limit, its output caught, its inputs watched, and every call kept."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import io
import math
import numbers
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gdpo.lint.batch import EXTRAS, Batch

SECONDS = 120.0
"""Limit of one call."""


@dataclass(frozen=True)
class Subject:
    """A reward on trial.

    Args:
        name: what the findings call it.
        function: ``function(completions, **columns)``, also asynchronous.
        bounds: (low, high) that it declares, or None.
        gated: whether a gate decides where it counts, so that an empty answer does not earn it.
    """

    name: str
    function: Callable[..., Any]
    bounds: tuple[float, float] | None = None
    gated: bool = False


@dataclass(frozen=True)
class Outcome:
    """What one call gave."""

    what: str
    """What was tried, in words."""
    batch: Batch
    result: Any
    error: BaseException | None
    seconds: float
    printed: str
    mutated: tuple[str, ...]
    """The inputs that the reward changed."""
    late: bool = False
    """Whether the call was ended because it took too long."""

    @property
    def values(self) -> list[Any] | None:
        """The result as a list, None where it is none."""
        if self.error is not None:
            return None
        result = self.result.tolist() if hasattr(self.result, "tolist") else self.result
        if not isinstance(result, Sequence) or isinstance(result, str | bytes):
            return None
        return [value.item() if callable(getattr(value, "item", None)) else value for value in result]

    @property
    def scores(self) -> list[float | None] | None:
        """[B] scores, None where missing or where no number was returned; None if they cannot be told apart."""
        values = self.values
        if values is None or len(values) != len(self.batch):
            return None
        return [float(value) if is_score(value) else None for value in values]


class TimedOut(BaseException):
    """The call took too long. No ``Exception``, so that a reward that catches those does not catch it."""


@dataclass
class Trial:
    """A reward, the batch it is tried on, and every call so far."""

    subject: Subject
    base: Batch
    outcomes: list[Outcome] = field(default_factory=list)
    chat: bool = False
    """Whether texts are handed over as chat messages."""

    def __call__(self, what: str, batch: Batch, *, keep: bool = True, seconds: float = SECONDS) -> Outcome:
        """Score a batch. The reward gets copies; what it raises, prints and changes is noted.

        Args:
            what: what is tried, in words.
            batch: what to score.
            keep: whether the general checks (bounds, numbers, output, ...) look at this call too.
            seconds: after which the call is ended.
        """
        given = batch.as_chat() if self.chat else batch
        outcome = _call(self.subject.function, what, given, seconds)
        if keep:
            self.outcomes.append(outcome)
        return outcome

    def scores(self, what: str, batch: Batch) -> list[float | None] | None:
        """[B] scores of a batch, or None if it could not be scored."""
        return self(what, batch).scores

    @property
    def bounds(self) -> tuple[float, float]:
        """(low, high): declared, else the least and the most that was seen so far."""
        if self.subject.bounds is not None:
            return self.subject.bounds
        seen = [score for outcome in self.outcomes for score in outcome.scores or [] if score is not None]
        return (min(seen), max(seen)) if seen else (0.0, 1.0)


def is_score(value: object) -> bool:
    """Whether a reward may return this for a completion (None, which it may too, aside)."""
    return isinstance(value, numbers.Real) and math.isfinite(float(value))


def close(left: float | None, right: float | None) -> bool:
    """Whether two scores are the same but for rounding."""
    if left is None or right is None:
        return left is right
    return math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-6)


def keywords(function: Callable[..., Any]) -> tuple[set[str], bool]:
    """(names of the arguments after the completions, whether any other is taken too)."""
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return set(), True
    kinds = [parameter.kind for parameter in known.values()]
    named = {name for name, parameter in known.items() if parameter.kind is not parameter.VAR_KEYWORD}
    return named, inspect.Parameter.VAR_KEYWORD in kinds


def _call(function: Callable[..., Any], what: str, batch: Batch, seconds: float) -> Outcome:
    columns = copy.deepcopy(batch.columns)
    completions = copy.deepcopy(batch.completions)
    named, open_ended = keywords(function)
    passed = {name: value for name, value in {**columns, **EXTRAS}.items() if open_ended or name in named}
    result: Any = None
    error: BaseException | None = None
    late = False
    output = io.StringIO()
    started = time.perf_counter()
    with warnings.catch_warnings(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        warnings.simplefilter("ignore")
        try:
            with _limit(seconds):
                # TRL passes the completions by name; some rewards take the prompts first.
                if "completions" in named:
                    result = function(completions=completions, **passed)
                else:
                    result = function(completions, **passed)
                if inspect.isawaitable(result):
                    result = _awaited(result)
                if inspect.isgenerator(result):
                    result = list(result)
        except TimedOut as caught:
            error, late = caught, True
        except (Exception, SystemExit) as caught:
            error = caught
    taken = time.perf_counter() - started
    changed = tuple(name for name, values in columns.items() if not _same(values, batch.columns[name]))
    changed += () if _same(completions, batch.completions) else ("completions",)
    return Outcome(what, batch, result, error, taken, output.getvalue(), changed, late)


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """End what runs after ``seconds``. Only in the main thread, where signals arrive; elsewhere without a limit."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def end(*args: Any) -> None:
        raise TimedOut(f"took over {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _awaited(result: Any) -> Any:
    async def whole() -> Any:
        return await result

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(whole())
    # Inside a running loop (a notebook) asyncio.run is refused: use a loop in a thread of its own.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, whole()).result()


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arrays and objects whose comparison is no truth value
        return repr(one) == repr(other)
