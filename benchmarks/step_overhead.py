"""What the TRL adapter costs a training step, beside plain TRL: three trainers, each in a process of its own, in turn.

All train nano on the same prompts with the same reward functions and seed; every completion has the same length and the
learning rate is 0, so that each step is the same work. "trl" is TRL's own trainer with `normalize_then_sum`, "metrics"
is `GDPOTrainer`, "table" is `GDPOTrainer` with its rollout table. One step of each makes a round, in an order that
rotates; while one runs, the others wait. A step lasts from the beginning of one to the beginning of the next, so that
logging is in it, and the table's file is waited for. Ratios are taken round by round, of seconds and of processor
seconds. As other work on the machine widens their intervals, what the adapter itself takes is also measured within each
step: its method less TRL's method inside it, and building and writing the table.

    python benchmarks/step_overhead.py
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

os.environ.setdefault("HF_HUB_OFFLINE", "1")

ARMS = ("trl", "metrics", "table")
ASKED = {"metrics": 0.01, "table": 0.02}
"""The largest share of a step that each may add."""


def timed(owner, name: str, seconds: list[float], clock) -> None:
    """Have each call of a function add its duration to ``seconds``."""
    real = getattr(owner, name)

    def wrapped(*args, **kwargs):
        started = clock()
        try:
            return real(*args, **kwargs)
        finally:
            seconds.append(clock() - started)

    setattr(owner, name, wrapped)


def run(arm: str, turns, steps: int, threads: int) -> None:
    """One trainer; ``turns`` says when it may take a step, and gets what the step took."""
    warnings.simplefilter("ignore")
    import datasets
    import torch
    import transformers
    import trl

    import gdpo.adapters.trl as adapter
    import gdpo.rollouts.writer as writer
    from gdpo.training import models, recipe, tasks

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    settings = recipe.load("math")
    objective = settings.build_objective()
    model, tokenizer = models.load("nano")
    inside: dict[str, list[float]] = {key: [] for key in ("theirs", "ours", "build", "write")}
    timed(trl.GRPOTrainer, "_generate_and_score_completions", inside["theirs"], time.perf_counter)
    timed(adapter.GDPOMixin, "_generate_and_score_completions", inside["ours"], time.perf_counter)
    timed(adapter, "table", inside["build"], time.thread_time)
    timed(writer, "write_frame", inside["write"], time.thread_time)
    with tempfile.TemporaryDirectory() as folder:
        config = trl.GRPOConfig(
            folder, use_cpu=True, seed=0, num_generations=settings.num_generations, learning_rate=0.0, max_steps=steps,
            per_device_train_batch_size=settings.per_device_train_batch_size, logging_steps=1, save_strategy="no",
            max_completion_length=settings.max_completion_length, report_to="none", disable_tqdm=True,
            gradient_checkpointing=False, multi_objective_aggregation="normalize_then_sum",
            generation_kwargs={"min_new_tokens": settings.max_completion_length},
        )  # fmt: skip
        rows = datasets.Dataset.from_list(tasks.load(settings.data, 256).train)
        common = {"args": config, "train_dataset": rows, "processing_class": tokenizer}
        if arm == "trl":
            trainer = trl.GRPOTrainer(model, objective.functions(), **common)
        else:
            table = f"{folder}/rollouts" if arm == "table" else None
            trainer = adapter.GDPOTrainer(model, objective=objective, rollouts_folder=table, **common)
        trainer.remove_callback(transformers.trainer_callback.PrinterCallback)

        class InTurn(transformers.TrainerCallback):
            started = (0.0, 0.0)

            def on_step_begin(self, args, state, control, **kwargs):
                if state.global_step:
                    self.report()
                turns.recv()
                for values in inside.values():
                    values.clear()
                self.started = time.perf_counter(), time.process_time()

            def on_train_end(self, args, state, control, **kwargs):
                self.report()

            def report(self):
                if arm == "table":
                    trainer._gdpo_writer.flush()
                wall, processor = time.perf_counter() - self.started[0], time.process_time() - self.started[1]
                added = sum(inside["ours"]) - sum(inside["theirs"]) if arm != "trl" else 0.0
                length = [line["completions/mean_length"] for line in trainer.state.log_history if "loss" in line][-1]
                turns.send({
                    "wall": wall, "processor": processor, "added": added,
                    "writer": sum(inside["write"]) + sum(inside["build"]),
                    "length": length,
                })  # fmt: skip

        trainer.add_callback(InTurn())
        turns.recv()  # the whole set-up is done
        trainer.train()


def rounds(steps: int, warm: int, threads: int) -> dict[str, list[dict[str, float]]]:
    """What each step took, by arm."""
    context = multiprocessing.get_context("spawn")
    ends, started = {}, []
    for arm in ARMS:
        ends[arm], there = context.Pipe()
        started.append(context.Process(target=run, args=(arm, there, steps + warm, threads), daemon=True))
        started[-1].start()
        there.close()
    found: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for arm in ARMS:
        ends[arm].send("start")
    for index in range(steps + warm):
        order = [ARMS[(index + place) % 3] for place in range(3)]
        for arm in order if index % 2 else order[::-1]:
            ends[arm].send("go")
            found[arm].append(ends[arm].recv())
        if index >= warm:
            shown = ", ".join(f"{arm} {values[-1]['wall']:.3f} s" for arm, values in found.items())
            print(f"round {index - warm + 1}: {shown}", flush=True)
    for process in started:
        process.join()
    return {arm: values[warm:] for arm, values in found.items()}


def ratio(ours: list[float], theirs: list[float]) -> dict[str, object]:
    """Median of the paired ratios, and its interval by bootstrap over the pairs."""
    ratios = np.array(ours) / np.array(theirs)
    draws = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return {"median": round(float(np.median(ratios)), 4), "interval_95": [round(float(low), 4), round(float(high), 4)]}


def summary(found: dict[str, list[dict[str, float]]]) -> dict[str, object]:
    """For each of our trainers: paired ratios, and the share of a step measured inside the adapter."""
    step = statistics.median(one["wall"] for one in found["trl"])
    result: dict[str, object] = {"trl_step_seconds": round(step, 4)}
    for arm in ARMS[1:]:
        own = {key: statistics.median(one[key] for one in found[arm]) for key in ("added", "writer")}
        # The writer's thread works beside the training; its processor time counts here as if it did not.
        share = statistics.median(
            (one["added"] + one["writer"]) / theirs["wall"]
            for one, theirs in zip(found[arm], found["trl"], strict=True)
        )
        result[arm] = {
            "ratio_of_seconds": ratio(*([one["wall"] for one in found[name]] for name in (arm, "trl"))),
            "ratio_of_processor_seconds": ratio(*([one["processor"] for one in found[name]] for name in (arm, "trl"))),
            "seconds_in_the_adapter": round(own["added"], 5), "seconds_in_the_writers_thread": round(own["writer"], 5),
            "share_of_a_step": round(share, 5), "asked_at_most": ASKED[arm], "met": share <= ASKED[arm],
        }  # fmt: skip
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, help="rounds that count")
    parser.add_argument("--warm", type=int, default=3, help="rounds before them")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/step_overhead.json"))
    args = parser.parse_args()
    found = rounds(args.steps, args.warm, args.threads)
    from importlib.metadata import version

    import gdpo
    from gdpo.training import recipe

    settings = recipe.load("math")
    lengths = {one["length"] for values in found.values() for one in values}
    result = {
        "command": " ".join(["python benchmarks/step_overhead.py", *sys.argv[1:]]),
        "what": "a training step of GDPOTrainer beside plain TRL's, round by round",
        **summary(found),
        "rounds": args.steps, "seed": 0, "learning_rate": 0.0, "model": "nano",
        "rewards": len(settings.objective.rewards), "rollouts_a_step": settings.per_device_train_batch_size,
        "tokens_a_completion": sorted(lengths),
        "seconds": {arm: [round(one["wall"], 4) for one in values] for arm, values in found.items()},
        "processor_seconds": {arm: [round(one["processor"], 4) for one in values] for arm, values in found.items()},
        "versions": {"gdpo": gdpo.__version__, "python": platform.python_version(),
                     **{name: version(name) for name in ("trl", "torch", "transformers", "accelerate", "polars")}},
        "machine": {"cpus": os.cpu_count(), "threads": args.threads, "platform": platform.platform()},
    }  # fmt: skip
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({arm: result[arm] for arm in ARMS[1:]}, indent=1))


if __name__ == "__main__":
    main()
