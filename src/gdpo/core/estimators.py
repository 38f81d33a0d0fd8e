"""The estimators: one short pure function a method, and the registry.

A method gets a ``Batch`` and says how the rewards combine into one value a rollout; centring, ties, missing rewards,
weights, batch norm, clipping and contributions are the same for all and stand in ``batch.py`` and ``running.py``.

Terms: r_k is reward k of a rollout, d_k = r_k minus its mean in the group, sigma_k its standard deviation there,
z_k = d_k / (sigma_k + eps), w_k its weight, c = sum_k w_k d_k. BN is the batch norm of ``batch_normalize``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from gdpo.core.backend import Array, to_float
from gdpo.core.batch import Batch, Combination, Term
from gdpo.core.errors import Error
from gdpo.core.files import absolute, module_of
from gdpo.core.inputs import nearest

Family = Literal["sum first", "normalise first"]


@dataclass(frozen=True)
class Method:
    """A registered estimator."""

    name: str
    combine: Callable[..., Combination]
    family: Family
    batch_norm: bool
    """Whether batch norm follows by default."""
    formula: str
    source: str
    needs: tuple[str, ...] = ()
    """What it cannot do without: "bounds"."""
    when: str = ""
    """When to use it, in a sentence."""
    origin: str = ""
    """Where it was read from, ``/path/file.py:name``, if it is a user's."""
    options: tuple[str, ...] = ()
    """Names of the options that only this method takes (the keyword-only parameters of its function)."""


METHODS: dict[str, Method] = {}
"""The registry, by name."""
ALIASES = {"dr_grpo": "grpo_no_std"}


def estimator(
    name: str, *, family: Family = "normalise first", batch_norm: bool = True, formula: str = "", source: str = "",
    needs: tuple[str, ...] = (), when: str = "",
) -> Callable[[Callable[..., Combination]], Callable[..., Combination]]:  # fmt: skip
    """Register ``function(batch, *, own_option=default) -> Combination`` as method ``name``, for every command.

    Args:
        name: what recipes and calls say; from a file of yours, ``method=file.py:name``.
        family: "sum first" clips the result where ``clip`` is set, "normalise first" each z_k.
        batch_norm: whether batch norm follows by default.
        formula, source, when: for ``gdpo list methods``; without a formula the docstring's first line stands there.
        needs: what it cannot do without: ("bounds",).
    """

    def register(function: Callable[..., Combination]) -> Callable[..., Combination]:
        known = METHODS.get(name)
        if name in ALIASES or (known is not None and known.combine.__module__ != function.__module__):
            raise Error(f"method {name!r} is registered already")
        own = tuple(p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY)
        shown = formula or (inspect.getdoc(function) or "").partition("\n")[0]
        METHODS[name] = Method(name, function, family, batch_norm, shown, source, needs, when, options=own)
        return function

    return register


def method_of(name: object) -> Method:
    """The registered method of that name or alias, or of ``file.py:name``, which is read first.

    Raises:
        Error: no such method; the message names the nearest one.
    """
    key = ALIASES.get(str(name), str(name))
    if ".py:" in key:
        module, (_, _, key), spec = module_of(key, "method"), key.rpartition(":"), absolute(key)
        own = [known for known, method in METHODS.items() if method.combine.__module__ == module.__name__]
        if key not in own:
            raise Error(f"method {name!r}: the file registers {own or 'none'} with @gdpo.estimator(...)")
        METHODS[key] = replace(METHODS[key], origin=spec)
    if key not in METHODS:
        raise Error(f"method {name!r} is unknown{nearest(str(name), METHODS.keys() | ALIASES.keys())}")
    return METHODS[key]


@estimator(
    "grpo", family="sum first", batch_norm=False, formula="c / (std of c in the group + eps)",
    source="DeepSeekMath, arXiv 2402.03300",
    when="the baseline, and where one reward counts; with several, different reward combinations get one advantage",
)  # fmt: skip
def grpo(batch: Batch) -> Combination:
    """A = c / (std_group(c) + eps): sum the rewards, then normalise in the group."""
    c = batch.combine(batch.deviation)
    return c.divided(batch.group_std(c))


