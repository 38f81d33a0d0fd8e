"""Writes rollout tables beside the training: one thread, a bounded number of steps in memory, whole files only.

A table that cannot be written (a full disk) costs its step, not the run: the first failure is logged as one warning,
later steps are tried again without a word, and ``failed`` counts them.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl

from gdpo.core.errors import Error
from gdpo.rollouts.table import write_frame

log = logging.getLogger("gdpo")


class RolloutWriter:
    """Writes ``step-NNNNNN.parquet`` files into a folder.

    Args:
        folder: where to; made if it is not there.
        metadata: of every file, beside what ``write_frame`` adds.
        limit: steps that may wait to be written; ``write`` blocks beyond that, so that memory stays bounded.
        wait: write within ``write`` itself and raise what fails there, for runs whose tables must be whole.
    """

    def __init__(
        self, folder: str | Path, metadata: Mapping[str, str] | None = None, *, limit: int = 2, wait: bool = False
    ) -> None:
        if limit < 1:
            raise Error(f"limit is {limit}, but at least one step must be allowed to wait")
        self.folder, self.metadata, self.wait = Path(folder), dict(metadata or {}), wait
        self.written = 0
        """Files."""
        self.failed = 0
        """Steps that are missing."""
        self._queue: queue.Queue[tuple[int, Callable[[], pl.DataFrame]]] = queue.Queue(limit)
        self._thread: threading.Thread | None = None

    def write(self, step: int, make: Callable[[], pl.DataFrame]) -> None:
        """Have the table that ``make`` gives written as that of ``step``; ``make`` runs on the writer's thread.

        Raises:
            Error: the file cannot be written, where ``wait`` was asked for.
        """
        if self.wait:
            self._write(step, make)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="gdpo-rollouts", daemon=True)
            self._thread.start()
            # A daemon is dropped at exit; what waits is written before that. The writer itself may go earlier.
            atexit.register(_flush, weakref.ref(self))
        self._queue.put((step, make))

    def flush(self) -> None:
        """Wait until everything handed over is written, or has failed."""
        self._queue.join()

    def _work(self) -> None:
        while True:
            step, make = self._queue.get()
            try:
                self._write(step, make)
            except Exception as error:  # whatever it is, training goes on
                self.failed += 1
                if self.failed == 1:
                    log.warning(
                        "step %d is missing from the rollout table: %s. Training goes on; later steps are tried again, "
                        "and no further failure is reported", step, " ".join(str(error).split()),
                    )  # fmt: skip
            finally:
                # Nothing of the step may stay in memory while the thread waits for the next.
                del make
                self._queue.task_done()

    def _write(self, step: int, make: Callable[[], pl.DataFrame]) -> None:
        write_frame(make(), self.folder / f"step-{step:06d}.parquet", self.metadata)
        self.written += 1


def _flush(writer: weakref.ref[RolloutWriter]) -> None:
    alive = writer()
    if alive is not None:
        alive.flush()
