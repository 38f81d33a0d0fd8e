"""Seconds that `import gdpo` and `gdpo --help` take, as whole processes, less an empty Python's.

python benchmarks/start_up.py
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import gdpo

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import gdpo": ["-c", "import gdpo"],
    "gdpo --help": ["-m", "gdpo", "--help"],
}


def seconds(arguments: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    for arguments in COMMANDS.values():
        seconds(arguments)  # warm the disk's cache
    times = {name: [seconds(arguments) for _ in range(15)] for name, arguments in COMMANDS.items()}
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
