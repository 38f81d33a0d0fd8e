"""verl: correct advantages from several rewards, by one block in its config.

With gdpo installed beside verl 0.9 (its entry point ``verl.plugins`` does the rest), a run asks for it::

    algorithm:
      adv_estimator: gdpo
      gdpo:
        rewards: [correct, format, concise]     # names in what your compute_score returns
        weights: {correct: 1.0, format: {schedule: ramp, start: 0.2, end: 1.0, steps: 100}, concise: 0.5}
        gates: {concise: "correct >= 1"}
        rollouts_folder: rollouts

Without the block nothing changes. Both trainers work: v1 (``trainer.use_v1``, verl's default) and the legacy one.
Generation, rewards, KL, rollout correction, loss and checkpoints stay verl's; only the advantages are gdpo's. This
module holds one run's state (``Session``); ``verl_hooks`` puts it into verl's classes, ``verl_config`` reads the block.
"""

from __future__ import annotations

import copy
import json
import math
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdpo.adapters.metrics import step_metrics
from gdpo.adapters.verl_config import KL, Settings
from gdpo.core.compute import Estimate
from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.objective import Progress
from gdpo.rollouts import rollout_frame
from gdpo.rollouts.writer import RolloutWriter

STATE_FILE = "gdpo.json"
"""What moved, in verl's checkpoint folder ``global_step_N``."""


@dataclass(eq=False)
class Batch:
    """The rollouts of one step as verl holds them: n rollouts in B rows."""

    scores: NDArray[np.float64]
    """[n, R] raw rewards in the order of ``Settings.names``, NaN where missing."""
    groups: Any
    """[n] verl's uid of each rollout's prompt."""
    row: NDArray[np.int64]
    """[B] which rollout a row belongs to; -1 for verl's padding. Rows of one rollout are its segments."""
    final: NDArray[np.int64]
    """[n] the last row of each rollout."""
    ids: Sequence[str] = ()
    """[n] what verl calls each rollout."""
    text: Callable[[], tuple[Any, Any]] | None = None
    """-> prompts and responses [n] as token ids; called at once where the rollout table is written."""
    metrics: dict[str, Any] | None = None
    """Where the metrics go."""
    used: bool = field(default=False, init=False)


