"""The writer of rollout tables: whole files only, few in memory, once a step; and reading a folder while it is written."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
from tables import NAMES, ROWS, SIZE, objective, scores

import gdpo
from gdpo.rollouts import RolloutWriter, open_dump, rollout_frame
from gdpo.rollouts import table as table_module

HERE = Path(__file__).parent


def table(step, rows=ROWS, text="c"):
    estimate = objective().advantages(scores(step)[:rows], SIZE)
    return rollout_frame(
        step=step, prompts=["p"] * rows, completions=[text] * rows, lengths=[3] * rows, names=NAMES,
        scores=scores(step)[:rows], group=np.arange(rows) // SIZE, estimate=estimate,
    )  # fmt: skip


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_reader_sees_whole_files_only(tmp_path):
    """A reader that looks again and again while steps are written finds each step whole or not at all."""
    writer, done, looked, seen = RolloutWriter(tmp_path), threading.Event(), threading.Event(), []

    def write():
        for step in range(1, 61):
            if step % 10 == 0:  # a slow reader on a busy machine sees several states, too
                looked.clear()
                looked.wait(20)
            writer.put(step, lambda step=step: table(step, text="word " * 200), {})
        writer.flush()
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.is_set():
        looked.set()
        try:
            dump = open_dump(tmp_path)
        except gdpo.Error as error:
            assert "holds no files" in str(error) or "no file or folder" in str(error)  # noqa: PT017
            continue
        sizes = [len(batch.scores) for batch in dump.batches()]
        assert set(sizes) == {ROWS}
        assert not dump.summary.skipped
        assert dump.summary.steps == list(range(1, len(sizes) + 1))
        seen.append(len(sizes))
    thread.join()
    assert len(set(seen)) > 2  # it did look while they were written
    assert seen == sorted(seen)
    assert [len(batch.scores) for batch in open_dump(tmp_path).batches()] == [ROWS] * 60


def test_a_file_replaced_while_it_is_read(tmp_path):
    """A resumed run replaces a step that someone is reading: the reader goes on with the old one."""
    for step in (1, 2, 3):
        RolloutWriter(tmp_path).write(step, table(step), {})
    batches = open_dump(tmp_path).batches()
    next(batches)
    RolloutWriter(tmp_path).write(3, table(4).with_columns(step=pl.lit(3, pl.Int64)), {})
    assert [len(batch.scores) for batch in batches] == [ROWS, ROWS]
    assert names(tmp_path) == [f"step-00000{step}.parquet" for step in (1, 2, 3)]


class Payload:
    """What a table is built of, and whether it is still held."""

    alive: ClassVar[weakref.WeakSet] = weakref.WeakSet()

    def __init__(self):
        self.alive.add(self)


def test_a_slow_disk_holds_few_tables(tmp_path, monkeypatch):
    """However slow the disk: two tables wait, one is written, one is being handed over; and none is lost."""
    real = table_module.os.replace

    def slow(source, target):
        time.sleep(0.02)
        real(source, target)

    monkeypatch.setattr(table_module.os, "replace", slow)
    writer, most = RolloutWriter(tmp_path), 0
    for step in range(1, 31):
        payload = Payload()
        writer.put(step, lambda step=step, payload=payload: table(step), {})
        del payload
        gc.collect()
        most = max(most, len(Payload.alive))
    assert writer.flush(30)
    assert 2 <= most <= 4
    assert (writer.lost, len(names(tmp_path))) == (0, 30)
    gc.collect()
    assert not Payload.alive


def test_a_disk_that_hangs_does_not_hold_up_every_step(tmp_path):
    """The first table given up costs the patience, the others nothing, until the disk answers."""
    gate, writer = threading.Event(), RolloutWriter(tmp_path, patience=0.3)

    def hanging(step):
        gate.wait(20)
        return table(step)

    def steps(first, last):
        begun = time.perf_counter()
        for step in range(first, last):
            writer.put(step, lambda step=step: hanging(step), {})
        return time.perf_counter() - begun

    with pytest.warns(UserWarning, match="has not answered for 0.3 s.*said once") as said:
        seconds = steps(1, 41)
    assert len(said) == 1
    assert seconds < 2  # 37 times 0.3 s would be 11
    assert writer.lost in (37, 38)
    gate.set()
    assert writer.flush(20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(41, 51)  # it waits for the disk again
    assert writer.flush(20)
    assert f"step-{50:06d}.parquet" in names(tmp_path)
    assert len(names(tmp_path)) == 50 - writer.lost


def test_a_full_disk_is_one_warning(tmp_path, monkeypatch):
    """And what was half written is gone; with space again, so are the files."""
    real = pl.DataFrame.write_parquet

    def full(self, path, **options):
        Path(path).write_bytes(b"half a file")
        raise OSError(28, "No space left on device")

    writer = RolloutWriter(tmp_path)
    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)

    def three():
        for step in (1, 2, 3):
            writer.put(step, lambda step=step: table(step), {})
        assert writer.flush(10)

    with pytest.warns(UserWarning, match="No space left") as said:
        three()
    assert (len(said), writer.lost, names(tmp_path)) == (1, 3, [])
    monkeypatch.setattr(pl.DataFrame, "write_parquet", real)
    writer.put(4, lambda: table(4), {})
    assert writer.flush(10)
    assert names(tmp_path) == ["step-000004.parquet"]


def test_no_error_of_a_table_ends_the_training(tmp_path):
    """Not one that is no Exception, as a panic of polars is not."""

    class Panic(BaseException):
        pass

    def broken():
        raise Panic("at the disco")

    writer = RolloutWriter(tmp_path)

    def one():
        writer.put(1, broken, {})
        assert writer.flush(10)

    with pytest.warns(UserWarning, match="Panic: at the disco"):
        one()
    writer.put(2, lambda: table(2), {})
    assert writer.flush(10)
    assert (writer.lost, names(tmp_path)) == (1, ["step-000002.parquet"])


KILLED = """
import sys, time
from pathlib import Path
from test_tables_writer import table
from gdpo.rollouts import RolloutWriter
writer = RolloutWriter(Path(sys.argv[1]))
frames = [table(k, text="word " * 20000) for k in range(4)]
for step in range(int(sys.argv[2]), 100000):
    writer.put(step, lambda step=step: frames[step % 4], {})
    print(step, flush=True)
