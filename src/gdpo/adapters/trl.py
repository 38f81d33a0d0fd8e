"""TRL: a ``GRPOTrainer`` that replaces the advantages and nothing else.

An existing script changes one import::

    from gdpo.adapters.trl import GRPOConfig, GRPOTrainer  # was: from trl import GRPOConfig, GRPOTrainer

Generation, reward functions, loss, logging and checkpoints stay TRL's. Advantages come from ``gdpo`` (method "gdpo"
with ``args.reward_weights`` unless an ``objective`` says otherwise), on the rewards of all processes, and each reward
gets metrics of its own. Tested with TRL 1.16; the two private methods it wraps have had the same signatures since 0.20.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import trl
from accelerate.utils import gather_object
from trl import GRPOConfig

from gdpo.adapters.metrics import step_metrics
from gdpo.core.compute import Estimate
from gdpo.core.errors import Error
from gdpo.objective import Objective, Progress, Reward
from gdpo.rollouts import rollout_frame, write_frame


@dataclass(frozen=True)
class Step:
    """What the trainer knows of one generated batch once its advantages are computed (all processes together)."""

    step: int
    """The optimizer step that will use it first, counted from 1."""
    prompts: list[Any]
    completions: list[Any]
    lengths: list[int]
    """[B] completion tokens."""
    scores: Any
    """[B, R] raw scores, NaN = missing."""
    estimate: Estimate
    metrics: dict[str, float]


class GRPOTrainer(trl.GRPOTrainer):  # type: ignore[misc]
    """TRL's ``GRPOTrainer`` with advantages from ``gdpo``.

    Args:
        objective: rewards, weights, gates and method in one. Without it, ``reward_funcs`` and ``args.reward_weights``
            are used as in TRL, with ``method`` and ``method_options``.
        method: the estimator where no objective is given.
        method_options: its options, such as ``{"clip": 3}``.
        gates: gates by reward name, such as ``{"length": "correct >= 1"}``, where no objective is given.
        rollouts_folder: where to write the rollout table, one Parquet file a generated batch; None: nowhere.
        on_step: called with a ``Step`` after the advantages of each training batch, on the main process.
        task: label in the rollout table.

    The other arguments are TRL's.
    """

    _tag_names = ("trl", "grpo", "gdpo")

    def __init__(
        self, model: Any, reward_funcs: Any = None, args: GRPOConfig | None = None, *trl_args: Any,
        objective: Objective | None = None, method: str = "gdpo", method_options: Mapping[str, Any] | None = None,
        gates: Mapping[str, str] | None = None, rollouts_folder: str | Path | None = None,
        on_step: Callable[[Step], None] | None = None, task: str = "", **trl_kwargs: Any,
    ) -> None:  # fmt: skip
        if objective is not None:
            if reward_funcs is not None or gates or method_options or method != "gdpo":
                raise Error(
                    "objective was given beside reward_funcs, gates or a method, but it holds all of them itself"
                )
            if args is not None and args.reward_weights is not None:
                raise Error("args.reward_weights was given beside objective, but the objective holds the weights")
            reward_funcs = objective.functions()
        super().__init__(model, reward_funcs, args, *trl_args, **trl_kwargs)
        if getattr(self.args, "scale_rewards", "group") not in ("group", True):
            warnings.warn(
                f"scale_rewards={self.args.scale_rewards!r} is not used: the method says how rewards are scaled "
                f"(method='grpo_no_std' does not divide by the spread)", stacklevel=2,
            )  # fmt: skip
        self._gdpo_names = _unique(list(self.reward_func_names))
        self.objective = objective or self._objective_from_trl(method, method_options, gates)
        if len(self._gdpo_names) != len(self.objective.names):
            raise Error(f"TRL has rewards {self._gdpo_names}, but the objective has {self.objective.names}")
        self._set_reward_weights()
        self._gdpo_folder = None if rollouts_folder is None else Path(rollouts_folder)
        self._gdpo_on_step, self._gdpo_task = on_step, task
        self._gdpo_batch: tuple[Any, Any, Any, Any] | None = None

    def _objective_from_trl(
        self, method: str, options: Mapping[str, Any] | None, gates: Mapping[str, str] | None
    ) -> Objective:
        for name in gates or {}:
            if name not in self._gdpo_names:
                raise Error(f"gates names {name!r}, but the rewards are {self._gdpo_names}")
        weights = self.reward_weights.tolist()
        rewards: dict[str, Any] = {
            name: Reward(function, weight=weight, given=(gates or {}).get(name))
            for name, function, weight in zip(self._gdpo_names, self.reward_funcs, weights, strict=True)
        }
        return Objective(method=method, options=options, **rewards)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        scores = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._gdpo_batch = (scores, prompts, completions, completion_ids_list)
        return scores

    def _progress(self) -> Progress:
        return Progress(self.state.global_step, self.state.max_steps or None, int(self.state.num_input_tokens_seen))

    def _set_reward_weights(self) -> None:
        """Keep TRL's own weights, and with them its metric ``reward``, at what the objective says for this step."""
        weights = [schedule.value(self._progress()) for schedule in self.objective.weights.values()]
        self.reward_weights = torch.tensor(weights, dtype=torch.float32)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self._set_reward_weights()
        output = super()._generate_and_score_completions(inputs)
        if self._gdpo_batch is None:
            raise Error("TRL computed advantages without _calculate_rewards; this version of TRL is not supported")
        (scores, prompts, completions, ids), self._gdpo_batch = self._gdpo_batch, None
        mode = "train" if self.model.training else "eval"
        size = self.num_generations if mode == "train" else self.num_generations_eval
        progress = self._progress()
        raw = scores.detach().cpu().double().numpy()
        extra: dict[str, Any] = {}
        if self.objective.options.get("batch_norm") == "token":
            extra["lengths"] = gather_object([len(sequence) for sequence in ids])
        estimate = self.objective.advantages(raw, size, progress, **extra)
        advantages = torch.as_tensor(estimate.advantages, dtype=torch.float32, device=output["advantages"].device)
        start = self.accelerator.process_index * len(prompts)
        output["advantages"] = advantages[start : start + len(prompts)].to(output["advantages"].dtype)
        self._replace_logged(advantages.tolist())
        metrics = step_metrics(self.objective, estimate, raw, size, progress, **extra)
        for name, value in metrics.items():
            self._metrics[mode][name].append(value)
        if mode == "train":
            self.objective.observe(raw, estimate, progress)
            if self._gdpo_folder is not None or self._gdpo_on_step is not None:
                self._finish_step(estimate, raw, prompts, completions, ids, metrics)
        return output

    def _replace_logged(self, advantages: list[float]) -> None:
        """Put our advantages where TRL has just appended its own, for its completions table."""
        logged = self._logs["advantages"]
        for _ in range(min(len(advantages), len(logged))):
            logged.pop()
        logged.extend(advantages)

    def _finish_step(
        self, estimate: Estimate, raw: Any, prompts: Any, completions: Any, ids: Any, metrics: Any
    ) -> None:
        prompts, completions = gather_object(prompts), gather_object(completions)
        lengths = gather_object([len(sequence) for sequence in ids])
        if not self.accelerator.is_main_process:
            return
        step = Step(self.state.global_step + 1, prompts, completions, lengths, raw, estimate, metrics)
        if self._gdpo_folder is not None:
            frame = rollout_frame(
                step=step.step, prompts=prompts, completions=completions, lengths=lengths, names=self.objective.names,
                scores=raw, group=estimate.group, estimate=estimate, task=self._gdpo_task,
            )  # fmt: skip
            metadata = {"gdpo.framework": f"trl {trl.__version__}", "gdpo.objective": self.objective.to_yaml()}
            write_frame(frame, self._gdpo_folder / f"step-{step.step:06d}.parquet", metadata)
        if self._gdpo_on_step is not None:
            self._gdpo_on_step(step)


def _unique(names: list[str]) -> list[str]:
    """Names that can stand for rewards: identifiers, each once."""
    found: list[str] = []
    for name in names:
        base = "".join(c if c.isalnum() or c == "_" else "_" for c in str(name)) or "reward"
        base = base if base.isidentifier() else f"reward_{base}"
        unique, count = base, 1
        while unique in found or unique in ("method", "options", "levels"):
            count += 1
            unique = f"{base}_{count}"
        found.append(unique)
    return found


__all__ = ["GRPOConfig", "GRPOTrainer", "Step", "step_metrics"]
