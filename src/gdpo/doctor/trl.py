"""``gdpo doctor trl [CONFIG]``: does this TRL have the hook, and what to change in a GRPO config."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gdpo.core.errors import Error
from gdpo.doctor.advice import what_stays
from gdpo.doctor.base import Check, not_installed
from gdpo.doctor.settings import interpolated, read_mapping, resolve, unknown, whole

WHAT = "TRL 0.20 to 1.16: the two methods that gdpo wraps, GRPO settings in CONFIG"
KEYS = (
    "reward_weights", "num_generations", "scale_rewards", "multi_objective_aggregation", "reward_funcs", "loss_type",
    "per_device_train_batch_size", "gradient_accumulation_steps", "generation_batch_size", "steps_per_generation",
    "mask_truncated_completions", "max_completion_length",
)  # fmt: skip
_OWN = re.compile(
    r"^(num_generations|reward_funcs|reward_weights|scale_rewards|multi_objective_aggregation|generation_batch_size|"
    r"steps_per_generation|mask_truncated_completions)\s*:", re.MULTILINE,
)  # fmt: skip
IMPORT = """in the script that reads it, instead of trl's:
from gdpo.trl import GDPOTrainer, GRPOConfig  # was: from trl import GRPOConfig, GRPOTrainer
trainer = GDPOTrainer(...)  # was: GRPOTrainer(...), same arguments"""
LAUNCHER = """or, for `trl grpo --config {name}`, a launcher, gdpo_grpo.py:
import gdpo.trl, trl
trl.GRPOTrainer = gdpo.trl.GDPOTrainer
from trl.scripts.grpo import main, make_parser
main(*make_parser().parse_args_and_config())
accelerate launch gdpo_grpo.py --config {name}"""


def recognises(text: str) -> bool:
    """Whether a config is a YAML for TRL's GRPO: its keys stand at the top."""
    return _OWN.search(text) is not None and not re.search(r"^(rlhf_type|grpo|actor_rollout_ref)\s*:", text, re.M)


def check(path: Path | None, workers: bool, strict: bool = True) -> Iterator[Check]:
    """The config, then the environment; TRL has no workers of its own."""
    if path is not None:
        yield from check_config(resolve(read_mapping(path)), path.name)
    note = None if strict else not_installed("TRL", "trl")
    if note is not None:
        yield note
        return
    yield from check_environment()


def check_config(config: Mapping[str, Any], name: str = "grpo.yaml") -> Iterator[Check]:
    """What is wrong in the settings, what they do today, and the lines to change for GDPO."""
    yield from _spelling(config)
    yield from _weights(config)
    size = whole(config, "num_generations")
    if size is not None and size < 2:
        yield Check("wrong", f"config: num_generations is {size}: a group of one has advantage 0, and TRL refuses it",
                    "num_generations: 8")  # fmt: skip
    groups, checks = _batch(config, size)
    yield from checks
    yield from _method(config, name)
    yield from _beside(config)
    for entry in interpolated(config, *KEYS):
        yield Check("note", f"config: {entry} is known to the run only, so it was not checked")
    yield what_stays(groups, size, processes=config.get("generation_batch_size") is None)


def _spelling(config: Mapping[str, Any]) -> Iterator[Check]:
    """Keys that are nearly one of those that matter here; scripts may have keys of their own."""
    for key in config:
        near = difflib.get_close_matches(str(key), KEYS, n=1, cutoff=0.88)
        if near and key not in KEYS and near[0] not in config:
            yield Check("wrong", f"config: {key!r} is no setting of TRL's; did you mean {near[0]!r}?")


def _weights(config: Mapping[str, Any]) -> Iterator[Check]:
    weights, functions = config.get("reward_weights"), config.get("reward_funcs")
    functions = [functions] if isinstance(functions, str) else functions
    if isinstance(functions, list) and config.get("reward_model_name_or_path"):
        functions = [config["reward_model_name_or_path"], *functions]  # `trl grpo` puts the model first
    if functions is not None and not isinstance(functions, list):
        raise Error(f"reward_funcs is {functions!r}, but a list of names was expected")
    if functions is not None and len(functions) == 1:
        yield Check("note", "config: there is one reward, so there is nothing to keep apart: GDPO is then GRPO "
                    "followed by a batch norm")  # fmt: skip
    if weights is None or unknown(weights):
        return
    numbers = isinstance(weights, list) and all(type(weight) in (int, float) for weight in weights)
    if not numbers:
        yield Check("wrong", f"config: reward_weights is {weights!r}, but a list of numbers was expected",
                    "reward_weights: [1.0, 0.5]  # one a reward, in their order")  # fmt: skip
    elif functions is not None and len(functions) != len(weights):
        lines = f"reward_weights: {[1.0] * len(functions)}  # in the order of {', '.join(map(str, functions))}"
        yield Check("wrong", f"config: {len(weights)} reward_weights for {len(functions)} rewards: TRL refuses", lines)
    elif not any(weights):
        yield Check("wrong", "config: every weight is 0, but at least one reward must count")