class Session:
    """One run's objective and what goes with it: progress, state, metrics, the rollout table.

    Args:
        settings: the run's block.
        trainer: verl's trainer, for the step, the tokenizer and the checkpoint folder; None in a bare call of
            ``compute_advantage``.
    """

    def __init__(self, settings: Settings, trainer: Any = None) -> None:
        self.settings, self.objective = settings, settings.objective
        self._trainer = (lambda: None) if trainer is None else weakref.ref(trainer)
        self.tokens, self.calls = 0, 0
        folder = settings.rollouts_folder
        self.writer = None if folder is None else RolloutWriter(folder)
        self.metrics: dict[str, float] = {}
        """Those of the last step."""
        self._parts: list[Any] = []
        self._checked = False
        self._tokenizer: Any = None
        if settings.kl == "reward":
            warnings.warn(
                f"algorithm.use_kl_in_reward: the penalty of each rollout enters the advantages as reward {KL!r}, "
                "not divided by its spread, so that kl_coef keeps its meaning; algorithm.gdpo.kl=ignore leaves it "
                "out, actor_rollout_ref.actor.use_kl_loss=true puts it into the loss", stacklevel=2,
            )  # fmt: skip
        elif settings.kl == "ignore":
            warnings.warn("algorithm.use_kl_in_reward has no effect on the advantages: algorithm.gdpo.kl is 'ignore'",
                          stacklevel=2)  # fmt: skip

    @property
    def trainer(self) -> Any:
        """verl's trainer, or None."""
        return self._trainer()

    def progress(self) -> Progress:
        """Where the run stands: steps done before this one."""
        steps = getattr(self.trainer, "global_steps", None)
        done = self.calls if steps is None else max(int(steps) - 1, 0)
        return Progress(done, getattr(self.trainer, "total_training_steps", None), self.tokens)

    def check_names(self, there: Collection[str]) -> None:
        """At the first batch: every reward that is asked for is there in some rollout.

        Args:
            there: all names that any rollout's ``reward_extra_info`` holds.

        Raises:
            Error: a reward that no rollout has; it names what is there. With ``strict: false`` a warning.
        """
        if self._checked:
            return
        for name in self.settings.names:
            if name in there:
                continue
            found = nearest(name, there) if there else ": it holds nothing; have compute_score return a mapping"
            said = f"reward {name!r} of algorithm.gdpo is in no rollout's reward_extra_info{found}"
            said += f" (there: {', '.join(sorted(there))})" if "did you mean" in found else ""
            if self.settings.strict:
                raise Error(said)
            warnings.warn(said, stacklevel=2)
        self._checked = True

    def advantages(self, data: Any, batch: Batch) -> torch.Tensor:
        """[B, T] advantages of a batch: each rollout's own on its response tokens, 0 elsewhere and on padding.

        Args:
            data: verl's tensors: ``response_mask`` [B, T], and for KL in the reward ``token_level_rewards`` and
                ``token_level_scores``.
            batch: its rollouts; ``metrics`` receives the step's.
        """
        # The result begins as a copy of the mask: it is read for the lengths once and made only once.
        result: torch.Tensor = data["response_mask"].to(torch.float32, copy=True)
        real = batch.row >= 0
        tokens = result.sum(-1).cpu().numpy().astype(np.float64)
        lengths = np.bincount(batch.row[real], weights=tokens[real], minlength=len(batch.scores))
        scores = batch.scores
        if self.settings.kl == "reward":
            scores = np.column_stack([scores, _penalty(data, batch, scores)])
        progress = self.progress()
        extra: dict[str, Any] = {"lengths": lengths} if self.objective.options.get("batch_norm") == "token" else {}
        estimate = self.objective.advantages(scores, batch.groups, progress, **extra)
        metrics = step_metrics(self.objective, estimate, scores, estimate.group, progress, **extra)
        self.metrics = {name if name.startswith("gdpo/") else f"gdpo/{name}": value for name, value in metrics.items()}
        if batch.metrics is not None:
            batch.metrics.update(self.metrics)
        if self.writer is not None:
            self._write(estimate, scores, lengths, batch, progress.step + 1)
        self.objective.observe(scores, estimate, progress)
        self.calls, self.tokens, batch.used = self.calls + 1, self.tokens + int(lengths.sum()), True
        return result.mul_(_column(estimate.advantages, batch.row, result.device))

    def no_signal(self, scores: NDArray[np.float64], groups: Sequence[str]) -> dict[str, float]:
        """Groups that teach nothing -> the mean weighted score of their rollouts.

        By ``filter``: "combined" is a combined advantage (before batch norm) of 0 throughout the group, a reward's
        name is that this reward does not vary in it.

        Args:
            scores: [n, R] in the order of ``Settings.names``.
            groups: [n] uids.
        """
        if self.settings.kl == "reward":  # not known yet, so it tells no rollouts apart
            scores = np.column_stack([scores, np.full(len(scores), math.nan)])
        names, code = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
        progress = self.progress()
        if not any(schedule.value(progress) for schedule in self.objective.weights.values()):
            return {}  # schedules that are 0 at this step: no group teaches, and verl would sample for ever
        found = self.objective.advantages(scores, code, progress)
        if self.settings.filter == "combined":
            moves = np.asarray(found.combined) != 0
        else:
            moves = found.live[found.group, self.objective.names.index(self.settings.filter)]
        total = np.nansum(np.asarray(found.rewards) * np.asarray(found.weights), axis=1)
        mean = np.bincount(code, weights=total) / np.bincount(code)
        moved = np.bincount(code, weights=moves) > 0
        return {str(name): float(mean[k]) for k, name in enumerate(names) if not moved[k]}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Put what moved into a checkpoint folder: whole or not at all."""
        path = Path(folder) / STATE_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        state = {"objective": self.objective.state_dict(), "tokens": self.tokens, "calls": self.calls}
        temporary.write_text(json.dumps(state), encoding="utf-8")
        os.replace(temporary, path)

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint folder.

        Raises:
            Error: the state is of other rewards, or cannot be read.
        """
        path = Path(folder) / STATE_FILE
        if not path.is_file():
            if any(schedule.state_dict() for schedule in self.objective.weights.values()):
                warnings.warn(f"{path} is not there, so weights that adapt start anew", stacklevel=2)
            return
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            self.tokens, self.calls = int(state["tokens"]), int(state["calls"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Error(f"gdpo's state {path} cannot be read: {type(error).__name__}: {error}") from None
        self.objective.load_state_dict(state["objective"])

    def close(self) -> None:
        """Wait for the rollout tables to be written."""
        if self.writer is not None:
            self.writer.flush()

    def _write(self, estimate: Estimate, scores: Any, lengths: Any, batch: Batch, step: int) -> None:
        """Hand the step's table over; where verl takes a step in several parts, the last one hands over all."""
        assert self.writer is not None
        count = len(scores)
        tokens = batch.text() if batch.text is not None and self.settings.rollouts_text else None
        tokenizer = self._own_tokenizer() if tokens is not None else None
        names, task, ids = self.objective.names, self.settings.task, list(batch.ids)

        def build() -> Any:
            prompts, completions = [[""] * count] * 2 if tokens is None else (_decode(tokenizer, t) for t in tokens)
            return rollout_frame(
                step=step, prompts=prompts, completions=completions, lengths=[int(n) for n in lengths], names=names,
                scores=scores, group=estimate.group, estimate=estimate, task=task,
            )  # fmt: skip

        self._parts.append((build, ids))
        trainer = self.trainer
        if getattr(trainer, "local_trigger_step", 0) + 1 < getattr(trainer, "parameter_sync_step", 1):
            return
        parts, self._parts = self._parts, []
        version = getattr(sys.modules.get("verl"), "__version__", "?")
        metadata = {"gdpo.framework": f"verl {version}", "gdpo.objective": self.objective.to_yaml()}
        self.writer.put(step, lambda: _joined(parts), metadata)

    def _own_tokenizer(self) -> Any:
        """A copy, since a tokenizer that verl uses at the same time may refuse a second thread."""
        if self._tokenizer is None:
            self._tokenizer = copy.deepcopy(getattr(self.trainer, "tokenizer", None))
        return self._tokenizer


def spread(advantages: Any, row: NDArray[np.int64], mask: torch.Tensor) -> torch.Tensor:
    """[B, T] float32: ``advantages`` [n] of each row's rollout where ``mask`` [B, T] is set; 0 for row -1."""
    # A copy of the mask is the result: multiplying by an integer mask would make that copy and a second one.
    return mask.to(torch.float32, copy=True).mul_(_column(advantages, row, mask.device))


def _column(advantages: Any, row: NDArray[np.int64], device: Any) -> torch.Tensor:
    """[B, 1] float32: ``advantages`` [n] of each row's rollout; 0 for row -1."""
    values = np.append(np.asarray(advantages, dtype=np.float32), np.float32(0))
    return torch.from_numpy(values[row]).to(device).unsqueeze(-1)


def _penalty(data: Any, batch: Batch, scores: Any) -> Any:
    """[n] the KL penalty that verl took off each rollout's tokens (negative); NaN where the rollout has no reward."""
    taken = (data["token_level_rewards"] - data["token_level_scores"]) * data["response_mask"]
    rows = taken.sum(-1).double().cpu().numpy()
    real = batch.row >= 0
    penalty = np.bincount(batch.row[real], weights=rows[real], minlength=len(scores))
    return np.where(np.isnan(scores).all(axis=1), math.nan, penalty)


def _decode(tokenizer: Any, sequences: Any) -> list[str]:
    if tokenizer is None:
        return [" ".join(str(int(token)) for token in sequence) for sequence in sequences]
    return [tokenizer.decode(sequence, skip_special_tokens=True) for sequence in sequences]


def _joined(parts: Sequence[Any]) -> Any:
    """One table of a step's parts, with verl's names of the rollouts and groups counted through."""
    import polars as pl

    frames, groups = [], 0
    for build, ids in parts:
        frame = build()
        if ids:
            frame = frame.with_columns(pl.Series("rollout", ids, dtype=pl.String))
        frames.append(frame.with_columns(pl.col("group") + groups))
        groups += int(frame["group"].max() or 0) + 1
    return pl.concat(frames)