@estimator(
    "grpo_no_std", family="sum first", batch_norm=False, formula="c", source="Dr. GRPO's advantage, arXiv 2503.20783",
    when="where dividing by the group's spread overweights very easy and very hard prompts; keeps reward scales",
)  # fmt: skip
def grpo_no_std(batch: Batch) -> Combination:
    """A = c: sum the rewards and take the group mean away."""
    return batch.combine(batch.deviation)


@estimator(
    "mo_grpo", family="normalise first", batch_norm=False, formula="sum_k w_k z_k", source="MO-GRPO, arXiv 2509.22047",
    when="as gdpo where groups come one at a time and no batch norm is possible",
)  # fmt: skip
def mo_grpo(batch: Batch) -> Combination:
    """A = sum_k w_k z_k: normalise each reward in the group, then sum."""
    return batch.combine(batch.normalized)


@estimator(
    "gdpo", family="normalise first", batch_norm=True, formula="BN(sum_k w_k z_k)",
    source="GDPO, arXiv 2601.05242, equations 4 to 6",
    when="several rewards that each must be learnt; the default",
)  # fmt: skip
def gdpo(batch: Batch) -> Combination:
    """A = BN(sum_k w_k z_k): normalise each reward in the group, sum, then normalise over the batch."""
    return batch.combine(batch.normalized)


@estimator(
    "grpo_batch_std", family="sum first", batch_norm=False, formula="c / (std of the summed reward in the batch + eps)",
    source="TRL scale_rewards='batch'; LitePPO, arXiv 2508.08221",
    when="sparse outcomes in small groups, where a group's own spread is noise",
)  # fmt: skip
def grpo_batch_std(batch: Batch) -> Combination:
    """A = c / (std_batch(sum_k w_k r_k) + eps), a missing reward standing at its group mean."""
    c = batch.combine(batch.deviation)
    return c.divided(batch.batch_std(batch.weighted_sum(batch.raw)))


@estimator(
    "rloo", family="sum first", batch_norm=False, formula="sum_k w_k d_k n_k/(n_k - 1)", source="arXiv 2402.14740",
    when="an unbiased baseline and rewards on scales you chose",
)  # fmt: skip
def rloo(batch: Batch) -> Combination:
    """A = sum_k w_k (r_k minus the mean of the other rollouts of the group)."""
    return batch.combine(batch.about_others)


@estimator(
    "reinforce_pp_baseline",
    family="sum first",
    batch_norm=True,
    formula="BN(c)",
    source="REINFORCE++, arXiv 2501.03262",
    when="as grpo_no_std with a step size that does not depend on the reward scale",
)  # fmt: skip
def reinforce_pp_baseline(batch: Batch) -> Combination:
    """A = BN(c); verl and NeMo-RL whiten tokens instead of rollouts."""
    return batch.combine(batch.deviation)


@estimator(
    "dvao",
    family="sum first",
    batch_norm=False,
    formula="c / (sum_k w_k sigma_k + eps)",
    source="DVAO, arXiv 2605.25604",
    when="rewards on one scale, of which the more varied should count for more; never above GRPO in size",
)  # fmt: skip
def dvao(batch: Batch) -> Combination:
    """A = c / (sum_k w_k sigma_k + eps): at eps 0 the mean of the z_k weighted by w_k sigma_k."""
    c = batch.combine(batch.deviation)
    spread: Array = sum(batch.weights[k].value * batch.groups.expand(batch.column(k).std) for k in batch.active)
    return c.divided(batch.guarded(spread))


