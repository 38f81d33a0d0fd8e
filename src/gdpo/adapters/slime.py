"""slime and miles: advantages by their hook for rewards, which sees the whole batch.

    --custom-reward-post-process-path gdpo.adapters.slime.post_process
    --custom-config-path my.yaml              # gdpo: {weights: {correct: 1.0, format: 0.5}}
    --advantage-estimator grpo                # hands the value on to every token, as it is

The reward function (``--custom-rm-path``) returns a dict, ``{"correct": 1.0, "format": 0.0}``, for each sample; a name
that is missing, or None, is missing. The block ``gdpo`` has the keys of NeMo-RL's (see the documentation). What is
returned as processed rewards are advantages already, so another estimator, or whitening after it, would change them.

Read in THUDM/slime and radixark/miles (both call ``f(args, samples) -> (raw_rewards, rewards)``); not run in them.
Weights that learn from what they see begin anew after a restart: the hook has no place in their checkpoints.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gdpo.adapters.block import Settings
from gdpo.adapters.metrics import step_metrics
from gdpo.core.compute import Estimate
from gdpo.core.errors import Error
from gdpo.objective import Objective, Progress
from gdpo.rollouts import RolloutWriter, rollout_frame

log = logging.getLogger("gdpo")
ESTIMATORS = ("grpo", "gspo")
"""slime's estimators that take the processed reward of a sample as the advantage of its tokens."""


class PostProcess:
    """One run's state; ``post_process`` keeps one for each process."""

    def __init__(self, args: Any) -> None:
        block = getattr(args, "gdpo", None) or {}
        self.settings = Settings.from_block(block, "gdpo")
        estimator = getattr(args, "advantage_estimator", "grpo")
        if estimator not in ESTIMATORS:
            raise Error(f"--advantage-estimator is {estimator!r}, which would compute advantages from gdpo's once "
                        f"more: {' or '.join(ESTIMATORS)} was expected")  # fmt: skip
        if getattr(args, "normalize_advantages", False):
            raise Error("--normalize-advantages whitens gdpo's advantages once more: leave it off")
        self.step = int(getattr(args, "start_rollout_id", 0) or 0)
        self.writer: RolloutWriter | None = None
        if self.settings.rollouts_folder is not None:
            folder = Path(self.settings.rollouts_folder)
            home = getattr(args, "save", None)
            if folder.is_absolute() or home is not None:
                self.writer = RolloutWriter(Path(home or "") / folder)

    def __call__(self, args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
        """(raw, processed) rewards of all samples: the weighted sum of what was scored, and the advantage."""
        names = sorted({str(name) for sample in samples for name in _scores(sample)})
        objective = self.settings.bind([*self._known(), *(name for name in names if name not in self._known())])
        scores = np.array([[_number(_scores(s).get(name), name) for name in objective.names] for s in samples])
        group = _groups(args, samples)
        include = np.array([not getattr(s, "remove_sample", False) for s in samples])
        extra: dict[str, Any] = {} if include.all() or self.settings.masked == "count" else {"include": include}
        if objective.options.get("batch_norm") == "token":
            extra["lengths"] = [int(s.response_length) for s in samples]
        progress = Progress(self.step)
        estimate = objective.advantages(scores, group, progress, **extra)
        log.info("gdpo %s", step_metrics(objective, estimate, scores, group, progress, **extra))
        self._write(objective, estimate, scores, samples, extra.get("include"))
        objective.observe(scores, estimate, progress)
        self.step += 1
        weights = np.array([objective.weights[name].value(progress) for name in objective.names])
        return np.nansum(scores * weights, axis=1).tolist(), estimate.advantages.tolist()

    def _known(self) -> list[str]:
        """Names that the config gives: one that no sample of this batch has is missing throughout."""
        return [] if self.settings.objective is None else self.settings.objective.names

    def _write(
        self, objective: Objective, estimate: Estimate, scores: Any, samples: Sequence[Any], include: Any
    ) -> None:
        if self.writer is None:
            return
        text, step, task = self.settings.rollouts_text, self.step + 1, self.settings.task
        prompts = [s.prompt if text else "" for s in samples]
        completions = [s.response if text else "" for s in samples]
        lengths = [int(s.response_length) for s in samples]
        self.writer.put(step, lambda: rollout_frame(
            step=step, prompts=prompts, completions=completions, lengths=lengths, names=objective.names, scores=scores,
            group=estimate.group, estimate=estimate, task=task, include=include,
        ), {"gdpo.framework": "slime", "gdpo.objective": objective.to_yaml()})  # fmt: skip


_run: dict[int, tuple[Any, PostProcess]] = {}


def post_process(args: Any, samples: Sequence[Any], **kwargs: Any) -> tuple[list[float], list[float]]:
    """slime's and miles's ``--custom-reward-post-process-path``.

    Args:
        args: their arguments; ``args.gdpo`` is the block (``--custom-config-path`` puts it there).
        samples: the batch; ``sample.reward`` a dict by name, ``sample.group_index`` the group.
        kwargs: what newer versions may pass; not used.

    Raises:
        Error: a reward that is no dict, names that do not fit, or an estimator that would undo the advantages.
    """
    # The arguments are kept with their state, so that their id cannot be another object's.
    known = _run.get(id(args))
    if known is None:
        _run.clear()
        known = _run[id(args)] = (args, PostProcess(args))
    return known[1](args, samples)


def _scores(sample: Any) -> Mapping[str, Any]:
    if not isinstance(sample.reward, Mapping):
        raise Error(f"the reward of a sample is {sample.reward!r}, but a dict by the rewards' names was expected of "
                    "the function at --custom-rm-path")  # fmt: skip
    return sample.reward


def _number(value: Any, name: str) -> float:
    if value is None:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        raise Error(f"reward {name!r} of a sample is {value!r}, but a number or None was expected") from None


def _groups(args: Any, samples: Sequence[Any]) -> Any:
    """[B] by ``group_index``; without it, in runs of ``n_samples_per_prompt``."""
    indices = [getattr(sample, "group_index", None) for sample in samples]
    if all(index is not None for index in indices):
        return np.unique(np.array(indices), return_inverse=True)[1]
    size = int(args.n_samples_per_prompt)
    if len(samples) % size:
        raise Error(f"{len(samples)} samples without group_index are no whole groups of n_samples_per_prompt={size}")
    return np.arange(len(samples)) // size
