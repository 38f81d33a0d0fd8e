"""Where gdpo goes into verl's classes: each hook asks for the run's block, and without it calls verl's code.

v1: ``PPOTrainer._compute_advantage`` is wrapped. It reads the scores from the TransferQueue and lets verl's method run
(KL, rollout correction, writing back) with only ``compute_advantage_for_multi_trajectories`` replaced inside.
Legacy: the registry's entry "gdpo" is replaced, to which verl hands the scores. Both: checkpoints, the end of the run.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from gdpo.adapters.verl_config import Settings, get, plain
from gdpo.adapters.verl_plugin import STATE
from gdpo.core.errors import Error

SUPPORTED, TESTED = "verl>=0.9.1,<0.10", "0.9.1"
INNER = "compute_advantage_for_multi_trajectories"
V1, LEGACY = "verl.trainer.ppo.v1.trainer_base", "verl.trainer.ppo.ray_trainer"
CORE = "verl.trainer.ppo.core_algos"
REMEDY = {
    V1: f"install {SUPPORTED}, or use the legacy trainer (trainer.use_v1=False)",
    LEGACY: f"install {SUPPORTED}, or use the v1 trainer (trainer.use_v1=True)",
}

_pending: ContextVar[Any] = ContextVar("gdpo_pending", default=None)
_bare: dict[str, Any] = {}
"""Sessions of calls without a trainer, by their block."""
_legacy: list[Any] = []
"""The session of this process's legacy trainer."""


def version() -> str:
    """verl's."""
    return str(getattr(importlib.import_module("verl"), "__version__", "?"))


def owner(function: Any) -> str:
    """The module that a function was written in, whatever it claims to be."""
    function = getattr(function, "__func__", function)
    space = getattr(function, "__globals__", None)
    return str(space["__name__"]) if space else type(function).__module__


