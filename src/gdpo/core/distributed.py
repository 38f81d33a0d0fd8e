"""Advantages over many processes: every rank passes its own rollouts and gets their advantages back.

What travels: first one small JSON text a rank (an error, or the shape of its input and the ids of its groups), then
only counts, sums, squared deviations, minima and maxima per group. Groups may be split over ranks, ranks may hold any
number of rollouts, none included; the result does not depend on how they are spread. Every rank ends up with the same
statistics, or with the same error. Nothing is pickled.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from gdpo.core.backend import Array, factorize, is_tensor, like_array
from gdpo.core.compute import COMMON, Estimate, Run
from gdpo.core.errors import Error
from gdpo.core.groups import Groups, Labels
from gdpo.core.inputs import Weight


def advantages(
    rewards: Any, groups: Any, method: str = "gdpo", weights: Any = None, *, process_group: Any = None,
    out: Any = None, **options: Any,
) -> Array:  # fmt: skip
    """One advantage for each of this rank's rollouts, [b], from statistics over all ranks.

    Every rank of ``process_group`` must call it, with the same method and options.

    Args:
        rewards: [b, R] of this rank; b may differ from rank to rank and be 0.
        groups: a size G, counted over all ranks' rollouts in rank order, or ids [b]; equal ids on different ranks are
            one group.
        method, weights, options: as for ``gdpo.advantages``; what has a value a rollout is given for this rank's.
            Rollouts that are split into rows (``rollouts``) count once however their rows are spread.
        process_group: a ``torch.distributed`` group; None is the default one.
        out: [b] to write into.

    Raises:
        Error: on every rank, what ``gdpo.advantages`` would raise on any; ranks that differ in method, options, names
            or number of rewards; ``torch.distributed`` not initialised.
    """
    return _SharedRun(rewards, groups, method, weights, options, process_group, keep=False).advantages(out)


def estimate(
    rewards: Any, groups: Any, method: str = "gdpo", weights: Any = None, *, process_group: Any = None, **options: Any
) -> Estimate:
    """The same with every reward's part; ``live``, ``mean`` and ``std`` have a row for each group of all ranks."""
    return _SharedRun(rewards, groups, method, weights, options, process_group, keep=True).estimate()


class _SharedGroups(Groups):
    """Groups spread over the ranks of a process group; group numbers are the same on all."""

    shared = True
    channel: _Channel

    def merge(self, values: Array, how: str) -> Array:
        return self.channel.reduce(values, how)


