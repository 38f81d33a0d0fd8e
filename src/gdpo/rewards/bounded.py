"""Checks of texts that could take for ever (regular expressions, JSON schemas), in a process that can be ended.

Python's ``re`` can need years for thirty characters, holds the interpreter meanwhile, and has no time limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gdpo.core.errors import Error

_WORKER = Path(__file__).with_name("bounded_worker.py")
_START_SECONDS = 60.0
_MOST_LATE = 10
"""Texts of one batch that may run out of time; what comes after is not checked."""
_CHUNK = 256


class BoundedCheck:
    """One check, in one process that starts on first use and ends with this object or the process that owns it.

    Args:
        setup: ``{"pattern": {"pattern", "flags", "full"}}`` or ``{"schema": ...}``.
        seconds: processor time for one text.
    """

    def __init__(self, setup: dict[str, Any], seconds: float = 1.0) -> None:
        self._setup = json.dumps({**setup, "seconds": seconds})
        self._patience = 20 * seconds + 5  # wall time without a reply, should the system's timer fail
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ending: Callable[[], object] = lambda: None
        _checks.add(self)

    def __call__(self, texts: list[str]) -> tuple[list[bool | None], int]:
        """[texts] whether each passes (False if it took too long, None if not looked at); and how many took too long.

        Raises:
            Error: the process does not start.
        """
        with self._lock:
            found: list[bool | None] = [None] * len(texts)
            late = done = 0
            try:
                while done < len(texts) and late < _MOST_LATE:
                    chunk = texts[done : done + _CHUNK]
                    replies = self._exchange(chunk)
                    found[done : done + len(replies)] = replies
                    done += len(replies)
                    if len(replies) < len(chunk):
                        self._end()
                        found[done] = False
                        late, done = late + 1, done + 1
            except BaseException:
                self._end()  # a reply that came later would be taken for one to the next batch
                raise
            return found, late

    def forget(self) -> None:
        """In a forked child: the process is the parent's, and a thread that held the lock is not here."""
        self._lock = threading.Lock()
        if self._process is not None:
            _close_pipes(self._process)  # else it would not see the parent end
            self._process.returncode = 0  # not this process's to wait for
            self._process = None

    def _exchange(self, texts: list[str]) -> list[bool]:
        """Replies as far as they came; fewer than texts if the process ended or hung."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        data = memoryview("".join(json.dumps(text) + "\n" for text in texts).encode())
        replies = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            selector.register(process.stdin, selectors.EVENT_WRITE)
            while len(replies) < len(texts):
                ready = selector.select(self._patience)
                if not ready:
                    break
                for key, _ in ready:
                    if key.fileobj is process.stdout:
                        chunk = os.read(process.stdout.fileno(), 65536)
                        if not chunk:
                            return [reply == ord("1") for reply in replies]
                        replies += chunk
                    else:
                        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # its end is seen when reading
                            data = data[os.write(process.stdin.fileno(), data) :]
                        if not data:
                            selector.unregister(process.stdin)
        return [reply == ord("1") for reply in replies]

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)],  # -P: its folder holds a math.py that is not Python's
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
        )  # fmt: skip
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.write(self._setup.encode() + b"\n")
        if _read_by(process.stdout, time.monotonic() + _START_SECONDS) != b"r":
            _kill(process)
            self._process = None
            raise Error(f"the process that checks texts does not start; `{sys.executable} -P {_WORKER}` shows why")
        os.set_blocking(process.stdin.fileno(), False)
        self._ending = weakref.finalize(self, _kill, process)
        return process

    def _end(self) -> None:
        if self._process is not None:
            self._ending()
            self._process = None


def _read_by(pipe: Any, deadline: float) -> bytes:
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        return os.read(pipe.fileno(), 1) if selector.select(max(0.0, deadline - time.monotonic())) else b""


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with contextlib.suppress(OSError):
            process.kill()
        process.wait()
    _close_pipes(process)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()


_checks: weakref.WeakSet[BoundedCheck] = weakref.WeakSet()


def _after_fork() -> None:
    for check in list(_checks):
        check.forget()


os.register_at_fork(after_in_child=_after_fork)
