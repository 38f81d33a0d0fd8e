"""What the recipes `dialogue` and `code` reach: held-out rewards before and after, and what each adds to the advantage.

    python benchmarks/recipes_text.py dialogue --methods gdpo grpo --seeds 0 1 2

Runs `gdpo train` as a user would, once for each method and seed, and writes benchmarks/results/recipes_RECIPE.json.
Runs that are finished in the folder are read, not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

RESULTS = Path(__file__).parent / "results"
LIBRARIES = ["torch", "transformers", "trl", "numpy"]


def run(recipe: str, method: str, seed: int, folder: Path) -> Path:
    """The finished run's folder."""
    name = f"{recipe}-{method}-{seed}"
    path = folder / "runs" / name
    record = path / "run.json"
    if not (record.is_file() and json.loads(record.read_text()).get("finished")):
        command = [sys.executable, "-m", "gdpo", "train", recipe, f"method={method}", f"seed={seed}", f"name={name}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr or done.stdout)
    return path


def figures(path: Path) -> dict:
    """Before, after, contribution shares and seconds of a run."""
    before, after = (json.loads((path / "evaluations" / f"{name}.json").read_text()) for name in ("before", "after"))
    steps = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    names = list(before["rewards"])
    return {
        **{
            when: {
                **{name: _short(found["rewards"][name]) for name in names},
                "all at their best": _short(found["all_of"]),
                "completion_length": round(found["completion_length"], 2),
            }
            for when, found in (("before", before), ("after", after))
        },
        "contribution_share": {
            span: {name: _share(steps[start:end], name) for name in names}
            for span, start, end in (("step 1", 0, 1), ("steps 1 to 10", 0, 10), ("all steps", 0, None))
        },
        "groups_tied": {
            span: {name: round(fmean(line[f"rewards/{name}/dead_share"] for line in steps[:end]), 3) for name in names}
            for span, end in (("step 1", 1), ("all steps", None))
        },
        "seconds": round(
            sum(line["seconds"] for line in steps) + before["seconds"] + after["seconds"], 1
        ),
        "prompts": before["prompts"], "samples": before["samples"] // before["prompts"], "steps": len(steps),
    }  # fmt: skip


def _short(value: dict) -> dict:
    return {key: round(value[key], 4) for key in ("mean", "stderr")}


def _share(steps: list[dict], name: str) -> float:
    found = [line[f"rewards/{name}/contribution_share"] for line in steps]
    return round(fmean(value for value in found if value is not None), 4)


def summary(runs: list[dict], method: str) -> dict:
    """Means over seeds; the standard error is over seeds, of the gain."""
    chosen = [entry for entry in runs if entry["method"] == method]
    found: dict = {"gain": {}, "contribution_share": {}}
    for name in [key for key in chosen[0]["before"] if key != "completion_length"]:
        gains = [entry["after"][name]["mean"] - entry["before"][name]["mean"] for entry in chosen]
        spread = math.sqrt(sum((gain - fmean(gains)) ** 2 for gain in gains) / max(1, len(gains) - 1))
        found["gain"][name] = {
            "before": round(fmean(entry["before"][name]["mean"] for entry in chosen), 4),
            "after": round(fmean(entry["after"][name]["mean"] for entry in chosen), 4),
            "gain": round(fmean(gains), 4),
            "stderr": round(spread / math.sqrt(len(gains)), 4),
        }
    for span in chosen[0]["contribution_share"]:
        names = chosen[0]["contribution_share"][span]
        found["contribution_share"][span] = {
            name: round(fmean(entry["contribution_share"][span][name] for entry in chosen), 3) for name in names
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=["dialogue", "code"])
    parser.add_argument("--methods", nargs="+", default=["gdpo"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=Path("."), help="where runs go")
    args = parser.parse_args()
    runs = []
    for seed in args.seeds:
        for method in args.methods:
            entry = {"method": method, "seed": seed, **figures(run(args.recipe, method, seed, args.folder))}
            runs.append(entry)
            print(json.dumps(entry), flush=True)
    result = {
        "command": f"python benchmarks/recipes_text.py {args.recipe} --methods {' '.join(args.methods)} --seeds "
        + " ".join(map(str, args.seeds)),
        "what": "held-out means and their standard errors over prompts, before and after; contribution_share: the part "
        "of each reward in the advantage's variance, mean over steps; step 1 has the same rollouts for all methods",
        "machine": f"{os.cpu_count()} shared cores, {os.environ.get('OMP_NUM_THREADS', 'default')} thread(s)",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "summary": {method: summary(runs, method) for method in args.methods},
        "runs": runs,
    }
    (RESULTS / f"recipes_{args.recipe}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
