"""The audit's page of a large dump: its size, how fast Chromium opens it, and what writing it costs.

    python benchmarks/audit_page.py                  # 1,000,000 rollouts, 6 rewards, made in a temporary folder
    python benchmarks/audit_page.py --rollouts 100000

Writes ``benchmarks/results/audit_page.json``. Wall time depends on what else the machine
does, processor seconds less so.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

import gdpo

RESULT = Path(__file__).parent / "results" / "audit_page.json"
STEPS, SIZE, CHARACTERS = 25, 8, 200
REWARDS = ["correct", "format", "concise", "fluency", "citations", "safety"]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]  # fmt: skip
OPENINGS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--dump", type=Path, help="where the dump lies or is made; kept")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        dump = asked.dump or Path(temporary) / "dump"
        if not dump.is_dir():
            make_dump(dump, asked.rollouts)
        page = Path(temporary) / "audit.html"
        measured = {
            "command": "python benchmarks/audit_page.py", "gdpo": gdpo.__version__, "python": sys.version.split()[0],
            "polars": pl.__version__, "numpy": np.__version__, "processors": os.cpu_count(),
            "load_average_before": round(os.getloadavg()[0], 2), "rollouts": asked.rollouts, "rewards": len(REWARDS),
            "steps": STEPS, "group_size": SIZE, "characters": CHARACTERS,
            "dump_megabytes": round(sum(file.stat().st_size for file in dump.iterdir()) / 1e6, 1),
            "audit": run(dump, None), "audit_with_page": run(dump, page),
            "page_bytes": page.stat().st_size, "chromium": opened(page),
        }  # fmt: skip
    RESULT.write_text(json.dumps(measured, indent=1) + "\n")
    print(json.dumps(measured, indent=1))


def make_dump(folder: Path, rollouts: int, seed: int = 0) -> None:
    """One file a step as TRL 1.16 writes them, made a step at a time."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    words = np.array(["".join(chr(97 + letter) for letter in random.integers(0, 26, n))
                      for n in random.integers(3, 9, 100_000)])  # fmt: skip
    groups = rollouts // STEPS // SIZE
    for step in range(1, STEPS + 1):
        rows = groups * SIZE
        prompts = texts(random, words, groups)
        progress = step / STEPS
        scores = {
            "correct": chance(random, groups, 0.3 + 0.3 * progress),
            "format": chance(random, groups, 0.8 + 0.15 * progress),
            "concise": 200.0 * random.random(rows), "fluency": random.normal(0.5, 0.1, rows).clip(0, 1),
            "safety": np.ones(rows),
        }  # fmt: skip
        against = 1 - scores["fluency"] + random.normal(0, 0.05, rows)
        scores["citations"] = np.where(random.random(rows) < 0.1, np.nan, against)
        pl.DataFrame(
            {"step": np.full(rows, step), "prompt": np.repeat(prompts, SIZE), "completion": texts(random, words, rows)}
            | {name: pl.Series(scores[name]).fill_nan(None) for name in REWARDS}
        ).write_parquet(folder / f"completions_{step:05d}.parquet", compression="snappy")  # fmt: skip


def chance(random: np.random.Generator, groups: int, share: float) -> np.ndarray:
    skill = np.clip(random.normal(share, 0.2, groups), 0, 1).repeat(SIZE)
    return (random.random(len(skill)) < skill).astype(float)


def texts(random: np.random.Generator, words: np.ndarray, count: int) -> list[str]:
    """``count`` texts of ``CHARACTERS`` characters."""
    chosen = words[random.integers(0, len(words), (count, CHARACTERS // 4))]
    return [" ".join(row)[:CHARACTERS] for row in chosen.tolist()]


def run(dump: Path, page: Path | None) -> dict[str, float]:
    """``gdpo audit``: wall and processor seconds of the whole command, and its largest memory."""
    script = "import sys; from gdpo.cli import main; sys.argv[0] = 'gdpo'; main()"
    command = [sys.executable, "-c", script, "audit", str(dump), *(["--html", str(page)] if page else [])]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    return {"wall_seconds": round(wall, 2), "processor_seconds": round(used.ru_utime + used.ru_stime, 2),
            "peak_gigabytes": round(used.ru_maxrss * 1024 / 1e9, 3)}  # fmt: skip


def opened(page: Path) -> dict[str, object]:
    """Seconds from asking for the page to its load event and to its first paint, and to a load seen from outside."""
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {"load": [], "first_contentful_paint": [], "goto": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        version = browser.version
        for _ in range(OPENINGS):
            tab = browser.new_context(viewport={"width": 1400, "height": 900}, offline=True).new_page()
            began = time.perf_counter()
            tab.goto(page.resolve().as_uri(), wait_until="load")
            found["goto"].append(time.perf_counter() - began)
            tab.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
            times = tab.evaluate(
                "[performance.getEntriesByType('navigation')[0].loadEventEnd, "
                "performance.getEntriesByName('first-contentful-paint')[0].startTime]"
            )
            found["load"].append(times[0] / 1000)
            found["first_contentful_paint"].append(times[1] / 1000)
            tab.context.close()
        browser.close()
    return {"version": version} | {
        f"{name}_seconds": {"median": round(float(np.median(values)), 3), "worst": round(max(values), 3)}
        for name, values in found.items()
    }


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
