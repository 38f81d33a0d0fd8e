"""Dynamic sampling under TRL: groups that teach nothing are replaced by groups of other prompts that do.

What teaches is asked of the combined advantage before batch norm ("combined"), or of one reward by name: a group in
which that reward is tied is replaced although others vary in it (2609.13866 reports a gain from filtering on the
outcome). DAPO's filter asks the sum of rewards, which is tied in groups that three rewards still teach from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object

from gdpo.core.compute import Estimate
from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.objective import Objective

LEFT = ("prompt_ids", "prompt_mask")
"""Tensors that TRL pads on the left; all others of two dimensions on the right."""


@dataclass
class Generated:
    """One generated batch: this process's rows, and the scores of all."""

    output: dict[str, Any]
    """What TRL hands to its loss."""
    scores: Any
    """[N, R] float64 of all processes, in the objective's order; NaN = missing."""
    prompts: list[Any]
    completions: list[Any]
    ids: list[Any]
    """Completion tokens, a list a row."""
    logged: dict[tuple[str, str], list[Any]]
    """The N rows that TRL has put into each column of its completions table."""


def check_sampling(which: str | None, rounds: int, objective: Objective, dataset: Any) -> None:
    """Check the settings of dynamic sampling before training."""
    if which is None:
        return
    known = ["combined", *objective.names]
    if which not in known:
        raise Error(f"resample is {which!r}{nearest(which, known)}")
    if rounds < 1:
        raise Error(f"resample_rounds is {rounds}, but at least 1 was expected")
    columns = getattr(dataset, "column_names", None) or []
    for name in ("image", "images"):
        if name in columns:
            raise Error(f"resample cannot join batches with images, but the training data has the column {name!r}: set "
                        "resample=None")  # fmt: skip
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise Error("resample draws further prompts by index, but the training data is a stream: use a data set of "
                    "known length, or resample=None")  # fmt: skip


def has_signal(estimate: Estimate, which: str = "combined") -> Any:
    """[groups] bool: the combined advantage is not 0 throughout; or, with a reward's name, that reward varies."""
    if which != "combined":
        return np.asarray(estimate.live)[:, estimate.names.index(which)]
    moved = np.asarray(estimate.combined) != 0
    return np.bincount(np.asarray(estimate.group)[moved], minlength=len(estimate.live)) > 0


def resample(trainer: Any, batch: Generated, which: str, rounds: int) -> tuple[Generated, dict[str, float]]:
    """The batch with its dead groups replaced as far as ``rounds`` further generations allow, and metrics of that."""
    size, processes = trainer.num_generations, trainer.accelerator.num_processes
    rows = len(batch.prompts)
    # Where groups stay inside a process, only as many are made again as the neediest process lacks; else the whole
    # batch, place for place.
    inside = rows % size == 0
    signal = has_signal(trainer._gdpo_estimate(batch), which)
    dead_first, done = int((~signal).sum()), 0
    while not signal.all() and done < rounds:
        need = int((~signal).reshape(processes, -1).sum(1).max()) if inside else 0
        count = need * size if inside else rows
        fresh = trainer._gdpo_generated(_further(trainer, count, done))
        good = has_signal(trainer._gdpo_estimate(fresh), which)
        source = _sources(signal, good, processes if inside else 0)
        batch = _merge(trainer, batch, fresh, source, size)
        signal = signal | (source >= 0)
        done += 1
    return batch, {
        "resampled_groups": float(dead_first - int((~signal).sum())),
        "groups_without_signal_left": float((~signal).sum()),
        "resample_rounds": float(done),
    }


def _further(trainer: Any, count: int, done: int) -> list[Any]:
    """This process's rows for one more round: prompts drawn by seed, step and round, so that a resumed run agrees."""
    accelerator, size = trainer.accelerator, trainer.num_generations
    groups = count * accelerator.num_processes // size
    draw = np.random.default_rng([abs(int(trainer.args.seed)), trainer.state.global_step, done])
    length = len(trainer.train_dataset)
    chosen = draw.choice(length, groups, replace=groups > length)
    rows = np.repeat(chosen, size)[accelerator.process_index * count : (accelerator.process_index + 1) * count]
    return [dict(trainer.train_dataset[int(row)]) for row in rows]