@estimator(
    "corr_grpo", family="sum first", batch_norm=False, formula="c / sqrt(sum of correlations + eps)",
    source="CorrGRPO, arXiv 2609.36820",
    when="rewards that largely repeat each other",
)  # fmt: skip
def corr_grpo(batch: Batch) -> Combination:
    """A = c / sqrt(max(sum_{l,m} rho_lm, 0) + eps), rho the correlation of two rewards in the group."""
    c = batch.combine(batch.deviation)
    total = batch.xp.clip(batch.correlation_sum(), 0, None)
    return c.divided(batch.groups.expand(batch.xp.sqrt(total + batch.options.eps)))


@estimator(
    "saw",
    family="normalise first",
    batch_norm=True,
    formula="BN(sum_k w_k R CV_k/(sum CV) z_k)",
    source="arXiv 2606.07705",
    when="rewards that vary relative to their mean should lead, saturated ones follow",
)  # fmt: skip
def saw(batch: Batch) -> Combination:
    """As gdpo with w_k times R CV_k / (sum CV + 1e-8), CV the coefficient of variation over the batch."""
    spread = {}
    for k in batch.active:
        bounds = batch.oriented_bounds(k)
        mean, std = batch.batch_moments(k, about=bounds[0] if bounds else 0.0)
        spread[k] = std / (abs(mean) + 1e-8)
    total: Array = sum(spread.values())
    expand, count = batch.groups.batch.expand, len(batch.active)
    return batch.combine(lambda k: batch.normalized(k).times(expand(count * spread[k] / (total + 1e-8))))


@estimator(
    "sa_mrpo", family="normalise first", batch_norm=True, formula="BN(sum_k w_k (1 - s_k)^gamma z_k)",
    source="SA-MRPO, arXiv 2608.16072", needs=("bounds",),
    when="bounded rewards, some nearly saturated: what is left to gain counts for more",
)  # fmt: skip
def sa_mrpo(batch: Batch, *, gamma: float = 0.5) -> Combination:
    """As gdpo with w_k times (1 - s_k)^gamma, s_k how saturated the reward is: (batch mean - low) / (high - low)."""
    if not isinstance(gamma, int | float) or not gamma >= 0:
        raise Error(f"gamma is {gamma!r}, but a number of at least 0 was expected")

    def term(k: int) -> Term:
        bounds = batch.oriented_bounds(k)
        if bounds is None:
            name = batch.names[k]
            raise Error(f"method 'sa_mrpo' needs the bounds of {name!r}, such as bounds={{{name!r}: (0, 1)}}")
        mean, _ = batch.batch_moments(k, about=bounds[0])
        saturation = batch.xp.clip(mean / (bounds[1] - bounds[0]), 0, 1)
        return batch.normalized(k).times(batch.groups.batch.expand((1 - saturation) ** gamma))

    return batch.combine(term)


@estimator(
    "dara", family="normalise first", batch_norm=True, formula="BN(sum_k w_k min(w_max, sqrt(pi_ref/pi_k)) z_k)",
    source="DARA, arXiv 2610.00574",
    when="a rare success beside rewards that vary in every group",
)  # fmt: skip
def dara(batch: Batch, *, w_max: float = 8.0, symmetric: bool = False) -> Combination:
    """As gdpo with w_k times min(w_max, sqrt(pi_ref / pi_k)) where z_k > 0 (symmetric: everywhere).

    pi_k is the share of groups, of those with two values of the reward, in which it is live; pi_ref the largest.
    """
    if not isinstance(w_max, int | float) or not w_max > 0:
        raise Error(f"w_max is {w_max!r}, but a positive number was expected")
    xp, shares = batch.xp, {k: batch.live_share(k) for k in batch.active}
    largest: Array = None
    for share in shares.values():
        largest = share if largest is None else xp.maximum(largest, share)

    def term(k: int) -> Term:
        share, z = shares[k], batch.normalized(k)
        rarity = xp.where(share > 0, xp.sqrt(largest / xp.where(share > 0, share, 1.0)), 1.0)
        factor = batch.groups.batch.expand(xp.clip(rarity, None, w_max))
        return z.times(factor if symmetric else xp.where(z.values > 0, factor, 1.0))

    return batch.combine(term)


