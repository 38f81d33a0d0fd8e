"""Remedies as lines of configuration, in the terms of the framework that a dump came from.

Only options that the framework has, or that gdpo's adapter for it reads, are named; where there are none, the line says
what to change in the reward function. Keys: TRL 1.16 ``GRPOConfig`` and ``gdpo.trl.GDPOTrainer``; verl 0.9.1 with
``algorithm.gdpo``; NeMo-RL 0.6 with ``grpo.adv_estimator.gdpo``; ms-swift 4.6; gdpo's own recipes. Overrides of verl
and NeMo-RL are Hydra's (``++``: whether the key is there already or not). The tests put each line where it belongs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_METHOD = {
    "trl": "gdpo.trl.GDPOTrainer in place of GRPOTrainer, "
           'or TRL\'s own GRPOConfig(multi_objective_aggregation="normalize_then_sum")',
    "verl": "algorithm.adv_estimator=gdpo '++algorithm.gdpo.rewards=[{keys}]'",
    "nemo_rl": "grpo.adv_estimator.name=gdpo ++grpo.adv_estimator.gdpo.method=gdpo, "
               "launched by python -m gdpo.adapters.nemo_rl",
    "ms_swift": "--scale_rewards gdpo",
    "gdpo": "method=gdpo",
}  # fmt: skip
_WEIGHTS = {
    "trl": "GRPOConfig(reward_weights=[{values}])  # {named}",
    "verl": "algorithm.adv_estimator=gdpo '++algorithm.gdpo.weights={{{pairs}}}', or factors in compute_score",
    "nemo_rl": "grpo.adv_estimator.name=gdpo '++grpo.adv_estimator.gdpo.weights={{{pairs}}}', "
               "launched by python -m gdpo.adapters.nemo_rl",
    "ms_swift": "--reward_weights {spaced}  # {named}",
    "verifiers": "weights=[{values}]  # of the rubric: {named}",
    "gdpo": "{ours}",
}  # fmt: skip
_GATE = {
    "trl": 'gdpo.trl.GDPOTrainer(..., gates={{"{reward}": "{condition}"}})',
    "verl": "'++algorithm.gdpo.gates.{reward}=\"{condition}\"' in gdpo's block (`gdpo doctor CONFIG` prints it)",
    "nemo_rl": "'++grpo.adv_estimator.gdpo.gates.{reward}=\"{condition}\"' in gdpo's block (`gdpo doctor CONFIG` "
               "prints it)",
    "gdpo": 'gates.{reward}="{condition}"',
}  # fmt: skip
_SILENT = {
    "verl": "algorithm.filter_groups.enable=True",
    "nemo_rl": "grpo.use_dynamic_sampling=true",
    "ms_swift": "--dynamic_sample true",
    "trl": 'gdpo.trl.GDPOTrainer(..., resample="combined"), or more rollouts a prompt: GRPOConfig(num_generations=16)',
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
    line = _WEIGHTS.get(framework)
    if line is None:
        return f"multiply in the reward function: {', '.join(f'{name} by {weights[name]:.3g}' for name in changed)}"
    return line.format(
        values=", ".join(values), spaced=" ".join(values), named=named,
        pairs=", ".join(f"{name}: {weight:.3g}" for name, weight in weights.items()),
        ours=" ".join(f"weights.{name}={weights[name]:.3g}" for name in changed),
    )  # fmt: skip


def gate(framework: str, reward: str, condition: str) -> str:
    """Count a reward only where a condition on another holds."""
    line = _GATE.get(framework, "in the reward function: {reward} at its lowest wherever {condition} does not hold")
    return line.format(reward=reward, condition=condition)


def skip_silent_groups(framework: str) -> str:
    """Leave prompts out in whose group nothing varies."""
    return _SILENT.get(framework, "more rollouts a prompt, and prompts that are neither always nor never solved")
