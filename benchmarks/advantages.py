"""Advantages: time, memory and error of this package beside what people run, in one process, in turn.

- gdpo, on PyTorch and on NumPy;
- TRL: the statements of its own trainer, taken from the installed source and run alone;
- verl: its own `compute_gdpo_outcome_advantage` (one token a rollout), if verl is installed;
- NeMo-RL: its formula (`gdpo.preset("nemo_rl")`; NeMo-RL is not on PyPI);
- multireward-grpo: its own `compute_advantage_batch`, if installed (no batch norm, no missing rewards);
- a plain copy of the paper's equations in a few lines of PyTorch.

Errors are against the same formula in 50 digits (mpmath), each with its own eps.

    pip install "gdpo[train,bench]"; pip install --no-deps verl==0.9.1 multireward-grpo==0.1.1   # and verl's own needs
    python benchmarks/advantages.py
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import inspect
import json
import os
import platform
import sys
import textwrap
import time
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import mpmath
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gdpo

MAIN = (65_536, 8, 16)
Run = Callable[[], object]


def plain(rewards: torch.Tensor, size: int, weights: torch.Tensor) -> torch.Tensor:
    """The paper's equations 4 to 6 as one would write them down, missing rewards left out."""
    grouped = rewards.view(-1, size, rewards.shape[1])
    deviation = grouped - grouped.nanmean(1, keepdim=True)
    present = (~grouped.isnan()).sum(1, keepdim=True)
    spread = ((deviation**2).nansum(1, keepdim=True) / (present - 1)).sqrt()
    total = ((deviation / (spread + 1e-4)).nan_to_num() * weights).sum(-1).flatten()
    return (total - total.mean()) / (total.std() + 1e-4)


def trl_function() -> Callable[[torch.Tensor, int, torch.Tensor], torch.Tensor]:
    """TRL's own statements for `normalize_then_sum`, from the source that is installed."""
    from trl.trainer import grpo_trainer

    source = textwrap.dedent(inspect.getsource(grpo_trainer.GRPOTrainer._generate_and_score_completions))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and "'normalize_then_sum'" in ast.unparse(node.test):
            body = ast.Module(node.body, [])
            break
    else:
        raise SystemExit("TRL's normalize_then_sum was not found in its source")
    code = compile(ast.fix_missing_locations(body), "trl", "exec")

    def run(rewards: torch.Tensor, size: int, weights: torch.Tensor) -> torch.Tensor:
        trainer = SimpleNamespace(reward_weights=weights, reward_funcs=[None] * rewards.shape[1])
        names = {
            "self": trainer, "rewards_per_func": rewards, "num_generations": size, "device": rewards.device,
            "unscorable_mask": torch.isnan(rewards).all(dim=1),
        }  # fmt: skip
        exec(code, {**vars(grpo_trainer)}, names)
        return torch.nan_to_num(names["advantages"], nan=0.0)

    return run


def verl_function() -> Callable[[torch.Tensor, int, torch.Tensor], torch.Tensor] | None:
    try:
        from verl.trainer.ppo import core_algos
    except ImportError:
        return None

    def run(rewards: torch.Tensor, size: int, weights: torch.Tensor) -> torch.Tensor:
        rows, count = rewards.shape
        names, mask = [f"r{k}" for k in range(count)], torch.ones(rows, 1)
        found, _ = core_algos.compute_gdpo_outcome_advantage(
            torch.zeros(rows, 1), mask, np.arange(rows) // size,
            config={"gdpo_reward_keys": names, "gdpo_reward_weights": weights.tolist()},
            non_tensor_batch={name: rewards[:, k].numpy() for k, name in enumerate(names)},
            batch={"prompts": torch.zeros(rows, 1), "attention_mask": torch.ones(rows, 2, dtype=torch.long)},
        )  # fmt: skip
        return found[:, 0]

    return run


def multireward_function() -> Callable[[torch.Tensor, int, torch.Tensor], np.ndarray] | None:
    try:
        from multireward_grpo.advantage import compute_advantage_batch
    except ImportError:
        return None

    def run(rewards: torch.Tensor, size: int, weights: torch.Tensor) -> np.ndarray:
        return compute_advantage_batch(rewards.numpy().reshape(-1, size, rewards.shape[1]), weights.numpy()).ravel()

    return run


