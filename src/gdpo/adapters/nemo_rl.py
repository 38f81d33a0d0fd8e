"""NeMo-RL: its ``gdpo`` advantage estimator replaced, and nothing else.

A launch is wrapped, its config says what is wanted by name::

    python -m gdpo.adapters.nemo_rl examples/run_grpo.py --config my.yaml

    grpo:
      adv_estimator:
        name: gdpo
        gdpo: {weights: {correctness: 1.0, format: 0.5}, gates: {format: "correctness >= 1"}}

NeMo-RL has no registry of estimators, so ``install()`` puts a class of this module in the place of its
``GDPOAdvantageEstimator``, in every module that has imported it. The estimator travels to Ray actors by this module's
name and installs itself there. Read against NeMo-RL of 2026-08 (7ea279abf), which is not on PyPI.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from gdpo.adapters.metrics import step_metrics
from gdpo.adapters.nemo_rl_config import WHERE, read_settings
from gdpo.adapters.nemo_rl_hooks import TRACKED, install, restored, track, version
from gdpo.core.compute import Estimate
from gdpo.core.errors import Error
from gdpo.objective import Objective, Progress
from gdpo.rollouts import RolloutWriter, rollout_frame
from gdpo.rollouts.nemo_rl import split_content


@dataclass
class Part:
    """What one call of ``compute_advantage`` leaves for the log: a step's batch, or a chunk of it."""

    scores: Any
    estimate: Estimate
    lengths: list[int]
    metrics: dict[str, float]
    include: Any = None
    """[B] bool: which rollouts counted; None: all."""


@dataclass
class Pending:
    """Computed, and not yet logged."""

    parts: list[Part] = field(default_factory=list)
    content: list[Any] | None = None
    """Texts of each rollout, message by message, from NeMo-RL's own JSONL."""


