"""``gdpo doctor trl [CONFIG]``: does this TRL have the hook, and what to change in a GRPO config."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gdpo.core.errors import Error
from gdpo.doctor.base import Check, read_text

WHAT = "TRL 0.20 to 1.16: the two methods that gdpo wraps, GRPO settings in CONFIG"
KEYS = (
    "reward_weights",
    "num_generations",
    "scale_rewards",
    "multi_objective_aggregation",
    "reward_funcs",
    "loss_type",
)


def recognises(text: str) -> bool:
    """Whether a config is a YAML for TRL's GRPO."""
    return "num_generations:" in text and "grpo:" not in text and "actor_rollout_ref" not in text


def check(path: Path | None, workers: bool) -> Iterator[Check]:
    """The config, then the environment; TRL has no workers of its own."""
    if path is not None:
        try:
            config = yaml.safe_load(read_text(path))
        except yaml.YAMLError as error:
            raise Error(f"the config {path} is no YAML: {' '.join(str(error).split())}") from None
        if not isinstance(config, dict):
            raise Error(f"the config {path} holds {type(config).__name__}, but a mapping was expected")
        yield from check_config(config)
    yield from check_environment()


def check_config(config: Mapping[str, Any]) -> Iterator[Check]:
    """What the settings do today, and the lines to change for GDPO."""
    weights, functions = config.get("reward_weights"), config.get("reward_funcs")
    if weights is not None and isinstance(functions, list) and len(functions) != len(weights):
        yield Check("wrong", f"config: {len(weights)} reward_weights for {len(functions)} reward_funcs",
                    "one weight a reward, in the order of reward_funcs")  # fmt: skip
    aggregation = config.get("multi_objective_aggregation", "sum_then_normalize")
    if aggregation == "normalize_then_sum":
        yield Check("note", "config: TRL's own GDPO. Groups of equal rewards get an advantage from float32 rounding, "
                    "frac_reward_zero_std looks at the batch and not at groups, tied groups count in the batch norm "
                    "where rewards are missing", "from gdpo.trl import GDPOTrainer  # was: GRPOTrainer")  # fmt: skip
    else:
        yield Check("note", f"config: {aggregation}: rewards are summed before they are normalised (GRPO). Only the "
                    "advantage changes; learning rate, batch and group size stay",
                    "from gdpo.trl import GDPOTrainer  # was: GRPOTrainer")  # fmt: skip
    if config.get("scale_rewards", "group") not in ("group", True):
        yield Check("note", f"config: scale_rewards={config['scale_rewards']!r} is not read by GDPOTrainer",
                    "GDPOTrainer(..., method='grpo_no_std')  # or method_options={'scale': 'none'}")  # fmt: skip
    size = config.get("num_generations")
    if size is not None and int(size) < 2:
        yield Check("wrong", f"config: num_generations is {size}: a group of one has advantage 0", "num_generations: 8")
    if config.get("loss_type") == "dr_grpo":
        yield Check(
            "note", "config: loss_type dr_grpo is about the loss's length; Dr. GRPO's advantage is method='grpo_no_std'"
        )


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