def replace(holder: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put a wrapper of ``holder.name`` in its place.

    Raises:
        Error: there is no such name in this version of verl.
    """
    original = holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)
    if original is None:
        where = "the estimator registry" if isinstance(holder, dict) else getattr(holder, "__name__", str(holder))
        raise Error(f"verl {version()} has no {name!r} in {where}, where gdpo's hook goes")
    if owner(original) == __name__:
        return
    wrapper: Any = functools.wraps(original)(make(original))
    wrapper._gdpo_original = original
    if isinstance(holder, dict):
        holder[name] = wrapper
    else:
        setattr(holder, name, wrapper)


def missing(module_name: str) -> str:
    """Why the hooks of a trainer are not in; "" where they are, or nobody has imported it yet."""
    return STATE.get(module_name) or (STATE.get(CORE, "") if module_name == LEGACY else "")


def places(module_name: str, trainer: Any = None) -> list[tuple[str, Any]]:
    """What stands on the hooks of a trainer's kind: (name, function)."""
    module: Any = importlib.import_module(module_name)
    if module_name == V1:
        compute = (trainer or module.PPOTrainer)._compute_advantage
        return [("PPOTrainer._compute_advantage", compute), (INNER, getattr(module, INNER))]
    registry = importlib.import_module(CORE).ADV_ESTIMATOR_REGISTRY
    return [("ADV_ESTIMATOR_REGISTRY['gdpo']", registry.get("gdpo"))]


def check_hooks(trainer: Any, module_name: str, settings: Settings) -> None:
    """That gdpo's hooks are in, around verl's own code and around nothing else.

    Raises:
        Error: a hook that this version lacks, or another plug-in on it (a warning with ``strict: false``).
    """
    if missing(module_name):
        raise Error(f"{missing(module_name)}; {REMEDY[module_name]}")
    for what, found in places(module_name, type(trainer)):
        other = other_owner(found)
        if other:
            said = (
                f"{what} of verl {version()} is taken by {other!r}, so that gdpo's advantages may not be those trained "
                "on: remove that plug-in, or let verl load gdpo's alone (VERL_USE_EXTERNAL_PLUGINS=gdpo)"
            )
            if settings.strict:
                raise Error(said)
            warnings.warn(said, stacklevel=3)


def other_owner(function: Any) -> str:
    """Who else stands on a hook, outside of gdpo's wrapper or below it; "" for nobody."""
    if owner(function) != __name__:
        return owner(function)
    below = owner(function._gdpo_original)
    return "" if below.startswith("verl.") else below


def attach(trainer: Any, module_name: str) -> Any:
    """The trainer's session, made at its start; None where its config has no block."""
    known = trainer.__dict__.get("_gdpo", False)
    if known is not False:
        return known
    settings = Settings.from_config(trainer.config)
    if settings is None:
        trainer._gdpo = None
        return None
    check_hooks(trainer, module_name, settings)
    from gdpo.adapters.verl import Session

    trainer._gdpo = Session(settings, trainer)
    if module_name == LEGACY:
        _legacy[:] = [trainer._gdpo]
    _replace_filter(trainer)
    return trainer._gdpo


def _replace_filter(trainer: Any) -> None:
    """Put gdpo's test of a group in the place of the replay buffer's, where the run filters groups."""
    if not get(get(get(trainer.config, "algorithm"), "filter_groups"), "enable", False):
        return
    buffer: Any = getattr(trainer, "replay_buffer", None)
    if not hasattr(buffer, "_dapo_filtered_keys"):
        warnings.warn(
            f"algorithm.filter_groups is left to {type(buffer).__name__}: gdpo's test of groups goes into the v1 "
            "trainer's own replay buffer", stacklevel=3,
        )  # fmt: skip
        return
    from gdpo.adapters.verl_read import filtered

    queue = importlib.import_module("transfer_queue")
    buffer._dapo_filtered_keys = functools.partial(filtered, buffer, queue, trainer._gdpo)


def patch_v1(module: ModuleType) -> None:
    """The v1 trainers."""
    trainer = getattr(module, "PPOTrainer", None)
    if trainer is None:
        raise Error(f"verl {version()} has no PPOTrainer in {module.__name__}, where gdpo's hook goes")
    _patch_trainer(trainer, V1)

    def outer(original: Any) -> Any:
        def _compute_advantage(self: Any, batch: Any, metrics: Any = None, **options: Any) -> Any:
            session = attach(self, V1)
            if session is None:
                return original(self, batch, metrics, **options)
            from gdpo.adapters.verl_read import v1_batch

            held = v1_batch(session, module.tq, batch, metrics)
            token = _pending.set((session, held))
            try:
                result = original(self, batch, metrics, **options)
            finally:
                _pending.reset(token)
            if not held.used:
                raise Error(f"verl {version()} computed advantages without {INNER}; {REMEDY[V1]}")
            return result

        return _compute_advantage

    def inner(original: Any) -> Any:
        def compute_advantage_for_multi_trajectories(data: Any, *args: Any, **options: Any) -> Any:
            pending = _pending.get()
            if pending is None:
                return original(data, *args, **options)
            session, held = pending
            held.groups = data.non_tensor_batch["uid"][held.final]
            data.batch["advantages"] = data.batch["returns"] = session.advantages(data.batch, held)
            return data

        return compute_advantage_for_multi_trajectories

    replace(trainer, "_compute_advantage", outer)
    replace(module, INNER, inner)


def patch_legacy(module: ModuleType) -> None:
    """The legacy trainer, and its metrics."""
    trainer = getattr(module, "RayPPOTrainer", None)
    if trainer is None:
        raise Error(f"verl {version()} has no RayPPOTrainer in {module.__name__}, where gdpo's hook goes")
    _patch_trainer(trainer, LEGACY)

    def make(original: Any) -> Any:
        def compute_data_metrics(*args: Any, **options: Any) -> Any:
            metrics = original(*args, **options)
            for session in _legacy:
                metrics.update(session.metrics)
            return metrics

        return compute_data_metrics

    replace(module, "compute_data_metrics", make)


def patch_estimator(module: ModuleType) -> None:
    """The registry's "gdpo", which the legacy trainer hands the scores to."""

    def make(original: Any) -> Any:
        def compute_gdpo(
            token_level_rewards: Any, response_mask: Any, index: Any = None, config: Any = None,
            non_tensor_batch: Any = None, batch: Any = None, **options: Any,
        ) -> Any:  # fmt: skip
            if get(config, "gdpo") is None:
                return original(
                    token_level_rewards=token_level_rewards, response_mask=response_mask, index=index, config=config,
                    non_tensor_batch=non_tensor_batch, batch=batch, **options,
                )  # fmt: skip
            from gdpo.adapters.verl_read import legacy_batch

            session = _session(config)
            held = legacy_batch(session, response_mask, index, non_tensor_batch or {}, batch)
            data = {"response_mask": response_mask, "token_level_rewards": token_level_rewards}
            if session.settings.kl == "reward":
                data["token_level_scores"] = batch["token_level_scores"]
            advantages = session.advantages(data, held)
            return advantages, advantages

        return compute_gdpo

    replace(module.ADV_ESTIMATOR_REGISTRY, "gdpo", make)


def patch_start(module: ModuleType) -> None:
    """The check of the config, which the launching process runs before Ray starts."""

    def make(original: Any) -> Any:
        def validate_config(config: Any, *args: Any, **options: Any) -> Any:
            if Settings.from_config(config) is not None:
                check_version(V1 if get(get(config, "trainer"), "use_v1", True) else LEGACY)
            return original(config, *args, **options)

        return validate_config

    replace(module, "validate_config", make)


def patch_names(module: ModuleType) -> None:
    """The legacy trainer's workers, which stop where samples have different rewards."""

    def make(original: Any) -> Any:
        def _postprocess(self: Any, inputs: Any, *args: Any, **options: Any) -> Any:
            settings = Settings.from_config(self.config)
            if settings is not None:
                from gdpo.adapters.verl_read import complete

                infos = [sample.extra_fields.get("reward_extra_info") or {} for sample in inputs]
                if any(infos):
                    for sample, info in zip(inputs, complete(infos, settings.names), strict=True):
                        sample.extra_fields["reward_extra_info"] = info
            return original(self, inputs, *args, **options)

        return _postprocess

    replace(module.AgentLoopWorker, "_postprocess", make)


def check_version(module_name: str) -> None:
    """That this verl has the trainer, and (where its version is not one that was tested) the hooks.

    Raises:
        Error: it has not; with the version and the remedy.
    """
    try:
        found = importlib.util.find_spec(module_name)
    except ImportError:
        found = None
    if found is None:
        raise Error(f"verl {version()} has no {module_name}, where gdpo's hook goes; {REMEDY[module_name]}")
    if not version().startswith(TESTED):
        importlib.import_module(module_name)
        if STATE.get(module_name):
            raise Error(f"{STATE[module_name]}; {REMEDY[module_name]}")


def _session(config: Any) -> Any:
    """The session that an estimator's config belongs to: the trainer's, or one of its own for a bare call."""
    block = plain(config)["gdpo"]
    for session in _legacy:
        if session.trainer is not None and plain(session.trainer.config.algorithm)["gdpo"] == block:
            return session
    from gdpo.adapters.verl import Session

    name = json.dumps(plain(config), sort_keys=True, default=str)
    if name not in _bare:
        settings = Settings.from_config({"algorithm": config})
        assert settings is not None
        _bare[name] = Session(settings)
    return _bare[name]


def _checkpoint(trainer: Any) -> str:
    """The folder that verl has just resumed from."""
    config = trainer.config.trainer
    if config.resume_mode == "resume_path":
        return str(config.resume_from_path)
    return os.path.join(config.default_local_dir, f"global_step_{trainer.global_steps}")


def _patch_trainer(trainer: Any, module_name: str) -> None:
    """What both kinds of trainer have: their start, checkpoints, their end."""

    def started(original: Any) -> Any:
        def __init__(self: Any, *args: Any, **options: Any) -> None:
            original(self, *args, **options)
            attach(self, module_name)

        return __init__

    def saved(original: Any) -> Any:
        def _save_checkpoint(self: Any, *args: Any, **options: Any) -> Any:
            session = attach(self, module_name)
            if session is not None:  # before verl says that the checkpoint is whole
                session.save(os.path.join(self.config.trainer.default_local_dir, f"global_step_{self.global_steps}"))
            return original(self, *args, **options)

        return _save_checkpoint

    def loaded(original: Any) -> Any:
        def _load_checkpoint(self: Any, *args: Any, **options: Any) -> Any:
            result = original(self, *args, **options)
            session = attach(self, module_name)
            if session is not None and getattr(self, "global_steps", None):
                session.load(_checkpoint(self))
            return result

        return _load_checkpoint

    def ended(original: Any) -> Any:
        def _shutdown_dump_executor(self: Any, *args: Any, **options: Any) -> Any:
            session = self.__dict__.get("_gdpo")
            if session is not None:
                session.close()
            return original(self, *args, **options)

        return _shutdown_dump_executor

    for name, make in (
        ("__init__", started), ("_save_checkpoint", saved), ("_load_checkpoint", loaded),
        ("_shutdown_dump_executor", ended),
    ):  # fmt: skip
        replace(trainer, name, make)


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "start": patch_start, "estimator": patch_estimator, "legacy": patch_legacy, "v1": patch_v1, "names": patch_names,
}  # fmt: skip
