"""Simulated dumps, clean or with one planted fault, to know how often the audit is right.

A clean run has four rewards as runs have them: ``correct`` (yes or no, by prompts of all difficulties), ``style`` and
``clear`` (graded), and ``safe`` (yes or no, seldom no); lengths, slight correlations, slight learning, a few missing
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from gdpo.audit.chunks import Floats
from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.rollouts.dump import Batch, Dump, Summary

NAMES = ("correct", "style", "clear", "safe")


@dataclass(eq=False)
class Run:
    """A run in the making: S steps of G groups of N rollouts."""

    random: np.random.Generator
    scores: Floats
    """[S, G, N, R]."""
    lengths: Floats
    """[S, G, N] characters."""
    latent: Floats
    """[S, G, N] what ``style`` is graded from, about 0 in each group with spread 1."""
    method: str = "gdpo"
    gates: dict[str, str] | None = None


@dataclass(frozen=True)
class Fault:
    """A fault that can be planted."""

    finding: str
    """Id of the finding that must name it."""
    reward: str
    """The reward it is planted in, which the finding must be about."""
    dose: float
    """What the calibration asks for."""
    doses: tuple[float, ...]
    """From none on, for the table of power."""
    plant: Callable[[Run, float], None]
    meaning: str


def clean(seed: int, steps: int = 8, groups: int = 32, size: int = 8) -> Run:
    """A run without faults. Every other seed uses grpo."""
    random = np.random.default_rng(seed)
    shape = (steps, groups, size)
    skill = random.uniform(-0.5, 0.8) + 0.3 * np.linspace(0, 1, steps)[:, None, None]
    difficulty = random.normal(0, 1.0, (steps, groups, 1))
    quality = random.normal(size=shape)
    mixing = random.uniform(-0.2, 0.2, 3)
    latents = [quality] + [m * quality + np.sqrt(1 - m * m) * random.normal(size=shape) for m in mixing]
    correct = (skill + difficulty + latents[0] > 0).astype(float)
    level = random.normal(0, 0.3, (steps, groups, 1))
    style = 0.6 + 0.15 * level + 0.25 * latents[1]
    clear = 3.0 + 0.2 * random.normal(size=(steps, groups, 1)) + random.uniform(0.3, 0.8) * latents[2]
    safe = (latents[3] > random.uniform(-1.0, -0.5)).astype(float)
    bond = random.uniform(-0.25, 0.25)
    lengths = 200 + 40 * (bond * latents[1] + random.normal(size=shape)) + 30 * difficulty
    scores = np.stack([correct, style, clear, safe], -1)
    scores[..., 2][random.random(shape) < random.uniform(0, 0.05)] = np.nan
    method = "gdpo" if seed % 2 else "grpo"
    return Run(random, scores, np.maximum(lengths, 1), latents[1], method)


def simulate(fault: str | None, seed: int, dose: float | None = None, **shape: int) -> Dump:
    """A dump with one fault planted, or a clean one.

    Args:
        fault: a key of ``FAULTS``; None for a clean run.
        seed: of everything random.
        dose: how strong; None is the fault's own dose.
        shape: ``steps``, ``groups`` (a step) and ``size`` (rollouts a group).

    Raises:
        Error: an unknown fault.
    """
    run = clean(seed, **shape)
    if fault is not None:
        if fault not in FAULTS:
            raise Error(f"fault {fault!r} is unknown{nearest(fault, FAULTS)}")
        FAULTS[fault].plant(run, FAULTS[fault].dose if dose is None else dose)
    return _dump(run)


def _dump(run: Run) -> Dump:
    steps, groups, size, _ = run.scores.shape
    group = np.repeat(np.arange(groups), size)

    def read() -> Iterator[Batch]:
        for step in range(steps):
            rows = pl.DataFrame({
                "rollout": [f"{step}-{row}" for row in range(len(group))],
                "length": np.round(run.lengths[step].reshape(-1)).astype(np.int64),
            })  # fmt: skip
            yield Batch(step, run.scores[step].reshape(len(group), -1), group, rows)

    config: dict[str, Any] = {"method": run.method, "rewards": {}}
    for name, gate in (run.gates or {}).items():
        config["rewards"][name] = {"given": gate}
    rollouts = steps * groups * size
    summary = Summary("simulated", 0, rollouts, steps * groups, {size: steps * groups}, list(range(steps)), list(NAMES))
    return Dump(list(NAMES), "gdpo", {}, summary, read, {"objective": config})


def _scale(run: Run, dose: float) -> None:
    spread = np.nanmean([np.nanstd(run.scores[..., k], axis=2).mean() for k in (0, 2, 3)])
    run.method = "grpo"
    run.scores[..., 1] = dose * spread * run.latent


def _dead(run: Run, dose: float) -> None:
    silent = run.random.random(run.scores.shape[:2]) < dose
    constant = run.random.uniform(0.2, 0.9, silent.shape)
    run.scores[silent, :, 1] = constant[silent][:, None]


def _saturated(run: Run, dose: float) -> None:
    run.scores[..., 3] = (run.random.random(run.lengths.shape) >= dose).astype(float)


def _duplicate(run: Run, dose: float) -> None:
    noise = run.random.normal(size=run.latent.shape)
    run.scores[..., 2] = 2 + 0.5 * (dose * run.latent + np.sqrt(1 - dose**2) * noise)


def _fighting(run: Run, dose: float) -> None:
    _duplicate(run, dose)


def _noise(run: Run, dose: float) -> None:
    """One reward on a scale of 1000 that hardly varies, so that ``dose`` of |A| rests on differences of 5e-4."""
    steps, groups, _ = run.lengths.shape
    run.method = "gdpo"
    run.scores[..., 1] = 1000.0
    share = 1.38 * dose / (1.38 * dose + 0.66 * (1 - dose))  # of the groups; their |A| is about half that of the others
    whole = run.random.random((steps, groups)) < share
    run.scores[whole, :, :] = np.array([1.0, 1000.0, 3.0, 1.0])
    run.scores[whole, :, 1] += 5e-4 * run.latent[whole]


def _length(run: Run, dose: float) -> None:
    noise = run.random.normal(size=run.latent.shape)
    run.lengths[...] = np.maximum(200 + 40 * (dose * run.latent + np.sqrt(1 - dose**2) * noise), 1)


def _gate(run: Run, dose: float) -> None:
    run.scores[..., 3] = (run.random.random(run.lengths.shape) < dose).astype(float)
    run.gates = {"style": "safe >= 1"}


def _missing(run: Run, dose: float) -> None:
    run.scores[..., 2][run.random.random(run.lengths.shape) < dose] = np.nan


def _drift(run: Run, dose: float) -> None:
    """The mean of ``style`` falls by ``dose`` of its standard deviations from the first step to the last."""
    spread = np.nanstd(run.scores[..., 1])
    run.scores[..., 1] -= dose * spread * np.linspace(0, 1, len(run.scores))[:, None, None]


FAULTS = {
    "scale": Fault("dominance", "style", 20.0, (1, 2, 3, 5, 10, 20), _scale,
                   "spread of one reward over that of the others, summed by grpo"),
    "dead": Fault("dead", "style", 0.9, (0, 0.3, 0.5, 0.7, 0.8, 0.9), _dead, "share of groups in which it is tied"),
    "saturated": Fault("saturation", "safe", 0.02, (0.2, 0.1, 0.05, 0.03, 0.02, 0.01), _saturated,
                       "distance of the mean from its bound"),
    "duplicate": Fault("redundancy", "clear", 0.98, (0, 0.5, 0.8, 0.9, 0.95, 0.98), _duplicate,
                       "correlation of two rewards"),
    "fighting": Fault("conflict", "clear", -0.7, (0, -0.2, -0.4, -0.5, -0.6, -0.7), _fighting,
                      "correlation of two rewards"),
    "noise": Fault("noise", "style", 0.3, (0, 0.05, 0.1, 0.15, 0.2, 0.3), _noise,
                   "share of |A| from differences of 5e-7 of the scale"),
    "length": Fault("length", "style", 0.7, (0, 0.2, 0.4, 0.5, 0.6, 0.7), _length, "correlation with length"),
    "gate": Fault("gate", "style", 0.008, (0.2, 0.05, 0.03, 0.02, 0.01, 0.008), _gate, "share that the gate lets in"),
    "missing": Fault("missing", "clear", 0.4, (0, 0.05, 0.1, 0.2, 0.3, 0.4), _missing, "share without a value"),
    "drift": Fault("drift", "style", 2.0, (0, 0.5, 1, 1.25, 1.5, 2), _drift, "standard deviations, first step to last"),
}  # fmt: skip
"""By name."""
