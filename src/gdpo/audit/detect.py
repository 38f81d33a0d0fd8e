"""From measures to findings: each has a number, an interval from a bootstrap over groups, a cost and a remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from gdpo.audit import measures, remedies
from gdpo.audit.chunks import Floats
from gdpo.audit.collect import Collected
from gdpo.audit.findings import Finding, Severity
from gdpo.audit.sums import Sums, pairs
from gdpo.audit.tables import collapse
from gdpo.audit.thresholds import Thresholds
from gdpo.core.estimators import method_of

Interval = tuple[float, float]


@dataclass(eq=False)
class Evidence:
    """What findings are made from."""

    found: Collected
    framework: str
    limits: Thresholds
    primary: str | None = None
    seed: int = 0
    unmeasured: dict[str, str] = field(default_factory=dict)
    """Measure -> why it could not be taken."""

    @cached_property
    def whole(self) -> Sums:
        """Sums over the dump."""
        return self.found.totals.whole()

    @cached_property
    def series(self) -> Sums:
        """Sums by step."""
        return self.found.totals.series()

    @cached_property
    def draws(self) -> Any:
        """[resamples, blocks]."""
        return self.found.totals.draws(self.limits.resamples, self.seed)

    @cached_property
    def resampled(self) -> Sums:
        """Sums of each resample of the groups."""
        return self.found.totals.resampled(self.draws)

    @cached_property
    def weights(self) -> Floats:
        """[R]."""
        return np.array(self.found.setting.weight_list())

    @cached_property
    def asked(self) -> Floats:
        """[R] share of the weight that each reward has."""
        size = np.abs(self.weights)
        return size / size.sum()

    @cached_property
    def late(self) -> Sums:
        """Sums over the last steps: a third of them, or more where that is fewer groups than a finding must rest on."""
        groups = self.series["several"][::-1].cumsum()
        enough = int(np.searchsorted(groups, self.limits.groups)) + 1
        steps = min(max(len(groups) // 3, enough), len(groups))
        return {name: values[len(groups) - steps :].sum(axis=0) for name, values in self.series.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """Of the rewards."""
        return self.found.names

    @property
    def method(self) -> str:
        """In use."""
        return self.found.setting.method

    @property
    def sums_first(self) -> bool:
        """Whether the method in use adds the rewards up before it normalises."""
        return method_of(self.method).family == "sum first"

    def measured(self, measure: Callable[[Sums], Floats]) -> tuple[Floats, Floats, Floats]:
        """(value, low, high) of a measure of sums."""
        return measure(self.whole), *self.between(measure(self.resampled))

    def between(self, values: Floats) -> tuple[Floats, Floats]:
        """(low, high) along the first axis at the confidence of the thresholds."""
        tail = (1 - self.limits.confidence) / 2
        with np.errstate(all="ignore"):
            known = np.where(np.isnan(values).all(axis=0), 0.0, values)
            low, high = np.nanquantile(known, [tail, 1 - tail], axis=0)
        return low, high

    def finding(
        self, id: str, what: str, *, measure: str, value: float, interval: Interval, threshold: float, remedy: str,
        cost: float, reward: str | None = None, rewards: tuple[str, ...] = (), severity: Severity = "warning",
        groups: float = 0.0, method: str | None = None, evidence: dict[str, Any] | None = None,
    ) -> Finding:  # fmt: skip
        """A finding with what it rests on."""
        rests = {"steps": len(self.found.totals.steps), "groups": int(groups), "rollouts": int(self.whole["rollouts"])}
        return Finding(
            id, severity, reward, what, evidence or {}, remedy, measure, float(value),
            (float(interval[0]), float(interval[1])), (), threshold, rests, rewards or ((reward,) if reward else ()),
            method, float(min(max(cost, 0.0), 1.0)),
        )  # fmt: skip


def findings(evidence: Evidence) -> list[Finding]:
    """All findings, the costliest first."""
    if evidence.whole["several"] < evidence.limits.groups:
        return []
    found = [one for detect in DETECTORS for one in detect(evidence)]
    saturated = {one.reward for one in found if one.id == "saturation"}
    found = [one for one in found if not (one.id == "dead" and one.reward in saturated)]
    return sorted(found, key=lambda one: (-(one.cost or 0.0), one))


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def dead(e: Evidence) -> Iterator[Finding]:
    """A reward that is tied in most groups."""
    value, low, high = e.measured(measures.dead_groups)
    for k, name in enumerate(e.names):
        judged = e.whole["tied"][k] + e.whole["live"][k]
        if not e.weights[k] or judged < e.limits.groups or not value[k] >= e.limits.dead or low[k] < e.limits.surely_dead:
            continue
        mean = e.found.reference[k] + measures.mean_offset(e.whole)[k]
        yield e.finding(
            "dead", f"{name} is the same for every rollout in {_percent(value[k])} of the groups, so it teaches nothing "
            "there", reward=name, severity="error" if value[k] >= 0.95 else "warning", measure="dead_share",
            value=value[k], interval=(low[k], high[k]), threshold=e.limits.dead, groups=judged,
            evidence={"mean": round(float(mean), 6), "groups in which it varies": int(e.whole["live"][k])},
            cost=e.asked[k] * value[k], remedy=_revive(e, name, k),
        )  # fmt: skip


def _revive(e: Evidence, name: str, k: int) -> str:
    if not e.whole["live"][k]:
        return f"drop {name} or grade it in finer steps; it never varies inside a group, whatever its weight"
    return f"grade {name} in finer steps, or {remedies.skip_silent_groups(e.framework)}"


def no_signal(e: Evidence) -> Iterator[Finding]:
    """Groups in which no reward varies."""
    value, low, high = e.measured(measures.all_dead)
    if value >= e.limits.no_signal and low >= e.limits.surely_no_signal:
        yield e.finding(
            "no-signal", f"in {_percent(value)} of the groups no reward varies: their rollouts were made for nothing",
            measure="all_dead_share", value=value, interval=(low, high), threshold=e.limits.no_signal, cost=value,
            groups=e.whole["groups"], remedy=remedies.skip_silent_groups(e.framework),
        )  # fmt: skip


def saturation(e: Evidence) -> Iterator[Finding]:
    """A reward whose mean has reached a bound, in the last steps."""
    part = e.late
    mean = e.found.reference + measures.mean_offset(part)
    n = part["with_values"]
    variance = measures.ratio(part["group_means_squared"] - measures.ratio(part["group_means"] ** 2, n), n - 1)
    error = np.sqrt(np.maximum(measures.ratio(variance, n), 0.0))
    for k, name in enumerate(e.names):
        bounds = _bounds(e, k)
        if not e.weights[k] or bounds is None or n[k] < e.limits.groups or np.isnan(mean[k]):
            continue
        for at, bound in enumerate(bounds):
            width = bounds[1] - bounds[0]
            gap, spread = abs(mean[k] - bound) / width, 2.6 * error[k] / width
            if gap > e.limits.saturation or gap + spread > 2 * e.limits.saturation:
                continue
            always = "at its best" if (at == 1) == (e.weights[k] > 0) else "at its worst"
            yield e.finding(
                "saturation", f"{name} has come within {_percent(gap)} of its bound {bound:g} ({always}): there is next "
                "to nothing left to compare", reward=name, measure="saturation", value=gap,
                interval=(max(gap - spread, 0.0), gap + spread), threshold=e.limits.saturation, groups=n[k],
                evidence={"mean": round(float(mean[k]), 6), "bounds": list(bounds),
                          "dead share": round(float(measures.dead_groups(e.whole)[k]), 4)},
                cost=e.asked[k] * float(np.nan_to_num(measures.dead_groups(part)[k], nan=0.0)),
                remedy=f"make {name} harder, or take it out: "
                + remedies.set_weights(e.framework, {**dict(zip(e.names, e.weights, strict=True)), name: 0.0}, [name]),
            )  # fmt: skip


def _bounds(e: Evidence, k: int) -> tuple[float, float] | None:
    """Declared, else the range seen if most rollouts stand at one end of it; None where neither."""
    declared = e.found.setting.bounds.get(e.names[k])
    if declared is not None:
        return declared
    low, high = float(e.found.low[k]), float(e.found.high[k])
    if not low < high:
        return None
    piled = e.found.at_bounds[k].max() / max(float(e.whole["present"][k]), 1.0)
    late_dead = float(np.nan_to_num(measures.dead_groups(e.late)[k], nan=0.0))
    return (low, high) if piled >= e.limits.at_bound or (piled >= 0.5 and late_dead >= 0.8) else None


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
            "dominance", f"{name} drowns the others: {_percent(value[k])} of what {e.method} teaches comes from it, "
            f"where its weight asks for {_percent(asked)}", reward=name, measure=f"dominance_{e.method}",
            value=value[k], interval=(low[k], high[k]), threshold=e.limits.dominance, method=e.method,
            severity="error" if value[k] >= 0.95 else "warning", groups=e.whole["live"][k],
            evidence={"asked by its weight": round(asked, 4), "spread over that of the others": round(ratio, 4)},
            cost=value[k] - asked,
            remedy=remedies.use_gdpo(e.framework, e.names) if e.sums_first else _weigh_down(e, k),
        )  # fmt: skip


def _weigh_down(e: Evidence, k: int, factor: float = 0.5) -> str:
    weights = dict(zip(e.names, (float(w) for w in e.weights), strict=True))
    weights[e.names[k]] *= factor
    return remedies.set_weights(e.framework, weights, [e.names[k]])


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
            remedy=f"{remedies.use_gdpo(e.framework, e.names)}, or {_weigh_down(e, k, 1 / float(value[k]))}"
            if first else f"keep {e.method}",
        )  # fmt: skip


def conflict_and_redundancy(e: Evidence) -> Iterator[Finding]:
    """Two rewards that fight, or say the same."""
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
                f"{oriented:.2f} within groups), and {_percent(cost)} of all that pushes is spent on that",
                threshold=e.limits.conflict, cost=cost, **common,
                remedy=f"let one count where the other is satisfied: {remedies.gate(e.framework, names[0], f'{names[1]} >= 1')}"
                f", or decide by weights: {_weigh_down(e, other)}",
            )  # fmt: skip
        if oriented >= e.limits.redundancy and interval[0] >= e.limits.surely_redundancy:
            weights = dict(zip(e.names, (float(w) for w in e.weights), strict=True)) | {names[1]: 0.0}
            yield e.finding(
                "redundancy", f"{names[0]} and {names[1]} say the same (correlation {oriented:.3f} within groups), so it "
                "counts twice", threshold=e.limits.redundancy, cost=float(min(e.asked[k], e.asked[other])), **common,
                remedy=f"keep one: {remedies.set_weights(e.framework, weights, [names[1]])}",
            )  # fmt: skip


def noise(e: Evidence) -> Iterator[Finding]:
    """Advantage that comes from differences too small to mean anything."""
    noisy, size = e.found.noisy(), e.whole[f"{e.method}/size"]
    value = measures.ratio(noisy.sum(axis=0), size)
    drawn = e.draws.astype(np.float64) @ noisy
    low, high = e.between(measures.ratio(drawn, e.resampled[f"{e.method}/size"][:, None]))
    for k, name in enumerate(e.names):
        if not value[k] >= e.limits.noise or low[k] < e.limits.surely_noise:
            continue
        scale = float(e.found.scale[k])
        floor = 0.01 * scale
        yield e.finding(
            "noise", f"{_percent(value[k])} of the advantage comes from differences of {name} below a millionth of its "
            f"size ({scale:.3g}): rounding, blown up", reward=name, measure="noise_share", value=value[k],
            interval=(low[k], high[k]), threshold=e.limits.noise, groups=e.whole["live"][k], cost=value[k],
            method=e.method, evidence={"scale": scale},
            remedy=f"std_floor={floor:.2g}" if e.framework == "gdpo" else f"round {name} in the reward function: "
            f"round(value / {floor:.2g}) * {floor:.2g}",
        )  # fmt: skip


def length(e: Evidence) -> Iterator[Finding]:
    """A reward that moves with the completion's length."""
    if not e.found.lengths:
        e.unmeasured["length_correlation"] = "the dump has neither texts nor lengths"
        return
    value, low, high = e.measured(measures.length_correlation)
    share = measures.influence(e.whole, e.method)
    for k, name in enumerate(e.names):
        if not e.weights[k] or e.whole["length_groups"][k] < e.limits.groups or np.isnan(value[k]):
            continue
        sure = min(abs(low[k]), abs(high[k])) if low[k] * high[k] > 0 else 0.0
        if abs(value[k]) < e.limits.length or sure < e.limits.surely_length:
            continue
        longer = value[k] * e.weights[k] > 0
        yield e.finding(
            "length", f"{name} pays for {'longer' if longer else 'shorter'} completions (correlation {value[k]:.2f} "
            "within groups)", reward=name, measure="length_correlation", value=value[k], interval=(low[k], high[k]),
            threshold=e.limits.length, groups=e.whole["length_groups"][k],
            evidence={"sign": 1 if value[k] > 0 else -1},
            cost=0.5 * abs(value[k]) * float(np.nan_to_num(share[k])),  # half: it may be meant
            remedy=f"if that is not meant, divide {name} by the length it grows with, or hold it: "
            + (remedies.gate(e.framework, name, f"{e.primary} >= 1") if e.primary and e.primary != name
               else _weigh_down(e, k)),
        )  # fmt: skip