@estimator(
    "gd2po", family="normalise first", batch_norm=True, formula="BN(kept share of sum_k w_k z_k where not in conflict)",
    source="GD2PO, arXiv 2606.16771",
    when="rewards that fight inside a rollout: leave the fought-over ones out",
)  # fmt: skip
def gd2po(batch: Batch, *, threshold: float = 0.2, hard: bool = False) -> Combination:
    """As gdpo without the rollouts whose rewards conflict, times the share of the group that is kept.

    A rollout conflicts if one z_k > 1e-8 and another < -1e-8; it is dropped if abs(sum w z) / (sum abs(w z) + 1e-8) is
    below ``threshold``, or always where ``hard``.
    """
    if not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise Error(f"threshold is {threshold!r}, but a number from 0 to 1 was expected")
    combined, xp = batch.combine(batch.normalized), batch.xp
    size: Array = 0.0
    rises = falls = combined.carriers < 0
    for k in batch.active:
        value, weight = batch.normalized(k).values, batch.weights[k].value
        size = size + abs(weight * value)
        rises, falls = rises | ((value > 1e-8) & (weight > 0)), falls | ((value < -1e-8) & (weight > 0))
    weak = abs(combined.total) / (size + 1e-8) < threshold
    kept = to_float(~(rises & falls & (weak | hard)), batch.rewards) * batch.participates
    left, all_of = batch.groups.sum(kept), batch.groups.sum(batch.participates)
    return combined.kept(kept, batch.groups.expand(left / xp.clip(all_of, 1, None)))


@estimator(
    "rvpo", family="normalise first", batch_norm=True, formula="BN(-(1/kappa) log sum_k o_k exp(-kappa z_k))",
    source="RVPO, arXiv 2605.05750",
    when="the worst reward of a rollout should decide (safety, constraints)",
)  # fmt: skip
def rvpo(batch: Batch, *, kappa: float = 1.0, dead: str = "exclude") -> Combination:
    """A = BN(s), s the soft minimum of the z_k: near their mean as kappa goes to 0, the worst reward as it grows.

    o are the weights over the rewards live for the rollout, summing to 1. ``dead="include"`` is the paper's form: a
    tied reward enters as z = 0. The parts are q_k (z_k + s - sum_l q_l z_l), q the soft minimum's shares.
    """
    if not isinstance(kappa, int | float) or not kappa > 0:
        raise Error(f"kappa is {kappa!r}, but a positive number was expected")
    if dead not in ("exclude", "include"):
        raise Error(f"dead is {dead!r}, but 'exclude' or 'include' was expected")
    xp, plain = batch.xp, batch.combine(batch.normalized)
    reached = plain.carriers > 0

    def weight(k: int) -> Array:
        column = batch.column(k)
        counts = column.centered.present if dead == "include" else column.signal
        return xp.where(counts > 0, batch.weights[k].value, 0.0)

    lowest: Array = None
    for k in batch.active:
        z = xp.where(weight(k) > 0, batch.normalized(k).values, xp.inf)
        lowest = z if lowest is None else xp.minimum(lowest, z)
    lowest = xp.where(reached, lowest, 0.0)
    weights: Array = 0.0
    mass: Array = 0.0
    mean: Array = 0.0
    for k in batch.active:
        z, o = batch.normalized(k).values, weight(k)
        share = o * xp.exp(-kappa * xp.where(o > 0, z - lowest, 0.0))  # about the lowest, so that nothing overflows
        weights, mass, mean = weights + o, mass + share, mean + share * z
    mass = xp.where(reached, mass, 1.0)
    soft = lowest - xp.log(mass / xp.where(reached, weights, 1.0)) / kappa
    soft, mean = xp.where(reached, soft, 0.0), mean / mass

    def part(k: int) -> Array:
        z, o = batch.normalized(k).values, weight(k)
        share = o * xp.exp(-kappa * xp.where(o > 0, z - lowest, 0.0)) / mass
        return xp.where(reached, share * (z + soft - mean), 0.0)

    return batch.settled(soft, part, plain.carriers, plain.tolerance)
