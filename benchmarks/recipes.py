"""Train a recipe as a new user would, several seeds, and keep the held-out figures before and after.

python benchmarks/recipes.py tools
python benchmarks/recipes.py concise seeds=0,1,2 steps=30
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

import gdpo
from gdpo.training import recipe as recipes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("changes", nargs="*", help="key=value for gdpo train; seeds=0,1,2")
    args = parser.parse_args()
    seeds = [int(seed) for change in args.changes if change.startswith("seeds=") for seed in change[6:].split(",")]
    changes = [change for change in args.changes if not change.startswith("seeds=")]
    with tempfile.TemporaryDirectory() as folder:
        runs = [run(args.recipe, changes, seed, Path(folder)) for seed in seeds or [0, 1, 2]]
    result = {
        "command": " ".join(["python benchmarks/recipes.py", args.recipe, *args.changes]),
        "what": f"gdpo train {args.recipe}: held-out means before and after, standard errors over prompts",
        "mean": overall(runs),
        "runs": runs,
        "versions": {"gdpo": gdpo.__version__, "python": platform.python_version(),
                     **{name: version(name) for name in ("torch", "transformers", "trl")}},
        "machine": {"cpus": os.cpu_count(), "threads": os.environ.get("OMP_NUM_THREADS"),
                    "platform": platform.platform()},
    }  # fmt: skip
    path = Path("benchmarks/results") / f"recipes_{args.recipe}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["mean"], indent=1))


def run(recipe: str, changes: list[str], seed: int, folder: Path) -> dict[str, Any]:
    """One run: figures of its two evaluations, and how long it took as a whole."""
    overrides = [*changes, f"seed={seed}", f"output_dir={folder}", f"name=seed{seed}"]
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "gdpo", "train", recipe, *overrides], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    evaluations = folder / f"seed{seed}" / "evaluations"
    gates = {
        name: spec["given"]
        for name, spec in recipes.load(recipe, overrides).objective.rewards.items()
        if isinstance(spec.get("given"), str)
    }
    figures = {when: evaluation(evaluations, when, gates) for when in ("before", "after")}
    print(f"seed {seed}: {seconds:.0f} s {json.dumps(figures)}", flush=True)
    return {"seed": seed, "seconds": round(seconds, 1), **figures}


def evaluation(folder: Path, when: str, gates: dict[str, str]) -> dict[str, Any]:
    """Mean and standard error of each reward, of gated ones with zero where the gate is shut, and the length."""
    found = json.loads((folder / f"{when}.json").read_text())
    rewards = {
        name: {"mean": round(value["mean"], 4), "stderr": round(value["stderr"], 4)}
        for name, value in found["rewards"].items()
    }
    frame = pl.read_parquet(folder / f"{when}.parquet")
    for name, gate in gates.items():
        other, _, least = gate.partition(" >= ")
        opened = pl.col(f"reward/{other}") >= float(least)
        gated = frame.group_by("group").agg((pl.col(f"reward/{name}") * opened).mean().alias("gated"))["gated"]
        rewards[f"{name} given {gate}"] = {
            "mean": round(float(gated.mean()), 4), "stderr": round(float(gated.std()) / math.sqrt(len(gated)), 4)
        }  # fmt: skip
    return {
        **rewards, "all_of": {"names": found["all_of"]["names"], "mean": round(found["all_of"]["mean"], 4)},
        "completion_length": round(found["completion_length"], 1),
    }  # fmt: skip


def overall(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the seeds, and the standard error of the change over the seeds."""
    found: dict[str, Any] = {}
    for name, first in runs[0]["before"].items():
        values = [
            [r[when][name]["mean"] if isinstance(first, dict) else r[when][name] for r in runs]
            for when in ("before", "after")
        ]
        before, after = (sum(v) / len(v) for v in values)
        rises = [b - a for a, b in zip(*values, strict=True)]
        spread = math.sqrt(sum((rise - after + before) ** 2 for rise in rises) / max(len(rises) - 1, 1))
        found[name] = {"before": round(before, 4), "after": round(after, 4), "change": round(after - before, 4),
                       "stderr of the change": round(spread / math.sqrt(len(rises)), 4)}  # fmt: skip
    return {**found, "seconds": round(sum(r["seconds"] for r in runs) / len(runs), 1)}


if __name__ == "__main__":
    main()
