"""Remedies as lines of configuration, in the terms of the framework that a dump came from.

Only options that the framework has are named; where it has none for a remedy, the line says what to change in the
reward function. Keys: TRL 1.16 ``GRPOConfig``, verl 0.9.1 ``algorithm.*``, NeMo-RL 0.8 ``grpo.adv_estimator.*``,
ms-swift 4.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_METHOD = {
    "trl": 'GRPOConfig(multi_objective_aggregation="normalize_then_sum")',
    "verl": "algorithm.adv_estimator=gdpo algorithm.gdpo_reward_keys=[{keys}]",
    "nemo_rl": "grpo.adv_estimator.name=gdpo",
    "ms_swift": "--scale_rewards gdpo",
    "gdpo": "method=gdpo",
}
_WEIGHTS = {
    "trl": "GRPOConfig(reward_weights=[{values}])  # {named}",
    "verl": "algorithm.gdpo_reward_keys=[{keys}] algorithm.gdpo_reward_weights=[{values}]",
    "ms_swift": "--reward_weights {spaced}  # {named}",
    "verifiers": "weights=[{values}]  # of the rubric: {named}",
    "gdpo": "{ours}",
}


def use_gdpo(framework: str, names: Sequence[str]) -> str:
    """Normalise each reward before they are summed."""
    line = _METHOD.get(framework)
    if line is None:
        return f"method=gdpo (gdpo's adapters bring it to {framework or 'your trainer'})"
    return line.format(keys=",".join(names))


def set_weights(framework: str, weights: Mapping[str, float], changed: Sequence[str]) -> str:
    """These weights, of which ``changed`` are new."""
    values = [f"{weight:.3g}" for weight in weights.values()]
    named = ", ".join(weights)
    ours = " ".join(f"weights.{name}={weights[name]:.3g}" for name in changed)
    line = _WEIGHTS.get(framework)
    if line is None:
        return f"multiply in the reward function: {', '.join(f'{name} by {weights[name]:.3g}' for name in changed)}"
    return line.format(
        values=", ".join(values), spaced=" ".join(values), named=named, keys=",".join(weights), ours=ours
    )


def gate(framework: str, reward: str, condition: str) -> str:
    """Count a reward only where a condition on another holds."""
    if framework == "gdpo":
        return f'gates.{reward}="{condition}"'
    return f'gdpo.Objective(..., {reward}=Reward(..., given="{condition}"))'


def skip_silent_groups(framework: str) -> str:
    """Leave prompts out in whose group nothing varies."""
    return {
        "verl": "algorithm.filter_groups.enable=True",
        "nemo_rl": "grpo.use_dynamic_sampling=true",
        "ms_swift": "--dynamic_sample true",
        "trl": "GRPOConfig(num_generations=16, temperature=1.0): more and more varied rollouts a prompt",
    }.get(framework, "more rollouts a prompt, and prompts that are neither always nor never solved")
