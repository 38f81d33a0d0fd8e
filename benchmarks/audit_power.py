"""How surely the audit finds planted faults, and how often it is wrong on clean runs.

    python benchmarks/audit_power.py                # 200 seeds; writes benchmarks/results/audit_power.json
    python benchmarks/audit_power.py --seeds 10     # printed only

A simulated run has 8 steps x 32 groups x 8 rollouts and three rewards: right or wrong (prompts differ in difficulty),
well-formed or not, and a quality between 0 and 1. Each fault is planted in it at several doses; a dose of 0 is a clean
run of the same kind, on which no finding but a note may stand.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gdpo.audit.run import audit
from gdpo.rollouts import Batch, Dump, Summary

RESULTS = Path(__file__).parent / "results" / "audit_power.json"
STEPS, GROUPS, SIZE = 8, 32, 8
NAMES = ["correct", "format", "quality"]
Floats = Any


def clean(rng: np.random.Generator) -> dict[str, Floats]:
    """[steps, groups, size] of each reward, and the completions' lengths."""
    shape = (STEPS, GROUPS, SIZE)
    ease = rng.beta(2, 2, shape[:2])[..., None]
    return {
        "correct": (rng.random(shape) < ease).astype(float),
        "format": (rng.random(shape) < rng.beta(4, 3, shape[:2])[..., None]).astype(float),
        "quality": np.clip(rng.normal(0.5, 0.18, shape) + 0.1 * rng.normal(size=shape[:2])[..., None], 0, 1),
        "length": rng.normal(200, 40, shape),
    }


def mixed(one: Floats, other: Floats, correlation: float) -> Floats:
    """``other`` turned so that it correlates with ``one`` within groups."""

    def unit(x: Floats) -> Floats:
        centered = x - x.mean(-1, keepdims=True)
        return centered / np.maximum(np.sqrt((centered**2).mean(-1, keepdims=True)), 1e-9)

    base, rest = unit(one), unit(other)
    rest = unit(rest - base * (rest * base).mean(-1, keepdims=True))
    return correlation * base + np.sqrt(1 - correlation**2) * rest


def dominating(rewards: dict[str, Floats], dose: float, rng: np.random.Generator) -> dict[str, Any]:
    rewards["quality"] = rewards["quality"] * (1 + dose * 0.47 / 0.18)  # spread of a yes/no reward: 0.47
    return {"method": "grpo"}


def dead(rewards: dict[str, Floats], dose: float, rng: np.random.Generator) -> dict[str, Any]:
    tied = rng.random((STEPS, GROUPS, 1)) < dose
    rewards["format"] = np.where(tied, rewards["format"][..., :1], rewards["format"])
    return {}


def saturated(rewards: dict[str, Floats], dose: float, rng: np.random.Generator) -> dict[str, Any]:
    """The mean of ``format`` moves to within 1 - dose of its bound of 1."""
    if dose:
        rewards["format"] = (rng.random((STEPS, GROUPS, SIZE)) < dose).astype(float)
    return {"bounds": {"format": (0.0, 1.0), "correct": (0.0, 1.0), "quality": (0.0, 1.0)}}


def duplicate(rewards: dict[str, Floats], dose: float, rng: np.random.Generator) -> dict[str, Any]:
    if dose:
        rewards["format"] = mixed(rewards["quality"], rng.normal(size=(STEPS, GROUPS, SIZE)), dose)
    return {}


def fighting(rewards: dict[str, Floats], dose: float, rng: np.random.Generator) -> dict[str, Any]:
    if dose:
        rewards["format"] = mixed(rewards["quality"], rng.normal(size=(STEPS, GROUPS, SIZE)), -dose)
    return {}


def noisy(rewards: dict[str, Floats], dose: float, rng: np.random.Generator) -> dict[str, Any]:
    """``quality`` is a judge's score near 0.5 whose last digits jitter in some groups: dose is the share of |A|."""
    if dose:
        # Of three rewards each makes about a third of |A|; the jittered one may make up to all of its own.
        share = min(1.0, dose * 3)
        jitter = rng.random((STEPS, GROUPS, 1)) < share
        rewards["quality"] = np.where(
            jitter, 0.5 + 1e-8 * rng.normal(size=rewards["quality"].shape), rewards["quality"]
        )
    return {"options": {"eps": 0.0}}


def lengthy(rewards: dict[str, Floats], dose: float, rng: np.random.Generator) -> dict[str, Any]:
    if dose:
        rewards["quality"] = 0.5 + 0.15 * mixed(rewards["length"], rng.normal(size=(STEPS, GROUPS, SIZE)), dose)
    return {}


def closed(rewards: dict[str, Floats], dose: float, rng: np.random.Generator) -> dict[str, Any]:
    """The gate of ``quality`` opens for 1 - dose of the rollouts."""
    if dose:
        rewards["format"] = np.where(
            rng.random((STEPS, GROUPS, SIZE)) < 1 - dose, 2.0, np.minimum(rewards["format"], 1.0)
        )
        return {"gates": {"quality": "format >= 2"}}
    return {"gates": {"quality": "correct >= 1"}}


