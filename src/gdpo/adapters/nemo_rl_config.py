"""gdpo's block in NeMo-RL's config, ``grpo.adv_estimator.gdpo``. Needs no NeMo-RL."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from gdpo.adapters.block import Settings
from gdpo.adapters.verl_config import get, plain
from gdpo.core.errors import Error

log = logging.getLogger("gdpo")
WHERE = "grpo.adv_estimator.gdpo"


def read_settings(estimator: Any) -> Settings:
    """From ``grpo.adv_estimator``, a mapping or NeMo-RL's own object.

    Raises:
        Error: an unknown key, reward or option, or a setting of the built-in estimator that would be lost.
    """
    block = plain(get(estimator, "gdpo")) or {}
    settings = Settings.from_block(block, WHERE)
    _check_beside(estimator, block)
    return settings


def _check_beside(estimator: Any, block: Mapping[str, Any]) -> None:
    # An empty list says: NeMo-RL's own estimator stops on it ("0 entries"), should the launcher have been forgotten.
    if get(estimator, "reward_weights"):
        raise Error(
            "grpo.adv_estimator.reward_weights is a list, which NeMo-RL gives to the rewards in the alphabetical order "
            f"of their names: remove it, and write {WHERE}.weights by name, such as {{correctness: 1.0, format: 0.5}}"
        )
    if get(estimator, "normalize_rewards", True) is False:
        raise Error(f"grpo.adv_estimator.normalize_rewards is false, which belongs to the built-in estimator: set it "
                    f"to true, and {WHERE}.options.scale=none to divide by no spread")  # fmt: skip
    options = block.get("options") or {}
    if get(estimator, "use_leave_one_out_baseline", False) and "baseline" not in options:
        log.warning(
            "grpo.adv_estimator.use_leave_one_out_baseline is true, NeMo-RL's default, and not used: the paper's "
            "baseline is the group's mean. %s.options.baseline=leave-one-out asks for the other", WHERE,
        )  # fmt: skip