def _batch(config: Mapping[str, Any], size: int | None) -> tuple[float | None, list[Check]]:
    """Groups in a batch (of one process, where the number of processes matters), and what is wrong with them."""
    whole_batch, steps = whole(config, "generation_batch_size"), whole(config, "steps_per_generation")
    if whole_batch is not None and steps is not None:
        return None, [Check("wrong", "config: generation_batch_size and steps_per_generation are both set, which TRL "
                            "refuses", "keep one of them")]  # fmt: skip
    device, more = whole(config, "per_device_train_batch_size"), whole(config, "gradient_accumulation_steps")
    if size is None or size < 2 or (whole_batch is None and device is None):
        return None, []
    rollouts = whole_batch if whole_batch is not None else (device or 8) * (steps or more or 1)
    if rollouts % size == 0:
        return rollouts / size, []
    if whole_batch is not None:
        return None, [Check("wrong", f"config: generation_batch_size {rollouts} is no multiple of num_generations "
                            f"{size}, which TRL refuses")]  # fmt: skip
    return rollouts / size, [Check("note", f"config: {rollouts} rollouts a process are no whole groups of {size}: the "
                                   "number of processes has to make up for it, or TRL refuses")]  # fmt: skip


def _method(config: Mapping[str, Any], name: str) -> Iterator[Check]:
    """What the rewards become today, and the change."""
    lines = IMPORT
    if config.get("reward_funcs") is not None:
        lines += "\n" + LAUNCHER.format(name=name)
    aggregation = config.get("multi_objective_aggregation", "sum_then_normalize")
    if unknown(aggregation):
        yield Check("note", "config: to have gdpo's advantages:", lines)
    elif aggregation == "normalize_then_sum":
        yield Check(
            "note", "config: normalize_then_sum is TRL's own GDPO. In it (1.16) seven equal rewards of 0.7 get an "
            "advantage of 0.002 and two constant groups of six one of 0.79, by float32 rounding; frac_reward_zero_std "
            "looks at the batch and not at groups; scale_rewards is ignored. To have them right:",
            f"{lines}\nand remove multi_objective_aggregation from {name}: GDPOTrainer does not read it",
        )  # fmt: skip
    elif aggregation == "sum_then_normalize":
        yield Check("note", "config: rewards are summed before they are normalised (GRPO), so that different "
                    "combinations of rewards get one advantage. To change over:", lines)  # fmt: skip
    else:
        yield Check("wrong", f"config: multi_objective_aggregation is {aggregation!r}, but 'sum_then_normalize' or "
                    "'normalize_then_sum' was expected", lines)  # fmt: skip


def _beside(config: Mapping[str, Any]) -> Iterator[Check]:
    """Settings whose meaning people carry over."""
    scale = config.get("scale_rewards", "group")
    if scale not in ("group", True) and not unknown(scale):
        method = "grpo_batch_std" if scale == "batch" else "grpo_no_std"
        yield Check("note", f"config: scale_rewards={scale!r} is not read by GDPOTrainer: it is a method there",
                    f"GDPOTrainer(..., method={method!r})  # or the default, gdpo")  # fmt: skip
    if config.get("loss_type") == "dr_grpo":
        yield Check(
            "note", "config: loss_type dr_grpo is about the loss's length; Dr. GRPO's advantage is method='grpo_no_std'"
        )
    if config.get("mask_truncated_completions") is True:
        yield Check("note", "config: mask_truncated_completions takes truncated ones out of the loss, "
                    "not out of the mean and spread of their group",
                    "GDPOTrainer(..., exclude_truncated=True)")  # fmt: skip


def check_environment() -> Iterator[Check]:
    """Whether TRL is here and has the hook."""
    try:
        trl = importlib.import_module("trl")
        trainer = trl.GRPOTrainer
        hook = importlib.import_module("gdpo.adapters.trl_hook")
    except Exception as error:  # whatever its imports raise
        yield Check("wrong", f"TRL's GRPOTrainer cannot be imported here ({' '.join(str(error).split())})",
                    "pip install 'gdpo[train]'")  # fmt: skip
        return
    try:
        hook.check_class(trainer)
    except Error as error:
        yield Check("wrong", str(error))
        return
    yield Check("ok", f"TRL {trl.__version__} has the two methods that gdpo wraps")
    if not trainer.__module__.startswith("trl."):
        yield Check("note", f"GRPOTrainer comes from {trainer.__module__}, another package's copy",
                    "build it as that package says, then gdpo.trl.attach(trainer)")  # fmt: skip