def _sources(signal: Any, good: Any, processes: int) -> Any:
    """[groups] which fresh group takes a place, -1 where the old one stays. ``processes`` 0: place for place."""
    source = np.full(len(signal), -1)
    if not processes:
        places = np.flatnonzero(~signal & good)
        source[places] = places
        return source
    here, there = len(signal) // processes, len(good) // processes
    for rank in range(processes):
        empty = rank * here + np.flatnonzero(~signal[rank * here : (rank + 1) * here])
        found = rank * there + np.flatnonzero(good[rank * there : (rank + 1) * there])
        count = min(len(empty), len(found))
        source[empty[:count]] = found[:count]
    return source


def _merge(trainer: Any, old: Generated, new: Generated, source: Any, size: int) -> Generated:
    """Old rows, those of fresh groups in their places."""
    total = len(old.scores)
    member = np.arange(total) % size
    taken = np.repeat(source, size)
    # Rows of both batches in one numbering: old first.
    everywhere = np.where(taken >= 0, total + taken * size + member, np.arange(total))
    rank = trainer.accelerator.process_index
    mine, fresh = len(old.prompts), len(new.prompts)
    local = everywhere[rank * mine : (rank + 1) * mine]
    local = np.where(local < total, local - rank * mine, local - total - rank * fresh + mine)

    def rows(one: list[Any], two: list[Any], order: Any) -> list[Any]:
        both = [*one, *two]
        return [both[k] for k in order]

    logged = {
        key: rows(values, new.logged[key], everywhere)
        for key, values in old.logged.items()
        if len(values) == total and len(new.logged.get(key, ())) == len(new.scores)
    }
    return replace(
        old, output=_merge_tensors(trainer, old.output, new.output, local, mine, fresh),
        scores=np.concatenate([old.scores, new.scores])[everywhere], logged=logged,
        **{name: rows(getattr(old, name), getattr(new, name), local) for name in ("prompts", "completions", "ids")},
    )  # fmt: skip


def _merge_tensors(
    trainer: Any, old: dict[str, Any], new: dict[str, Any], local: Any, mine: int, fresh: int
) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    if old.keys() != new.keys():
        raise Error(f"TRL gave {sorted(old.keys() ^ new.keys())} for one batch and not for another of the same step, "
                    "so dynamic sampling cannot join them: set resample=None")  # fmt: skip
    pad = getattr(trainer, "pad_token_id", None)
    # A processor of texts and images keeps it in its tokenizer.
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    pad = pad if pad is not None else tokenizer.pad_token_id
    order = torch.as_tensor(local)
    for key, one in old.items():
        two = new[key]
        if key == "num_items_in_batch":
            continue
        if not torch.is_tensor(one) or not torch.is_tensor(two) or len(one) != mine or len(two) != fresh:
            raise Error(f"dynamic sampling cannot join {key!r} of two batches (images are not supported): set "
                        "resample=None")  # fmt: skip
        if one.dim() == 2:
            width = max(one.shape[1], two.shape[1])
            value = pad if key in ("prompt_ids", "completion_ids") else 0
            one, two = (_padded(tensor, width, value, key in LEFT) for tensor in (one, two))
        merged[key] = torch.cat([one, two])[order.to(one.device)]
    if "num_items_in_batch" in old:
        mask = merged["completion_mask"] * merged.get("tool_mask", 1)
        merged["num_items_in_batch"] = trainer.accelerator.gather(mask.sum()).sum()
    return {key: merged[key] for key in old}


def _padded(tensor: Any, width: int, value: float, left: bool) -> Any:
    missing = width - tensor.shape[1]
    return torch.nn.functional.pad(tensor, (missing, 0) if left else (0, missing), value=value) if missing else tensor


def truncated(trainer: Any, ids: list[Any]) -> list[bool]:
    """[N] whether a completion of any process ended by its length and not by an end token."""
    ends = getattr(trainer, "eos_token_ids", None) or [getattr(trainer, "eos_token_id", None)]
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    known = {int(end) for end in [*ends, tokenizer.eos_token_id, tokenizer.pad_token_id] if end is not None}
    return list(gather_object([bool(len(row)) and int(row[-1]) not in known for row in ids]))
