"""Online training with TRL: recipe in, run folder out."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.objective import Objective
from gdpo.report import write_run_report
from gdpo.report.terminal import LiveView
from gdpo.report.terminal_tables import print_evaluation, print_summary
from gdpo.training import models, tasks
from gdpo.training.evaluate import evaluate
from gdpo.training.recipe import Recipe
from gdpo.training.run import STATE, RunFolder, write_text, writing

_OWN = {
    "output_dir": "output_dir", "max_steps": "steps", "seed": "seed", "num_generations": "num_generations",
    "per_device_train_batch_size": "per_device_train_batch_size", "save_steps": "save_steps", "report_to": "report_to",
    "gradient_accumulation_steps": "gradient_accumulation_steps", "max_completion_length": "max_completion_length",
    "temperature": "temperature", "learning_rate": "learning_rate", "lr_scheduler_type": "lr_scheduler_type",
    "warmup_steps": "warmup_steps", "beta": "beta", "max_grad_norm": "max_grad_norm", "run_name": "name",
    "reward_weights": "weights.NAME", "scale_rewards": "method", "multi_objective_aggregation": "method",
}  # fmt: skip
"""GRPOConfig's fields that the recipe decides itself, and the key that does."""
_FIXED = ("logging_steps", "logging_strategy", "save_strategy", "resume_from_checkpoint", "data_seed")


class Interrupted(Exception):
    """The user stopped the run; everything up to the last step is saved."""


def train(recipe: Recipe, run: RunFolder, view: LiveView) -> None:
    """Train what is left of a run: evaluation before, steps, evaluation after, model, report.

    Args:
        recipe: the run's resolved recipe.
        run: its folder, new or resumed.
        view: where progress is shown.

    Raises:
        Error: bad data, model or reward, or a full disk.
        Interrupted: after Ctrl-C, once the state is saved.
    """
    _quiet_libraries()
    run.rewind()
    objective = recipe.build_objective()
    task = tasks.load(recipe.data, held_out=recipe.evaluation.prompts)
    for note in [*task.notes, *_unusable(objective, task)]:
        view.message(note)
    with writing(run.path):
        trainer = _trainer(recipe, run, objective, task, view)
        tokenizer = trainer.processing_class
        model = trainer.accelerator.unwrap_model(trainer.model)
        if run.read_json("evaluations/before.json") is None:
            view.message(f"held-out evaluation before training: {len(task.held_out)} prompts")
            evaluate(model, tokenizer, task.held_out, objective, recipe, run, "before", 0)
            print_evaluation(run.read_json("evaluations/before.json"), None, view.console)
        if run.read_json("evaluations/after.json") is None:
            _run_steps(trainer, recipe, run, view)
            _save_model(trainer, run)
            view.message(f"held-out evaluation after training: {len(task.held_out)} prompts")
            evaluate(model, tokenizer, task.held_out, objective, recipe, run, "after", recipe.steps)
        run.update_record(finished=True)
        report = write_run_report(run.path)
    before, after = (run.read_json(f"evaluations/{name}.json") for name in ("before", "after"))
    print_evaluation(before, after, view.console)
    print_summary(run.path, report, view.console)


def _unusable(objective: Objective, task: tasks.Task) -> list[str]:
    """What a user should know of gold values that cannot be used, before anything is trained on them.

    Raises:
        Error: a reward can use none at all.
    """
    notes = []
    for what, rows in (("training", task.train), ("held-out", task.held_out)):
        for name, bad in objective.unusable(rows).items():
            asked = str(rows[bad[0]]["prompt"][-1]["content"])[:80]
            if len(bad) == len(rows):
                raise Error(f"reward {name!r} can use the gold value of no {what} row, such as that of {asked!r}")
            notes.append(
                f"{name}: {len(bad)} of {len(rows)} {what} rows have no gold value it can use, such as {asked!r}"
            )
    return notes


def _trainer(recipe: Recipe, run: RunFolder, objective: Objective, task: tasks.Task, view: LiveView) -> Any:
    import datasets

    from gdpo.adapters.trl import GRPOTrainer

    model, tokenizer = models.load(recipe.model, dtype=recipe.dtype)
    shown: dict[str, Any] = {}
    try:
        trainer = GRPOTrainer(
            model, args=_config(recipe, run), train_dataset=datasets.Dataset.from_list(task.train),
            processing_class=tokenizer, peft_config=models.peft_config(recipe.lora), objective=objective,
            rollouts_folder=run.rollouts, on_step=_sampler(shown), task=recipe.data.label,
        )  # fmt: skip
    except (ValueError, ImportError, RuntimeError) as error:
        raise Error(f"TRL refuses these settings: {' '.join(str(error).split())}") from None
    trainer.add_callback(_callback(recipe, run, objective, view, shown))
    from transformers.trainer_callback import PrinterCallback, ProgressCallback

    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    return trainer


