"""Speed and memory of the readers and of the audit: up to 1 M rollouts x 6 rewards, as Parquet and as JSON lines.

    python benchmarks/readers.py [--rollouts 1000000] [--megabytes 500] [--out benchmarks/results/readers.json]

Each dump is written to a temporary folder, then read, and then audited, in a process of its own each, whose peak
resident memory is that of the work alone. Seconds are wall clock, imports left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
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
    for batch in dump.batches():
        del batch
    return figures(path, start, dump.summary.rollouts)


def audited(path: Path) -> dict[str, float]:
    """Audit in this process."""
    import gdpo.audit.entry

    start = time.perf_counter()
    found = gdpo.audit(path)
    return figures(path, start, found.summary.rollouts)


def figures(path: Path, start: float, rollouts: int) -> dict[str, float]:
    """Seconds, speed and memory since ``start``."""
    seconds = time.perf_counter() - start
    size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir())) / 1e6
    return {
        "rollouts": rollouts, "megabytes": round(size), "seconds": round(seconds, 2),
        "megabytes_a_second": round(size / seconds), "rollouts_a_second": round(rollouts / seconds),
        "peak_gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }  # fmt: skip


def apart(what: str, path: Path) -> dict[str, float]:
    """In a process of its own."""
    done = subprocess.run([sys.executable, __file__, what, str(path)], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--read", type=Path, help="read a dump of your own and print its figures")
    parser.add_argument("--audit", type=Path, help="audit a dump of your own and print its figures")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/readers.json"))
    given = parser.parse_args()
    if given.read or given.audit:
        print(json.dumps(read(given.read) if given.read else audited(given.audit)))
        return
    rollouts, megabytes = given.rollouts, given.megabytes
    writers = {
        "Parquet, a file a step, a quarter": lambda folder: write_parquet(folder, rollouts // 4, False),
        "Parquet, a file a step, a half": lambda folder: write_parquet(folder, rollouts // 2, False),
        "Parquet, a file a step": lambda folder: write_parquet(folder, rollouts, False),
        "Parquet, one file": lambda folder: write_parquet(folder, rollouts, True),
        "JSON lines": lambda folder: write_lines(folder, megabytes),
    }
    result: dict[str, object] = {
        "command": "python benchmarks/readers.py", "python": platform.python_version(), "polars": pl.__version__,
        "numpy": np.__version__, "processors": os.cpu_count(), "dumps": {},
    }  # fmt: skip
    dumps: dict[str, object] = {}
    for name, write in writers.items():
        with tempfile.TemporaryDirectory() as folder:
            path = write(Path(folder))
            load = round(os.getloadavg()[0], 2)
            dumps[name] = {"load_average": load, "read": apart("--read", path), "audit": apart("--audit", path)}
            print(json.dumps({name: dumps[name]}), flush=True)
    given.out.write_text(json.dumps(result | {"dumps": dumps}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
