"""``gdpo doctor nemo-rl [CONFIG]``: does NeMo-RL have the hook, and what has to change in its config."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gdpo.adapters import nemo_rl_hooks
from gdpo.adapters.nemo_rl_config import WHERE, read_settings
from gdpo.core.errors import Error
from gdpo.doctor.base import Check, read_text
from gdpo.weights import Progress

WHAT = "NeMo-RL of 2026-08: its estimator has the shape that gdpo replaces, grpo.adv_estimator in CONFIG"
LAUNCH = "python -m gdpo.adapters.nemo_rl examples/run_grpo.py --config {config}"


def recognises(text: str) -> bool:
    """Whether a config is NeMo-RL's: YAML with its estimator, or one that inherits from its GRPO configs."""
    return "adv_estimator:" in text or ("grpo:" in text and "num_generations_per_prompt" in text)


def check(path: Path | None, workers: bool) -> Iterator[Check]:
    """The config, then the environment. There is nothing to look at in workers: estimators bring themselves."""
    if path is not None:
        yield from check_config(read_config(path), str(path))
    yield from check_environment()


def read_config(path: Path) -> dict[str, Any]:
    """A config with what it inherits by ``defaults`` from files beside it.

    Raises:
        Error: a file that cannot be read, or no mapping.
    """
    try:
        config = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise Error(f"the config {path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict):
        raise Error(f"the config {path} holds {type(config).__name__}, but a mapping was expected")
    parents = config.pop("defaults", None) or []
    merged: dict[str, Any] = {}
    for parent in [parents] if isinstance(parents, str) else parents:
        if isinstance(parent, str) and (path.parent / parent).is_file():
            merged = _merge(merged, read_config(path.parent / parent))
    return _merge(merged, config)


def check_config(config: Mapping[str, Any], name: str) -> Iterator[Check]:
    """What the config asks for, what is wrong in it today, and the lines to change."""
    grpo = config.get("grpo") or {}
    estimator = grpo.get("adv_estimator") or {}
    if estimator.get("gdpo") is None:
        yield _without_block(estimator, name)
    elif estimator.get("name") != "gdpo":
        yield Check("wrong", f"config: grpo.adv_estimator.name is {estimator.get('name')!r} beside its block gdpo, "
                    "which is an error at start-up", "grpo.adv_estimator.name: gdpo")  # fmt: skip
    else:
        yield from _block(estimator)
    if (grpo.get("reward_scaling") or {}).get("enabled"):
        yield Check("note", "config: reward_scaling clamps every component to one range before gdpo sees it",
                    "grpo.reward_scaling.enabled: false")  # fmt: skip
    if grpo.get("use_dynamic_sampling"):
        yield Check("note", "config: use_dynamic_sampling drops groups whose summed reward has no spread; three "
                    "rewards, or unequal weights, still teach from some of them",
                    "grpo.use_dynamic_sampling: false")  # fmt: skip
    size = grpo.get("num_generations_per_prompt")
    if size is not None and int(size) < 2:
        yield Check("wrong", f"config: num_generations_per_prompt is {size}: a group of one has advantage 0")


def check_environment() -> Iterator[Check]:
    """Whether NeMo-RL is here, and has the hook."""
    try:
        module = importlib.import_module(nemo_rl_hooks.MODULE)
    except Exception as error:  # whatever its imports raise
        yield Check("wrong", f"NeMo-RL cannot be imported here ({' '.join(str(error).split())})",
                    "run gdpo doctor in NeMo-RL's environment, with gdpo installed there")  # fmt: skip
        return
    try:
        nemo_rl_hooks.check_class(getattr(module, nemo_rl_hooks.NAME, None))
    except Error as error:
        yield Check("wrong", str(error))
        return
    yield Check("ok", f"NeMo-RL {nemo_rl_hooks.version()} has the estimator that gdpo replaces")


def _without_block(estimator: Mapping[str, Any], name: str) -> Check:
    weights = estimator.get("reward_weights")
    says = "trains by NeMo-RL's own gdpo" if estimator.get("name") == "gdpo" else "trains by the sum of the rewards"
    if weights is not None:
        says += f"; reward_weights={weights} go to the rewards in the alphabetical order of their names"
    if estimator.get("name") == "gdpo" and estimator.get("use_leave_one_out_baseline", True):
        says += "; its leave-one-out spread makes 7428 of seven 0.3 and one 1.0 (2026-08)"
    return Check(
        "wrong", f"config: no {WHERE}: {says}. Only the advantage changes; learning rate, batch and group size stay",
        "grpo:\n  adv_estimator:\n    name: gdpo\n    gdpo: {weights: {correctness: 1.0, format: 0.5}}  # by name\n"
        f"launch: {LAUNCH.format(config=name)}",
    )  # fmt: skip


def _block(estimator: Mapping[str, Any]) -> Iterator[Check]:
    try:
        settings = read_settings(estimator)
    except Error as error:
        yield Check("wrong", f"config: {error}")
        return
    if settings.objective is None:
        yield Check(
            "ok", f"config: {WHERE} asks for {settings.block.get('method', 'gdpo')!r} of all components, weight 1 each"
        )
    else:
        weights = {name: round(w.value(Progress()), 6) for name, w in settings.objective.weights.items()}
        yield Check("ok", f"config: {WHERE} asks for {settings.objective.method!r} of the rewards {weights}")
    if estimator.get("use_leave_one_out_baseline", True) and "baseline" not in (settings.block.get("options") or {}):
        yield Check("note", "config: use_leave_one_out_baseline is true and not used; the paper's baseline is the mean",
                    f"{WHERE}.options.baseline: leave-one-out  # to have it")  # fmt: skip


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict) and not value.get("_override_")
        merged[key] = _merge(merged[key], value) if both else value
    return merged