def gates(e: Evidence) -> Iterator[Finding]:
    """A gate that never opens."""
    conditions = e.found.setting.gates
    if not conditions:
        e.unmeasured["gate_pass_rate"] = "no gates are known"
        return
    value, low, high = e.measured(measures.gate_pass)
    for at, (name, text) in enumerate(conditions.items()):
        if value[at] < e.limits.gate and high[at] < e.limits.surely_gate:
            yield e.finding(
                "gate", f"the gate of {name} ({text}) opens for {_percent(value[at])} of the rollouts: {name} never "
                "counts", reward=name, severity="error" if not value[at] else "warning", measure="gate_pass_rate",
                value=value[at], interval=(low[at], high[at]), threshold=e.limits.gate, groups=e.whole["groups"],
                evidence={"gate": text}, cost=float(e.asked[e.names.index(name)]) * (1 - float(value[at])),
                remedy=f"ask for less than {text!r}, or open by degrees: "
                + remedies.gate(e.framework, name, _softer(text)),
            )  # fmt: skip


def _softer(text: str) -> str:
    first = text.split()[0]
    return f"soft({first}, 0, 1)" if first.isidentifier() else text


def missing(e: Evidence) -> Iterator[Finding]:
    """A reward that many rollouts do not have."""
    value, low, high = e.measured(measures.missing_share)
    for k, name in enumerate(e.names):
        if not e.weights[k] or not value[k] >= e.limits.missing or low[k] < e.limits.surely_missing:
            continue
        partly = float(measures.ratio(e.whole["partly"][k], e.whole["rollouts"] - e.whole["present"][k]))
        by_prompt = partly < 0.05
        yield e.finding(
            "missing", f"{_percent(value[k])} of the rollouts have no {name}"
            + (", whole groups each" if by_prompt else f", {_percent(partly)} of them beside group-mates that have it"),
            reward=name, severity="note" if by_prompt else "warning", measure="missing_share", value=value[k],
            interval=(low[k], high[k]), threshold=e.limits.missing, groups=e.whole["groups"],
            evidence={"rollouts without it": int(e.whole["rollouts"] - e.whole["present"][k])},
            cost=e.asked[k] * float(value[k]) * (0.5 if by_prompt else 1.0),
            remedy=f"if {name} does not apply to those prompts, nothing; else return its lowest value instead of None "
            "or NaN where it fails",
        )  # fmt: skip


