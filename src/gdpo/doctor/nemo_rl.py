"""``gdpo doctor nemo-rl [CONFIG]``: does NeMo-RL have the hook, and what has to change in its config."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gdpo.adapters import nemo_rl_hooks
from gdpo.adapters.nemo_rl_config import WHERE, read_settings
from gdpo.core.errors import Error
from gdpo.doctor.advice import what_stays
from gdpo.doctor.base import Check, not_installed
from gdpo.doctor.settings import at, interpolated, read_mapping, resolve, unknown, whole
from gdpo.weights import Progress

WHAT = "NeMo-RL of 2026-08: its estimator has the shape that gdpo replaces, grpo.adv_estimator in CONFIG"
LAUNCH = "python -m gdpo.adapters.nemo_rl examples/run_grpo.py --config {config}"


def recognises(text: str) -> bool:
    """Whether a config is NeMo-RL's: YAML with its estimator, or one that inherits from its GRPO configs."""
    own = re.search(r"^grpo\s*:", text, re.MULTILINE) and re.search(
        r"adv_estimator|num_(generations|prompts)_per_", text
    )
    return bool(own or re.search(r"^defaults\s*:.*\b(grpo|gdpo)[\w-]*\.yaml", text, re.MULTILINE))


def check(path: Path | None, workers: bool, strict: bool = True) -> Iterator[Check]:
    """The config, then the environment. There is nothing to look at in workers: estimators bring themselves."""
    if path is not None:
        config, absent = inherited(path)
        if absent:
            yield Check("note", f"config: what it inherits from {', '.join(absent)} is not beside it, so not read")
        yield from check_config(config, str(path))
    note = None if strict else not_installed("NeMo-RL", "nemo_rl")
    if note is not None:
        yield note
        return
    yield from check_environment()


def read_config(path: Path) -> dict[str, Any]:
    """A config with what it inherits by ``defaults`` from files beside it.

    Raises:
        Error: a file that cannot be read, or no mapping.
    """
    return inherited(path)[0]


def inherited(path: Path) -> tuple[dict[str, Any], list[str]]:
    """``read_config``, and the names of the parents that are not there."""
    absent: list[str] = []
    return resolve(_read(path, absent, ())), absent


def _read(path: Path, absent: list[str], children: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in children:
        raise Error(f"the config {path} inherits from itself")
    config = read_mapping(path)
    parents = config.pop("defaults", None) or []
    merged: dict[str, Any] = {}
    for parent in [parents] if isinstance(parents, str) else parents:
        if not isinstance(parent, str) or parent == "_self_":
            continue
        if (path.parent / parent).is_file():
            merged = _merge(merged, _read(path.parent / parent, absent, (*children, path.resolve())))
        else:
            absent.append(parent)
    return _merge(merged, config)


def check_config(config: Mapping[str, Any], name: str) -> Iterator[Check]:
    """What the config asks for, what is wrong in it today, and the lines to change."""
    at(config, "grpo.any")
    at(config, "grpo.adv_estimator.any")
    estimator = at(config, "grpo.adv_estimator") or {}
    size, prompts = whole(config, "grpo.num_generations_per_prompt"), whole(config, "grpo.num_prompts_per_step")
    if estimator.get("gdpo") is None:
        yield from _without_block(config, estimator, name, size)
    elif estimator.get("name") != "gdpo":
        yield Check("wrong", f"config: grpo.adv_estimator.name is {estimator.get('name')!r} beside its block gdpo, "
                    "which is an error at start-up", "grpo.adv_estimator.name: gdpo")  # fmt: skip
    else:
        yield from _block(estimator)
    yield from _around(config, size)
    if estimator.get("gdpo") is None:
        yield what_stays(prompts, size)


def _around(config: Mapping[str, Any], size: int | None) -> Iterator[Check]:
    """Settings outside the block that it depends on."""
    if at(config, "grpo.reward_scaling.enabled"):
        yield Check("note", "config: reward_scaling clamps every component to one range before gdpo sees it",
                    "grpo.reward_scaling.enabled: false")  # fmt: skip
    if at(config, "grpo.use_dynamic_sampling"):
        yield Check("note", "config: use_dynamic_sampling drops groups whose summed reward has no spread; three "
                    "rewards, or unequal weights, still teach from some of them",
                    "grpo.use_dynamic_sampling: false")  # fmt: skip
    if size is not None and size < 2:
        yield Check("wrong", f"config: num_generations_per_prompt is {size}: a group of one has advantage 0")
    if at(config, "data.default.env_name") == "math":
        yield Check("note", "config: the environment 'math' gives one reward; gdpo needs components, as "
                    "math_multi_reward gives them (a batch without any is an error)",
                    "data.default.env_name: math_multi_reward  # and env.math_multi_reward for env.math")  # fmt: skip
    for entry in interpolated(
        config, "grpo.adv_estimator.name", "grpo.num_generations_per_prompt", "grpo.num_prompts_per_step"
    ):
        yield Check("note", f"config: {entry} is known to the run only, so it was not checked")


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


def _without_block(
    config: Mapping[str, Any], estimator: Mapping[str, Any], name: str, size: int | None
) -> Iterator[Check]:
    own, weights = estimator.get("name") == "gdpo", estimator.get("reward_weights")
    says = "trains by NeMo-RL's own gdpo" if own else "trains by the sum of the rewards"
    if own and weights is not None:
        says += f"; reward_weights={weights} go to the rewards in the alphabetical order of their names"
    loo = at(config, "grpo.use_leave_one_out_baseline") if not estimator else None
    if own and estimator.get("use_leave_one_out_baseline", loo is not False) is True:
        says += "; its leave-one-out spread makes 7428 of seven 0.3 and one 1.0 (2026-08)"
        if size == 2:
            says += ", and in groups of two it normalises nothing"
    yield Check(
        "wrong" if own else "note", f"config: no {WHERE}: {says}. Only the advantage changes; set",
        "grpo:\n  adv_estimator:\n    name: gdpo\n    use_leave_one_out_baseline: false\n"
        "    gdpo: {weights: {correctness: 1.0, format: 0.5}}  # by name"
        + ("; and remove reward_weights" if weights is not None else "")
        + f"\nlaunch: {LAUNCH.format(config=name)}",
    )  # fmt: skip
    if at(config, "grpo.use_gdpo") is not None or (not estimator and at(config, "grpo.normalize_rewards") is not None):
        yield Check("wrong", "config: grpo.normalize_rewards and the like stand outside adv_estimator: the config "
                    "is of a NeMo-RL before the estimators, which has no hook for gdpo",
                    "take NeMo-RL 0.6 (2026-08) or newer")  # fmt: skip


def _block(estimator: Mapping[str, Any]) -> Iterator[Check]:
    try:
        settings = read_settings(estimator)
    except Error as error:
        if unknown(estimator["gdpo"]):
            yield Check("note", f"config: {WHERE} holds values known to the run only, so it was not checked")
        else:
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