def make(rows: int, count: int, missing: float = 0.0, seed: int = 0) -> np.ndarray:
    """Half of the rewards yes/no, half dense, float32."""
    generator = np.random.default_rng(seed)
    rewards = generator.random((rows, count), dtype=np.float32)
    rewards[:, ::2] = rewards[:, ::2] > 0.5
    if missing:
        rewards[generator.random(rewards.shape) < missing] = np.nan
    return rewards


def ragged_ids(rows: int, seed: int = 0) -> np.ndarray:
    """Consecutive groups of 4 to 28 rollouts, 16 on average."""
    sizes = np.random.default_rng(seed).integers(4, 29, rows // 8)
    ids = np.repeat(np.arange(len(sizes)), sizes)[:rows]
    assert len(ids) == rows
    return ids


def in_turn(runs: dict[str, Run], rounds: int, budget: float) -> dict[str, dict[str, float]]:
    """Milliseconds of each, taken in turn; one that would take longer than ``budget`` seconds runs once."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name, run in runs.items():
            if number and sum(taken[name]) + taken[name][0] > budget * 1e3:
                continue
            started = time.perf_counter()
            run()
            first = (time.perf_counter() - started) * 1e3
            if first < budget * 50:  # quick ones are warmed up by a call that does not count
                started = time.perf_counter()
                run()
                first = (time.perf_counter() - started) * 1e3
            taken[name].append(first)
    return {
        name: {"median": round(float(np.median(times)), 3), "least": round(min(times), 3), "calls": len(times)}
        for name, times in taken.items()
    }


class LiveTensors(TorchDispatchMode):
    """The most bytes that tensors made by operations held at once (a kernel's own scratch is not seen)."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for given in args:  # what no operation has made was there before
            if isinstance(given, torch.Tensor):
                self.known.add(given.untyped_storage().data_ptr())
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        return result

    def _see(self, storage) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        if place in self.known or not size:
            return
        self.known.add(place)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, place, size)

    def _forget(self, place: int, size: int) -> None:
        self.known.discard(place)
        self.live -= size


def peak_bytes(run: Run, library: str) -> int:
    run()
    if library == "numpy":
        tracemalloc.start()
        run()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak
    with LiveTensors() as seen:
        run()
    return seen.peak


def reference(rewards: np.ndarray, size: int, eps: str, norm_eps: str, norm: str = "std", ddof: int = 1) -> np.ndarray:
    """GDPO in 50 digits; ``norm`` is "std", "variance" (eps under the root) or "none"."""
    mpmath.mp.dps = 50
    rows, count = rewards.shape
    total = [mpmath.mpf(0)] * rows
    for start in range(0, rows, size):
        for k in range(count):
            values = [mpmath.mpf(float(rewards[row, k])) for row in range(start, start + size)]
            mean = mpmath.fsum(values) / size
            spread = mpmath.sqrt(mpmath.fsum((v - mean) ** 2 for v in values) / (size - ddof))
            if max(values) > min(values):
                for row, value in zip(range(start, start + size), values, strict=True):
                    total[row] += (value - mean) / (spread + mpmath.mpf(eps))
    if norm == "none":
        return np.array([float(value) for value in total])
    mean = mpmath.fsum(total) / rows
    variance = mpmath.fsum((value - mean) ** 2 for value in total) / (rows - 1)
    eps_ = mpmath.mpf(norm_eps)
    scale = mpmath.sqrt(variance + eps_) if norm == "variance" else mpmath.sqrt(variance) + eps_
    return np.array([float((value - mean) / scale) for value in total])


def errors(functions: dict[str, Callable]) -> list[dict[str, object]]:
    """Largest absolute error on 512 x 4 in groups of 8 on several offsets."""
    found = []
    eps = {"verl": ("1e-6", "1e-8", "variance"), "multireward-grpo": ("1e-8", "0", "none", 0)}
    for offset in (0.0, 1e3, 1e5, 1e6):
        near = make(512, 4, seed=1).astype(np.float64) + offset
        row: dict[str, object] = {"offset": offset}
        for name, function in functions.items():
            choice = eps.get(name, ("1e-4", "1e-4"))
            for dtype in (np.float32, np.float64) if name.startswith("gdpo") else (np.float32,):
                values = near.astype(dtype)
                exact = reference(values, 8, *choice)
                given = values if name == "gdpo (NumPy)" else torch.tensor(values)
                result = np.asarray(
                    function(
                        given,
                        8,
                        torch.ones(
                            4, dtype=given.dtype if dtype is np.float64 and torch.is_tensor(given) else torch.float32
                        ),
                    ),
                    dtype=np.float64,
                )
                row[f"{name}, {np.dtype(dtype).name}"] = float(np.abs(result - exact).max())
        found.append(row)
    return found


def versions() -> dict[str, str]:
    known = {"python": platform.python_version()}
    for package in ("gdpo", "numpy", "torch", "trl", "verl", "multireward-grpo", "mpmath"):
        try:
            known[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            known[package] = "not installed"
    return known


def collect(rounds: int) -> dict[str, object]:
    trl, verl, multireward = trl_function(), verl_function(), multireward_function()
    nemo = gdpo.preset("nemo_rl")
    rows, count, size = MAIN
    rewards, missing, ids = make(rows, count), make(rows, count, 0.1), ragged_ids(rows)
    tensor, holed, tensor_ids, weights = (
        torch.tensor(rewards),
        torch.tensor(missing),
        torch.tensor(ids),
        torch.ones(count),
    )
    runs: dict[str, Run] = {
        "gdpo (PyTorch)": lambda: gdpo.advantages(tensor, size),
        "gdpo (NumPy)": lambda: gdpo.advantages(rewards, size),
        "TRL": lambda: trl(tensor, size, weights),
        "plain copy": lambda: plain(tensor, size, weights),
        "gdpo (PyTorch), ragged": lambda: gdpo.advantages(tensor, tensor_ids),
        "gdpo (NumPy), ragged": lambda: gdpo.advantages(rewards, ids),
        "gdpo (PyTorch), 10 % missing": lambda: gdpo.advantages(holed, size),
        "gdpo (NumPy), 10 % missing": lambda: gdpo.advantages(missing, size),
        "TRL, 10 % missing": lambda: trl(holed, size, weights),
        "NeMo-RL's formula": lambda: nemo.advantages(tensor, size),
    }
    if verl:
        runs["verl"] = lambda: verl(tensor, size, weights)
    if multireward:
        runs["multireward-grpo"] = lambda: multireward(tensor, size, weights)
    main = in_turn(runs, rounds, budget=3.0)
    print(json.dumps(main, indent=1), flush=True)
    memory = {
        name: peak_bytes(runs[name], "numpy" if "NumPy" in name else "torch")
        for name in ("gdpo (PyTorch)", "gdpo (NumPy)", "TRL", "plain copy", "gdpo (PyTorch), ragged",
                     "gdpo (NumPy), ragged", "gdpo (PyTorch), 10 % missing", "gdpo (NumPy), 10 % missing")
    }  # fmt: skip
    sweeps: dict[str, list[dict[str, object]]] = {"rollouts": [], "rewards": [], "group size": []}
    shapes = [("rollouts", (n, 8, 16)) for n in (512, 4096, 32_768, 65_536, 262_144, 1_048_576)]
    shapes += [("rewards", (65_536, n, 16)) for n in (1, 2, 4, 8, 16, 32, 64)]
    shapes += [("group size", (65_536, 8, n)) for n in (4, 8, 16, 32, 64)]
    for axis, shape in shapes:
        values = make(*shape[:2])
        given, ones = torch.tensor(values), torch.ones(shape[1])
        some = {
            "gdpo (PyTorch)": lambda given=given, shape=shape: gdpo.advantages(given, shape[2]),
            "gdpo (NumPy)": lambda values=values, shape=shape: gdpo.advantages(values, shape[2]),
            "TRL": lambda given=given, shape=shape, ones=ones: trl(given, shape[2], ones),
            "plain copy": lambda given=given, shape=shape, ones=ones: plain(given, shape[2], ones),
        }
        if verl and shape[0] <= 4096:
            some["verl"] = lambda given=given, shape=shape, ones=ones: verl(given, shape[2], ones)
        times = in_turn(some, max(3, rounds // 4), budget=1.0)
        sweeps[axis].append({"rollouts": shape[0], "rewards": shape[1], "group size": shape[2], "milliseconds": times})
        print(axis, shape, {name: entry["median"] for name, entry in times.items()}, flush=True)
    functions = {
        "gdpo (PyTorch)": lambda r, s, w: gdpo.advantages(r, s),
        "gdpo (NumPy)": lambda r, s, w: gdpo.advantages(r, s),
        "TRL": trl, "plain copy": plain,
        **({"verl": verl} if verl else {}), **({"multireward-grpo": multireward} if multireward else {}),
    }  # fmt: skip
    return {
        "main": {"rollouts": rows, "rewards": count, "group size": size, "dtype": "float32", "milliseconds": main,
                 "input_bytes": rewards.nbytes, "peak_extra_bytes": memory},
        "ratios": ratios(main, memory, rewards.nbytes), "sweeps": sweeps, "largest_error": errors(functions),
    }  # fmt: skip


def ratios(main: dict[str, dict[str, float]], memory: dict[str, int], size: int) -> dict[str, float]:
    def over(one: str, other: str) -> float:
        return round(main[one]["median"] / main[other]["median"], 3)

    found = {
        "gdpo / TRL": over("gdpo (PyTorch)", "TRL"),
        "gdpo / plain copy": over("gdpo (PyTorch)", "plain copy"),
        "NumPy / PyTorch": over("gdpo (NumPy)", "gdpo (PyTorch)"),
        "ragged / dense, PyTorch": over("gdpo (PyTorch), ragged", "gdpo (PyTorch)"),
        "ragged / dense, NumPy": over("gdpo (NumPy), ragged", "gdpo (NumPy)"),
        "missing / complete, PyTorch": over("gdpo (PyTorch), 10 % missing", "gdpo (PyTorch)"),
        "missing / complete, NumPy": over("gdpo (NumPy), 10 % missing", "gdpo (NumPy)"),
        "NeMo-RL's formula / gdpo": over("NeMo-RL's formula", "gdpo (PyTorch)"),
        **{f"memory over input, {name}": round(peak / size, 2) for name, peak in memory.items()},
    }
    if "verl" in main:
        found["verl / gdpo"] = over("verl", "gdpo (PyTorch)")
    if "multireward-grpo" in main:
        found["multireward-grpo / gdpo (NumPy)"] = over("multireward-grpo", "gdpo (NumPy)")
    return found


def plot(results: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 4, figsize=(16, 3.8), layout="constrained")
    colours = {
        "gdpo (PyTorch)": "#0b6e4f",
        "gdpo (NumPy)": "#6aa84f",
        "TRL": "#c0504d",
        "plain copy": "#888888",
        "verl": "#7f4fc9",
    }
    for axis, (what, points) in zip(axes, results["sweeps"].items(), strict=False):
        for name, colour in colours.items():
            known = [(p[what], p["milliseconds"][name]["median"]) for p in points if name in p["milliseconds"]]
            if known:
                axis.loglog(*zip(*known, strict=True), "o-", label=name, color=colour, markersize=3.5)
        fixed = [k for k in ("rollouts", "rewards", "group size") if k != what]
        axis.set_title(
            ", ".join(f"{points[0][k]:,} {k}" if k != "group size" else f"groups of {points[0][k]}" for k in fixed)
        )
        axis.set_xlabel(what)
    axes[0].set_ylabel("milliseconds, two CPU cores")
    axes[0].legend(frameon=False, fontsize=8)
    rows = results["largest_error"]
    for name, colour in colours.items():
        axes[3].semilogy(
            range(len(rows)), [row.get(f"{name}, float32", float("nan")) for row in rows], "o-", color=colour
        )
    axes[3].set_xticks(range(len(rows)), [f"{row['offset']:g}" for row in rows])
    axes[3].set_xlabel("offset of the rewards")
    axes[3].set_title("largest error, float32 input")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/advantages.json"))
    parser.add_argument("--plot", type=Path, default=Path("docs/images/advantages.png"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results = {
        "command": "python " + " ".join([Path("benchmarks", Path(sys.argv[0]).name).as_posix(), *sys.argv[1:]]),
        "versions": versions(),
        "machine": {"platform": platform.platform(), "threads": args.threads, "cpus": os.cpu_count()},
        "seed": 0, **collect(args.rounds),
    }  # fmt: skip
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(results, indent=1) + "\n")
    args.plot.parent.mkdir(parents=True, exist_ok=True)
    plot(results, args.plot)
    print(json.dumps(results["ratios"], indent=1))
    print(json.dumps(results["largest_error"], indent=1))


if __name__ == "__main__":
    main()