def drift(e: Evidence) -> Iterator[Finding]:
    """A reward whose mean moved far."""
    value, error = measures.drift(e.series)
    if len(e.series["groups"]) < 3:
        e.unmeasured["drift"] = "fewer than three steps"
        return
    for k, name in enumerate(e.names):
        sure = abs(value[k]) - 2.6 * error[k]
        if not e.weights[k] or not abs(value[k]) >= e.limits.drift or not sure >= e.limits.surely_drift:
            continue
        better = value[k] * e.weights[k] > 0
        series = e.found.reference[k] + measures.mean_offset(e.series)[:, k]
        yield e.finding(
            "drift", f"the mean of {name} went {'up' if value[k] > 0 else 'down'} by {abs(value[k]):.2g} of its standard "
            "deviations from the first third of the steps to the last"
            + (": learnt, or played; look at the rollouts" if better else ": it gets worse"),
            reward=name, severity="note" if better else "warning", measure="drift", value=value[k],
            interval=(value[k] - 2.6 * error[k], value[k] + 2.6 * error[k]), threshold=e.limits.drift,
            groups=e.whole["with_values"][k],
            evidence={"mean at first": round(float(series[0]), 6), "mean at last": round(float(series[-1]), 6)},
            cost=0.0 if better else float(e.asked[k]) * min(abs(float(value[k])) / 4, 1.0),
            remedy=f"compare rollouts of the first and the last steps by {name}" if better
            else f"what outweighs {name}? raise it: {_weigh_down(e, k, 2.0)}",
        )  # fmt: skip


