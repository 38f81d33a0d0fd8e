"""Which method made the advantages of a dump that does not say so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gdpo.audit.chunks import Chunk, Floats
from gdpo.audit.setting import Setting
from gdpo.core.errors import Error
from gdpo.core.estimators import METHODS

CLOSE = 0.01
"""Root mean square error, over that of the advantages, up to which a method counts as reproducing them."""
CANDIDATES = ("grpo", "gdpo", "grpo_no_std", "mo_grpo", "grpo_batch_std", "rloo", "dvao", "reinforce_pp_baseline",
              "corr_grpo")  # fmt: skip
ROWS = 16_384
"""Rollouts looked at."""


def reproducing(chunk: Chunk, setting: Setting) -> tuple[str | None, float]:
    """(method, error) of the candidate that comes nearest to the ``advantage`` column; None where none comes near.

    The error is relative: root mean square of the difference over that of the advantages. Trainers add different eps,
    which moves advantages by far less than two methods differ; of methods as near as each other the first is taken.
    """
    found = chunk.column("advantage")
    if found is None or not np.isfinite(found).any():
        return None, float("nan")
    chunk, found = _head(chunk, found)
    errors = {}
    for method in CANDIDATES:
        if METHODS[method].needs:
            continue
        try:
            made = replace(setting, method=method, options={}, levels={}).estimate(chunk)
        except Error:
            continue
        errors[method] = _error(np.asarray(made.advantages), found)
    if not errors:
        return None, float("nan")
    best = min(errors, key=lambda method: (round(errors[method], 5), CANDIDATES.index(method)))
    return (best if errors[best] <= CLOSE else None), errors[best]


def _head(chunk: Chunk, found: Floats) -> tuple[Chunk, Floats]:
    """Whole steps of about ``ROWS`` rollouts."""
    last = chunk.batch_ids[min(ROWS, len(found)) - 1]
    rows = int(np.searchsorted(chunk.batch_ids, last, side="right"))
    groups = int(np.searchsorted(chunk.starts, rows))
    return Chunk(
        chunk.scores[:rows], chunk.group[:rows], chunk.starts[:groups], chunk.label[:groups],
        chunk.steps[: last + 1], chunk.rows[:rows],
    ), found[:rows]  # fmt: skip


def _error(made: Floats, found: Floats) -> float:
    known = np.isfinite(found)
    size = float(np.sqrt(np.mean(found[known] ** 2)))
    gap = float(np.sqrt(np.mean((made[known] - found[known]) ** 2)))
    return gap / size if size > 0 else (0.0 if gap == 0 else float("inf"))
