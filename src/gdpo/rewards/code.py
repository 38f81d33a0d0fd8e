"""Rewards for programs: whether they pass tests, run, are as fast as a reference, and how they are written."""

from __future__ import annotations

import functools
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gdpo.core.errors import Error
from gdpo.rewards.base import RewardFunction, column_values, factory, model_text, reward
from gdpo.rewards.code_text import CodeExtraction, check_code_extraction, program_of
from gdpo.rewards.ruff import findings
from gdpo.rewards.sandbox.asserts import BadTest
from gdpo.rewards.sandbox.backends import Backend, Limits, choose
from gdpo.rewards.sandbox.batch import Job, outcomes
from gdpo.rewards.sandbox.programs import Outcome, Tests, read_tests

_LEAST_SECONDS = 0.01
"""Programs faster than this are equally fast: below it, the machine's noise is what differs."""


@factory("code_pass_rate")
def code_pass_rate(
    tests: str = "tests",
    extraction: CodeExtraction = "fence",
    seconds: float = 10.0,
    memory: int = 1 << 30,
    allow_weaker: bool = False,
) -> RewardFunction:
    """Share of a row's tests that the program passes; None where the row has no tests or one that cannot be evaluated.

    Programs run in a sandbox: bubblewrap, without network, the caller's files and environment, and without starting
    processes. Verdicts are made outside of it, so that a program that leaves early, prints, or changes what the tests
    call gains nothing. Integers are compared exactly, floats within 1e-6, absolute or relative.

    Args:
        tests: the column with a list a row, or JSON of it: asserts (``"assert f(2) == 5"``), each of which stands
            alone, or dictionaries with "stdin" and "stdout" as texts. Asserts may use the program's names, Python's
            plain builtins and ``math``; no other module.
        extraction: "fence" (the last block fenced as Python, else the last fenced block, else the whole text),
            "answer_tags" (the same within ``<answer>``) or "whole".
        seconds: limit of wall time for one program with all its tests.
        memory: limit in bytes for one program; a lower limit of the caller's own process holds.
        allow_weaker: where bubblewrap does not start, run programs in a subprocess with the same limits that can read
            the caller's files. A warning says what is not protected.

    Raises:
        Error: at once, where no sandbox starts, or only the weaker one and it is not allowed.
    """
    runs = _Runs("code_pass_rate", tests, extraction, _limits("code_pass_rate", seconds, memory), allow_weaker)

    @reward(range=(0, 1), name="code_pass_rate")
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        return [
            None if outcome is None else outcome.passed / outcome.total for outcome in runs.of(completions, columns)
        ]

    return score


@factory("code_runs")
def code_runs(
    tests: str = "tests",
    extraction: CodeExtraction = "fence",
    seconds: float = 10.0,
    memory: int = 1 << 30,
    allow_weaker: bool = False,
) -> RewardFunction:
    """1 if the program ran without a bug, right or wrong, else 0; None where ``code_pass_rate`` has None.

    A bug: it does not compile, it raises an exception (also in a call of a test), ends its process, or takes longer or
    more than it may. Beside ``code_pass_rate`` with the same options, programs run once.

    Args:
        tests, extraction, seconds, memory, allow_weaker: as for ``code_pass_rate``.

    Raises:
        Error: as for ``code_pass_rate``.
    """
    runs = _Runs("code_runs", tests, extraction, _limits("code_runs", seconds, memory), allow_weaker)

    @reward(range=(0, 1), name="code_runs")
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        return [None if outcome is None else float(outcome.ran) for outcome in runs.of(completions, columns)]

    return score


@factory("code_efficiency")
def code_efficiency(
    reference: str = "reference",
    tests: str = "tests",
    extraction: CodeExtraction = "fence",
    seconds: float = 10.0,
    memory: int = 1 << 30,
    allow_weaker: bool = False,
) -> RewardFunction:
    """The reference program's time by the program's, at most 1, where all tests pass, else 0.

    Both run the row's tests in the same sandbox; wall time, measured outside of it, from the program's first line to
    its last test. Times under 10 ms count as 10 ms. None where there are no tests, no reference, or one that fails.

    Args:
        reference: the column with the reference programs, as they are.
        tests, extraction, seconds, memory, allow_weaker: as for ``code_pass_rate``.

    Raises:
        Error: as for ``code_pass_rate``.
    """
    runs = _Runs("code_efficiency", tests, extraction, _limits("code_efficiency", seconds, memory), allow_weaker)
    warn = _Once()

    @reward(range=(0, 1), name="code_efficiency")
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        right = column_values(columns, reference, len(completions), "code_efficiency")
        references = [program if isinstance(program, str) else "" for program in right]
        found = runs.of(completions, columns)
        times = runs.of_programs(references, columns)
        scores = [
            None
            if not program or outcome is None or best is None or best.passed < best.total
            else _speed(outcome, best)
            for program, outcome, best in zip(references, found, times, strict=True)
        ]
        failing = [
            row for row, (outcome, value) in enumerate(zip(found, scores, strict=True)) if outcome and value is None
        ]
        if failing:
            warn(
                "reference",
                f"code_efficiency: {len(failing)} rows, the first of them {failing[0]}, have no {reference!r} that "
                "passes the tests: no score there (said once)",
            )
        return scores

    return score


