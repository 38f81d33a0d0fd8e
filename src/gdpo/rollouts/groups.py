"""Groups of the rollouts of a step: from ids, else from equal prompts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
from numpy.typing import NDArray

Codes = NDArray[np.int64]


def from_ids(ids: pl.Series) -> Codes:
    """[B] groups 0, 1, ... in the order in which their ids first stand; a row without id is a group of its own."""
    values = ids.hash().to_numpy().copy()
    if ids.null_count():
        missing = ids.is_null().to_numpy()
        values[missing] = np.random.default_rng(0).integers(0, 2**63, int(missing.sum()), dtype=np.uint64)
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    codes: Codes = rank[inverse.reshape(-1)]
    return codes


def from_prompts(prompts: pl.Series, runs: bool, usual: int | None = None) -> tuple[Codes, list[str]]:
    """[B] groups from equal prompts, and what to say about how they were found.

    Args:
        prompts: [B] text.
        runs: neighbours with one prompt are a group (trainers that write no id keep groups together); else all
            rollouts of the step with that prompt.
        usual: group size of the steps before, for a step that is a single run.

    A run twice or more times as long as every other run of its step is several groups of one prompt, side by side.
    Where almost no neighbours share a prompt although prompts repeat, the rows were shuffled: all with one prompt are
    then a group.
    """
    if not runs:
        return from_ids(prompts.fill_null("")), []
    values = (prompts.fill_null("") if prompts.null_count() else prompts).hash().to_numpy()
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]]) if len(values) else np.zeros(0, dtype=np.int64)
    lengths = np.diff(np.r_[starts, len(values)])
    distinct = len(np.unique(values))
    if len(lengths) > distinct and np.mean(lengths == 1) > 0.5:
        return from_ids(prompts.fill_null("")), ["equal prompts do not stand together: all of a step are one group"]
    pieces, split = _split(lengths.tolist(), usual)
    notes = ["a run of equal prompts was split: it is several times as long as every other"] if split else []
    return np.repeat(np.arange(len(pieces)), pieces).astype(np.int64), notes


def _split(lengths: list[int], usual: int | None) -> tuple[list[int], bool]:
    if len(lengths) == 1:
        size = usual
    else:
        # Every run but the longer multiples of it has this length.
        size = Counter(lengths).most_common(1)[0][0] if lengths else None
        if size is not None and (any(length % size for length in lengths) or lengths.count(size) < 2):
            size = None
    if size is None or size < 2:
        return lengths, False
    pieces: list[int] = []
    for length in lengths:
        pieces += [size] * (length // size) if length > size and length % size == 0 else [length]
    return pieces, len(pieces) > len(lengths)