class _SharedRun(Run):
    """Checks on this rank, then the exchange, then the same computation as on one process."""

    def __init__(
        self, rewards: Any, groups: Any, method: Any, weights: Any, options: dict[str, Any], process_group: Any,
        keep: bool,
    ) -> None:  # fmt: skip
        self._channel = _Channel(process_group)
        common = {name: options.pop(name) for name in list(options) if name in COMMON}
        failure = None
        header: dict[str, Any] = {}
        try:
            super().__init__(rewards, groups, method, weights, common, options, keep)
            self._check_values()
            header = self._header(groups)
        except Error as error:
            failure = error
        except Exception as error:  # a surprise on one rank must not leave the others waiting
            failure = Error(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
        headers = self._channel.exchange({"error": str(failure)} if failure else header)
        for rank, header in enumerate(headers):
            if "error" in header:
                raise Error(f"rank {rank}: {header['error']}") from failure
        for key, what in (("names", "rewards"), ("method", "method"), ("options", "options"), ("size", "group size")):
            for rank, header in enumerate(headers):
                if header[key] != headers[0][key]:
                    raise Error(f"rank {rank} has {what} {header[key]!r}, but rank 0 has {headers[0][key]!r}")
        self._join(headers)

    def _check_weights(self) -> None:
        """A weight may be 0 on one rank; ``_join`` looks at all."""

    def _grouped(self, groups: Any) -> Groups:
        """On this rank alone groups need not be whole: only shapes and ids are checked, and copies found."""
        self._size = int(groups) if isinstance(groups, int | np.integer) and not isinstance(groups, bool) else None
        if self._size is None:
            return super()._grouped(groups)
        if self._size < 1:
            raise Error(f"groups is {self._size}, but a group has at least one rollout")
        return super()._grouped(np.zeros(self.rewards.shape[0], dtype=np.int64))

    def _check_values(self) -> None:
        """What the computation would refuse later, so that it is known before the exchange."""
        if self.groups.rows and self.batch.readable:
            for k in self.batch.active:
                self.batch.column(k)
        self.batch.clear()

    def _header(self, groups: Any) -> dict[str, Any]:
        rows = self.rewards.shape[0]
        same = {k: v for k, v in self.common.items() if v is not None and k in _ALIKE}
        ids = None if self._size is not None else _texts(groups, rows, "groups")
        labels, rollouts = (self.common.get(name) for name in ("batch_ids", "rollouts"))
        return {
            "rows": rows, "names": self.names, "method": self.method.name, "size": self._size,
            "options": json.dumps({**same, **self.own}, sort_keys=True, default=str), "ids": ids,
            "labels": None if labels is None else _texts(labels, rows, "batch_ids"),
            "rollouts": None if rollouts is None else _texts(rollouts, rows, "rollouts"),
            "signs": [_signs(weight) for weight in self.weights], "by_rollout": self._by_rollout(),
        }  # fmt: skip

    def _join(self, headers: list[dict[str, Any]]) -> None:
        """Groups over all ranks, and weights whose sign and use are those of all ranks."""
        rank, rows = self._channel.rank, [header["rows"] for header in headers]
        if self._size is not None and sum(rows) % self._size:
            raise Error(f"groups of {self._size} do not fit the rollouts of all ranks: {sum(rows)} is not a multiple")
        before = sum(rows[:rank])
        keys: list[list[Any]] = []
        for place, header in enumerate(headers):
            start = sum(rows[:place])
            ids = header["ids"] or [(start + row) // (self._size or 1) for row in range(header["rows"])]
            labels = header["labels"] or [""] * header["rows"]
            keys.append(list(zip(ids, labels, strict=True)))
        groups, labels = (
            _numbered(key for part in keys for key in part),
            _numbered(key[1] for part in keys for key in part),
        )
        codes = np.array([groups[key] for key in keys[rank]], dtype=np.int64)
        counted = None
        if any(header["rollouts"] for header in headers):
            seen: dict[Any, int] = {}
            places = [
                (key, rollout) for part, header in zip(keys, headers, strict=True)
                for key, rollout in zip(part, header["rollouts"] or range(len(part)), strict=True)
            ]  # fmt: skip
            for place, name in enumerate(places):
                seen.setdefault(name, place)
            counted = np.array([seen[name] == place for place, name in enumerate(places)])[before : before + rows[rank]]
        handle = _SharedGroups._from_codes(self.rewards, codes, len(groups), None, counted)
        assert isinstance(handle, _SharedGroups)
        handle.channel = self._channel
        if len(labels) > 1 or self.common.get("batch_ids") is not None:
            of_group = np.array([labels[key[1]] for key in groups], dtype=np.int64)
            handle.batch = Labels(len(labels), like_array(of_group, self.rewards), handle)
        self._labels = list(labels)
        self.groups = handle
        self.weights = [_agreed(w, k, self.names[k], headers) for k, w in enumerate(self.weights)]
        if all(weight.active is False for weight in self.weights):
            if not any(header["by_rollout"] for header in headers):
                raise Error("every weight is 0 on every rank, but at least one reward must count")
            self.weights = [weight._replace(active=True) for weight in self.weights]
        self.batch = self._batch()

    def _label_names(self) -> list[str]:
        return self._labels


class _Channel:
    """Exchange over a process group: JSON texts once, then reductions of float64 vectors."""

    def __init__(self, process_group: Any) -> None:
        import torch
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_initialized():
            raise Error("torch.distributed is not initialised; call init_process_group first, or use gdpo.advantages")
        self._dist, self._torch, self._group = dist, torch, process_group
        self.rank, self.size = dist.get_rank(process_group), dist.get_world_size(process_group)
        cpu = "nccl" not in str(dist.get_backend(process_group))
        self._device = torch.device("cpu" if cpu else f"cuda:{torch.cuda.current_device()}")

    def exchange(self, header: dict[str, Any]) -> list[dict[str, Any]]:
        """Every rank's header, in rank order."""
        torch, data = self._torch, json.dumps(header).encode()
        length = torch.tensor([len(data)], device=self._device)
        lengths = [torch.zeros_like(length) for _ in range(self.size)]
        self._dist.all_gather(lengths, length, group=self._group)
        longest = max(int(n) for n in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8, device=self._device)
        padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self._device)
        parts = [torch.zeros_like(padded) for _ in range(self.size)]
        self._dist.all_gather(parts, padded, group=self._group)
        return [
            json.loads(bytes(part[: int(n)].cpu().numpy().tobytes())) for part, n in zip(parts, lengths, strict=True)
        ]

    def reduce(self, values: Array, how: str) -> Array:
        """The sum, minimum or maximum of every rank's vector, on every rank."""
        dist = self._dist
        operation = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}[how]
        tensor = values if is_tensor(values) else self._torch.from_numpy(np.array(values))
        there = tensor.to(self._device, copy=True)
        dist.all_reduce(there, operation, group=self._group)
        return there.to(tensor.device) if is_tensor(values) else there.numpy()


_ALIKE = ("eps", "eps_in", "ddof", "clip", "batch_norm", "baseline", "scale", "std_floor", "bounds")


def _texts(ids: Any, rows: int, what: str) -> list[Any]:
    """Ids as what JSON keeps apart: numbers stay numbers, the rest is text with its type's name."""
    factorize(ids, rows, what)
    values = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    return [v if isinstance(v, int) and not isinstance(v, bool) else f"{type(v).__name__}:{v!r}" for v in values]


def _numbered(values: Any) -> dict[Any, int]:
    numbers: dict[Any, int] = {}
    for value in values:
        numbers.setdefault(value, len(numbers))
    return numbers


def _signs(weight: Weight) -> list[bool]:
    """[a negative value, a positive one] in this rank's column of weights."""
    if isinstance(weight.value, float):
        return [weight.value != 0 and weight.sign == -1, weight.value != 0 and weight.sign == 1]
    some = bool((weight.value > 0).any())
    return [some and bool(weight.sign == -1), some and bool(weight.sign == 1)]


def _agreed(weight: Weight, k: int, name: str, headers: list[dict[str, Any]]) -> Weight:
    negative, positive = (any(header["signs"][k][side] for header in headers) for side in (0, 1))
    if negative and positive:
        raise Error(f"the weights of {name!r} have both signs, but a reward is either a reward or a penalty")
    return Weight(weight.value, -1.0 if negative else 1.0, negative or positive)


__all__ = ["advantages", "estimate"]
