"""Rollout tables written beside the training: in a thread of its own, few in memory, whole files only."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl

from gdpo.core.errors import Error
from gdpo.rollouts.table import write_frame


class RolloutWriter:
    """Writes one file a step into a folder while training goes on.

    A table that cannot be written (a full disk) is lost with one warning, and training goes on; once there is space
    again, so do the files. No file is ever half written, and what a killed run left half written is removed. A resumed
    run writes the steps that it does again in place of the old ones.

    Args:
        folder: where ``step-000001.parquet`` and so on go; made when first needed.
        waiting: tables that may wait in memory; when there are more, ``put`` waits for the disk.
        patience: seconds that ``put`` waits before it gives a table up. Until the disk has answered again, no further
            ``put`` waits.
    """

    def __init__(self, folder: Path, *, waiting: int = 2, patience: float = 60.0) -> None:
        self.folder, self.patience = folder, patience
        self.lost = 0
        """Tables that could not be written."""
        self._queue: queue.Queue[tuple[int, Callable[[], pl.DataFrame], Mapping[str, str]]] = queue.Queue(waiting)
        self._thread: threading.Thread | None = None
        self._stuck = self._warned = self._cleaned = False

    def put(self, step: int, build: Callable[[], pl.DataFrame], metadata: Mapping[str, str]) -> None:
        """Have ``build()`` called and its table written as that of ``step``, in the writer's thread."""
        if self._thread is None or not self._thread.is_alive():
            if self._thread is None:
                atexit.register(self.flush, 60.0)
            self._thread = threading.Thread(target=self._work, name="gdpo-rollouts", daemon=True)
            self._thread.start()
        try:
            self._queue.put((step, build, metadata), timeout=0.0 if self._stuck else self.patience)
        except queue.Full:
            self._stuck = True
            self._lose(f"the rollouts of step {step} cannot be written: {self.folder} has not answered for "
                       f"{self.patience:g} s")  # fmt: skip

    def write(self, step: int, frame: pl.DataFrame, metadata: Mapping[str, str]) -> None:
        """Write a table at once, in place of one of the same step.

        Raises:
            Error: it cannot be written.
        """
        if not self._cleaned:
            self._cleaned = True
            for left in self.folder.glob(".step-*.parquet.*.tmp"):  # of a run that was killed while it wrote
                with contextlib.suppress(OSError):
                    left.unlink()
        write_frame(frame, self.folder / f"step-{step:06d}.parquet", metadata)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until every table is on disk (or given up), at most ``timeout`` seconds; whether all are."""
        ends = None if timeout is None else time.monotonic() + timeout
        while self._thread is not None and self._thread.is_alive():
            with self._queue.all_tasks_done:
                if not self._queue.unfinished_tasks:
                    return True
                if ends is not None and time.monotonic() >= ends:
                    return False
                self._queue.all_tasks_done.wait(0.1)
        return self._queue.unfinished_tasks == 0

    def _work(self) -> None:
        while True:
            step, build, metadata = self._queue.get()
            try:
                self.write(step, build(), metadata)
            except Error as error:
                self._lose(str(error))
            except BaseException as error:  # a panic of polars is no Exception; nothing here may end the training
                self._lose(f"the rollouts of step {step} cannot be written: {type(error).__name__}: {error}")
            finally:
                self._stuck = False
                del build
                self._queue.task_done()

    def _lose(self, why: str) -> None:
        self.lost += 1
        if not self._warned:
            self._warned = True
            warnings.warn(f"{why}. Training goes on without (this is said once)", stacklevel=3)
