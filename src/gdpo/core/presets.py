"""What trainers compute today for GDPO and GRPO, faults included, so that one can see what one's own run does.

Each preset is a set of choices (``Preset``), and one function computes from choices; so ``difference`` can turn one
choice after the other and say which of them moves which rollout. The formulas follow the source of the versions named;
tests call the real TRL and verl beside them. The order of the additions is kept, too: passed a PyTorch tensor, the
noise that a tie leaves comes out digit for digit; NumPy adds in another order, so there only its size is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from gdpo.core.backend import Array, as_matrix, as_vector, cast_like, factorize, is_tensor, namespace
from gdpo.core.compute import advantages
from gdpo.core.errors import Error
from gdpo.core.inputs import check_names, check_rows, nearest, weight_columns


@dataclass(frozen=True)
class Preset:
    """The choices that one implementation makes; the defaults are the paper's with exact arithmetic."""

    name: str
    version: str
    """What it mirrors."""
    dtype: Literal["float32", "float64"] = "float64"
    eps: float = 1e-4
    """Added to a reward's standard deviation in the group."""
    eps_grpo: float = 1e-4
    """The same where the rewards are summed first."""
    ties: Literal["exact", "arithmetic"] = "exact"
    """Whether a group of equal rewards is 0 by comparison, or what is left of the rounded mean is divided."""
    missing: Literal["excluded", "zero", "poisons"] = "excluded"
    """A missing reward is left out, counts as 0, or makes the whole batch NaN."""
    unscored: Literal["out", "counts"] = "out"
    """Whether a rollout without any reward still counts in the batch norm, as 0."""
    leave_one_out: bool = False
    """Mean AND standard deviation over the others of the group."""
    std: Literal["deviations", "squares"] = "deviations"
    """From squared deviations, or E[x^2] - E[x]^2; the latter divides only where the result is above 0."""
    single: Literal["zero", "raw"] = "zero"
    """What a group of one gets before batch norm."""
    token_weighted: bool = False
    """Whether the batch norm weighs each rollout by its tokens."""
    norm_eps: float = 1e-4
    norm_eps_in: Literal["std", "variance"] = "std"
    alphabetical: bool = False
    """Whether weights given as a list go to the rewards in the alphabetical order of their names."""
    reduction: Literal["together", "strided", "contiguous"] = "contiguous"
    """How a group's rewards lie in memory when they are added up, which decides the rounding."""

    def advantages(
        self, rewards: Any, groups: Any, weights: Any = None, *, method: str = "gdpo", names: Any = None,
        lengths: Any = None,
    ) -> Array:  # fmt: skip
        """[B] what this implementation gives, in the library and dtype of ``rewards``.

        Args:
            rewards: [B, R], NaN where missing.
            groups: a group size or ids [B].
            weights: [R] by position, or by name.
            method: "gdpo", or "grpo" (rewards summed, then normalised in the group).
            names: names of the rewards.
            lengths: [B] tokens of each rollout, where the batch norm weighs by them; None: all equally long.

        Raises:
            Error: input that does not fit.
        """
        matrix, given = as_matrix(rewards)
        names = check_names(given if names is None else names, matrix.shape[1])
        if method not in ("gdpo", "grpo"):
            raise Error(f"method is {method!r}, but presets know 'gdpo' and 'grpo'")
        factors = [w.value * w.sign for w in weight_columns(weights, names, matrix)]
        if not all(isinstance(factor, float) for factor in factors):
            raise Error("weights has a value a rollout, but the trainers know one weight a reward")
        if self.alphabetical and not hasattr(weights, "keys"):
            place = {name: position for position, name in enumerate(sorted(names))}
            factors = [factors[place[name]] for name in names]
        tokens = check_rows(lengths, matrix, "lengths")
        if self.ties == "exact" and self == PRESETS["paper"]:
            return advantages(matrix, groups, method, dict(zip(names, factors, strict=True)), names=names)
        return cast_like(_compute(self, matrix, groups, factors, method, tokens), matrix)


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("paper", "arXiv 2601.05242, exact arithmetic (gdpo.advantages)"),
        Preset("trl", "TRL 1.16.0, multi_objective_aggregation='normalize_then_sum'", dtype="float32",
               ties="arithmetic", reduction="together"),
        Preset("verl", "verl 0.9.1, compute_gdpo_outcome_advantage", dtype="float32", eps=1e-6, eps_grpo=1e-6,
               ties="arithmetic", missing="poisons", unscored="counts", single="raw", token_weighted=True,
               norm_eps=1e-8, norm_eps_in="variance"),
        Preset("nemo_rl", "NeMo-RL of 2026-08 (7ea279abf), GDPOAdvantageEstimator; changed upstream in 2026-09",
               dtype="float32", eps=1e-6, eps_grpo=1e-6, ties="arithmetic", missing="poisons", unscored="counts",
               leave_one_out=True, std="squares", norm_eps=0.0, alphabetical=True),
        Preset("ms_swift", "ms-swift 4.6.0, scale_rewards='gdpo'", dtype="float32", eps=1e-8, ties="arithmetic",
               unscored="counts", norm_eps=1e-8, reduction="strided"),
        Preset("nvlabs", "NVlabs/GDPO of 2026-01 (b080e63), its TRL 0.18", dtype="float32", ties="arithmetic",
               missing="zero", unscored="counts", reduction="strided"),
    )
}  # fmt: skip
"""By name."""