class GDPOAdvantageEstimator:
    """Takes the place of NeMo-RL's class of this name, with its constructor and ``compute_advantage``."""

    def __init__(self, estimator_config: Any, loss_config: Any) -> None:
        self.settings = read_settings(estimator_config)
        self._start()

    def _start(self) -> None:
        self.pending = Pending()
        self.writer: RolloutWriter | None = None
        self.step, self._state = restored()
        if self.settings.objective is not None:
            self._load(self.settings.objective)
        track(self)

    def __getstate__(self) -> dict[str, Any]:
        moved = self.settings.objective.state_dict() if self.settings.objective is not None else self._state
        return {"settings": self.settings, "step": self.step, "state": moved}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # In an actor nothing has been installed yet, and its logger and checkpoints are the ones that count.
        install()
        self.settings = state["settings"]
        self._start()
        self.step, self._state = state["step"], state["state"]

    @property
    def objective(self) -> Objective | None:
        """Rewards, weights, gates and method; None before the first batch where the config names no rewards."""
        return self.settings.objective

    def compute_advantage(
        self, prompt_ids: Any, rewards: Any, mask: Any, repeated_batch: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        """[B, S] advantages, one value a rollout.

        Args:
            prompt_ids: [B, P] token ids of the padded prompts, or [B] ids; equal rows are a group.
            rewards: [B] the total, not used.
            mask: [B, S] 1 for tokens in the loss.
            repeated_batch: the batch, with ``reward/NAME`` (or ``reward1``, ...) [B] for each reward; NaN is missing.
            kwargs: ``valid_mask`` [B], 0 for rollouts that do not count; also taken from the batch. Others are
                NeMo-RL's for other estimators.

        Returns:
            A view of [B] that repeats along the tokens, as NeMo-RL's own, in the components' dtype.
        """
        keys = component_keys(repeated_batch)
        objective = self.settings.bind(list(keys))
        self._load(objective)
        columns = [torch.as_tensor(repeated_batch[keys[name]]) for name in objective.names]
        scores = torch.stack([column.detach().cpu().double() for column in columns], 1).numpy()
        group = group_ids(prompt_ids)
        if len(group) != len(scores):
            raise Error(f"prompt_ids has {len(group)} rows, but the components have {len(scores)}")
        lengths = mask.sum(1).cpu()
        include = self._included(repeated_batch, kwargs, lengths)
        extra: dict[str, Any] = {} if include is None else {"include": include}
        if objective.options.get("batch_norm") == "token":
            extra["lengths"] = lengths.double().numpy()
        progress = Progress(self.step)
        estimate = objective.advantages(scores, group, progress, **extra)
        metrics = step_metrics(objective, estimate, scores, group, progress, **extra)
        objective.observe(scores, estimate, progress)
        self.pending.parts.append(Part(scores, estimate, lengths.long().tolist(), metrics, include))
        dtype = columns[0].dtype if columns[0].is_floating_point() else torch.float32
        return torch.as_tensor(estimate.advantages).to(mask.device, dtype).unsqueeze(-1).expand(mask.shape)

    def _included(self, batch: Mapping[str, Any], given: Mapping[str, Any], lengths: Any) -> Any:
        """[B] bool: which rollouts count, None where all do."""
        valid = given.get("valid_mask")
        if valid is None:
            valid = batch.get("valid_mask")
        include = np.ones(len(lengths), dtype=bool)
        if valid is not None:
            include &= torch.as_tensor(valid).cpu().reshape(len(lengths)).numpy() != 0
        if self.settings.masked == "out":
            include &= lengths.numpy() > 0
        return None if include.all() else include

    def _load(self, objective: Objective) -> None:
        if self._state is not None:
            objective.load_state_dict(self._state)
            self._state = None

    def state_dict(self) -> dict[str, Any]:
        """What of the objective has moved, and the step."""
        moved = self.settings.objective.state_dict() if self.settings.objective is not None else self._state
        return {"step": self.step, "objective": moved}

    def finish(self, step: int, folder: str) -> dict[str, float]:
        """Close a step: its metrics (means over its chunks), its rollouts handed to the writer.

        Args:
            step: as NeMo-RL counts, from 1.
            folder: NeMo-RL's log folder.
        """
        done, self.pending = self.pending, Pending()
        self.step = step
        if not done.parts:
            return {}
        if self.settings.rollouts_folder is not None and self.objective is not None:
            if self.writer is None:
                self.writer = RolloutWriter(Path(folder) / self.settings.rollouts_folder)
            metadata = {"gdpo.framework": f"nemo_rl {version()}", "gdpo.objective": self.objective.to_yaml()}
            content = done.content if self.settings.rollouts_text else None
            task = self.settings.task
            self.writer.put(step, lambda: _table(step, done.parts, content, task), metadata)
        return {
            f"gdpo/{name}": float(np.mean([part.metrics[name] for part in done.parts]))
            for name in done.parts[0].metrics
        }


def component_keys(batch: Mapping[str, Any]) -> dict[str, str]:
    """Reward name -> key of the batch: ``reward/NAME``, or ``reward1``, ``reward2`` of NeMo-RL 0.6 and 0.7.

    Raises:
        Error: there is none.
    """
    keys = sorted(key for key in batch if isinstance(key, str) and key.startswith("reward/"))
    if keys:
        return {key.removeprefix("reward/"): key for key in keys}
    numbered = [key for key in batch if isinstance(key, str) and re.fullmatch(r"reward\d+", key)]
    if not numbered:
        raise Error(
            "this batch has no reward components (keys reward/NAME): let the environment's step return a dict of "
            "rewards, or set grpo.adv_estimator.name=grpo; under the single controller list them in its advantage "
            f"config's repeated_batch_fields. It has {sorted(str(key) for key in batch)}"
        )
    return {key: key for key in sorted(numbered, key=lambda key: int(key.removeprefix("reward")))}


def group_ids(prompts: Any) -> Any:
    """[B] ids by the bytes of the prompt rows, without a loop; equal rows have equal ids.

    Args:
        prompts: [B, P] integers, or [B].
    """
    rows = np.ascontiguousarray(torch.as_tensor(prompts).detach().cpu().numpy())
    if rows.ndim == 1:
        return np.unique(rows, return_inverse=True)[1]
    rows = rows.reshape(len(rows), -1)
    # A sum of products modulo 2^64 sorts 8 bytes a row instead of all; whether it kept rows apart is then checked.
    factors = np.random.default_rng(0).integers(1, 2**63, rows.shape[1], dtype=np.uint64) | np.uint64(1)
    mixed = (rows.astype(np.int64, copy=False).view(np.uint64) * factors).sum(1, dtype=np.uint64)
    _, first, ids = np.unique(mixed, return_index=True, return_inverse=True)
    if (rows == rows[first[ids]]).all():
        return ids
    return np.unique(rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel(), return_inverse=True)[
        1
    ]


def _table(step: int, parts: list[Part], content: list[Any] | None, task: str) -> pl.DataFrame:
    """A step's rollouts; groups of different chunks are different groups."""
    total, frames, groups, start = sum(len(part.scores) for part in parts), [], 0, 0
    texts = content if content is not None and len(content) == total else [""] * total
    prompts, completions = zip(*map(split_content, texts), strict=True)
    for part in parts:
        count = len(part.scores)
        frame = rollout_frame(
            step=step, prompts=prompts[start : start + count], completions=completions[start : start + count],
            lengths=part.lengths, names=part.estimate.names, scores=part.scores,
            group=np.asarray(part.estimate.group) + groups, estimate=part.estimate, task=task,
            include=part.include,
        )  # fmt: skip
        frames.append(frame)
        start, groups = start + count, groups + len(part.estimate.live)
    rollout = pl.Series("rollout", [f"{step}-{row}" for row in range(total)])
    return pl.concat(frames).with_columns(rollout)


def main(arguments: list[str]) -> None:
    """``python -m gdpo.adapters.nemo_rl SCRIPT ARGS...``: install, then run the script as if it had been called."""
    if not arguments or arguments[0].startswith("-"):
        raise SystemExit("usage: python -m gdpo.adapters.nemo_rl SCRIPT ARGS...")
    script = Path(arguments[0])
    if not script.is_file():
        raise SystemExit(f"{script} is no file; the script that launches NeMo-RL was expected")
    sys.path[0] = str(script.resolve().parent)
    try:
        install()
    except Error as error:
        raise SystemExit(str(error)) from None
    print(f"gdpo: NeMo-RL's gdpo estimator is replaced; {WHERE} says what it does", flush=True)
    sys.argv = arguments
    runpy.run_path(str(script), run_name="__main__")


__all__ = ["TRACKED", "GDPOAdvantageEstimator", "component_keys", "group_ids", "install", "main"]

if __name__ == "__main__":
    # Not the copy that runs as __main__: estimators are pickled by their module's name.
    from gdpo.adapters.nemo_rl import main as real_main

    real_main(sys.argv[1:])
