"""One sandboxed process: started, spoken to over a pipe, and ended, whatever the program in it does."""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

from gdpo.core.errors import Error
from gdpo.rewards.sandbox.backends import Backend, Limits, environment, make_home
from gdpo.rewards.sandbox.child import Reference, decode, encode

_START_SECONDS = 30.0
_START_TRIES = 3
_STEP = 0.1
"""Seconds after which a wait looks whether it was called off."""
MOST_REPLY = 4 << 20
"""Bytes of one value that a program returns."""


class Ended(Exception):
    """The process is gone, or what it sent is no reply."""


class OutOfTime(Exception):
    """The program's time is over."""


class CalledOff(Exception):
    """The batch was interrupted."""


class NotStarted(Exception):
    """The sandbox itself failed; the text is what it said."""


class Process:
    """A sandbox with a Python in it that waits for its program. Use it as a context: it is ended on leaving.

    Args:
        backend: how to start it.
        limits: what the program may take.
        streams: whether the program has standard input and output, else both are empty.
        stop: set when the batch is called off.
        say: keep what the sandbox itself says when it does not start.

    Raises:
        NotStarted: the sandbox does not start.
    """

    def __init__(
        self, backend: Backend, limits: Limits, streams: bool, stop: threading.Event, say: bool = False
    ) -> None:
        self._backend, self._limits, self._stop = backend, limits, stop
        self._home = make_home() if backend.weaker else None
        self.deadline = time.monotonic() + _START_SECONDS
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        pipe = subprocess.PIPE if streams else subprocess.DEVNULL
        try:
            self.process = self._start(theirs, pipe, subprocess.PIPE if say else subprocess.DEVNULL)
        except OSError as error:
            self._control.close()
            self._remove_home()
            raise NotStarted(str(error)) from error
        finally:
            theirs.close()
        try:
            setup = [limits.for_child(backend.weaker), backend.calls if backend.weaker else b""]
            self.filtered: bool = self.exchange(encode(setup, no_reference)) == [True]
        except (Ended, OutOfTime) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1)  # for its last words
            said = self._said()
            self.close()
            raise NotStarted(said) from error
        except BaseException:
            self._settle()
            self.close()
            raise

    def _settle(self) -> None:
        """Wait until it is started: bubblewrap that is ended before that leaves a process that waits for it forever."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)  # if it had no limits yet, it ends
            self._control.settimeout(5.0)
            self._control.recv(1)

    def _start(self, theirs: socket.socket, pipe: int, errors: int) -> subprocess.Popen[bytes]:
        descriptor = None
        calls = self._backend.calls
        if calls and not self._backend.weaker:
            descriptor, write = os.pipe()
            os.write(write, calls)  # far less than a pipe holds
            os.close(write)
        passed = [theirs.fileno()] + ([descriptor] if descriptor is not None else [])
        try:
            return subprocess.Popen(
                self._backend.command(theirs.fileno(), self._limits, descriptor),
                stdin=pipe, stdout=pipe, stderr=errors, bufsize=0, pass_fds=passed, start_new_session=True,
                env=environment(self._home or "/"), cwd=self._home or "/",
            )  # fmt: skip
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of the sandbox, and remove its files."""
        if self._home is not None:  # bubblewrap takes its processes with it
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()
        self._control.close()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._remove_home()

    def _remove_home(self) -> None:
        if self._home is not None:
            shutil.rmtree(os.path.dirname(self._home), ignore_errors=True)

    def _said(self) -> str:
        if self.process.stderr is None:
            return ""
        os.set_blocking(self.process.stderr.fileno(), False)
        return (self.process.stderr.read(2000) or b"").decode(errors="replace").strip().replace("\n", "; ")

    def send(self, data: bytes) -> None:
        """Send one frame."""
        view = memoryview(struct.pack("<I", len(data)) + data)
        while view:
            self._wait(selectors.EVENT_WRITE)
            try:
                view = view[self._control.send(view) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise Ended from error

    def exchange(self, data: bytes | None, resolve: Callable[[str], Any] | None = None, nonce: bytes = b"") -> Any:
        """Send a frame (or nothing) and read the reply's value.

        Raises:
            Ended: the process is gone, or it sent something else.
            OutOfTime: at the deadline.
        """
        if data is not None:
            self.send(nonce + data)
        (count,) = struct.unpack("<I", self._read(4))
        if count > MOST_REPLY:
            raise Ended
        reply = self._read(count)
        if reply[: len(nonce)] != nonce:
            raise Ended
        try:
            return decode(reply[len(nonce) :], resolve or refuse, check_keys)
        except (ValueError, RecursionError) as error:
            raise Ended from error

    def _read(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            self._wait(selectors.EVENT_READ)
            try:
                part = self._control.recv(min(count - len(found), 1 << 20))
            except BlockingIOError:
                continue
            except OSError as error:
                raise Ended from error
            if not part:
                raise Ended
            found += part
        return bytes(found)

    def _wait(self, event: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, event)
            while not selector.select(min(_STEP, max(0.0, self.deadline - time.monotonic()))):
                self.check()
        self.check()

    def check(self) -> None:
        """Raise if the time is over or the batch was called off."""
        if self._stop.is_set():
            raise CalledOff
        if time.monotonic() >= self.deadline:
            raise OutOfTime

    def stream(self, source: str, data: bytes, most: int) -> tuple[bytes, int | None]:
        """Run the program with ``data`` on its standard input.

        Args:
            source: the program.
            data: standard input.
            most: bytes of output after which the program is stopped.

        Returns:
            the output, and the exit status; None where it was stopped.
        """
        self.send(encode(["stream", source], no_reference))
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        output, waiting = bytearray(), memoryview(data)
        os.set_blocking(self.process.stdin.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            selector.register(self.process.stdin, selectors.EVENT_WRITE)
            while True:
                ended = self.process.poll() is not None  # before reading: what it wrote is there by then
                ready = selector.select(0 if ended else min(_STEP, max(0.0, self.deadline - time.monotonic())))
                for key, _ in ready:
                    if key.fileobj is self.process.stdin:
                        waiting = self._feed(selector, waiting)
                        continue
                    part = os.read(self.process.stdout.fileno(), 1 << 16)
                    output += part
                    if not part:
                        return bytes(output), self._status()
                    if len(output) > most:
                        return bytes(output), None
                if ended and not any(key.fileobj is self.process.stdout for key, _ in ready):
                    return bytes(output), self.process.returncode  # another process may hold the pipe open
                self.check()

    def _feed(self, selector: selectors.BaseSelector, waiting: memoryview) -> memoryview:
        stdin = self.process.stdin
        assert stdin is not None
        try:
            waiting = waiting[os.write(stdin.fileno(), waiting[: 1 << 16]) :] if waiting else waiting
        except BlockingIOError:
            return waiting
        except OSError:  # the program does not read all of its input
            waiting = memoryview(b"")
        if not waiting:
            selector.unregister(stdin)
            stdin.close()
        return waiting

    def _status(self) -> int:
        while True:
            self.check()
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(min(_STEP, max(0.001, self.deadline - time.monotonic())))


def start(backend: Backend, limits: Limits, streams: bool, stop: threading.Event) -> Process:
    """A started sandbox; its time does not run yet.

    Raises:
        Error: it does not start, although it did before.
    """
    said = ""
    for attempt in range(_START_TRIES):
        if stop.is_set():
            raise CalledOff
        try:
            return Process(backend, limits, streams, stop, say=True)
        except NotStarted as error:
            said = str(error)
            time.sleep(0.2 * attempt)
    raise Error(f"the sandbox ({backend.kind}) does not start: {said or 'it says nothing'}")


def starts(backend: Backend) -> tuple[bool | None, str]:
    """Whether a sandbox filters system calls; None where it does not start, with what it said."""
    try:
        with Process(backend, Limits(), False, threading.Event(), say=True) as process:
            return process.filtered, ""
    except NotStarted as error:
        return None, str(error)


def no_reference(value: Any) -> str:
    """For values that are plain."""
    raise TypeError(f"{type(value).__name__} is no plain value")


def refuse(text: str) -> Any:
    """For replies that are plain."""
    raise ValueError("an object where a plain value was expected")


_MOST_EQUAL_HASHES = 50


def check_keys(keys: list[Any]) -> None:
    """Refuse keys that were made to collide, which would keep the parent busy for hours.

    Raises:
        ValueError: many different keys with one hash.
    """
    if len(keys) <= _MOST_EQUAL_HASHES:
        return
    hashes = sorted(map(hash, keys))
    run = 1
    for before, after in itertools.pairwise(hashes):
        run = run + 1 if before == after else 1
        if run > _MOST_EQUAL_HASHES:
            raise ValueError("keys that collide")


__all__ = [
    "CalledOff",
    "Ended",
    "NotStarted",
    "OutOfTime",
    "Process",
    "Reference",
    "check_keys",
    "start",
    "starts",
]