def preset(name: str) -> Preset:
    """The preset of that name: "trl", "verl", "nemo_rl", "ms_swift", "nvlabs" or "paper".

    Raises:
        Error: no such preset.
    """
    if name not in PRESETS:
        raise Error(f"preset {name!r} is unknown{nearest(str(name), PRESETS)}")
    return PRESETS[name]


@dataclass(frozen=True, eq=False)
class Difference:
    """How two implementations differ on the same rewards."""

    a: Preset
    b: Preset
    advantages_a: Any
    """[B] NumPy float64."""
    advantages_b: Any
    """[B] NumPy float64."""
    rollouts: list[int]
    """Those that differ, the largest difference first (NaN before all)."""
    reasons: dict[int, str]
    """For each of them the choice that moves it most when it alone is turned."""
    largest: float
    """max |a - b|; NaN where one of them is."""
    sign_flips: int
    """Rollouts that one pushes up and the other down."""

    def __str__(self) -> str:
        lines = [f"{self.a.name} ({self.a.version}) against {self.b.name} ({self.b.version}):"]
        count = len(self.advantages_a)
        lines.append(
            f"{len(self.rollouts)} of {count} rollouts differ, by up to {self.largest:.3g}; {self.sign_flips} change "
            "their sign"
        )
        for reason in sorted(set(self.reasons.values()), key=list(self.reasons.values()).index):
            rows = [row for row in self.rollouts if self.reasons[row] == reason]
            shown = ", ".join(str(row) for row in rows[:5]) + (", ..." if len(rows) > 5 else "")
            lines.append(f"- {reason}: {len(rows)} rollouts ({shown})")
        return "\n".join(lines)


REASONS = {
    "eps": "eps",
    "eps_grpo": "eps",
    "ties": "tie: what rounding leaves of equal rewards is divided by eps",
    "missing": "missing reward",
    "unscored": "missing reward: rollouts without any count in the batch norm",
    "leave_one_out": "leave-one-out mean and spread",
    "std": "spread from E[x^2] - E[x]^2",
    "single": "group of one",
    "token_weighted": "token weighting in the batch norm",
    "norm_eps": "eps of the batch norm",
    "norm_eps_in": "eps of the batch norm",
    "alphabetical": "weights in alphabetical order",
    "dtype": "float32 arithmetic",
    "reduction": "float32 arithmetic",
}
"""What each choice is called in ``Difference.reasons``; of two that move a rollout as far, the first is named."""


def difference(
    rewards: Any, groups: Any, a: str | Preset = "trl", b: str | Preset = "paper", weights: Any = None, *,
    method: str = "gdpo", names: Any = None, lengths: Any = None, tolerance: float = 1e-5,
) -> Difference:  # fmt: skip
    """By how much two implementations differ, at which rollouts and for which reason.

    Args:
        rewards, groups, weights, method, names, lengths: as for ``Preset.advantages``.
        a, b: presets or their names.
        tolerance: what counts as a difference.

    Raises:
        Error: input that does not fit.
    """
    first, second = (choice if isinstance(choice, Preset) else preset(choice) for choice in (a, b))

    def run(choice: Preset) -> Any:
        found = choice.advantages(rewards, groups, weights, method=method, names=names, lengths=lengths)
        return np.asarray(found.double().cpu() if is_tensor(found) else found, dtype=np.float64)

    one, two = run(first), run(second)
    gap = np.where(np.isnan(one) & np.isnan(two), 0.0, np.abs(one - two))
    rows = [int(row) for row in np.argsort(-np.where(np.isnan(gap), np.inf, gap), kind="stable")]
    rows = [row for row in rows if not gap[row] <= tolerance]
    moved: dict[str, Any] = {}
    for field, reason in REASONS.items():
        if getattr(first, field) == getattr(second, field):
            continue
        turned = run(replace(first, name="turned", **{field: getattr(second, field)}))
        step = np.where(np.isnan(one) & np.isnan(turned), 0.0, np.abs(one - turned))
        step = np.where(np.isnan(step), np.inf, step)
        moved[reason] = np.maximum(moved[reason], step) if reason in moved else step
    reasons = {}
    for row in rows:
        furthest = max((step[row] for step in moved.values()), default=0.0)
        # With none that moves it alone, it takes several together.
        reasons[row] = next((r for r, step in moved.items() if step[row] >= 0.99 * furthest > 0), "several at once")
    flips = int((np.sign(one) * np.sign(two) < 0).sum())
    return Difference(first, second, one, two, rows, reasons, float(gap.max(initial=0.0)), flips)


