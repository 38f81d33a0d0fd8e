"""Speed and memory of the readers: 1 M rollouts x 6 rewards as Parquet, and JSON lines of a given size.

    python benchmarks/readers.py [--rollouts 1000000] [--megabytes 500] [--one-file]

Each dump is written to a temporary folder and read in a process of its own, whose peak resident memory is that of
reading alone. Figures go to standard output as JSON lines.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

REWARDS, GROUP, STEP = 6, 8, 1024
WORDS = ["box", "coin", "then", "<think>", "row", "\n", "add", "half", "é", "twice", "answer", "so", "pencil"]


def texts(rng: np.random.Generator, count: int, characters: int = 200) -> list[str]:
    """Texts of about 200 characters."""
    words = np.array(WORDS)[rng.integers(0, len(WORDS), (count, characters // 4))]
    return [" ".join(row)[:characters] for row in words]


def step_frame(rng: np.random.Generator, step: int, rows: int, pool: list[str]) -> pl.DataFrame:
    """One step in TRL's columns."""
    prompts = np.repeat(np.array(pool, dtype=object)[rng.integers(0, len(pool), rows // GROUP)], GROUP)
    completions = np.array(pool, dtype=object)[rng.integers(0, len(pool), rows)]
    numbers = np.array([f" {step} {row}" for row in range(rows)], dtype=object)
    starts = np.repeat(numbers[::GROUP], GROUP)
    columns = {
        "step": [step] * rows,
        "prompt": (prompts + starts).tolist(),
        "completion": (completions + numbers).tolist(),
    }
    columns |= {f"reward_{k}": np.round(rng.random(rows), 3) for k in range(REWARDS)}
    return pl.DataFrame(columns | {"advantage": rng.normal(size=rows)})


def write_parquet(folder: Path, rollouts: int, one_file: bool) -> Path:
    """A file a step, or one file."""
    rng = np.random.default_rng(0)
    pool = texts(rng, 5000)
    frames = (step_frame(rng, step, STEP, pool) for step in range(rollouts // STEP))
    if one_file:
        pl.concat(frames).write_parquet(folder / "all.parquet")
        return folder / "all.parquet"
    for step, frame in enumerate(frames):
        frame.write_parquet(folder / f"completions_{step:05d}.parquet")
    return folder


def write_lines(folder: Path, megabytes: int) -> Path:
    """verl's columns, one file."""
    rng = np.random.default_rng(0)
    pool = texts(rng, 5000)
    path, step = folder / "rollouts.jsonl", 0
    with path.open("wb") as file:
        while file.tell() < megabytes * 1e6:
            frame = step_frame(rng, step, STEP, pool).drop("advantage")
            frame = frame.rename({"prompt": "input", "completion": "output"}).with_columns(score=pl.col("reward_0"))
            frame.write_ndjson(file)
            step += 1
    return path


def read(path: Path) -> dict[str, float]:
    """Read every batch in this process."""
    from gdpo.rollouts import open_dump

    start = time.perf_counter()
    dump = open_dump(path)
    opened = time.perf_counter() - start
    for batch in dump.batches():
        del batch
    seconds = time.perf_counter() - start
    size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir())) / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {
        "rollouts": dump.summary.rollouts, "megabytes": round(size), "seconds": round(seconds, 2),
        "open_seconds": round(opened, 2), "megabytes_a_second": round(size / seconds), "peak_gigabytes": round(peak, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--read", type=Path, help="read a dump of your own and print its figures")
    given = parser.parse_args()
    if given.read:
        print(json.dumps(read(given.read)))
        return
    writers = {
        "Parquet, a file a step": lambda folder: write_parquet(folder, given.rollouts, False),
        "Parquet, one file": lambda folder: write_parquet(folder, given.rollouts, True),
        "JSON lines": lambda folder: write_lines(folder, given.megabytes),
    }
    for name, write in writers.items():
        with tempfile.TemporaryDirectory() as folder:
            path = write(Path(folder))
            command = [sys.executable, __file__, "--read", str(path)]
            found = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
            print(json.dumps({"dump": name} | json.loads(found.stdout)), flush=True)


if __name__ == "__main__":
    main()