@factory("code_style")
def code_style(extraction: CodeExtraction = "fence", seconds: float = 20.0) -> RewardFunction:
    """1 / (1 + findings of ruff per ten lines of code); 0 where there is no code or none that parses.

    Rules: pycodestyle, Pyflakes, bugbear and simplify (E, F, W, B, SIM). ``# noqa`` does not count, nor do empty lines
    and comments as lines.

    Args:
        extraction: as for ``code_pass_rate``.
        seconds: limit for a batch; what ruff did not finish scores 0.

    Raises:
        Error: ruff is not installed.
    """
    check_code_extraction(extraction)
    _positive("code_style", "seconds", seconds)

    @reward(range=(0, 1), name="code_style")
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        programs = [program_of(model_text(completion), extraction).removeprefix("\ufeff") for completion in completions]
        lines = [_code_lines(program) for program in programs]
        counts = iter(findings([program for program, count in zip(programs, lines, strict=True) if count], seconds))
        scores: list[float | None] = []
        for count in lines:
            found = next(counts) if count else None
            scores.append(0.0 if found is None else count / (count + 10 * found))
        return scores

    return score


def problems_of_tests(values: Sequence[Any]) -> list[tuple[int, str]]:
    """(row, what is wrong) for every row of a column of tests that will have no score."""
    problems = []
    for row, value in enumerate(values):
        try:
            if _tests(value) is None:
                problems.append((row, "there are no tests"))
        except BadTest as error:
            problems.append((row, str(error)))
    return problems


@dataclass
class _Once:
    """Warnings, each kind said once."""

    said: set[str] = field(default_factory=set)

    def __call__(self, kind: str, text: str) -> None:
        if kind not in self.said:
            self.said.add(kind)
            warnings.warn(text, stacklevel=5)


class _Runs:
    """Runs the programs of a batch against the column of tests."""

    def __init__(self, name: str, tests: str, extraction: str, limits: Limits, allow_weaker: bool) -> None:
        check_code_extraction(extraction)
        if not isinstance(tests, str) or not tests:
            raise Error(f"{name} has tests={tests!r}, but the name of a column was expected")
        self._name, self._tests, self._extraction, self._limits = name, tests, extraction, limits
        self._allow_weaker = bool(allow_weaker)
        self._backend: Backend = choose(self._allow_weaker)
        self._warn = _Once()

    def of(self, completions: Sequence[Any], columns: dict[str, Any]) -> list[Outcome | None]:
        """[completions] what came of their programs; None where the tests cannot be used."""
        return self.of_programs([program_of(model_text(c), self._extraction) for c in completions], columns)

    def of_programs(self, programs: Sequence[str], columns: dict[str, Any]) -> list[Outcome | None]:
        """[programs] as ``of``."""
        values = column_values(columns, self._tests, len(programs), self._name)
        found: list[Outcome | None] = [None] * len(programs)
        jobs: list[Job] = []
        rows: list[int] = []
        for row, (program, value) in enumerate(zip(programs, values, strict=True)):
            tests = self._read(row, value)
            if tests is None:
                continue
            if not program.strip():
                found[row] = Outcome(0, max(1, len(tests.trees) + len(tests.pairs)), False, 0.0)
                continue
            jobs.append((program, tests))
            rows.append(row)
        for row, outcome in zip(rows, outcomes(self._backend, jobs, self._limits), strict=True):
            found[row] = outcome
        return found

    def _read(self, row: int, value: Any) -> Tests | None:
        problem = "there are none"
        try:
            tests = _tests(value)
            if tests is not None:
                return tests
        except BadTest as error:
            problem = str(error)
        kind = "missing" if problem == "there are none" else "bad"
        self._warn(
            kind, f"{self._name}: row {row} has no {self._tests!r} to judge by ({problem}): no score (said once)"
        )
        return None


def _tests(value: Any) -> Tests | None:
    """Tests of a row, read once for all rollouts of a prompt."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or isinstance(value, float):
        return None
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except (TypeError, ValueError):
        raise BadTest("a list of texts was expected") from None
    found = _read(text)
    if isinstance(found, BadTest):
        raise found
    return found


@functools.lru_cache(maxsize=512)
def _read(text: str) -> Tests | BadTest | None:
    try:
        return read_tests(text)
    except BadTest as error:
        return error


def _speed(outcome: Outcome, best: Outcome) -> float:
    if outcome.passed < outcome.total:
        return 0.0
    return min(1.0, max(best.seconds, _LEAST_SECONDS) / max(outcome.seconds, _LEAST_SECONDS))


def _code_lines(program: str) -> int:
    return sum(1 for line in program.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def _positive(name: str, option: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise Error(f"{name} has {option}={value!r}, but a positive number was expected")


def _limits(name: str, seconds: float, memory: int) -> Limits:
    _positive(name, "seconds", seconds)
    if isinstance(memory, bool) or not isinstance(memory, int) or memory < 64 << 20:
        raise Error(f"{name} has memory={memory!r}, but bytes of at least 64 MiB were expected")
    return Limits(seconds=float(seconds), memory=memory)
