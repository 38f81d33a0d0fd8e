"""Many programs at once, each in a sandbox of its own; the same program with the same tests runs once."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from gdpo.rewards.sandbox.backends import Backend, Limits
from gdpo.rewards.sandbox.programs import Outcome, Tests, run
from gdpo.rewards.sandbox.runner import CalledOff

Job = tuple[str, Tests]
_KEPT = 4096


class _Known:
    """Outcomes of the last programs, so that several rewards on one batch run it once; no text is kept."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.futures: OrderedDict[bytes, Future[Outcome]] = OrderedDict()

    def claim(self, key: bytes) -> tuple[Future[Outcome], bool]:
        """The future of a key, and whether the caller has to run it."""
        with self.lock:
            found = self.futures.get(key)
            if found is not None:
                self.futures.move_to_end(key)
                return found, False
            made = self.futures[key] = Future()
            while len(self.futures) > _KEPT:
                self.futures.popitem(last=False)
            return made, True

    def forget(self, key: bytes, future: Future[Outcome]) -> None:
        """Drop a run that failed or was called off."""
        with self.lock:
            if self.futures.get(key) is future:
                del self.futures[key]


_known = _Known()


def outcomes(backend: Backend, jobs: Sequence[Job], limits: Limits, workers: int | None = None) -> list[Outcome]:
    """[jobs] what came of each.

    Args:
        backend, limits: which sandbox.
        jobs: programs with their tests.
        workers: sandboxes at once; as many as processors where None, at most 8.

    Raises:
        Error: the sandbox does not start.
    """
    while True:
        try:
            return _outcomes(backend, jobs, limits, workers)
        except CalledOff:  # another thread's batch, which had some of these programs, was interrupted
            continue


def _outcomes(backend: Backend, jobs: Sequence[Job], limits: Limits, workers: int | None) -> list[Outcome]:
    known, stop = _known, threading.Event()
    keys = [_key(backend, job, limits) for job in jobs]
    claims = {key: known.claim(key) for key in dict.fromkeys(keys)}
    job_of = dict(zip(keys, jobs, strict=True))

    def work(key: bytes) -> None:
        future = claims[key][0]
        try:
            future.set_result(run(backend, *job_of[key], limits, stop))
        except BaseException as error:
            known.forget(key, future)
            future.set_exception(error)

    mine = [key for key, (_, new) in claims.items() if new]
    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1), "gdpo-sandbox") as pool:
        try:
            for key in mine:
                pool.submit(work, key)
            found = {key: future.result() for key, (future, _) in claims.items()}
        except BaseException:
            stop.set()  # those that wait for a worker see it as soon as they start
            raise
    return [found[key] for key in keys]


def _key(backend: Backend, job: Job, limits: Limits) -> bytes:
    program, tests = job
    text = "\0".join((repr((backend, limits)), tests.key, program))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _after_fork() -> None:
    global _known
    _known = _Known()  # what runs in the parent is not for a forked child to wait for


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