def missing(rewards: dict[str, Floats], dose: float, rng: np.random.Generator) -> dict[str, Any]:
    rewards["quality"] = np.where(rng.random((STEPS, GROUPS, SIZE)) < dose, np.nan, rewards["quality"])
    return {}


def drifting(rewards: dict[str, Floats], dose: float, rng: np.random.Generator) -> dict[str, Any]:
    """The mean of ``quality`` falls by ``dose`` of its standard deviations from the first third to the last."""
    ramp = np.linspace(0, 1, STEPS)
    reach = ramp[-STEPS // 3 :].mean() - ramp[: STEPS // 3].mean()
    rewards["quality"] = rewards["quality"] - dose * 0.2 / reach * ramp[:, None, None]
    return {}


FAULTS: dict[str, tuple[Callable[..., dict[str, Any]], set[str], list[float]]] = {
    "dominating scale (times the spread)": (dominating, {"dominance", "scale"}, [0, 3, 5, 10, 20]),
    "dead (share of groups)": (dead, {"dead"}, [0, 0.5, 0.7, 0.8, 0.9]),
    "saturated (mean, bound 1)": (saturated, {"saturation"}, [0, 0.9, 0.95, 0.97, 0.985]),
    "duplicate (correlation)": (duplicate, {"redundancy"}, [0, 0.8, 0.9, 0.95, 0.98]),
    "fighting (minus the correlation)": (fighting, {"conflict"}, [0, 0.3, 0.5, 0.6, 0.7]),
    "noise (share of |A|)": (noisy, {"noise"}, [0, 0.05, 0.1, 0.2, 0.3]),
    "length (correlation)": (lengthy, {"length"}, [0, 0.3, 0.5, 0.6, 0.7]),
    "gate that never opens (share closed)": (closed, {"gate"}, [0, 0.9, 0.95, 0.98, 0.995]),
    "missing (share)": (missing, {"missing"}, [0, 0.05, 0.1, 0.2, 0.4]),
    "drift (standard deviations)": (drifting, {"drift"}, [0, 0.5, 1, 1.5, 2]),
}
"""What plants it, the findings that name it, the doses; the last is the one that must be found."""


def audited(fault: str, dose: float, seed: int) -> set[str]:
    """The findings above a note."""
    plant = FAULTS[fault][0]
    rng = np.random.default_rng([seed, list(FAULTS).index(fault)])
    rewards = clean(rng)
    settings = {"method": "gdpo", **plant(rewards, dose, rng)}
    batches = []
    for step in range(STEPS):
        scores = np.stack([rewards[name][step].reshape(-1) for name in NAMES], 1)
        rows = pl.DataFrame({
            "rollout": [f"{step}-{row}" for row in range(len(scores))],
            "length": np.maximum(rewards["length"][step].reshape(-1), 1).astype(np.int64),
        })  # fmt: skip
        batches.append(Batch(step + 1, scores, np.repeat(np.arange(GROUPS), SIZE), rows))
    dump = Dump(NAMES, "gdpo", {}, Summary(format="simulated", rewards=NAMES), lambda: iter(batches), {})
    return {finding.id for finding in audit(dump, **settings).findings if finding.severity != "note"}


def table(seeds: int) -> dict[str, Any]:
    """For each fault and dose the share of seeds in which it was found by name, and in which anything else was."""
    rows = {}
    for fault, (_, ids, doses) in FAULTS.items():
        rows[fault] = {}
        for dose in doses:
            found = [audited(fault, dose, seed) for seed in range(seeds)]
            rows[fault][str(dose)] = {
                "found": round(float(np.mean([bool(one & ids) for one in found])), 4),
                "others": {
                    name: round(float(np.mean([name in one for one in found])), 4)
                    for name in sorted(set().union(*found) - ids)
                },
            }
            print(f"{fault:40} {dose:6} {rows[fault][str(dose)]}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    args = parser.parse_args()
    started = time.perf_counter()
    rows = table(args.seeds)
    clean_runs = [rows[fault]["0"] for fault in rows]
    wrong = [cell["found"] + sum(cell["others"].values()) for cell in clean_runs]
    least = min(list(rows[fault].values())[-1]["found"] for fault in rows)
    print(f"at the last dose found in at least {least:.1%}")
    print(f"clean runs with a finding: {np.mean(wrong):.2%} on average, {max(wrong):.2%} at most")
    if args.seeds >= 200:
        results = {
            "command": "python benchmarks/audit_power.py", "seeds": args.seeds,
            "steps": STEPS, "groups": GROUPS, "size": SIZE,
            "versions": {"python": platform.python_version(), **{name: version(name) for name in ("gdpo", "numpy")}},
            "seconds": round(time.perf_counter() - started), "least found at the last dose": least,
            "clean runs with a finding, mean": round(float(np.mean(wrong)), 5), "by fault and dose": rows,
        }  # fmt: skip
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
