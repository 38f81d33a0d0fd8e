"""TRL: trainers that replace the advantages and nothing else.

An existing script changes one import and one name::

    from gdpo.trl import GDPOTrainer, GRPOConfig  # was: from trl import GRPOConfig, GRPOTrainer

Generation, reward functions, loss, logging and checkpoints stay TRL's. Advantages come from ``gdpo`` (method "gdpo"
with ``args.reward_weights`` unless an ``objective`` says otherwise), on the rewards of all processes, and each reward
gets metrics of its own. ``GDPOMixin`` does the same for other subclasses of ``trl.GRPOTrainer``, and ``attach`` for a
trainer that other code has built. The two private methods that are wrapped have had the same parameters from TRL 0.20
to 1.16; another version is an error before training (``gdpo.adapters.trl_hook``).
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import trl
from accelerate.utils import gather_object
from trl import GRPOConfig

from gdpo.adapters.metrics import step_metrics
from gdpo.adapters.trl_audit import AuditCallback
from gdpo.adapters.trl_guard import score_together
from gdpo.adapters.trl_hook import check_class, check_trainer, objective_of, unique_names, version, with_environments
from gdpo.adapters.trl_sampling import Generated, check_sampling, has_signal, resample, truncated
from gdpo.adapters.trl_table import TableFolder, table, without_payloads
from gdpo.core.compute import Estimate
from gdpo.core.errors import Error
from gdpo.objective import Objective, Progress
from gdpo.rollouts import RolloutWriter, write_frame

STATE = "gdpo_objective.json"
"""File in TRL's checkpoints: what of the objective has moved."""


@dataclass(frozen=True)
class Step:
    """What the trainer knows of one generated batch once its advantages are computed (all processes together)."""

    step: int
    """The optimizer step that will use it first, counted from 1."""
    prompts: list[Any]
    completions: list[Any]
    """[B] text, or messages without their images; both empty where only an ``AuditCallback`` asked for the step."""
    lengths: list[int]
    """[B] completion tokens."""
    scores: Any
    """[B, R] raw scores, NaN = missing."""
    estimate: Estimate
    metrics: dict[str, float]
    include: Any = None
    """[B] bool, the rollouts that counted; None: all."""


