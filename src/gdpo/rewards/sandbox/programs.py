"""Runs one program against its tests and says what came of it. Verdicts are made here, in the trusted parent."""

from __future__ import annotations

import ast
import json
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gdpo.rewards.sandbox import asserts
from gdpo.rewards.sandbox.asserts import BadTest
from gdpo.rewards.sandbox.backends import Backend, Limits
from gdpo.rewards.sandbox.child import Reference, encode
from gdpo.rewards.sandbox.compare import same_output
from gdpo.rewards.sandbox.evaluate import Evaluator, Function
from gdpo.rewards.sandbox.pure import MATH, Failed, Handle
from gdpo.rewards.sandbox.runner import Ended, OutOfTime, Process, no_reference, start

_HANDLE = re.compile(r"handle:[0-9]{1,9}", re.ASCII)


class _Raised(Failed):
    """The program raised an exception in a call."""


@dataclass(frozen=True)
class Outcome:
    """What came of a program.

    Attributes:
        passed, total: tests.
        ran: whether neither the program nor a call in a test raised an exception, ended the process or ran out of
            time.
        seconds: wall time from the program's first line to its last test.
    """

    passed: int
    total: int
    ran: bool
    seconds: float


@dataclass(frozen=True)
class Tests:
    """The tests of one row: trees of asserts, or pairs of input and output.

    Attributes:
        trees: asserts.
        own: names of builtins that stand for the program's functions.
        pairs: (standard input, expected standard output).
        key: the same for the same tests.
    """

    trees: tuple[ast.Module, ...] = ()
    own: frozenset[str] = frozenset()
    pairs: tuple[tuple[str, str], ...] = ()
    key: str = ""


def read_tests(value: object) -> Tests | None:
    """Tests from a column's value: a list, or JSON of one; None where there are none.

    Raises:
        BadTest: one of them cannot be evaluated.
    """
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = [value]
    if isinstance(value, dict):
        value = [value]
    if value is None or isinstance(value, str) or not isinstance(value, Sequence):
        if value is None or value == "" or isinstance(value, float | str):
            return None
        raise BadTest(f"a list of tests was expected, not {type(value).__name__}")
    if not value:
        return None
    if all(isinstance(test, dict) for test in value):
        pairs = tuple(_pair(test) for test in value)
        return Tests(pairs=pairs, key=json.dumps(pairs))
    trees = [asserts.parse(test) for test in value]
    return Tests(trees=tuple(trees), own=asserts.own_names(trees), key=json.dumps(list(value)))


def _pair(test: dict[str, Any]) -> tuple[str, str]:
    given, expected = test.get("stdin"), test.get("stdout")
    given = "" if given is None else given
    if not isinstance(given, str) or not isinstance(expected, str):
        raise BadTest("a test with 'stdin' and 'stdout' as texts was expected")
    return given, expected


def run(backend: Backend, program: str, tests: Tests, limits: Limits, stop: threading.Event) -> Outcome:
    """Run a program against its tests in a sandbox of its own.

    Args:
        backend, limits: which sandbox.
        program: any text.
        tests: of its row.
        stop: calls the run off.

    Raises:
        Error: the sandbox does not start.
        CalledOff: ``stop`` was set.
    """
    program = program.removeprefix("\ufeff")
    if tests.pairs:
        return _run_pairs(backend, program, tests.pairs, limits, stop)
    return _AssertRun(backend, program, tests, limits, stop).outcome()


def _run_pairs(
    backend: Backend, program: str, pairs: Sequence[tuple[str, str]], limits: Limits, stop: threading.Event
) -> Outcome:
    """A fresh process for each pair; starting it takes none of the program's time."""
    passed, ran, used = 0, True, 0.0
    for given, expected in pairs:
        with start(backend, limits, True, stop) as process:
            begun = time.monotonic()
            process.deadline = begun + limits.seconds - used
            most = max(limits.output, 2 * len(expected.encode(errors="replace")))
            try:
                output, status = process.stream(program, given.encode(errors="surrogatepass"), most)
            except Ended:
                output, status = b"", None
            except OutOfTime:
                return Outcome(passed, len(pairs), False, limits.seconds)
            used += time.monotonic() - begun
            ran = ran and status == 0
            passed += status == 0 and same_output(output.decode(errors="replace"), expected)
    return Outcome(passed, len(pairs), ran, used)


class _AssertRun:
    """One process for all asserts; a new one after a test that ended it, so that each test stands alone."""

    def __init__(self, backend: Backend, program: str, tests: Tests, limits: Limits, stop: threading.Event) -> None:
        self._start: Callable[[], Process] = lambda: start(backend, limits, False, stop)
        self._program, self._tests, self._limits = program, tests, limits
        self._deadline: float | None = None
        self._waiting = list(tests.trees)
        self._passed, self._ran = 0, True

    def outcome(self) -> Outcome:
        """Run them."""
        used = 0.0
        try:
            while self._waiting:
                with self._start() as process:
                    begun = time.monotonic()
                    self._deadline = self._deadline or begun + self._limits.seconds
                    process.deadline = self._deadline
                    try:
                        self._run_waiting(process)
                    finally:
                        used += time.monotonic() - begun
        except OutOfTime:
            self._ran = False
        return Outcome(self._passed, len(self._tests.trees), self._ran, used)

    def _run_waiting(self, process: Process) -> None:
        process.check()
        try:
            process.send(encode(["calls", self._program], no_reference))
            loaded = process.exchange(None)
        except Ended:
            loaded = None
        if loaded != [True]:  # a program that cannot be loaded passes no test
            self._ran, self._waiting = False, []
            return
        evaluator = Evaluator(_asker(process), self._tests.own, process.check)
        while self._waiting:
            tree = self._waiting.pop(0)
            try:
                evaluator.run(tree)
                self._passed += 1
            except _Raised:
                self._ran = False
            except Failed:
                pass
            except Ended:
                self._ran = False
                return


def _asker(process: Process) -> Any:
    def ask(function: Reference, args: list[Any], keywords: dict[str, Any]) -> Any:
        nonce = os.urandom(16)
        try:
            request = encode([function, args, keywords], _refer)
        except (ValueError, TypeError, UnicodeError):
            raise Failed from None
        reply = process.exchange(request, _handle, nonce)
        if not isinstance(reply, list) or len(reply) > 1:
            raise Ended
        if not reply:
            raise _Raised
        return reply[0]

    return ask


def _refer(value: Any) -> str:
    """The text of what is no plain value, for the program."""
    if isinstance(value, Handle | Reference):
        return value.text
    if isinstance(value, type):
        return f"builtin:{value.__name__}"
    if isinstance(value, Function):
        return f"source:{value.text()}"
    for name, function in MATH.items():
        if value is function:
            return f"math:{name}"
    if isinstance(value, range):
        return f"source:{value!r}"
    raise Failed


def _handle(text: str) -> Handle:
    if not _HANDLE.fullmatch(text):
        raise ValueError("no handle")
    return Handle(text)
