"""Findings about what a method makes of several rewards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gdpo.audit import measures, remedies
from gdpo.audit.evidence import Evidence, Interval, percent, weigh_down
from gdpo.audit.findings import Finding
from gdpo.audit.sums import pairs
from gdpo.audit.tables import collapse


def dominance(e: Evidence) -> Iterator[Finding]:
    """One reward that makes most of the advantage, beyond what its weight asks for."""
    value, low, high = e.measured(lambda sums: measures.dominance(sums, e.method))
    varying = measures.varying_share(e.whole)
    square = e.weights**2
    for k, name in enumerate(e.names):
        others = [j for j in range(len(e.names)) if j != k and e.weights[j] and varying[j] >= 0.3]
        if not others or not value[k] >= e.limits.dominance or low[k] < e.limits.surely_dominance:
            continue
        asked = float(square[k] / (square[k] + square[others].sum()))
        if value[k] - asked < e.limits.dominance_beyond:
            continue
        ratio = float(measures.scale_ratio(e.whole, e.weights)[k])
        yield e.finding(
            "dominance", f"{name} drowns the others: {percent(value[k])} of what {e.method} teaches comes from it, "
            f"where its weight asks for {percent(asked)}", reward=name, measure=f"dominance_{e.method}",
            value=value[k], interval=(low[k], high[k]), threshold=e.limits.dominance, method=e.method,
            severity="error" if value[k] >= 0.95 else "warning", groups=e.whole["live"][k],
            evidence={"asked by its weight": round(asked, 4), "spread over that of the others": round(ratio, 4)},
            cost=value[k] - asked,
            remedy=remedies.use_gdpo(e.framework, e.names) if e.sums_first else weigh_down(e, k),
        )  # fmt: skip


def scale(e: Evidence) -> Iterator[Finding]:
    """A reward on a far larger scale than the others."""
    value, low, high = e.measured(lambda sums: measures.scale_ratio(sums, e.weights))
    spreads = np.abs(e.weights) * measures.group_spread(e.whole)
    for k, name in enumerate(e.names):
        if not value[k] >= e.limits.scale or low[k] < e.limits.surely_scale or e.whole["live"][k] < e.limits.groups:
            continue
        others = tuple(n for j, n in enumerate(e.names) if j != k and e.weights[j] and e.whole["live"][j])
        excess = float(np.nan_to_num(measures.dominance(e.whole, e.method)[k])) - float(e.asked[k])
        first = e.sums_first
        yield e.finding(
            "scale", f"the spread of {name} in a group is {value[k]:.3g} times that of the others"
            + ("" if first else f"; {e.method} takes that out, a method that sums first would not"),
            reward=name, rewards=(name, *others), severity="warning" if first else "note", measure="scale_ratio",
            value=value[k], interval=(low[k], high[k]), threshold=e.limits.scale, groups=e.whole["live"][k],
            evidence={"weighted spread": {n: float(f"{s:.4g}") for n, s in zip(e.names, spreads, strict=True)}},
            cost=excess if first else 0.0,
            remedy=f"{remedies.use_gdpo(e.framework, e.names)}, or {weigh_down(e, k, 1 / float(value[k]))}"
            if first else f"keep {e.method}",
        )  # fmt: skip


def conflict_and_redundancy(e: Evidence) -> Iterator[Finding]:
    """Two rewards that fight, or say the same."""
    if len(e.names) < 2:
        return
    value, low, high = e.measured(measures.correlation)
    burnt = measures.opposed(e.whole, e.method)
    for at, (k, other) in enumerate(pairs(len(e.names))):
        groups = e.whole["pair_groups"][at]
        sign = np.sign(e.weights[k] * e.weights[other])
        if not sign or groups < e.limits.groups or np.isnan(value[at]):
            continue
        oriented, interval = sign * value[at], sorted((sign * low[at], sign * high[at]))
        names = (e.names[k], e.names[other])
        common: dict[str, Any] = {
            "rewards": names, "measure": "correlation", "value": oriented, "interval": (interval[0], interval[1]),
            "groups": groups,
        }  # fmt: skip
        if oriented <= e.limits.conflict and interval[1] <= e.limits.surely_conflict:
            cost = float(np.nan_to_num(burnt[at]))
            yield e.finding(
                "conflict", f"{names[0]} and {names[1]} fight: what pleases one costs the other (correlation "
                f"{oriented:.2f} within groups), and {percent(cost)} of all that pushes is spent on that",
                threshold=e.limits.conflict, cost=cost, **common,
                remedy="let one count where the other is satisfied: "
                + remedies.gate(e.framework, names[0], f"{names[1]} >= 1")
                + f", or decide by weights: {weigh_down(e, other)}",
            )  # fmt: skip
        if oriented >= e.limits.redundancy and interval[0] >= e.limits.surely_redundancy:
            weights = dict(zip(e.names, (float(w) for w in e.weights), strict=True)) | {names[1]: 0.0}
            yield e.finding(
                "redundancy", f"{names[0]} and {names[1]} say the same (correlation {oriented:.3f} within groups), so "
                "it counts twice", threshold=e.limits.redundancy, cost=float(min(e.asked[k], e.asked[other])), **common,
                remedy=f"keep one: {remedies.set_weights(e.framework, weights, [names[1]])}",
            )  # fmt: skip


def merged(e: Evidence) -> Iterator[Finding]:
    """Situations that the method in use cannot tell apart."""
    if e.whole["live_groups"] < e.limits.groups or len(e.names) < 2:
        return
    table = collapse(e.found, e.method)
    value = table["ratio"]
    if value is None or value > e.limits.collapse:
        return
    low, high = collapse_interval(e)
    if high > e.limits.surely_collapse:
        return
    other = "gdpo" if e.method != "gdpo" else "grpo"
    better = collapse(e.found, other)["ratio"] if other in e.found.methods else None
    lost = 1 - float(np.nan_to_num(measures.resolution(e.whole, e.method), nan=1.0))
    yield e.finding(
        "collapse", f"{e.method} tells {table['distinct_advantage_vectors']} of {table['distinct_reward_multisets']} "
        "situations apart and merges the rest"
        + (f"; {other} tells {round(better * table['distinct_reward_multisets'])}" if better else ""),
        measure=f"collapse_{e.method}", value=value, interval=(low, high), threshold=e.limits.collapse, method=e.method,
        groups=e.whole["live_groups"], cost=lost,
        evidence={"resolution": round(1 - lost, 4)} | ({f"collapse under {other}": round(better, 4)} if better else {}),
        remedy=remedies.use_gdpo(e.framework, e.names) if e.sums_first and (better or 0) > value
        else "nothing to change: the rewards are coarse",
    )  # fmt: skip


def collapse_interval(e: Evidence) -> Interval:
    """By resampling groups without return (half of them): drawing a group twice would hide what is rare."""
    vectors, rewards = e.found.situations.codes(e.method), e.found.situations.codes(None)
    if not rewards[1]:
        return 0.0, 1.0
    random, count = np.random.default_rng(e.seed), len(vectors[0])
    ratios = []
    for _ in range(min(e.limits.resamples, 100)):
        chosen = random.random(count) < 0.5
        seen = [np.zeros(known, dtype=bool) for _, known in (vectors, rewards)]
        seen[0][vectors[0][chosen]] = True
        seen[1][rewards[0][chosen]] = True
        ratios.append(seen[0].sum() / max(seen[1].sum(), 1))
    center, spread = vectors[1] / rewards[1], 2.6 * float(np.std(ratios))
    return max(center - spread, 0.0), min(center + spread, 1.0)


def unearned(e: Evidence) -> Iterator[Finding]:
    """Advantage in groups in which the primary reward is dead."""
    if e.primary is None:
        e.unmeasured["unearned_share"] = "no primary reward is known (primary=NAME)"
        return
    k = e.names.index(e.primary)
    value, low, high = (v[k] for v in e.measured(lambda sums: measures.unearned(sums, e.method)))
    if value >= e.limits.unearned and low >= e.limits.surely_unearned:
        others = [name for name in e.names if name != e.primary and name not in e.found.setting.gates]
        yield e.finding(
            "unearned", f"{percent(value)} of the advantage stands in groups in which {e.primary} does not vary: there "
            "only the other rewards are learnt", reward=e.primary, measure="unearned_share", value=value,
            interval=(low, high), threshold=e.limits.unearned, groups=e.whole["groups"], method=e.method, cost=value,
            remedy="; ".join(remedies.gate(e.framework, name, f"{e.primary} >= 1") for name in others[:2])
            or remedies.skip_silent_groups(e.framework),
        )  # fmt: skip