class GDPOMixin:
    """Put before a subclass of ``trl.GRPOTrainer``: ``class Mine(GDPOMixin, TheirTrainer)``. Advantages from ``gdpo``.

    Args:
        objective: rewards, weights, gates and method in one. Without it, ``reward_funcs`` and ``args.reward_weights``
            are used as in TRL, with ``method`` and ``method_options``. Rewards that environments add (``get_reward``)
            join it with TRL's weight; ``trainer.objective`` is then a copy.
        method: the estimator where no objective is given.
        method_options: its options, such as ``{"clip": 3}``.
        gates: gates by reward name, such as ``{"length": "correct >= 1"}``, where no objective is given.
        rollouts_folder: where to write the rollout table, one Parquet file a generated batch; None: nowhere. A thread
            writes it; a full disk costs the table, not the run.
        rollouts_text: whether prompts and completions are in it.
        on_step: called with a ``Step`` after the advantages of each training batch, on the main process.
        task: label in the rollout table.
        exclude_truncated: treat completions cut off at the length limit as if they had no rewards: they move neither
            mean nor spread of their group and get advantage 0.
        resample: replace groups without signal by groups of other prompts: "combined" (the combined advantage is 0
            throughout) or the name of a reward that must vary. None: off.
        resample_rounds: most further generations a step.

    The other arguments are the trainer's.
    """

    _tag_names: ClassVar[Any] = ("trl", "grpo", "gdpo")
    _gdpo_prefix: ClassVar[str] = "gdpo/"
    _gdpo_wait: ClassVar[bool] = False

    def __init__(
        self, *args: Any, objective: Objective | None = None, method: str = "gdpo",
        method_options: Mapping[str, Any] | None = None, gates: Mapping[str, str] | None = None,
        rollouts_folder: str | Path | None = None, rollouts_text: bool = True,
        on_step: Callable[[Step], None] | None = None, task: str = "", exclude_truncated: bool = False,
        resample: str | None = None, resample_rounds: int = 3, **kwargs: Any,
    ) -> None:  # fmt: skip
        check_class(type(self), GDPOMixin)
        if objective is not None:
            settings = kwargs.get("args", args[2] if len(args) > 2 else None)
            if kwargs.get("reward_funcs", args[1] if len(args) > 1 else None) is not None:
                _both("reward_funcs")
            if getattr(settings, "reward_weights", None) is not None:
                raise Error("args.reward_weights was given beside objective, but the objective holds the weights")
            args = (args[0], objective.functions(), *args[2:]) if len(args) > 1 else args
            kwargs |= {} if len(args) > 1 else {"reward_funcs": objective.functions()}
            if gates or method_options or method != "gdpo":
                _both("gates or a method")
        super().__init__(*args, **kwargs)
        self._gdpo_setup(
            objective, method=method, method_options=method_options, gates=gates, rollouts_folder=rollouts_folder,
            rollouts_text=rollouts_text, on_step=on_step, task=task, exclude_truncated=exclude_truncated,
            resample=resample, resample_rounds=resample_rounds,
        )  # fmt: skip

    def _gdpo_setup(
        self: Any, objective: Objective | None, *, method: str = "gdpo",
        method_options: Mapping[str, Any] | None = None, gates: Mapping[str, str] | None = None,
        rollouts_folder: str | Path | None = None, rollouts_text: bool = True,
        on_step: Callable[[Step], None] | None = None, task: str = "", exclude_truncated: bool = False,
        resample: str | None = None, resample_rounds: int = 3,
    ) -> None:  # fmt: skip
        if getattr(self.args, "scale_rewards", "group") not in ("group", True):
            warnings.warn(
                f"scale_rewards={self.args.scale_rewards!r} is not used: the method says how rewards are scaled "
                f"(method='grpo_no_std' does not divide by the spread)", stacklevel=3,
            )  # fmt: skip
        names = unique_names(self.reward_func_names)
        if objective is None:
            self.objective = objective_of(self, names, method, method_options, gates)
        else:
            self.objective = with_environments(objective, self, names)
        self._gdpo_columns = [names.index(name) for name in self.objective.names]
        self._gdpo_set_weights()
        check_sampling(resample, resample_rounds, self.objective, getattr(self, "train_dataset", None))
        self._gdpo_resample, self._gdpo_rounds, self._gdpo_exclude = resample, resample_rounds, exclude_truncated
        self._gdpo_on_step, self._gdpo_task, self._gdpo_text = on_step, task, rollouts_text
        self._gdpo_batch: tuple[Any, Any, Any, Any] | None = None
        self._gdpo_writer: RolloutWriter | None = None
        self._gdpo_wanted = rollouts_folder is not None or on_step is not None
        self._gdpo_tabled: list[Step] = []
        if rollouts_folder is not None and self.accelerator.is_main_process:
            self._gdpo_writer = RolloutWriter(Path(rollouts_folder))
            self.add_callback(TableFolder(self._gdpo_writer))

    def _calculate_rewards(self: Any, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        score = partial(super()._calculate_rewards, inputs, prompts, completions, completion_ids_list)  # type: ignore[misc]
        scores = score_together(self, score)
        self._gdpo_batch = (scores, prompts, completions, completion_ids_list)
        return scores

    def _gdpo_progress(self: Any) -> Progress:
        return Progress(self.state.global_step, self.state.max_steps or None, int(self.state.num_input_tokens_seen))

    def _gdpo_set_weights(self: Any) -> None:
        """Keep TRL's own weights, and with them its metric ``reward``, at what the objective says for this step."""
        weights = [0.0] * len(self.reward_func_names)
        for place, schedule in zip(self._gdpo_columns, self.objective.weights.values(), strict=True):
            weights[place] = schedule.value(self._gdpo_progress())
        self.reward_weights = torch.tensor(weights, dtype=torch.float32)

    def _gdpo_generated(self: Any, inputs: Any) -> Generated:
        """One call of TRL's own method, and what it scored."""
        output = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        if self._gdpo_batch is None:
            raise Error(f"{version()} computed advantages without _calculate_rewards, so gdpo has seen no rewards; use "
                        "TRL 0.20 to 1.16, or a newer gdpo")  # fmt: skip
        (scores, prompts, completions, ids), self._gdpo_batch = self._gdpo_batch, None
        raw = scores.detach().cpu().double().numpy()
        expected = (len(prompts) * self.accelerator.num_processes, len(self.reward_func_names))
        if raw.shape != expected:
            raise Error(f"_calculate_rewards of {version()} gave a matrix of shape {raw.shape}, but the rewards of all "
                        f"processes, {expected}, were expected")  # fmt: skip
        logged: dict[tuple[str, str], list[Any]] = {}
        if self._gdpo_resample is not None:
            for key, column in self._logs.items():
                parts = column.items() if isinstance(column, dict) else [("", column)]
                logged |= {(key, part): list(values)[-len(raw) :] for part, values in parts}
        return Generated(output, raw[:, self._gdpo_columns], prompts, completions, ids, logged)

    def _gdpo_inputs(self: Any, batch: Generated) -> dict[str, Any]:
        """What the estimator needs of a batch beside scores and groups."""
        extra: dict[str, Any] = {}
        if self.objective.options.get("batch_norm") == "token":
            extra["lengths"] = gather_object([len(sequence) for sequence in batch.ids])
        if self._gdpo_exclude:
            extra["include"] = ~np.array(truncated(self, batch.ids))
        return extra

    def _gdpo_estimate(self: Any, batch: Generated, **extra: Any) -> Estimate:
        size = self.num_generations
        if not self.model.training:
            size = getattr(self, "num_generations_eval", size)
        extra = extra or self._gdpo_inputs(batch)
        return self.objective.advantages(batch.scores, size, self._gdpo_progress(), **extra)  # type: ignore[no-any-return]

    def _generate_and_score_completions(self: Any, inputs: Any) -> Any:
        self._gdpo_set_weights()
        batch = self._gdpo_generated(inputs)
        mode = "train" if self.model.training else "eval"
        sampled: dict[str, float] = {}
        if mode == "train" and self._gdpo_resample is not None:
            batch, sampled = resample(self, batch, self._gdpo_resample, self._gdpo_rounds)
        extra, progress = self._gdpo_inputs(batch), self._gdpo_progress()
        estimate = self._gdpo_estimate(batch, **extra)
        output, rows = batch.output, len(batch.prompts)
        advantages = torch.as_tensor(estimate.advantages, dtype=torch.float32, device=output["advantages"].device)
        start = self.accelerator.process_index * rows
        output["advantages"] = advantages[start : start + rows].to(output["advantages"].dtype)
        self._gdpo_replace_logged(batch if sampled else None, advantages.tolist())
        metrics = step_metrics(self.objective, estimate, batch.scores, estimate.group, progress, **extra)
        metrics |= sampled
        for name, value in metrics.items():
            self._metrics[mode][f"{self._gdpo_prefix}{name}"].append(value)
        if self._metrics[mode]["frac_reward_zero_std"]:
            # TRL's own looks at the spread of the sum, or under normalize_then_sum at that of the batch.
            self._metrics[mode]["frac_reward_zero_std"][-1] = float(1 - has_signal(estimate).mean())
        if mode == "train":
            self.objective.observe(batch.scores, estimate, progress)
            self._gdpo_finish(batch, estimate, metrics, extra.get("include"))
        return output

    def _gdpo_replace_logged(self: Any, batch: Generated | None, advantages: list[float]) -> None:
        """Put our advantages where TRL has just appended its own, for its completions table."""
        logged = self._logs["advantages"]
        for _ in range(min(len(advantages), len(logged))):
            logged.pop()
        logged.extend(advantages)
        for (key, part), values in (batch.logged if batch is not None else {}).items():
            if key != "advantages" and values:
                column = self._logs[key][part] if part else self._logs[key]
                column.clear()
                column.extend(values)

    def _gdpo_finish(self: Any, batch: Generated, estimate: Estimate, metrics: dict[str, float], include: Any) -> None:
        """Hand the step to the writer, to ``on_step`` and to the audits, on the main process."""
        audits = [one for one in self.callback_handler.callbacks if isinstance(one, AuditCallback)]
        for one in audits:
            one.gdpo_begin(self.objective)
        if not self._gdpo_wanted and not audits:
            return
        prompts, completions = (
            gather_object([without_payloads(text) for text in texts]) if self._gdpo_wanted else []
            for texts in (batch.prompts, batch.completions)
        )
        lengths = gather_object([len(sequence) for sequence in batch.ids])
        if not self.accelerator.is_main_process:
            return
        step = Step(self.state.global_step + 1, prompts, completions, lengths, batch.scores, estimate, metrics, include)
        if self._gdpo_writer is not None:
            self._gdpo_write(step)
        if self._gdpo_on_step is not None:
            self._gdpo_on_step(step)
        for one in audits:
            one.gdpo_rollouts(step)

    def _gdpo_write(self: Any, step: Step) -> None:
        # TRL may generate several times for one optimizer step (steps_per_generation); its file then holds them all.
        self._gdpo_tabled = [one for one in self._gdpo_tabled if one.step == step.step] + [step]
        metadata = {"gdpo.framework": f"trl {trl.__version__}", "gdpo.objective": self.objective.to_yaml()}
        make = partial(table, self._gdpo_tabled, self._gdpo_text, self._gdpo_task)
        if self._gdpo_wait:
            write_frame(make(), self._gdpo_writer.folder / f"step-{step.step:06d}.parquet", metadata)
        else:
            self._gdpo_writer.put(step.step, make, metadata)

    def _save_checkpoint(self: Any, model: Any, trial: Any, *args: Any, **kwargs: Any) -> None:
        # Before TRL's own files: whoever finds those complete finds ours too.
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{STATE}.{os.getpid()}.tmp"
            temporary.write_text(json.dumps(self.objective.state_dict()), encoding="utf-8")
            os.replace(temporary, folder / STATE)
        if self._gdpo_writer is not None:
            self._gdpo_writer.flush()
        super()._save_checkpoint(model, trial, *args, **kwargs)  # type: ignore[misc]

    def _load_optimizer_and_scheduler(self: Any, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        path = None if checkpoint is None else Path(checkpoint) / STATE
        if path is not None and path.is_file():
            self.objective.load_state_dict(json.loads(path.read_text(encoding="utf-8")))
        elif path is not None and any(schedule.state_dict() for schedule in self.objective.weights.values()):
            warnings.warn(f"{checkpoint} has no {STATE}: weights that learn start anew", stacklevel=2)


class GDPOTrainer(GDPOMixin, trl.GRPOTrainer):  # type: ignore[misc]
    """TRL's ``GRPOTrainer`` with advantages from ``gdpo``: the arguments of ``GDPOMixin`` beside TRL's own.

    Metrics of each reward are logged under ``gdpo/``; TRL's ``frac_reward_zero_std`` becomes the share of groups
    without signal.
    """


class GRPOTrainer(GDPOTrainer):
    """The same under TRL's name, as ``gdpo train`` uses it.

    Its metrics have no prefix, and the rollout table is written at once: a full disk ends the run.
    """

    _gdpo_prefix = ""
    _gdpo_wait = True


def attach(trainer: Any, objective: Objective | None = None, **options: Any) -> Any:
    """Give a trainer that other code has built ``gdpo``'s advantages, in place.

    For scripts that cannot name their trainer's class, and for classes that are copies of TRL's, as Unsloth makes them.

    Args:
        trainer: a GRPO trainer before ``train()``.
        objective: its rewards go by name to those of the trainer, whose functions and order stay as they are. Without
            it: the trainer's rewards and weights, with ``method`` and so on.
        options: the arguments of ``GDPOMixin``.

    Returns:
        The trainer, now of a class that has ``GDPOMixin`` before its own.

    Raises:
        Error: no GRPO trainer, another plug-in on the same methods, or other rewards than the objective's.
    """
    kind = type(trainer)
    if isinstance(trainer, GDPOMixin):
        raise Error(f"the trainer is a {kind.__name__}, which has gdpo's advantages already")
    check_trainer(trainer)
    check_class(kind)
    if objective is not None and (options.get("gates") or options.get("method_options") or options.get("method")):
        _both("gates or a method")
    before = trainer.reward_weights
    trainer.__class__ = type(f"GDPO{kind.__name__}", (GDPOMixin, kind), {"__module__": kind.__module__})
    try:
        trainer._gdpo_setup(objective, **options)
    except BaseException:
        trainer.__class__, trainer.reward_weights = kind, before
        raise
    return trainer


def _both(what: str) -> None:
    raise Error(f"objective was given beside {what}, but it holds rewards, gates and method itself")


__all__ = ["AuditCallback", "GDPOMixin", "GDPOTrainer", "GRPOConfig", "GRPOTrainer", "Step", "attach", "step_metrics"]