def _config(recipe: Recipe, run: RunFolder) -> Any:
    """TRL's ``GRPOConfig`` from the recipe."""
    import torch
    from trl import GRPOConfig

    fields = {field.name for field in dataclasses.fields(GRPOConfig)}
    for key in recipe.trainer:
        if key in _OWN:
            raise Error(f"trainer.{key} is decided by the recipe's own key: set {_OWN[key]}= instead")
        if key in _FIXED:
            raise Error(f"trainer.{key} is needed as it is for the run folder and cannot be set")
        if key not in fields:
            raise Error(f"trainer has no key {key!r}{nearest(key, fields)}")
    on_gpu = torch.cuda.is_available() or (hasattr(torch, "mps") and torch.backends.mps.is_available())
    values: dict[str, Any] = {
        "output_dir": str(run.checkpoints), "max_steps": recipe.steps, "run_name": recipe.folder.name,
        "logging_steps": 1, "save_strategy": "steps", "save_total_limit": 2, "use_cpu": not on_gpu,
        "bf16": recipe.dtype == "bfloat16", "gradient_checkpointing": recipe.model not in models.shipped(),
        "disable_tqdm": True, "dataloader_pin_memory": on_gpu, "log_level": "error",
    }  # fmt: skip
    for theirs, ours in _OWN.items():
        if theirs == ours and theirs not in ("output_dir", "name"):
            values[theirs] = getattr(recipe, ours)
    cycle = _steps_a_generation(recipe)
    values["save_steps"] = -(-recipe.save_steps // cycle) * cycle
    # YAML reads a bare "no" as false.
    given = {
        key: "no" if value is False and key.endswith("_strategy") else value for key, value in recipe.trainer.items()
    }
    try:
        return GRPOConfig(**{**values, **given})
    except (ValueError, TypeError, ImportError, RuntimeError) as error:
        raise Error(f"TRL refuses these settings: {' '.join(str(error).split())}") from None


def _steps_a_generation(recipe: Recipe) -> int:
    """Optimizer steps that use one generated batch. Runs stop and save only between batches: TRL does not save one."""
    accumulation = recipe.gradient_accumulation_steps
    generated = int(recipe.trainer.get("steps_per_generation") or accumulation)
    return max(1, generated * int(recipe.trainer.get("num_iterations") or 1) // accumulation)


def _run_steps(trainer: Any, recipe: Recipe, run: RunFolder, view: LiveView) -> None:
    checkpoint = run.last_checkpoint()
    if checkpoint is not None:
        state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
        trainer.objective.load_state_dict(state["objective"])
        view.message(f"resuming after step {state['step']}")
    _reseed(recipe)
    with _interruptible(trainer) as stopped:
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except ValueError as error:
            if trainer.state.global_step:
                raise
            # Some settings TRL checks in its first step only.
            raise Error(f"TRL refuses these settings: {' '.join(str(error).split())}") from error
    if stopped.is_set() and trainer.state.global_step < recipe.steps:
        raise Interrupted


def _callback(recipe: Recipe, run: RunFolder, objective: Objective, view: LiveView, shown: dict[str, Any]) -> Any:
    from transformers import TrainerCallback

    cycle = _steps_a_generation(recipe)

    class RunCallback(TrainerCallback):  # type: ignore[misc]
        """Writes metrics and marks checkpoints as complete."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            if getattr(state, "gdpo_stop", False) and state.global_step % cycle == 0:
                control.should_save = control.should_training_stop = True
            return control

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if not state.is_world_process_zero or "loss" not in (logs or {}):
                return
            line = metrics_line(state.global_step, logs)
            run.append_metrics(line)
            view.update(line, shown.pop("sample", None))

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_world_process_zero:
                folder = run.checkpoints / f"checkpoint-{state.global_step}"
                saved = {"step": state.global_step, "objective": objective.state_dict()}
                write_text(folder / STATE, json.dumps(saved))

    return RunCallback()


def metrics_line(step: int, logs: dict[str, Any]) -> dict[str, Any]:
    """A line of ``metrics.jsonl`` from what TRL logs: finite numbers as they are, others null, ``seconds`` last."""
    renamed = {"completions/mean_length": "completion_length", "step_time": "seconds"}
    line: dict[str, Any] = {"step": step}
    for key, value in logs.items():
        if not isinstance(value, int | float) and value is not None:
            continue
        finite = value is not None and value == value and abs(value) != float("inf")
        line[renamed.get(key, key)] = value if finite else None
    seconds = line.pop("seconds", None)
    return {**line, "seconds": seconds}


def _sampler(shown: dict[str, Any]) -> Any:
    """Keeps the rollout with the largest advantage of a step, for the live view."""

    def keep(step: Any) -> None:
        best = int(step.estimate.advantages.argmax())
        shown["sample"] = {
            "prompt": step.prompts[best],
            "completion": step.completions[best],
            "advantage": float(step.estimate.advantages[best]),
        }

    return keep


@contextmanager
def _interruptible(trainer: Any) -> Iterator[threading.Event]:
    """The first Ctrl-C ends the run after the step at hand, with a checkpoint; the second ends it at once."""
    stopped = threading.Event()

    def stop(signum: int, frame: Any) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()
        trainer.state.gdpo_stop = True

    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


def _save_model(trainer: Any, run: RunFolder) -> None:
    """The final model as a folder that ``model=`` takes: whole, with its tokenizer; adapters are merged in."""
    temporary = run.path / f".model.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    model = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(model, "merge_and_unload"):
        import copy

        model = copy.deepcopy(model).merge_and_unload()
    model.save_pretrained(temporary)
    trainer.processing_class.save_pretrained(temporary)
    shutil.rmtree(run.model, ignore_errors=True)
    os.replace(temporary, run.model)


def _reseed(recipe: Recipe) -> None:
    from transformers import set_seed

    set_seed(recipe.seed)


def _quiet_libraries() -> None:
    """Progress bars and advice of the libraries would tear the live view apart; errors still come through."""
    import logging
    import warnings

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import datasets
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    for name in ("trl", "accelerate", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for category in (UserWarning, FutureWarning):
        warnings.filterwarnings("ignore", category=category, module=r"(torch|trl|transformers|accelerate|peft)(\.|$)")


def run_path(folder: str | Path) -> Path | None:
    """The run folder that a path names, None where it is none."""
    path = Path(folder)
    return path if (path / "run.json").is_file() else None
