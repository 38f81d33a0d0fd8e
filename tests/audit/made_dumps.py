"""Dumps made from arrays."""

from __future__ import annotations

import numpy as np
import polars as pl

from gdpo.rollouts import Batch, Dump, Summary


def dump_of(steps, names, *, framework="gdpo", weights=None, rows=None, settings=None):
    """``steps``: a list of (scores [B, R], group [B]); ``rows``: a mapping of columns for each step."""
    batches = []
    for at, (scores, group) in enumerate(steps):
        columns = dict((rows or {})[at] if isinstance(rows, dict) else (rows[at] if rows else {}))
        columns.setdefault("rollout", [f"{at + 1}-{row}" for row in range(len(scores))])
        batches.append(Batch(at + 1, np.asarray(scores, float), np.asarray(group), pl.DataFrame(columns)))
    summary = Summary(format=framework, rewards=list(names))

    def read():
        summary.rollouts = sum(len(b.scores) for b in batches)
        summary.groups = sum(b.groups for b in batches)
        summary.steps = [b.step for b in batches]
        yield from batches

    return Dump(list(names), framework, weights or {}, summary, read, settings or {})
