"""All measures of a dump as plain values under stable names, and what they were per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpo.audit import measures
from gdpo.audit.chunks import Floats
from gdpo.audit.collect import Collected
from gdpo.audit.sums import pairs


def by_name(names: tuple[str, ...], values: NDArray[Any]) -> dict[str, Any]:
    """[R] -> {reward: value}; NaN is None."""
    return {name: number(value) for name, value in zip(names, values, strict=True)}


def number(value: Any) -> Any:
    """A plain number; None for NaN, an int for a whole count's dtype."""
    if isinstance(value, np.integer):
        return int(value)
    return None if np.isnan(value) else float(value)


def collapse(found: Collected, method: str) -> dict[str, Any]:
    """Over groups in which a reward varies: distinct sorted advantage vectors before batch norm, rounded to 1e-9 of the
    largest, over distinct multisets of reward vectors. Below 1, the method merges situations."""
    vectors, rewards = found.situations.codes(method)[1], found.situations.codes(None)[1]
    return {
        "distinct_advantage_vectors": vectors, "distinct_reward_multisets": rewards,
        "ratio": vectors / rewards if rewards else None,
    }  # fmt: skip


def measure_table(found: Collected) -> dict[str, Any]:
    """Every measure; each is defined where it is computed (``gdpo.audit.measures``)."""
    names, whole, series = found.names, found.totals.whole(), found.totals.series()
    weights = np.array(found.setting.weight_list())
    first, last = ({k: v[at] for k, v in series.items()} for at in (0, -1))
    moved, _ = measures.drift(series)
    table: dict[str, Any] = {
        "weights": by_name(names, weights),
        "dead_share": by_name(names, measures.dead_groups(whole)),
        "groups_varying": by_name(names, whole["live"].astype(np.int64)),
        "groups_tied": by_name(names, whole["tied"].astype(np.int64)),
        "groups_absent": by_name(names, whole["absent"].astype(np.int64)),
        "all_dead_share": number(measures.all_dead(whole)),
        "resolution": {method: _resolution(whole, method) for method in found.methods},
        "collapse": {method: collapse(found, method) for method in found.methods},
    }
    for method in found.methods:
        table[f"dominance_{method}"] = by_name(names, measures.dominance(whole, method))
    table["correlation"] = _correlations(found, whole)
    table["length_correlation"] = {
        name: value
        for (name, value), live in zip(
            by_name(names, measures.length_correlation(whole)).items(), whole["live"], strict=True
        )
        if live > 0
    }
    for method in found.methods:
        table[f"cancellation_{method}"] = number(measures.cancellation(whole, method))
    mean = found.reference + measures.mean_offset(whole)
    used = found.setting.method
    return table | {
        "mean": by_name(names, mean),
        "range": {
            name: [number(low), number(high)] if low <= high else None
            for name, low, high in zip(names, found.low, found.high, strict=True)
        },
        "group_std_mean": by_name(names, measures.group_spread(whole)),
        "varying_share_first_step": by_name(names, measures.varying_share(first)),
        "varying_share_last_step": by_name(names, measures.varying_share(last)),
        "influence": by_name(names, measures.influence(whole, used)),
        "unearned_share": by_name(names, measures.unearned(whole, used)),
        "pushed_up_against": by_name(names, measures.pushed_up_against(whole, used)),
        "pushed_down_against": by_name(names, measures.pushed_down_against(whole, used)),
        "scale_ratio": by_name(names, measures.scale_ratio(whole, weights)),
        "missing_share": by_name(names, measures.missing_share(whole)),
        "noise_share": by_name(names, measures.ratio(found.noisy().sum(axis=0), whole[f"{used}/size"])),
        "lone_rollout_share": number(measures.ratio(found.lonely().sum(), whole[f"{used}/size"])),
        "gate_pass_rate": by_name(tuple(found.setting.gates), measures.gate_pass(whole)) if found.setting.gates else {},
        "drift": by_name(names, moved),
    }


def series_table(found: Collected) -> dict[str, Any]:
    """Per step: ``step``, ``rollouts``, and for each reward its mean, spread, dead share and share of |A|."""
    names, series, used = found.names, found.totals.series(), found.setting.method
    columns: Mapping[str, Floats] = {
        "mean": found.reference + measures.mean_offset(series), "spread": measures.group_spread(series),
        "dead_share": measures.dead_groups(series), "influence": measures.influence(series, used),
        "missing_share": measures.missing_share(series),
    }  # fmt: skip
    return {
        "step": list(found.totals.steps), "rollouts": [int(n) for n in series["rollouts"]],
        "groups": [int(n) for n in series["groups"]],
        "all_dead_share": [number(value) for value in measures.all_dead(series)],
        **{
            what: {name: [number(value) for value in values[:, k]] for k, name in enumerate(names)}
            for what, values in columns.items()
        },
    }  # fmt: skip


def _resolution(whole: Mapping[str, Floats], method: str) -> dict[str, Any]:
    return {
        "distinct_advantages": int(whole[f"{method}/distinct"]),
        "distinct_reward_vectors": int(whole["distinct_rewards"]), "ratio": number(measures.resolution(whole, method)),
    }  # fmt: skip


def _correlations(found: Collected, whole: Mapping[str, Floats]) -> list[dict[str, Any]]:
    both, everywhere = measures.correlation(whole), measures.correlation_everywhere(whole)
    names = found.names
    return [
        {
            "pair": [names[k], names[other]], "both_vary": number(both[at]),
            "groups_both_vary": int(whole["pair_groups"][at]), "all_rollouts": number(everywhere[at]),
        }
        for at, (k, other) in enumerate(pairs(len(names)))
    ]  # fmt: skip
