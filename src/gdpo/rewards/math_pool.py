"""A pool of killable processes around math-verify, for any thread, event loop or worker process.

math-verify's own time limit needs the main thread's signals and is passed by inside one long integer operation; only
ending a process stops that. Workers are started on first use, kept for the next batch, and end with this process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import Any

from gdpo.core.errors import Error

_WORKER = Path(__file__).with_name("math_worker.py")
_START_SECONDS = 60.0
_START_TRIES = 3


class _Worker:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)],  # -P: its folder holds a math.py that is not Python's
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            env={**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self.ready = False
        self.task: int | None = None
        self.since = time.monotonic()
        self._buffer = b""

    def send(self, index: int, gold: str, answer: str) -> None:
        line = json.dumps({"id": index, "gold": gold, "answer": answer}) + "\n"
        assert self.process.stdin is not None
        self.task, self.since = index, time.monotonic()
        data = line.encode()
        while data:
            data = data[os.write(self.process.stdin.fileno(), data) :]

    def receive(self) -> list[dict[str, Any]] | None:
        """Replies that have come; None if the process is gone."""
        assert self.process.stdout is not None
        chunk = os.read(self.process.stdout.fileno(), 65536)
        if not chunk:
            return None
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        return [json.loads(line) for line in lines if line]

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()
        self.close_pipes()

    def close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


class MathPool:
    """Compares (gold, answer) pairs.

    Args:
        workers: processes at most.
        each: seconds for one pair.
    """

    def __init__(self, workers: int | None = None, each: float = 4.0) -> None:
        self._most = workers or max(1, min(4, (os.cpu_count() or 2)))
        self._each = each
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        _pools.add(self)

    def compare(self, pairs: list[tuple[str, str]], seconds: float) -> tuple[list[int | None], int]:
        """[pairs] 1 equal, 0 not (or not in time), None where the gold answer cannot be read; and how many were late.

        Args:
            pairs: (gold, answer).
            seconds: limit for all of them together.

        Raises:
            Error: math-verify is not installed, or its processes do not start.
        """
        with self._lock:
            try:
                return self._compare(pairs, seconds)
            finally:
                # Also when interrupted: a reply that came later would be taken for one to the next batch.
                for worker in list(self._workers):
                    if worker.task is not None:
                        self._drop(worker)

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            for worker in self._workers:
                worker.kill()
            self._workers = []

    def forget(self) -> None:
        """In a forked child: the processes are the parent's, and a thread that held the lock is not here."""
        self._lock = threading.Lock()
        for worker in self._workers:
            worker.close_pipes()  # else the processes would not see the parent end
            worker.process.returncode = 0  # not this process's to wait for
        self._workers = []

    def _compare(self, pairs: list[tuple[str, str]], seconds: float) -> tuple[list[int | None], int]:
        scores: list[int | None] = [0] * len(pairs)
        waiting = deque(sorted(range(len(pairs)), key=lambda index: _risk(*pairs[index])))
        open_tasks, late, failed = set(waiting), 0, 0
        deadline: float | None = None  # starts when a worker is ready: importing sympy is not the batch's time
        begun = time.monotonic()
        while open_tasks and (deadline is None or time.monotonic() < deadline):
            self._fill(len(open_tasks), waiting, pairs)
            if any(worker.ready for worker in self._workers) and deadline is None:
                deadline = time.monotonic() + seconds
            if failed >= _START_TRIES or (deadline is None and time.monotonic() - begun > _START_SECONDS):
                raise Error(
                    f"the processes that compare answers do not start; `{sys.executable} -P {_WORKER}` shows why"
                )
            for worker, replies in self._listen(deadline):
                for reply in replies or []:
                    if reply.get("missing"):
                        raise Error(
                            'comparing answers that are no plain numbers needs math-verify: pip install "gdpo[train]"'
                        )
                    if reply.get("ready"):
                        worker.ready = True
                    elif reply["id"] == worker.task:
                        scores[reply["id"]], worker.task = reply["score"], None
                        open_tasks.discard(reply["id"])
                if replies is None:
                    failed += not worker.ready
                    open_tasks.discard(self._drop(worker))
            for worker in list(self._workers):
                if worker.task is not None and time.monotonic() - worker.since > self._each:
                    late += 1
                    open_tasks.discard(self._drop(worker))
        return scores, late + len(open_tasks)

    def _fill(self, tasks: int, waiting: deque[int], pairs: list[tuple[str, str]]) -> None:
        while len(self._workers) < min(self._most, tasks):
            self._workers.append(_Worker())
        for worker in list(self._workers):
            if worker.ready and worker.task is None and waiting:
                index = waiting.popleft()
                try:
                    worker.send(index, *pairs[index])
                except OSError:
                    waiting.appendleft(index)
                    self._drop(worker)

    def _listen(self, deadline: float | None) -> list[tuple[_Worker, list[dict[str, Any]] | None]]:
        wait = 0.05 if deadline is None else min(0.05, max(0.0, deadline - time.monotonic()))
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                assert worker.process.stdout is not None
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            return [(key.data, key.data.receive()) for key, _ in selector.select(wait)]

    def _drop(self, worker: _Worker) -> int:
        """End a worker; the task it had, or -1."""
        worker.kill()
        self._workers.remove(worker)
        return -1 if worker.task is None else worker.task


def _risk(gold: str, answer: str) -> tuple[int, int]:
    """Sorts what may take long behind the rest, so that it takes none of the batch's time from ordinary answers."""
    return sum(answer.count(mark) for mark in ("^", "**", "!")), len(gold) + len(answer)


_pools: weakref.WeakSet[MathPool] = weakref.WeakSet()
_shared: MathPool | None = None
_shared_lock = threading.Lock()


def shared_pool() -> MathPool:
    """The pool of this process."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = MathPool()
            atexit.register(_shared.close)
        return _shared


def _after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(after_in_child=_after_fork)