def _compute(preset: Preset, matrix: Array, groups: Any, weights: Sequence[float], method: str, lengths: Any) -> Array:
    """[B] from the choices, in their dtype."""
    xp, dtype = namespace(matrix), getattr(namespace(matrix), preset.dtype)
    values = matrix.detach().to(dtype) if is_tensor(matrix) else np.asarray(matrix, dtype=dtype)
    unscored = xp.isnan(values).all(1)
    if preset.missing == "zero":
        values = xp.nan_to_num(values)
    if method == "grpo":
        summed = values * as_vector(list(weights), matrix, "weights").to(dtype) if is_tensor(values) else (
            values * np.asarray(weights, dtype=dtype)
        )  # fmt: skip
        values = (summed.sum(1) if preset.missing == "poisons" else xp.nansum(summed, 1))[:, None]
        if preset.missing == "excluded" and preset.unscored == "out":
            values = xp.where(unscored[:, None], xp.nan, values)
        elif preset.missing == "excluded":  # the sum of nothing is 0
            preset = replace(preset, missing="zero")
        weights = [1.0]
    eps = preset.eps if method == "gdpo" else preset.eps_grpo
    total: Array = 0.0
    normalized = xp.zeros_like(values)
    for rows in _rows(groups, matrix):
        normalized[rows] = _group_normalized(preset, values[rows], eps)
    if preset.missing != "poisons":
        normalized = xp.nan_to_num(normalized)
    for k, weight in enumerate(weights):
        total = total + weight * normalized[:, k]
    if method == "grpo":
        return total
    return _batch_normalized(preset, total, unscored, lengths)


def _rows(groups: Any, matrix: Array) -> list[Array]:
    """Rows of the groups, those of one size together: [groups of that size, size]."""
    rows = matrix.shape[0]
    if isinstance(groups, int | np.integer) and not isinstance(groups, bool):
        if groups < 1 or rows % groups:
            raise Error(f"groups of {groups} do not fit the rollouts: {rows} is not a multiple of {groups}")
        codes = np.arange(rows) // groups
    else:
        codes, _ = factorize(groups, rows, "groups")
    order, sizes = np.argsort(codes, kind="stable"), np.bincount(codes)
    starts = np.cumsum(sizes) - sizes
    found = [order[starts[sizes == size][:, None] + np.arange(size)] for size in np.unique(sizes)]
    return [namespace(matrix).from_numpy(part).to(matrix.device) for part in found] if is_tensor(matrix) else found


def _group_normalized(preset: Preset, values: Array, eps: float) -> Array:
    """[n, size, R] rewards of n groups -> the same about their means and over their spreads."""
    xp = namespace(values)
    size = values.shape[1]
    if preset.std == "squares" or preset.leave_one_out:
        parts = [_by_squares(preset, values[..., k], eps) for k in range(values.shape[2])]
        result = xp.stack(parts, 2)
    elif size == 1 and preset.single == "raw":
        result = values / (1.0 + eps)
    else:
        if preset.reduction == "together":
            mean, std = _moments(values, preset)
        else:
            views = [values[..., k] for k in range(values.shape[2])]
            if preset.reduction == "contiguous":
                views = [view.contiguous() if is_tensor(view) else np.ascontiguousarray(view) for view in views]
            moments = [_moments(view, preset) for view in views]
            mean, std = (xp.stack([pair[side] for pair in moments], 2) for side in (0, 1))
        result = (values - mean) / (std + eps)
    if preset.ties == "exact":
        low, high = (
            getattr(xp, name)(xp.where(xp.isnan(values), fill, values), 1)
            for name, fill in (("amin", np.inf), ("amax", -np.inf))
        )
        result = xp.where((low < high)[:, None], result, result * 0.0)
        result = xp.where(xp.isnan(values), xp.nan, xp.nan_to_num(result, nan=0.0))
    return result


