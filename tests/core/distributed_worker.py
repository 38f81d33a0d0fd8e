"""What each process of test_distributed runs: torchrun ... distributed_worker.py CASE. Prints one JSON line a rank."""

import json
import os
import sys
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

import gdpo
from gdpo import distributed
from gdpo.core.estimators import METHODS


def batch(seed):
    """48 rollouts, 3 rewards, ragged groups, some values missing, one tied group."""
    generator = np.random.default_rng(seed)
    rewards = generator.random((48, 3)).round(2)
    rewards[:, 0] = rewards[:, 0] > 0.5
    rewards[generator.random((48, 3)) < 0.15] = np.nan
    ids = np.sort(generator.integers(0, 9, 48))
    rewards[ids == ids[0]] = 0.7
    return rewards, ids


def spreads(rows, size):
    """Ways to spread rows over ranks: even, uneven, empty ranks, dealt out one by one (every group is split)."""
    yield np.array_split(np.arange(rows), size)
    cut = np.sort(np.random.default_rng(size).integers(0, rows, size - 1))
    yield np.split(np.arange(rows), cut)
    yield [np.arange(rows) if rank == size - 1 else np.arange(0) for rank in range(size)]
    yield [np.arange(rows)[rank::size] for rank in range(size)]


def inputs(rewards, ids, kind):
    rows = len(rewards)
    generator = np.random.default_rng(7)
    return {
        "plain": {},
        "weights by rollout": {"weights": generator.random((rows, 3)) * [1, -1, 2]},
        "labels": {"batch_ids": np.where(ids % 2 == 0, "maths", "code")},
        "include": {"include": generator.random(rows) > 0.2},
        "options": {"baseline": "leave-one-out", "clip": 1.5, "ddof": 0, "eps_in": "variance"},
        "tokens": {"batch_norm": "token", "lengths": generator.integers(1, 50, rows)},
    }[kind]


def check_equal(rank, size):
    worst, count = 0.0, 0
    for library in ("numpy", "torch"):
        for seed, kind in enumerate(("plain", "weights by rollout", "labels", "include", "options", "tokens")):
            rewards, ids = batch(seed)
            extra = inputs(rewards, ids, kind)
            for method in METHODS if library == "numpy" or kind == "plain" else ("gdpo", "corr_grpo"):
                given = {"bounds": [(0, 1)] * 3, **extra}
                whole = gdpo.estimate(rewards, ids, method, **given)
                for part in spreads(len(rewards), size):
                    rows = part[rank]
                    mine = {k: v[rows] if isinstance(v, np.ndarray) else v for k, v in given.items()}
                    here = torch.tensor(rewards[rows]) if library == "torch" else rewards[rows]
                    found = distributed.estimate(here, ids[rows], method, **mine)
                    for name in ("advantages", "contributions"):
                        error = np.abs(np.asarray(getattr(found, name)) - getattr(whole, name)[rows])
                        worst = max(worst, error.max(initial=0.0))
                    alone = distributed.advantages(here, ids[rows], method, **mine)
                    assert np.array_equal(np.asarray(alone), np.asarray(found.advantages)), (method, kind)
                    count += 1
    return {"worst": worst, "count": count}


def check_public_case(rank, size):
    """A group across ranks (ZJU-REAL/SpatialLadder issue 1, huggingface/trl issue 3842)."""
    rewards = np.array([[1, 0], [0, 1], [1, 1], [0, 0], [1, 1], [1, 0], [0, 0], [1, 0]])
    rows = np.array_split(np.arange(8), size)[rank]
    return {"rows": rows.tolist(), "advantages": distributed.advantages(rewards[rows], 4, "gdpo").tolist()}


def check_segments(rank, size):
    """Rows of one rollout on different ranks count once."""
    rewards, ids, rollouts = [[1.0], [1.0], [1.0], [0.0], [0.0]], ["q"] * 5, ["a", "a", "a", "b", "c"]
    rows = list(range(5))[rank::size]
    found = distributed.advantages(
        np.array([rewards[row] for row in rows]).reshape(-1, 1), [ids[row] for row in rows],
        rollouts=[rollouts[row] for row in rows],
    )  # fmt: skip
    return {"rows": rows, "advantages": found.tolist()}


def check_stream(rank, size):
    norm, alone = gdpo.RunningNorm(0.9), gdpo.RunningNorm(0.9)
    worst = 0.0
    for seed in range(4):
        rewards, ids = batch(seed)
        rows = np.arange(48)[rank::size]
        whole = gdpo.advantages(rewards, ids, running=alone)
        found = distributed.advantages(rewards[rows], ids[rows], running=norm)
        worst = max(worst, float(np.abs(found - whole[rows]).max()))
    return {"worst": worst, "state": norm.state_dict()}


def check_error(rank, size):
    """Each kind of bad input on the last rank only: the same sentence everywhere, and nobody waits."""
    rewards, ids = batch(0)
    last, good, said = rank == size - 1, {"weights": [1.0, 1.0, 1.0]}, []
    infinite = rewards.copy()
    infinite[3, 1] = np.inf
    tries = [
        (infinite if last else rewards, ids, good),
        (rewards, ids, {"weights": [1.0, np.nan, 1.0] if last else [1.0, 1.0, 1.0]}),
        (rewards[:, :2] if last else rewards, ids, {}),
        (rewards, ids[:5] if last else ids, {}),
        (rewards, ids, {"eps": 1e-3 if last else 1e-4}),
        (rewards, ids, {"method": "grpo" if last else "gdpo"}),
        (rewards, ids, {"names": ["a", "b", "x"] if last else ["a", "b", "c"]}),
        (rewards, ids, {"weights": (-1 if last else 1) * np.ones((48, 3))}),
        (rewards[: 47 if last else 48], 4, {}),
        ("nonsense" if last else rewards, ids, {}),
        (rewards, ids, {"method": "sa_mrpo"}),
        (rewards, ids, {"method": "rvpo", "kappa": -1}),
        (rewards, ids, {"weights": [0.0, 0.0, 0.0]}),
        (rewards, ids, {"include": [True] if last else [True] * 48}),
    ]
    for values, groups, options in tries:
        start = time.perf_counter()
        try:
            distributed.advantages(values, groups, **options)
            said.append("nothing")
        except gdpo.Error as error:
            said.append(str(error))
        assert time.perf_counter() - start < 10
    tied = distributed.estimate(rewards, ids, weights=np.zeros((48, 3)))  # by rollout they may all be 0
    assert not np.asarray(tied.contributions).any()
    mixed = distributed.advantages(rewards, ids + 100 * rank, weights=np.full((48, 3), float(last)))
    assert np.asarray(mixed).any() == last
    found = distributed.advantages(rewards, ids + 100 * rank)  # and the ranks still agree
    return {"said": said, "after": float(np.abs(found).sum())}


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    result = globals()[f"check_{sys.argv[1]}"](rank, size)
    with open(os.path.join(sys.argv[2], f"{rank}.json"), "w") as file:
        json.dump(result, file)
    dist.destroy_process_group()
