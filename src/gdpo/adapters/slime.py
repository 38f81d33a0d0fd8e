"""slime and miles: advantages by their hook for rewards, which sees the whole batch.

    --custom-reward-post-process-path gdpo.adapters.slime.post_process
    --custom-config-path my.yaml              # gdpo: {weights: {correct: 1.0, format: 0.5}}
    --advantage-estimator grpo                # hands the value on to every token, as it is
    --reward-key correct                      # which number slime's own metrics, filters and evaluation take

The reward function (``--custom-rm-path``) returns a dict, ``{"correct": 1.0, "format": 0.0}``, for each sample; a name
that is missing, or None, is missing. The block ``gdpo`` has the keys of NeMo-RL's (see the documentation). What is
returned as processed rewards are advantages already, so another estimator, or whitening after it, would change them.
Samples that one rollout was split into (equal ``rollout_id``) count once and share its advantage.

Read in THUDM/slime (624b824a8) and radixark/miles (31f1ca961) of 2026-08-21, which both call
``f(args, samples) -> (raw_rewards, rewards)``; not run in them.
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
ESTIMATORS = ("grpo", "gspo", "cispo")
"""slime's estimators that take the processed reward of a sample as the advantage of its tokens (miles has the first
two)."""
TRACKER = "latest_checkpointed_iteration.txt"
"""Megatron's note of the last checkpoint, in ``args.load``."""


class PostProcess:
    """One run's state; ``post_process`` keeps one for each process."""

    def __init__(self, args: Any) -> None:
        block = getattr(args, "gdpo", None) or {}
        self.settings = Settings.from_block(block, "gdpo")
        _check_beside(args)
        self.step = _first_step(args)
        self.writer: RolloutWriter | None = None
        self._checked = False
        if self.settings.rollouts_folder is not None:
            folder = Path(self.settings.rollouts_folder)
            home = getattr(args, "save", None)
            if folder.is_absolute() or home is not None:
                self.writer = RolloutWriter(Path(home or "") / folder)

    def __call__(self, args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
        """(raw, processed) rewards of all samples: the weighted sum of what was scored, and the advantage."""
        objective = self._bound(samples)
        matrix = np.array([[_number(_scores(s).get(name), name) for name in objective.names] for s in samples])
        rows = _rollouts(samples)
        first = [own[0] for own in rows]
        rollout = np.empty(len(samples), dtype=np.int64)
        for k, own in enumerate(rows):
            rollout[own] = k
        scores, group = matrix[first], _groups(args, samples)[first]
        _check_shared(matrix, scores[rollout], samples, objective.names)
        held = [[samples[row] for row in own] for own in rows]
        include = np.array([any(not getattr(s, "remove_sample", False) for s in parts) for parts in held])
        extra: dict[str, Any] = {} if include.all() or self.settings.masked == "count" else {"include": include}
        if objective.options.get("batch_norm") == "token":
            extra["lengths"] = [sum(int(s.response_length) for s in parts) for parts in held]
        progress = Progress(self.step)
        estimate = objective.advantages(scores, group, progress, **extra)
        log.info("gdpo %s", step_metrics(objective, estimate, scores, group, progress, **extra))
        self._write(objective, estimate, scores, held, extra.get("include"))
        objective.observe(scores, estimate, progress)
        self.step += 1
        weights = np.array([objective.weights[name].value(progress) for name in objective.names])
        return np.nansum(matrix * weights, axis=1).tolist(), np.asarray(estimate.advantages)[rollout].tolist()

    def _bound(self, samples: Sequence[Any]) -> Objective:
        """The objective for these samples.

        A reward without a score in the whole batch is missing throughout it; one that the first batch does not even
        name is an error.
        """
        names = sorted({str(name) for sample in samples for name in _scores(sample)})
        known = [] if self.settings.objective is None else self.settings.objective.names
        if self._checked:
            return self.settings.bind([*known, *(name for name in names if name not in known)])
        objective = self.settings.bind(names)
        self._checked = True
        return objective

    def _write(
        self, objective: Objective, estimate: Estimate, scores: Any, held: Sequence[Sequence[Any]], include: Any
    ) -> None:
        if self.writer is None:
            return
        text, step, task = self.settings.rollouts_text, self.step + 1, self.settings.task
        prompts = [parts[0].prompt if text else "" for parts in held]
        completions = ["\n".join(str(s.response) for s in parts) if text else "" for parts in held]
        lengths = [sum(int(s.response_length) for s in parts) for parts in held]
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


def _check_beside(args: Any) -> None:
    """Settings that would compute something else of the advantages, or not use them."""
    estimator = getattr(args, "advantage_estimator", "grpo")
    if estimator not in ESTIMATORS:
        raise Error(f"--advantage-estimator is {estimator!r}, which would compute advantages from gdpo's once "
                    f"more: {', '.join(ESTIMATORS)} were expected")  # fmt: skip
    if getattr(args, "normalize_advantages", False):
        raise Error("--normalize-advantages whitens gdpo's advantages once more: leave it off")
    if not getattr(args, "reward_key", "any"):
        raise Error("--reward-key is not set, and without it slime's own metrics, filters and evaluation stop at a "
                    "reward that is a dict: name the one that they are to take, which every sample has")  # fmt: skip
    other = getattr(args, "custom_advantage_function_path", None)
    if other is not None:
        raise Error(f"--custom-advantage-function-path is {other!r}, which stands in the place of gdpo's advantages: "
                    "leave it off")  # fmt: skip


def _first_step(args: Any) -> int:
    """Rollouts done before this process. In a resumed run the process that calls the hook is not told; it began before
    the checkpoint was read, of which Megatron's note in ``args.load`` says the number."""
    start = getattr(args, "start_rollout_id", None)
    if start is not None:
        return int(start)
    done = str(getattr(args, "ckpt_step", None) or "")
    if not done and getattr(args, "load", None):
        try:
            done = (Path(args.load) / TRACKER).read_text(encoding="utf-8").strip()
        except OSError:
            return 0
    return int(done) + 1 if done.isdecimal() else 0


def _rollouts(samples: Sequence[Any]) -> list[list[int]]:
    """Rows of the samples of each rollout; samples of one ``rollout_id`` are one rollout."""
    found: dict[Any, list[int]] = {}
    for row, sample in enumerate(samples):
        name = getattr(sample, "rollout_id", None)
        name = getattr(sample, "index", None) if name is None else name
        found.setdefault(("row", row) if name is None else name, []).append(row)
    return list(found.values())


def _check_shared(matrix: Any, shared: Any, samples: Sequence[Any], names: Sequence[str]) -> None:
    """Samples of one rollout have one score of each reward."""
    wrong = ~((matrix == shared) | (np.isnan(matrix) & np.isnan(shared)))
    if wrong.any():
        row, k = np.argwhere(wrong)[0]
        raise Error(f"the samples of rollout {getattr(samples[row], 'rollout_id', None)!r} have the values "
                    f"{shared[row, k]:g} and {matrix[row, k]:g} for reward {names[k]!r}, but they are parts of one "
                    "rollout and share one")  # fmt: skip


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