def _moments(values: Array, preset: Preset) -> tuple[Array, Array]:
    """Mean and sample standard deviation along axis 1, kept, as the trainers' own operations take them."""
    xp, count = namespace(values), values.shape[1]
    if count == 1:
        return values * 1.0, xp.zeros_like(values)
    if preset.missing == "excluded":
        keep = {"dim": 1, "keepdim": True} if is_tensor(values) else {"axis": 1, "keepdims": True}
        mean = xp.nanmean(values, **keep)
        present = (values == values).sum(1)[:, None]
        present = present.to(values.dtype) if is_tensor(values) else present.astype(values.dtype)
        variance = xp.nanmean((values - mean) ** 2, **keep) * (present / (present - 1))
        return mean, xp.sqrt(variance)
    if is_tensor(values) and preset.reduction == "contiguous":  # verl stacks each group into a vector of its own
        pairs = [(group.mean(), group.std()) for group in values.unbind(0)]
        means, stds = (xp.stack(side)[:, None] for side in zip(*pairs, strict=True))
        return means, stds
    if is_tensor(values):
        return values.mean(dim=1, keepdim=True), values.std(dim=1, keepdim=True)
    return values.mean(axis=1, keepdims=True), values.std(axis=1, ddof=1, keepdims=True)


def _by_squares(preset: Preset, values: Array, eps: float) -> Array:
    """[n, size] of one reward, mean and spread from sums of all or of the others (NeMo-RL's way)."""
    xp, size = namespace(values), values.shape[1]
    if size == 1:
        return values * 0.0
    others = np.ones((size, size)) - (np.eye(size) if preset.leave_one_out else 0.0)
    matrix = values.new_tensor(others) if is_tensor(values) else others.astype(values.dtype)
    count = float(size - 1 if preset.leave_one_out else size)

    def mean(numbers: Array) -> Array:  # a product a group, as NeMo-RL takes it: in one product the digits differ
        return xp.stack([matrix @ group for group in numbers]) / count

    base = mean(values)
    if preset.std == "squares":
        square = mean(values**2)
        variance = (square - base**2) * np.float32(count / (count - 1) if count > 1 else np.inf)
    else:
        about = (values[:, None, :] - base[..., None]) ** 2 * matrix
        variance = about.sum(2) / max(count - 1, 1)
    std = xp.nan_to_num(xp.sqrt(variance), nan=0.0)
    divides = (std > 0) if preset.std == "squares" else (std == std)
    return xp.where(divides, (values - base) / xp.where(divides, std + eps, 1.0), values - base)


def _batch_normalized(preset: Preset, total: Array, unscored: Array, lengths: Any) -> Array:
    xp, rows = namespace(total), total
    counts = xp.ones_like(total)
    if preset.token_weighted and lengths is not None and is_tensor(total):
        longest = int(lengths.max())
        if longest * len(total) <= 1 << 26:  # as verl does it, token by token, for its digits; else by their number
            counts = (xp.arange(longest, device=total.device)[None, :] < lengths[:, None]).to(total.dtype)
            total = total[:, None] * counts
            return _whitened(preset, rows, total, counts)
    if preset.unscored == "out":
        counts = counts * ~unscored
    if preset.token_weighted and lengths is not None:
        counts = counts * (lengths.to(total.dtype) if is_tensor(total) else lengths.astype(total.dtype))
    result = _whitened(preset, rows, total, counts)
    return result if preset.unscored == "counts" else xp.where(unscored, 0.0, result)


def _whitened(preset: Preset, rows: Array, values: Array, counts: Array) -> Array:
    """``rows`` about the mean and over the spread of ``values``, each of which counts so often."""
    xp = namespace(values)
    number = counts.sum()
    mean = (values * counts).sum() / number
    variance = ((values - mean) ** 2 * counts).sum() / number * (number / (number - 1))
    if preset.norm_eps_in == "variance":
        return (rows - mean) * (1.0 / xp.sqrt(variance + preset.norm_eps))
    scale = xp.sqrt(variance) + preset.norm_eps
    return (rows - mean) / xp.where(scale > 0, scale, 1.0)
