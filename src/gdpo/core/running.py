"""Batch norm, of one batch or of a stream of batches whose statistics are carried on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gdpo.core.backend import Array, namespace, to_float
from gdpo.core.batch import Batch, Combination
from gdpo.core.errors import Error


class RunningNorm:
    """Statistics of the batch norm, carried from batch to batch (asynchronous training, small batches).

    Each call of ``advantages(..., running=norm)`` merges the batch into what was before (Chan, Golub and LeVeque
    1983) and normalises with the result. Under ``batch_ids`` every label has statistics of its own.

    Args:
        decay: how much of what was before still counts at each new batch, in (0, 1]. 1 is exact: after any number of
            batches the statistics are those of one batch of all the rollouts so far.

    Raises:
        Error: a decay outside (0, 1].
    """

    def __init__(self, decay: float = 1.0) -> None:
        if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 < decay <= 1:
            raise Error(f"decay is {decay!r}, but a number above 0 and up to 1 (1: nothing is forgotten) was expected")
        self.decay = float(decay)
        self._state: dict[str, Any] = {}

    def merge(self, labels: Sequence[str], batch: Array) -> Array:
        """[4, labels] (weight with signal, its mean, squared deviations, weight in all) of a batch -> of all so far."""
        merged = []
        for place, label in enumerate(labels):
            new, old = batch[:, place], self._state.get(label)
            if old is not None:
                if isinstance(old, list):  # loaded from a file
                    old = new * 0.0 + new.new_tensor(old) if hasattr(new, "new_tensor") else new * 0.0 + old
                before, weight = old[0] * self.decay, new[0]
                both = before + weight
                step = (new[1] - old[1]) / namespace(new).where(both == 0, 1.0, both)
                squares = old[2] * self.decay + new[2] + step * (new[1] - old[1]) * before * weight
                new = namespace(new).stack([both, old[1] + step * weight, squares, old[3] * self.decay + new[3]])
            self._state[label] = new
            merged.append(new)
        return namespace(batch).stack(merged, 1)

    def state_dict(self) -> dict[str, Any]:
        """The state as plain numbers, for JSON or a checkpoint."""
        return {"decay": self.decay, "labels": {k: [float(x) for x in v] for k, v in self._state.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state.

        Raises:
            Error: it is not what ``state_dict`` gives.
        """
        labels = state.get("labels") if isinstance(state, Mapping) else None
        if not isinstance(labels, Mapping) or not all(
            len(v) == 4 and all(isinstance(x, int | float) and math.isfinite(x) for x in v) for v in labels.values()
        ):
            raise Error(f"the state is {state!r}, but a decay and four finite numbers a label were expected")
        self.decay = RunningNorm(state.get("decay", self.decay)).decay
        self._state = {str(name): [float(x) for x in values] for name, values in labels.items()}


def batch_normalize(
    batch: Batch, combination: Combination, lengths: Array | None = None, running: RunningNorm | None = None,
    label_names: Sequence[str] = ("",),
) -> tuple[Array, Callable[[int], Array]]:  # fmt: skip
    """A = x / (std x + eps) over the rollouts of the batch that take part (GDPO, arXiv 2601.05242, equation 6).

    x is the value minus its mean over the rollouts that carry signal, and 0 for the others, so that a tied group gets
    no advantage from what other groups got. The mean is taken out of the parts evenly over each rollout's live rewards.

    Args:
        batch: the batch.
        combination: its values before batch norm.
        lengths: row-like; each rollout weighs that much (its tokens) in mean and spread. None: each weighs 1.
        running: statistics to merge with and to update.
        label_names: names of the parts of the batch, for ``running``.
    """
    xp, groups, labels = batch.xp, batch.groups, batch.groups.batch
    total, carries, counts, finite = combination.total, combination.signal, combination.takes_part, None
    if not batch.readable:  # a NaN (from an infinite reward) stays in its own group
        finite = total == total
        total = xp.where(finite, total, 0.0)
        carries, counts = (mask * to_float(finite, batch.rewards) for mask in (carries, counts))
    weight = carries if lengths is None else carries * lengths
    signal = labels.sum(groups.sum(weight))
    mean = labels.sum(groups.sum(total, weight)) / xp.clip(signal, 1, None)
    count = labels.sum(groups.sum(counts if lengths is None else counts * lengths))
    centered = total - labels.expand(mean)
    centered *= carries
    squares = labels.sum(groups.sum(centered, centered if lengths is None else centered * lengths))
    if running is not None:
        _, mean, squares, count = running.merge(label_names, xp.stack([signal, mean, squares, count]))
        centered = (total - labels.expand(mean)) * carries
    scale = batch.guarded(batch.std(squares, count))
    factor = labels.expand(1.0 / xp.where(scale == 0, 1.0, scale))

    def part(k: int) -> Array:
        # ``carriers`` counts exactly the rewards whose ``signal`` is 1, so the shares add up to the mean.
        share = carries * labels.expand(mean) / xp.clip(combination.carriers, 1, None)
        return (combination.part(k) - share * batch.column(k).signal) * factor

    result = centered
    result *= factor
    return result if finite is None else xp.where(finite, result, combination.total), part
