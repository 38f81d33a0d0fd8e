"""Seconds that `import gdpo`, `gdpo --help` and `gdpo audit` of 100 rollouts take, as whole processes.

python benchmarks/start_up.py
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

import gdpo


def commands(folder: Path) -> dict[str, list[str]]:
    """Name -> arguments of Python."""
    random = np.random.default_rng(0)
    dump = folder / "completions_00001.parquet"
    pl.DataFrame({
        "step": [1] * 100, "prompt": [str(row // 4) for row in range(100)], "completion": ["text"] * 100,
        "correct": random.integers(0, 2, 100).astype(float), "short": random.random(100),
    }).write_parquet(dump)  # fmt: skip
    return {
        "python -c pass": ["-c", "pass"], "import gdpo": ["-c", "import gdpo"],
        "gdpo --help": ["-m", "gdpo", "--help"], "gdpo audit, 100 rollouts": ["-m", "gdpo", "audit", str(dump)],
    }  # fmt: skip


def seconds(arguments: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        known = commands(Path(folder))
        for arguments in known.values():
            seconds(arguments)  # warm the disk's cache
        times = {name: [seconds(arguments) for _ in range(15)] for name, arguments in known.items()}
    result = {
        "command": "python benchmarks/start_up.py",
        "what": "wall-clock seconds of a whole process, 15 runs after one warm-up",
        "seconds": {name: {"median": round(statistics.median(found), 3), "min": round(min(found), 3),
                           "max": round(max(found), 3)} for name, found in times.items()},
        "versions": {"gdpo": gdpo.__version__, "python": platform.python_version()},
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
    }  # fmt: skip
    path = Path("benchmarks/results/start_up.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["seconds"], indent=1))


if __name__ == "__main__":
    main()