"""


def start(folder, first):
    paths = os.pathsep.join([str(HERE), str(HERE.parent), str(Path(gdpo.__file__).parents[1])])
    return subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder), str(first)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip


def kill_after(folder, process, count):
    for _ in range(count):
        assert process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_killed_process_leaves_whole_files(tmp_path):
    """SIGKILL while it writes, several times; each time it goes on from an earlier step, as after a checkpoint."""
    first = 1
    for turn in range(3):
        kill_after(tmp_path, start(tmp_path, first), 12 + turn)
        files = sorted(tmp_path.glob("step-*.parquet"))
        assert all(pl.read_parquet(path).height == ROWS for path in files)
        dump = open_dump(tmp_path)
        assert [len(batch.scores) for batch in dump.batches()] == [ROWS] * len(files)
        assert (dump.summary.skipped, dump.summary.duplicates_dropped) == ([], 0)
        first = max(1, len(files) - 3)
    (tmp_path / ".step-000009.parquet.1.tmp").write_bytes(b"half a file")  # had the kill come in mid-write
    RolloutWriter(tmp_path).write(1, table(1), {})
    assert not list(tmp_path.glob(".*"))


def test_a_resumed_run_has_each_step_once(tmp_path):
    """Killed in step 5 with a checkpoint of step 3: steps 4 and 5 are written anew."""
    for steps, text in (((1, 2, 3, 4, 5), "before"), ((4, 5, 6), "after")):
        writer = RolloutWriter(tmp_path)
        for step in steps:
            writer.put(step, lambda step=step, text=text: table(step, text=text), {})
        assert writer.flush(10)
    dump = open_dump(tmp_path)
    texts = {batch.step: set(batch.rows["completion"]) for batch in dump.batches()}
    assert texts == {1: {"before"}, 2: {"before"}, 3: {"before"}, 4: {"after"}, 5: {"after"}, 6: {"after"}}
    assert dump.summary.rollouts == 6 * ROWS
    assert not dump.summary.notes


ATEXIT = """
import sys, time
from pathlib import Path
from test_tables_writer import table
from gdpo.rollouts import RolloutWriter
def slow():
    time.sleep(0.5)
    return table(1)
RolloutWriter(Path(sys.argv[1])).put(1, slow, {})
"""


def test_a_process_that_ends_writes_what_waits(tmp_path):
    paths = os.pathsep.join([str(HERE), str(HERE.parent), str(Path(gdpo.__file__).parents[1])])
    subprocess.run([sys.executable, "-c", ATEXIT, str(tmp_path)], check=True, env={**os.environ, "PYTHONPATH": paths})
    assert names(tmp_path) == ["step-000001.parquet"]
