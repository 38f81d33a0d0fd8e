"""Calling reward functions: what they return is checked, and what one raises costs its own score, not the step."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import update_wrapper
from typing import Any

import numpy as np

from gdpo.core.errors import Error

FAILURES = 0.1
"""A reward that raises on more than this share of a batch's rollouts (and on more than one) stops the run."""
_SHOWN = 3
log = logging.getLogger("gdpo.rewards")


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """``function`` under another name, its results checked and its failures kept to their rollouts."""
    if is_async(function):

        async def asynchronous(completions: Any, **columns: Any) -> Any:
            return await call_async(name, function, completions, columns)

        wrapped: Callable[..., Any] = asynchronous
    else:

        def synchronous(completions: Any, **columns: Any) -> Any:
            return call(name, function, completions, columns)

        wrapped = synchronous
    update_wrapper(wrapped, function, assigned=("__doc__",))
    wrapped.__name__ = wrapped.__qualname__ = name
    return wrapped


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine, also where it is an object with an async ``__call__``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def score_matrix(
    functions: Mapping[str, Callable[..., Any]], completions: Sequence[Any], columns: Mapping[str, Any]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[B, R] scores, NaN where a reward does not apply or failed. Async rewards are awaited together.

    Raises:
        Error: a reward returned another number of scores than there are completions, or no number, or failed too often.
    """
    results: dict[str, Any] = {}
    waiting: dict[str, Any] = {}
    for name, function in functions.items():
        if is_async(function):
            waiting[name] = call_async(name, function, completions, columns)
        else:
            results[name] = call(name, function, completions, columns)
    if waiting:
        results |= _await_all(waiting)
    return np.stack([_numbers(name, results[name]) for name in functions], axis=1)


def call(name: str, function: Callable[..., Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> list[Any]:
    """One score a completion; None for those on which the function raised.

    Raises:
        Error: the function's own ``Error``; a wrong number of scores; failures beyond ``FAILURES``.
    """
    steps = _attempts(name, completions)
    rows = next(steps)
    by_name = _takes_completions(function)
    while True:
        outcome: Any
        try:
            outcome = _start(function, by_name, rows, completions, columns)
            if inspect.isawaitable(outcome):  # a plain function that returns a coroutine
                outcome = _await_all({name: outcome})[name]
        except Error:
            raise
        except Exception as error:
            outcome = error
        try:
            rows = steps.send(outcome)
        except StopIteration as done:
            return list(done.value)


async def call_async(
    name: str, function: Callable[..., Any], completions: Sequence[Any], columns: Mapping[str, Any]
) -> list[Any]:
    """``call`` for an async function."""
    steps = _attempts(name, completions)
    rows = next(steps)
    by_name = _takes_completions(function)
    while True:
        outcome: Any
        try:
            outcome = await _start(function, by_name, rows, completions, columns)
        except Error:
            raise
        except Exception as error:
            outcome = error
        try:
            rows = steps.send(outcome)
        except StopIteration as done:
            return list(done.value)


def _attempts(name: str, completions: Sequence[Any]) -> Generator[list[int], Any, list[Any]]:
    """Which rows to call the function on next; it is sent what came of it, an exception included.

    All at once; if that raises, each alone to find the culprits; then the others together again, since a reward may
    depend on its batch.
    """
    count = len(completions)
    outcome = yield list(range(count))
    if not isinstance(outcome, Exception):
        return _counted(name, outcome, count)
    first, alone, failed = outcome, {}, {}
    for row in range(count):
        outcome = yield [row]
        if isinstance(outcome, Exception):
            failed[row] = outcome
        else:
            alone[row] = _counted(name, outcome, 1)[0]
    if failed and (len(failed) == count or len(failed) > max(1, FAILURES * count)):
        cause = failed[min(failed)]
        raise Error(
            f"reward {name!r} raised {type(cause).__name__}: {cause} (on {len(failed)} of {count} completions)"
        ) from cause
    _report(name, failed or {-1: first}, completions)
    rest = [row for row in range(count) if row not in failed]
    if failed and rest:
        outcome = yield rest
        if not isinstance(outcome, Exception):
            alone = dict(zip(rest, _counted(name, outcome, len(rest)), strict=True))
    return [alone.get(row) for row in range(count)]


def _report(name: str, failed: Mapping[int, Exception], completions: Sequence[Any]) -> None:
    for row, error in list(failed.items())[:_SHOWN]:
        where = (
            f"completion {row}, {str(completions[row])[:80]!r}" if row >= 0 else "the batch, but on no completion alone"
        )
        log.warning("reward %r raised %s: %s on %s; no score there", name, type(error).__name__, error, where)
    if len(failed) > _SHOWN:
        log.warning("reward %r raised on %d completions more", name, len(failed) - _SHOWN)


def _takes_completions(function: Callable[..., Any]) -> bool:
    """Whether to pass the completions by name, as TRL does, so that they need not be the first argument."""
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    parameter = known.get("completions")
    return parameter is not None and parameter.kind is not parameter.POSITIONAL_ONLY


def _start(
    function: Callable[..., Any], by_name: bool, rows: list[int], completions: Sequence[Any], columns: Mapping[str, Any]
) -> Any:
    chosen = completions if len(rows) == len(completions) else [completions[row] for row in rows]
    rest = _columns(rows, columns, len(completions))
    return function(completions=chosen, **rest) if by_name else function(chosen, **rest)


def _columns(rows: list[int], columns: Mapping[str, Any], count: int) -> Mapping[str, Any]:
    """The columns of those rows; what is no column of the batch stays as it is."""
    if len(rows) == count:
        return columns
    return {
        key: [value[row] for row in rows]
        if isinstance(value, list | tuple | np.ndarray) and len(value) == count
        else value
        for key, value in columns.items()
    }


def _await_all(waiting: Mapping[str, Any]) -> dict[str, Any]:
    async def gather() -> list[Any]:
        return await asyncio.gather(*waiting.values(), return_exceptions=True)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        found = asyncio.run(gather())
    else:
        # Inside a running loop (a notebook, a server) asyncio.run is refused: use a loop in a thread of its own.
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(asyncio.run, gather()).result()
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return dict(zip(waiting, found, strict=True))


def _counted(name: str, result: Any, count: int) -> list[Any]:
    """``result`` as a list of one score a completion."""
    values = result.tolist() if hasattr(result, "tolist") else result
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != count:
        found = repr(values) if isinstance(values, str) or not isinstance(values, Sequence) else f"{len(values)} scores"
        raise Error(f"reward {name!r} returned {found}, but {count} were expected, one a completion")
    return list(values)


def _numbers(name: str, values: list[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    try:
        return np.array([math.nan if value is None else float(value) for value in values], dtype=np.float64)
    except (TypeError, ValueError):
        odd = next(v for v in values if v is not None and not isinstance(v, int | float | np.number))
        raise Error(f"reward {name!r} returned {odd!r} for a completion, but a number or None was expected") from None