def merged(e: Evidence) -> Iterator[Finding]:
    """Situations that the method in use cannot tell apart."""
    if e.whole["live_groups"] < e.limits.groups or len(e.names) < 2:
        return
    table = collapse(e.found, e.method)
    value = table["ratio"]
    if value is None or value > e.limits.collapse:
        return
    low, high = _collapse_interval(e)
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
        evidence={"resolution": round(1 - lost, 4), **({f"collapse under {other}": round(better, 4)} if better else {})},
        remedy=remedies.use_gdpo(e.framework, e.names) if e.sums_first and (better or 0) > value
        else "nothing to change: the rewards are coarse",
    )  # fmt: skip


def _collapse_interval(e: Evidence) -> Interval:
    """By resampling groups without return (half of them): drawing a group twice would hide what is rare."""
    vectors, rewards = e.found.situations.codes(e.method), e.found.situations.codes(None)
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
            "unearned", f"{_percent(value)} of the advantage stands in groups in which {e.primary} does not vary: there "
            "only the other rewards are learnt", reward=e.primary, measure="unearned_share", value=value,
            interval=(low, high), threshold=e.limits.unearned, groups=e.whole["groups"], method=e.method, cost=value,
            remedy="; ".join(remedies.gate(e.framework, name, f"{e.primary} >= 1") for name in others[:2])
            or remedies.skip_silent_groups(e.framework),
        )  # fmt: skip


DETECTORS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    dead, no_signal, saturation, dominance, scale, conflict_and_redundancy, noise, length, gates, missing, drift, merged,
    unearned,
)  # fmt: skip
