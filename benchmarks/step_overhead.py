"""What the TRL adapter costs: training steps of plain TRL and of gdpo's trainer, in turn, in one process.

Both train nano on the same prompts with the same reward functions; every completion has the same length and the
learning rate is 0, so that both do the same work. TRL uses its own `normalize_then_sum`; gdpo's trainer computes its
advantages and metrics and writes the rollout table of every step. Blocks of steps alternate; the ratio is taken pair by
pair. On a noisy machine that ratio's interval is wide, so the seconds that the adapter adds (its method, less TRL's
inside it) are also measured directly, within each step.

    python benchmarks/step_overhead.py
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.simplefilter("ignore")

import datasets
import numpy as np
import torch
import transformers
import trl

import gdpo
from gdpo.adapters import trl as adapter
from gdpo.training import models, recipe, tasks


def timed(kind: type) -> list[float]:
    """Seconds of each call of a trainer class's ``_generate_and_score_completions``, as they come."""
    seconds: list[float] = []
    real = kind._generate_and_score_completions

    def wrapped(self, inputs):
        started = time.perf_counter()
        output = real(self, inputs)
        seconds.append(time.perf_counter() - started)
        return output

    kind._generate_and_score_completions = wrapped
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12, help="pairs of blocks")
    parser.add_argument("--steps", type=int, default=4, help="steps in a block; the first is not counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/step_overhead.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    settings = recipe.load("math")
    rows = datasets.Dataset.from_list(tasks.load(settings.data, 256).train)
    objective = settings.build_objective()
    model, tokenizer = models.load("nano")

    inside, around = timed(trl.GRPOTrainer), timed(adapter.GRPOTrainer)

    with tempfile.TemporaryDirectory() as folder:

        def trainer(ours: bool):
            config = trl.GRPOConfig(
                folder, use_cpu=True, seed=0, num_generations=settings.num_generations, learning_rate=0.0,
                per_device_train_batch_size=settings.per_device_train_batch_size, max_steps=args.steps,
                max_completion_length=settings.max_completion_length, logging_steps=1, save_strategy="no",
                report_to="none", disable_tqdm=True, gradient_checkpointing=False,
                multi_objective_aggregation="normalize_then_sum",
                generation_kwargs={"min_new_tokens": settings.max_completion_length},
            )  # fmt: skip
            common = {"args": config, "train_dataset": rows, "processing_class": tokenizer}
            if ours:
                made = adapter.GRPOTrainer(model, objective=objective, rollouts_folder=folder, **common)
            else:
                made = trl.GRPOTrainer(model, objective.functions(), **common)
            made.remove_callback(transformers.trainer_callback.PrinterCallback)
            return made

        def block(ours: bool) -> float:
            made = trainer(ours)
            inside.clear()
            around.clear()
            made.train()
            if ours:
                added.extend(whole - part for whole, part in zip(around[1:], inside[1:], strict=True))
            times = [line["step_time"] for line in made.state.log_history if "step_time" in line]
            return statistics.median(times[1:])

        added: list[float] = []
        block(True), block(False)  # warm-up
        added.clear()
        pairs = []
        for index in range(args.pairs):
            # The order changes from pair to pair, so that a drift of the machine cancels.
            first = index % 2 == 0
            one, two = block(first), block(not first)
            pairs.append((one, two) if first else (two, one))
            print(f"pair {index + 1}: gdpo {pairs[-1][0]:.3f} s, TRL {pairs[-1][1]:.3f} s", flush=True)
    ratios = np.array([ours / theirs for ours, theirs in pairs])
    draws = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    result = {
        "command": "python benchmarks/step_overhead.py " + " ".join(sys.argv[1:]),
        "what": "seconds of a training step, gdpo's trainer over plain TRL's, pair by pair",
        "ratio_median": round(float(np.median(ratios)), 4),
        "ratio_interval_95": [round(float(low), 4), round(float(high), 4)],
        "added_seconds_median": round(statistics.median(added), 5),
        "added_share_of_a_step": round(statistics.median(added) / statistics.median(pair[1] for pair in pairs), 5),
        "gdpo_seconds": [round(pair[0], 4) for pair in pairs],
        "trl_seconds": [round(pair[1], 4) for pair in pairs],
        "rollouts_a_step": settings.per_device_train_batch_size,
        "tokens_a_completion": settings.max_completion_length,
        "versions": {"gdpo": gdpo.__version__, "trl": trl.__version__, "torch": torch.__version__,
                     "transformers": transformers.__version__, "python": platform.python_version()},
        "machine": {"cpus": os.cpu_count(), "threads": args.threads, "platform": platform.platform()},
    }  # fmt: skip
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"ratio {result['ratio_median']} (95 % interval {low:.4f} to {high:.4f})")
    print(f"added {1000 * statistics.median(added):.1f} ms a step, {100 * result['added_share_of_a_step']:.2f} %")


if __name__ == "__main__":
    main()
