"""verl's batches as gdpo's: scores, groups, rollouts; and the group filter. Imports neither verl nor TransferQueue."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpo.adapters.verl import Batch, Session
from gdpo.export import rewards_of


def legacy_batch(session: Session, mask: Any, uid: Any, columns: Mapping[str, Any], tensors: Any) -> Batch:
    """From what verl hands to an estimator: one row a rollout.

    Args:
        mask: ``response_mask`` [B, T].
        uid: [B] group of each row.
        columns: ``non_tensor_batch``, which holds ``reward_extra_info`` by name.
        tensors: ``batch``, for the text of the rollout table.
    """
    count = mask.shape[0]
    session.check_names({str(name) for name, values in columns.items() if _is_reward(values)})
    scores = np.column_stack([_column(columns.get(name), count) for name in session.settings.names])
    rows = np.arange(count)

    def text() -> tuple[list[Any], list[Any]]:
        prompts, responses, attention = tensors["prompts"], tensors["responses"], tensors["attention_mask"]
        asked = attention[:, : prompts.shape[1]].sum(-1).tolist()
        answered = attention[:, prompts.shape[1] :].sum(-1).tolist()
        return (
            [prompts[i, prompts.shape[1] - n :] for i, n in enumerate(asked)],
            [responses[i, :n] for i, n in enumerate(answered)],
        )

    known = tensors is not None and all(key in tensors for key in ("prompts", "responses", "attention_mask"))
    ids: list[str] = []
    if session.writer is not None:
        seen: Counter[str] = Counter()
        for name in map(str, uid):
            ids.append(f"{name}_{seen[name]}")
            seen[name] += 1
    return Batch(scores, uid, rows, rows, ids, text if known else None)


def v1_batch(session: Session, queue: Any, meta: Any, metrics: dict[str, Any] | None) -> Batch:
    """From the TransferQueue: rows of one session are one rollout, scored by its last; padding is none.

    Args:
        queue: the module ``transfer_queue``.
        meta: verl's ``KVBatchMeta``, with keys "UID_SESSION_OUTPUT".
        metrics: verl's of this step.
    """
    row, final = segments(meta.keys, [bool(tag.get("is_padding", False)) for tag in meta.tags])
    keys = [meta.keys[k] for k in final]
    samples = _samples(queue, keys, meta.partition_id)
    absent = [name for name in session.settings.names if not any(name in sample for sample in samples)]
    _add_fields(queue, keys, meta.partition_id, absent, samples)
    session.check_names({str(name) for sample in samples for name in sample})

    def text() -> tuple[list[Any], list[Any]]:
        data = queue.kv_batch_get(keys=keys, partition_id=meta.partition_id, select_fields=["prompts", "responses"])
        return list(data["prompts"].unbind()), list(data["responses"].unbind())

    ids = [key.rsplit("_", 1)[0] for key in keys]
    return Batch(rewards_of(samples, session.settings.names), None, row, final, ids, text, metrics)


def segments(keys: Sequence[str], padding: Sequence[bool]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(row [B] -> its rollout, -1 for padding; final [n] the last row of each rollout), from verl's keys."""
    place: dict[str, int] = {}
    final: list[int] = []
    last: list[int] = []
    row = np.full(len(keys), -1, dtype=np.int64)
    for k, key in enumerate(keys):
        if padding[k]:
            continue
        session, _, output = key.rpartition("_")
        number = int(output) if output.isdigit() else 0
        if session not in place:
            place[session] = len(final)
            final.append(k)
            last.append(number)
        row[k] = place[session]
        if number > last[row[k]]:
            final[row[k]], last[row[k]] = k, number
    return row, np.asarray(final, dtype=np.int64)


def filtered(buffer: Any, queue: Any, session: Session, partition: str) -> tuple[set[str], Counter[float]]:
    """verl's ``ReplayBuffer._dapo_filtered_keys`` with gdpo's test: finished groups that teach nothing.

    Returns:
        Their uids, and how many stand at which mean weighted score. A group is judged once, when it is finished.
    """
    if partition == "val" or buffer.filter_groups_metric is None:
        return set(), Counter()
    finished, judged = buffer.finished_keys[partition], buffer._dapo_classification_cache[partition]
    for uid in judged.keys() - finished:
        del judged[uid]
    new = finished - judged.keys()
    keys = [key for key in buffer.partitions[partition] if key.split("_")[0] in new]
    if keys:
        _, final = segments(keys, [False] * len(keys))
        keys = [keys[k] for k in final]
        samples = _samples(queue, keys, partition)
        session.check_names({str(name) for sample in samples for name in sample})
        tied = session.no_signal(rewards_of(samples, session.settings.names), [key.split("_")[0] for key in keys])
        judged.update({uid: tied.get(uid) for uid in new})
    found = {uid: value for uid, value in judged.items() if value is not None}
    return set(found), Counter(found.values())


def complete(infos: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """``reward_extra_info`` of a worker's samples with the same keys in each; what is no number in ``names`` is NaN.

    The legacy trainer takes the keys from the first sample: it drops those that only others have, and stops with a
    KeyError where another lacks one.
    """
    keys = list(dict.fromkeys([*names, *(key for info in infos for key in info)]))
    numbers = rewards_of(infos, names)
    own = [dict(zip(names, map(float, row), strict=True)) for row in numbers]
    return [{key: own[i].get(key, info.get(key)) for key in keys} for i, info in enumerate(infos)]


def _samples(queue: Any, keys: Sequence[str], partition: str) -> list[dict[str, Any]]:
    """``reward_extra_info`` of each key, a copy."""
    data = queue.kv_batch_get(keys=list(keys), partition_id=partition, select_fields=["extra_fields"])
    found = []
    for entry in _listed(data["extra_fields"], len(keys)):
        info = entry.get("reward_extra_info") if isinstance(entry, Mapping) else None
        found.append(dict(info) if isinstance(info, Mapping) else {})
    return found


def _add_fields(
    queue: Any, keys: Sequence[str], partition: str, names: Sequence[str], samples: Sequence[dict[str, Any]]
) -> None:
    """Rewards that stand in fields of their own, where a colocated reward model leaves them."""
    for name in names:
        try:
            data = queue.kv_batch_get(keys=list(keys), partition_id=partition, select_fields=[name])
            values = _listed(data[name], len(keys))
        except Exception:  # there is no such field; which exception says so depends on TransferQueue's version
            continue
        for sample, value in zip(samples, values, strict=True):
            sample[name] = value


def _listed(values: Any, count: int) -> list[Any]:
    """One value a row, whatever tensordict made of them (equal ones are kept once)."""
    values = values.tolist() if hasattr(values, "tolist") else getattr(values, "data", values)
    rows = [values] * count if isinstance(values, Mapping) else list(values)
    return [getattr(value, "data", value) if not isinstance(value, Mapping) else value for value in rows]


def _is_reward(values: Any) -> bool:
    return getattr(values, "dtype", None) is not None and getattr(values, "ndim", 0) == 1


def _column(values: Any, count: int) -> NDArray[np.float64]:
    """[B] numbers, NaN where there is none."""
    if values is None:
        return np.full(count, math.nan)
    values = np.asarray(values)
    if values.dtype.kind in "fiub":
        return np.asarray(values, dtype=np.float64)
    if values.dtype.kind in "US":  # NumPy makes text of all where one value is text
        return np.array([_number(value) for value in values.tolist()])
    found: NDArray[np.float64] = rewards_of([{"value": value} for value in values.tolist()], ["value"])[:, 0]
    return found


def _number(text: Any) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
