"""A reward function that fails on one process of many ends the training on all, instead of leaving the others to wait.

TRL calls the reward functions of each process and then gathers the scores of all: where one process raises, the others
wait at the gathering until their launcher ends them. Here a failing function scores minus infinity, which the gathered
matrix shows to every process at no cost; only then do they ask each other what happened.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object

from gdpo.core.errors import Error

Failures = list[tuple[str, BaseException]]


def score_together(trainer: Any, score: Callable[[], Any]) -> Any:
    """``score()``, TRL's own ``_calculate_rewards``, such that an error in a reward function is raised everywhere.

    Raises:
        Error: on every process, where a reward function failed on any; it names reward, process and reason.
    """
    if trainer.accelerator.num_processes == 1:
        return score()
    functions, failures = trainer.reward_funcs, Failures()
    trainer.reward_funcs = [
        function if isinstance(function, torch.nn.Module) else _guarded(function, str(name), failures)
        for function, name in zip(functions, trainer.reward_func_names, strict=True)
    ]
    try:
        scores = score()
    finally:
        trainer.reward_funcs = functions
    if not bool(torch.isneginf(scores).any()):
        return scores
    rank, count = trainer.accelerator.process_index, trainer.accelerator.num_processes
    said = gather_object([
        f"reward {name!r} failed on process {rank} of {count}: {type(error).__name__}: {error}"
        for name, error in failures
    ])  # fmt: skip
    if said:
        raise Error(said[0]) from (failures[0][1] if failures else None)
    return scores


def _guarded(function: Callable[..., Any], name: str, failures: Failures) -> Callable[..., Any]:
    def failed(error: BaseException, rows: Sequence[Any]) -> list[float]:
        failures.append((name, error))
        return [float("-inf")] * len(rows)

    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004

        async def later(*, completions: Sequence[Any], **columns: Any) -> list[float]:
            try:
                return _checked(await function(completions=completions, **columns), completions)
            except Exception as error:
                return failed(error, completions)

        return later

    def now(*, completions: Sequence[Any], **columns: Any) -> list[float]:
        try:
            return _checked(function(completions=completions, **columns), completions)
        except Exception as error:
            return failed(error, completions)

    return now


def _checked(scores: Any, completions: Sequence[Any]) -> list[float]:
    """As TRL takes them: what it would fail on must fail here."""
    found = [float("nan") if score is None else float(score) for score in scores]
    if len(found) != len(completions):
        raise ValueError(f"{len(found)} scores for {len(completions)} completions")
    return found
