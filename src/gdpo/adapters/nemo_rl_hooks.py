"""Where the NeMo-RL adapter takes hold: its estimator class, its logger, its checkpoints."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import re
import sys
import weakref
from pathlib import Path
from typing import Any

from gdpo.adapters.verl_config import get
from gdpo.core.errors import Error

MODULE = "nemo_rl.algorithms.advantage_estimator"
NAME = "GDPOAdvantageEstimator"
STATE = "gdpo_objective.json"
"""File in NeMo-RL's checkpoint folders: the step, and what of the objective has moved."""
REMEDY = "look for a gdpo that knows this NeMo-RL, or a NeMo-RL of 2026-08"

TRACKED: weakref.WeakSet[Any] = weakref.WeakSet()
"""Estimators of this process."""
_restored: dict[str, Any] = {}


def version() -> str:
    """NeMo-RL's version, as far as it says one."""
    module = sys.modules.get("nemo_rl")
    return str(getattr(module, "__version__", "of unknown version"))


def track(estimator: Any) -> None:
    """Have an estimator told of steps and checkpoints."""
    TRACKED.add(estimator)


def restored() -> tuple[int, dict[str, Any] | None]:
    """(step, state) of the checkpoint that this process has read last; (0, None) without one."""
    return int(_restored.get("step", 0)), _restored.get("objective")


def install() -> None:
    """Put gdpo's estimator in the place of NeMo-RL's; twice is once.

    Raises:
        Error: NeMo-RL is not installed, its estimator has another shape, or another plug-in has taken its place.
    """
    from gdpo.adapters.nemo_rl import GDPOAdvantageEstimator

    try:
        module = importlib.import_module(MODULE)
    except ModuleNotFoundError as error:
        raise Error(f"{MODULE} cannot be imported ({error}): run this where NeMo-RL is installed") from None
    found = getattr(module, NAME, None)
    if found is GDPOAdvantageEstimator:
        return
    check_class(found)
    for loaded in list(sys.modules.values()):
        # Whoever did `from ... import GDPOAdvantageEstimator` holds the class itself.
        if getattr(loaded, "__dict__", {}).get(NAME) is found:
            setattr(loaded, NAME, GDPOAdvantageEstimator)
    for name, other in list(vars(module).items()):
        if name.endswith("AdvantageEstimator") and name != NAME and isinstance(other, type):
            _refuse_block(other)
    logger = importlib.import_module("nemo_rl.utils.logger").Logger
    checkpoints = importlib.import_module("nemo_rl.utils.checkpoint").CheckpointManager
    for kind, name, wrapper in (
        (logger, "log_metrics", _log_metrics),
        (logger, "log_batched_dict_as_jsonl", _log_jsonl),
        (checkpoints, "init_tmp_checkpoint", _save),
        (checkpoints, "load_training_info", _load),
    ):
        real = getattr(kind, name, None)
        if real is None:
            raise Error(f"{kind.__name__} of NeMo-RL {version()} has no {name}, which gdpo needs: {REMEDY}")
        if not hasattr(real, "_gdpo"):
            wrapped: Any = functools.wraps(real)(wrapper(real))
            wrapped._gdpo = True
            setattr(kind, name, wrapped)


def check_class(found: Any) -> None:
    """Whether the class that is to be replaced is NeMo-RL's, with the parameters that its callers use."""
    if not isinstance(found, type):
        raise Error(f"{MODULE} of NeMo-RL {version()} has no {NAME}: {REMEDY}")
    method: Any = getattr(found, "compute_advantage", None)
    for what, owner in ((NAME, found.__module__), (f"{NAME}.compute_advantage", getattr(method, "__module__", MODULE))):
        if owner != MODULE:
            raise Error(f"{what} comes from {owner}, another plug-in on the same hook: remove one of the two")
    wanted: tuple[tuple[str, Any, list[str]], ...] = (
        ("__init__", vars(found).get("__init__"), ["self", "estimator_config", "loss_config"]),
        ("compute_advantage", method, ["self", "prompt_ids", "rewards", "mask", "repeated_batch"]),
    )
    for name, function, expected in wanted:
        parameters = [] if function is None else inspect.signature(function).parameters.values()
        names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
        if names != expected:
            raise Error(f"{NAME}.{name} of NeMo-RL {version()} takes {names}, but {expected} was expected: {REMEDY}")


def _refuse_block(kind: Any) -> None:
    """Another estimator must not be built from a config that asks for gdpo."""
    real = kind.__init__
    if hasattr(real, "_gdpo"):
        return

    @functools.wraps(real)
    def init(self: Any, estimator_config: Any = None, *args: Any, **kwargs: Any) -> None:
        if get(estimator_config, "gdpo") is not None:
            name = get(estimator_config, "name")
            raise Error(f"grpo.adv_estimator.name is {name!r} beside grpo.adv_estimator.gdpo, but 'gdpo' was "
                        "expected; the method itself is grpo.adv_estimator.gdpo.method")  # fmt: skip
        real(self, estimator_config, *args, **kwargs)

    init._gdpo = True  # type: ignore[attr-defined]
    kind.__init__ = init


def _log_metrics(real: Any) -> Any:
    def log_metrics(self: Any, metrics: Any, step: int, prefix: Any = "", *args: Any, **kwargs: Any) -> Any:
        # NeMo-RL logs under "train" before a step's advantages (of its rollouts) and after: only then is one pending.
        if prefix == "train":
            for estimator in list(TRACKED):
                if estimator.pending.parts:
                    metrics = {**metrics, **estimator.finish(int(step), self.base_log_dir)}
        return real(self, metrics, step, prefix, *args, **kwargs)

    return log_metrics


def _log_jsonl(real: Any) -> Any:
    def log_batched_dict_as_jsonl(self: Any, to_log: Any, filename: str) -> Any:
        if re.fullmatch(r"train_data_step\d+\.jsonl", os.path.basename(filename)):
            for estimator in list(TRACKED):
                if estimator.pending.parts and "content" in to_log:
                    estimator.pending.content = list(to_log["content"])
        return real(self, to_log, filename)

    return log_batched_dict_as_jsonl


def _save(real: Any) -> Any:
    def init_tmp_checkpoint(self: Any, step: int, *args: Any, **kwargs: Any) -> Any:
        path = real(self, step, *args, **kwargs)
        for estimator in list(TRACKED):
            # NeMo-RL saves a step before it logs it.
            state = {**estimator.state_dict(), "step": int(step)}
            (Path(path) / STATE).write_text(json.dumps(state), encoding="utf-8")
            if estimator.writer is not None:
                estimator.writer.flush(60.0)
        return path

    return init_tmp_checkpoint


def _load(real: Any) -> Any:
    def load_training_info(self: Any, checkpoint_path: Any = None) -> Any:
        info = real(self, checkpoint_path)
        if checkpoint_path is None or info is None:
            return info
        file = Path(checkpoint_path) / STATE
        if file.is_file():
            _restored.update(json.loads(file.read_text(encoding="utf-8")))
        else:
            _restored.update(step=int(info.get("total_steps") or info.get("step") or 0), objective=None)
        return info

    return load_training_info
