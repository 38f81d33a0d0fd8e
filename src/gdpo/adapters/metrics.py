"""The metrics of one batch, the same in every framework."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdpo.audit.measures import contribution_share, dead_share, distinct_situations
from gdpo.core.compute import Estimate
from gdpo.objective import Objective, Progress


def step_metrics(
    objective: Objective, estimate: Estimate, scores: Any, groups: Any, progress: Progress, **options: Any
) -> dict[str, float]:
    """The metrics of one batch, by name. ``options`` are those the estimate was made with.

    For each reward: ``rewards/NAME/mean`` (raw), ``group_std`` (its spread inside a group, averaged over the groups
    that have it), ``dead_share`` (groups in which it is tied), ``contribution_share`` (its part in the advantage's
    variance, see ``gdpo.audit.measures``) and ``weight``. For all: ``dead_share`` (groups in which every reward is
    tied), ``live_groups``, and how many situations the method told apart (``distinct_advantages``) beside how many GRPO
    would have (``distinct_advantages_grpo``) and how many there were (``distinct_reward_vectors``).
    """
    names, live = estimate.names, estimate.live
    shares = contribution_share(estimate.advantages, estimate.contributions)
    present = ~np.isnan(estimate.mean)
    there = ~np.isnan(np.asarray(estimate.rewards, dtype=np.float64))
    counts = np.stack(
        [np.bincount(estimate.group[there[:, k]], minlength=len(live)) for k in range(len(names))], axis=1
    )
    dead = dead_share(live, counts)
    metrics: dict[str, float] = {}
    for k, name in enumerate(names):
        values = scores[:, k][~np.isnan(scores[:, k])]
        metrics[f"rewards/{name}/mean"] = float(values.mean()) if len(values) else float("nan")
        spread = estimate.std[present[:, k], k]
        metrics[f"rewards/{name}/group_std"] = float(spread.mean()) if len(spread) else float("nan")
        metrics[f"rewards/{name}/dead_share"] = float(dead[k])
        metrics[f"rewards/{name}/contribution_share"] = float(shares[k])
        metrics[f"rewards/{name}/weight"] = objective.weights[name].value(progress)
    grpo = objective.advantages(scores, groups, progress, method="grpo", **options)
    metrics["dead_share"] = float((~live.any(axis=1)).mean())
    metrics["live_groups"] = float(live.any(axis=1).sum())
    group = estimate.group
    metrics["distinct_reward_vectors"] = float(distinct_situations(group, live, estimate.rewards))
    metrics["distinct_advantages"] = float(distinct_situations(group, live, estimate.combined[:, None]))
    metrics["distinct_advantages_grpo"] = float(distinct_situations(group, live, grpo.combined[:, None]))
    return metrics
