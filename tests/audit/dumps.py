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


def case_dump(path):
    """A planted case, read the plain way (the readers are tested on their own)."""
    import json

    names = sorted(path.iterdir(), key=lambda p: p.name)
    frames, weights = [], {}
    if names[0].suffix == ".parquet":
        for file in names:
            frame = pl.read_parquet(file)
            frames.append((frame, [c for c in frame.columns if c not in ("step", "prompt", "completion", "advantage")]))
    elif "input" in json.loads(names[0].read_text().splitlines()[0]):
        for file in names:
            rows = [json.loads(line) for line in file.read_text().split("\n") if line]
            keep = [k for k in rows[0] if k not in ("input", "output", "gts", "score", "step", "request_id", "pred")]
            frame = pl.DataFrame(
                {"prompt": [r["input"] for r in rows], "completion": [r["output"] for r in rows]}
                | {k: [float(r[k]) for r in rows] for k in keep}
            )
            frames.append((frame, keep))
    rewards = frames[0][1]
    steps, rows = [], []
    for frame, _ in frames:
        _, group = np.unique(frame["prompt"].to_numpy(), return_inverse=True)
        steps.append((frame.select(pl.col(rewards).cast(pl.Float64)).to_numpy(), group))
        rows.append({k: frame[k] for k in ("completion", "advantage", "prompt") if k in frame.columns})
    return dump_of(steps, rewards, rows=rows, weights=weights)
