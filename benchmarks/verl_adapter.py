"""What the verl adapter's advantages cost beside verl's own `compute_advantage` for gdpo, in time and memory.

Both are called as verl's legacy trainer calls them, through its real `compute_advantage` on a real DataProto: four
rewards by name, groups of 8, every response full length. `gdpo` is that call with the block `algorithm.gdpo`:
advantages and all per-reward metrics. `write` is only making the [B, T] result from finished advantages, the least
that any implementation has to do. Peak memory is what a call allocates beyond its input (by PyTorch's profiler).

    python benchmarks/verl_adapter.py       # in an environment with verl 0.9.1
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
import warnings
from pathlib import Path

warnings.simplefilter("ignore")

import numpy as np
import torch

import gdpo
import gdpo.adapters.verl_plugin  # as the entry point does

NAMES = ["correct", "format", "concise", "style"]


def inputs(rows: int, tokens: int, size: int):
    from verl import DataProto

    generator = np.random.default_rng(0)
    values = np.column_stack([generator.integers(0, 2, (rows, 2)), generator.random((rows, 2))]).astype(np.float64)
    mask = torch.ones(rows, tokens, dtype=torch.int64)
    tensors = {
        "prompts": torch.zeros(rows, 1, dtype=torch.int64), "response_mask": mask,
        "attention_mask": torch.ones(rows, tokens + 1, dtype=torch.int64),
        "token_level_rewards": torch.zeros(rows, tokens),
    }  # fmt: skip
    uid = np.array([f"{row // size:032x}" for row in range(rows)], dtype=object)
    columns = {"uid": uid, **{name: values[:, k] for k, name in enumerate(NAMES)}}
    return DataProto.from_dict(tensors=tensors, non_tensors=columns), values, uid, mask


def seconds(call, rounds: int) -> dict:
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return {"median": statistics.median(times), "least": min(times), "rounds": rounds}


def peak(call) -> int:
    """Largest number of bytes that the call holds at once."""
    with torch.profiler.profile(profile_memory=True) as profile:
        call()
    held = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--verl-rounds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/verl_adapter.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    import verl
    from omegaconf import OmegaConf
    from verl.trainer.ppo.ray_trainer import compute_advantage

    from gdpo.adapters.verl import spread

    data, values, uid, mask = inputs(args.rollouts, args.tokens, args.size)
    ours = OmegaConf.create({"adv_estimator": "gdpo", "gdpo": {"rewards": NAMES}})
    theirs = OmegaConf.create({"adv_estimator": "gdpo", "gdpo_reward_keys": NAMES})
    finished = gdpo.advantages(values, uid)
    rows = np.arange(args.rollouts)

    def call(algorithm):
        data.batch.pop("advantages", None), data.batch.pop("returns", None)
        compute_advantage(data, adv_estimator="gdpo", config=algorithm)
        return data.batch["advantages"]

    found = call(ours)[:, 0].double().numpy()
    assert np.abs(found - finished).max() < 1e-5
    calls = {"gdpo": lambda: call(ours), "write": lambda: spread(finished, rows, mask), "verl": lambda: call(theirs)}
    timed = {name: seconds(run, args.verl_rounds if name == "verl" else args.rounds) for name, run in calls.items()}
    ours_alone, written, theirs_alone = (timed[name]["median"] for name in calls)
    size = args.rollouts * args.tokens * 4
    result = {
        "command": "python benchmarks/verl_adapter.py " + " ".join(sys.argv[1:]),
        "what": f"{args.rollouts} rollouts x {len(NAMES)} rewards x {args.tokens} tokens, groups of {args.size}",
        "versions": {"gdpo": gdpo.__version__, "verl": verl.__version__, "torch": torch.__version__,
                     "numpy": np.__version__, "python": platform.python_version()},
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count(), "threads": args.threads},
        "seconds": timed,
        "times_as_fast": round(timed["verl"]["median"] / timed["gdpo"]["median"], 1),
        "times_as_fast_apart_from_writing": round((theirs_alone - written) / (ours_alone - written), 1),
        "over_writing_the_tensor": round(timed["gdpo"]["median"] / timed["write"]["median"], 2),
        "peak_in_results_of_B_by_T": {name: round(peak(run) / size, 3) for name, run in calls.items()},
    }  # fmt: skip
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
