"""Small run folders made up for the tests of the report: believable curves, and completions that mean harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gdpo.core import compute

REWARDS = ["correct", "format", "integer"]
HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<!-- <script> --> <img src=x onerror='window.hacked = 2'>",
    "line\u2028separator\u2029paragraph and \u202ereversed\u202c text",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 bell\x07 null\x00 [bold]markup[/bold] [/red]",
    "{{ 7 * 7 }} {% raw %} ]]> &lt;b&gt; \"quotes\" 'single' `tick`",
    '[{"role": "assistant", "content": "<b>bold</b> \\ud800 lone"}]',
    '[{"role": "assistant", "content": null, "tool_calls": [{"name": "<i>"}]}]',
    "",
    "x" * 1_000_000,
]


def write_run(
    folder: Path,
    steps: int = 60,
    seed: int = 0,
    method: str = "gdpo",
    after: bool = True,
    hostile: bool = True,
    gain: float = 1.0,
) -> Path:
    """A run folder of ``steps`` steps, 8 groups of 8 rollouts each."""
    random = np.random.default_rng(seed)
    for name in ("rollouts", "evaluations"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    info: dict[str, Any] = {
        "schema": 1, "gdpo": "0.1.0", "recipe": "math", "name": folder.name, "seed": seed,
        "method": method, "model": "nano", "rewards": REWARDS,
        "command": f"gdpo train math method={method} seed={seed}", "created": "2026-05-04T10:20:30+00:00",
        "versions": {"python": "3.12.4", "torch": "2.9.1", "transformers": "5.1.0", "trl": "1.16.0", "numpy": "2.4.6"},
        "machine": {"cpus": 2, "platform": "Linux"},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(info))
    (folder / "recipe.yaml").write_text(f"recipe: math\nmodel: nano\nmethod: {method}\nsteps: 60 # all\nseed: {seed}\n")
    lines = []
    for step in range(1, steps + 1):
        table = _step(random, step, method, hostile, gain)
        table.write_parquet(folder / "rollouts" / f"step-{step:06d}.parquet")
        lines.append(json.dumps(_metrics(table, step, random)))
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    _evaluate(folder, "before", random, 0.0, hostile)
    if after:
        _evaluate(folder, "after", random, gain, hostile)
    return folder


def write_sweep(folder: Path, seeds: int = 3, partial: bool = False) -> Path:
    """A compare folder with two methods; with ``partial`` one run failed early and one has not begun."""
    runs = []
    for method in ("grpo", "gdpo"):
        for seed in range(seeds):
            name, status = f"method={method},seed={seed}", "done"
            if partial and (method, seed) == ("gdpo", 2):
                status = "pending"
            elif partial and (method, seed) == ("grpo", 2):
                status = "failed"
                write_run(folder / name, steps=9, seed=seed, method=method, after=False, hostile=False)
            else:
                write_run(
                    folder / name,
                    steps=30,
                    seed=seed,
                    method=method,
                    hostile=False,
                    gain=0.6 if method == "grpo" else 1.0,
                )
                (folder / name / "report.html").write_text("<!doctype html><title>run</title>")
            runs.append({"folder": name, "values": {"method": method, "seed": seed}, "status": status})
    sweep = {"method": ["grpo", "gdpo"], "seed": list(range(seeds))}
    (folder / "compare.json").write_text(json.dumps({"schema": 1, "recipe": "math", "sweep": sweep, "runs": runs}))
    return folder


def _chances(step: float, gain: float) -> list[float]:
    progress = gain * (1 - np.exp(-step / 25))
    return [0.42 + 0.25 * progress, 0.45 + 0.5 * progress, 0.8 + 0.15 * progress]


def _answers(random: np.random.Generator, count: int, hostile: bool) -> tuple[list[str], list[str]]:
    prompts, completions = [], []
    for _ in range(count):
        one, two = random.integers(2, 99, 2)
        prompts.append(f"What is {one} + {two}? Think first, then answer inside the tags.")
        completions.append(
            f"<think>{one} + {two}: I add the tens, then the ones.</think>\n<answer>{one + two}</answer>"
        )
        if hostile and random.random() < 0.06:
            completions[-1] = HOSTILE[int(random.integers(len(HOSTILE)))]
    return prompts, completions


def _scores(random: np.random.Generator, chances: list[float], groups: int, size: int) -> np.ndarray[Any, Any]:
    columns = []
    for chance in chances:
        skill = np.clip(random.normal(chance, 0.22, groups), 0, 1).repeat(size)
        columns.append((random.random(groups * size) < skill).astype(float))
    return np.stack(columns, axis=1)


def _step(random: np.random.Generator, step: int, method: str, hostile: bool, gain: float) -> pl.DataFrame:
    scores = _scores(random, _chances(step, gain), 8, 8)
    estimate = compute.estimate(scores, 8, method=method)
    prompts, _ = _answers(random, 8, False)
    _, completions = _answers(random, 64, hostile)
    columns: dict[str, Any] = {
        "step": [step] * 64,
        "group": [row // 8 for row in range(64)],
        "rollout": [f"{step}-{row}" for row in range(64)],
        "task": ["chain_sum"] * 64,
        "prompt": [prompts[row // 8] for row in range(64)],
        "completion": completions,
        "length": random.integers(20, 44, 64).tolist(),
    }
    for index, name in enumerate(REWARDS):
        raw: list[float | None] = scores[:, index].tolist()
        if name == "integer" and step % 7 == 0:
            raw[5] = None
        columns |= {f"reward/{name}": raw, f"gated/{name}": scores[:, index], f"weight/{name}": [1.0] * 64}
        columns |= {
            f"normalized/{name}": estimate.normalized[:, index],
            f"contribution/{name}": estimate.contributions[:, index],
        }
    return pl.DataFrame(columns | {"advantage": estimate.advantages})


def _metrics(table: pl.DataFrame, step: int, random: np.random.Generator) -> dict[str, Any]:
    advantage = table["advantage"].to_numpy()
    row: dict[str, Any] = {
        "step": step, "loss": float(random.normal(0, 0.01)), "learning_rate": 5e-4, "kl": 0.001 * step, "seconds": 1.5,
        "entropy": 1.2 * float(np.exp(-step / 50)), "completion_length": float(np.mean(table["length"].to_numpy())),
    }  # fmt: skip
    if step == 4:
        row["loss"] = float("nan")
    scores = np.stack([table[f"gated/{name}"].to_numpy() for name in REWARDS], axis=1).reshape(8, 8, 3)
    for index, name in enumerate(REWARDS):
        part = table[f"contribution/{name}"].to_numpy()
        values = scores[:, :, index]
        row[f"rewards/{name}/mean"] = float(values.mean())
        row[f"rewards/{name}/group_std"] = float(values.std(axis=1, ddof=1).mean())
        row[f"rewards/{name}/dead_share"] = float((np.ptp(values, axis=1) == 0).mean())
        row[f"rewards/{name}/contribution_share"] = float((advantage * part).mean() / max((advantage**2).mean(), 1e-9))
        row[f"rewards/{name}/weight"] = 1.0
    live = [group for group in scores if np.ptp(group, axis=0).any()]
    situations = {tuple(sorted(map(tuple, group.tolist()))) for group in live}
    sums = {tuple(np.round(np.sort(group.sum(axis=1) - group.sum(axis=1).mean()), 9)) for group in live}
    row |= {"dead_share": 1 - len(live) / 8, "live_groups": len(live), "distinct_reward_vectors": len(situations)}
    return row | {"distinct_advantages": len(situations), "distinct_advantages_grpo": max(1, len(sums) - 1)}


def _evaluate(folder: Path, name: str, random: np.random.Generator, gain: float, hostile: bool) -> None:
    scores = _scores(random, _chances(60 if gain else 0, gain), 64, 2)
    prompts, _ = _answers(np.random.default_rng(99), 64, False)
    _, completions = _answers(random, 128, hostile)
    columns: dict[str, Any] = {
        "step": [0 if name == "before" else 60] * 128, "group": [row // 2 for row in range(128)],
        "rollout": [f"{name}-{row}" for row in range(128)], "task": ["chain_sum"] * 128,
        "prompt": [prompts[row // 2] for row in range(128)], "completion": completions,
        "length": random.integers(20, 44, 128).tolist(),
    }  # fmt: skip
    columns |= {f"reward/{reward}": scores[:, index] for index, reward in enumerate(REWARDS)}
    pl.DataFrame(columns).write_parquet(folder / "evaluations" / f"{name}.parquet")

    def score(values: np.ndarray[Any, Any]) -> dict[str, float]:
        mean = float(values.mean())
        return {"mean": mean, "stderr": float(values.std(ddof=1) / np.sqrt(64)), "pass": mean, "missing": 0}

    value = {
        "step": 0 if name == "before" else 60, "prompts": 64, "samples": 128, "temperature": 1.0,
        "rewards": {reward: score(scores[:, index]) for index, reward in enumerate(REWARDS)},
        "all_of": {"names": ["correct", "format"], **score(scores[:, 0] * scores[:, 1])},
        "completion_length": 31.0, "truncated": 0.02, "seconds": 9.1,
    }  # fmt: skip
    (folder / "evaluations" / f"{name}.json").write_text(json.dumps(value))
