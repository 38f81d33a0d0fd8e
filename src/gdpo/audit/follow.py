"""``audit --follow``: a dump that still grows, audited step by step, each row read into the sums once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gdpo.audit.chunks import joined
from gdpo.audit.collect import Collected, collect
from gdpo.audit.run import COMPARED, Audit, concluded, in_use, known_setting, primary_of
from gdpo.audit.thresholds import Thresholds
from gdpo.core.errors import Error
from gdpo.rollouts.dump import Batch, Dump, Summary

Opener = Callable[[Collection[Path] | None], Dump]
"""Opens the dump; given files, only those of it."""
State = Mapping[Path, tuple[int, int]]
"""File -> (bytes, time of change)."""


@dataclass(eq=False)
class Follower:
    """A growing dump and what was seen of it.

    A file is read once it was the same at two looks in a row, and never again; where there is one file alone, which
    grows by lines, the steps before its last are taken, since that one may be half there. A step that comes again is
    left out and counted.
    """

    opener: Opener
    method: str | None = None
    primary: str | None = None
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    known: Mapping[str, Any] = field(default_factory=dict)
    """``weights``, ``gates``, ``bounds`` and ``options`` of the run, where the dump does not say them."""
    seed: int = 0
    summary: Summary | None = None
    again: int = 0
    """Rollouts of steps that had been seen."""
    _before: dict[Path, tuple[int, int]] = field(default_factory=dict)
    _read: set[Path] = field(default_factory=set)
    _steps: set[int] = field(default_factory=set)
    _found: Collected | None = None
    _method_from: str = ""
    _framework: str = "gdpo"

    def look(self, files: State, *, last: bool = False) -> list[int]:
        """Take in what is new; the steps that came.

        Args:
            files: the dump's files as they are now.
            last: nothing more will be written: everything left is taken.

        Raises:
            Error: what ``open_dump`` raises, or rewards that changed.
        """
        stable = {path for path, state in files.items() if last or self._before.get(path) == state}
        self._before = dict(files)
        alone = len(files) == 1
        wanted = set(files) - self._read if alone else stable - self._read
        if not wanted:
            return []
        dump = self.opener(wanted)
        settled = wanted <= stable
        came = list(self._taken(dump, alone, half=alone and not settled))
        self._counted(dump.summary, alone, len(files))
        if settled:
            self._read |= wanted
        return came

    def _taken(self, dump: Dump, alone: bool, half: bool) -> Iterator[int]:
        """Measure the steps that are new; with ``half`` the last one is left for the next look."""
        if self.summary is None:
            self.summary = dump.summary.emptied()
        waiting: Batch | None = None
        for batch in dump.batches():
            if not len(batch.scores):
                continue
            if waiting is not None and self._take(dump, waiting, alone):
                yield waiting.step
            waiting = batch
        if waiting is not None and not half and self._take(dump, waiting, alone):
            yield waiting.step

    def _take(self, dump: Dump, batch: Batch, alone: bool) -> bool:
        if batch.step in self._steps:
            self.again += 0 if alone else len(batch.scores)  # one file is read anew each time
            return False
        self._steps.add(batch.step)
        assert self.summary is not None
        self.summary.add(batch)
        if not dump.rewards:
            return True
        chunk = joined([batch])
        if self._found is None:
            setting, self._method_from = in_use(dump, known_setting(dump, **self.known), self.method, chunk)
            self.primary = primary_of(setting, self.primary)
            self._framework = dump.framework
            self._found = collect([chunk], setting, COMPARED)
        else:
            if tuple(dump.rewards) != self._found.names:
                raise Error(
                    f"step {batch.step} has the rewards {', '.join(dump.rewards)}, but the steps before it had "
                    f"{', '.join(self._found.names)}; audit it without --follow"
                )
            collect([chunk], self._found.setting, COMPARED, into=self._found)
        return True

    def _counted(self, read: Summary, alone: bool, files: int) -> None:
        assert self.summary is not None
        self.summary.files = files
        before = [] if alone else self.summary.skipped
        self.summary.skipped = list(dict.fromkeys([*before, *read.skipped]))
        self.summary.notes = list(dict.fromkeys([*self.summary.notes, *read.notes]))

    def audit(self) -> Audit | None:
        """What can be said by now, without examples; None before the first step."""
        if self._found is None or self.summary is None:
            return None
        limits = Thresholds().with_changes(self.thresholds)
        names = list(self._found.names)
        dump = Dump(names, self._framework, {}, replace(self.summary), lambda: iter(()), {})
        return concluded(dump, self._found, limits, self.primary, self._method_from, self.seed)
