"""Findings about one reward at a time, whatever the method."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gdpo.audit import measures, remedies
from gdpo.audit.evidence import Evidence, percent, weigh_down
from gdpo.audit.findings import Finding


def dead(e: Evidence) -> Iterator[Finding]:
    """A reward that is tied in most groups."""
    value, low, high = e.measured(measures.dead_groups)
    for k, name in enumerate(e.names):
        judged = e.whole["tied"][k] + e.whole["live"][k]
        if (
            not e.weights[k]
            or judged < e.limits.groups
            or not value[k] >= e.limits.dead
            or low[k] < e.limits.surely_dead
        ):
            continue
        mean = e.found.reference[k] + measures.mean_offset(e.whole)[k]
        yield e.finding(
            "dead", f"{name} is the same for every rollout in {percent(value[k])} of the groups, so it teaches nothing "
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
            "no-signal", f"in {percent(value)} of the groups no reward varies: their rollouts were made for nothing",
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
                "saturation", f"{name} has come within {percent(gap)} of its bound {bound:g} ({always}): there is next "
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
            "noise", f"{percent(value[k])} of the advantage comes from differences of {name} below a millionth of its "
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
               else weigh_down(e, k)),
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
                "gate", f"the gate of {name} ({text}) opens for {percent(value[at])} of the rollouts: {name} never "
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
            "missing", f"{percent(value[k])} of the rollouts have no {name}"
            + (", whole groups each" if by_prompt else f", {percent(partly)} of them beside group-mates that have it"),
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
            "drift", f"the mean of {name} went {'up' if value[k] > 0 else 'down'} by {abs(value[k]):.2g} of its "
            "standard deviations from the first third of the steps to the last"
            + (": learnt, or played; look at the rollouts" if better else ": it gets worse"),
            reward=name, severity="note" if better else "warning", measure="drift", value=value[k],
            interval=(value[k] - 2.6 * error[k], value[k] + 2.6 * error[k]), threshold=e.limits.drift,
            groups=e.whole["with_values"][k],
            evidence={"mean at first": round(float(series[0]), 6), "mean at last": round(float(series[-1]), 6)},
            cost=0.0 if better else float(e.asked[k]) * min(abs(float(value[k])) / 4, 1.0),
            remedy=f"compare rollouts of the first and the last steps by {name}" if better
            else f"what outweighs {name}? raise it: {weigh_down(e, k, 2.0)}",
        )  # fmt: skip
