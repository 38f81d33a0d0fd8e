"""An objective's rewards in the shapes that other frameworks call: verl, NeMo-RL, verifiers. TRL takes
``objective.functions()`` as they are.

In a file of yours that the framework loads::

    objective = gdpo.Objective.from_yaml(Path("objective.yaml"))
    compute_score = gdpo.export.verl(objective)          # custom_reward_function.path / .name
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gdpo.core.errors import Error
from gdpo.objective import Objective, Progress

GOLD = ("answer", "calls", "ground_truth", "reference", "tests")
"""Columns under which a framework's one gold value is passed, where it passes none of that name itself."""


def verl(objective: Objective, gold: Sequence[str] = GOLD) -> Callable[..., Any]:
    """verl's ``compute_score``: a mapping with ``score`` (the weighted sum after gates) and each raw reward by name.

    The names arrive in ``reward_extra_info``, from where gdpo's adapter and the audit read them. A missing reward is
    NaN there, so that every sample has the same keys, and adds nothing to the score. Called with lists
    (``solution_strs``, as verl's batch manager does) it returns a list.

    Args:
        objective: what to score; weights are those of the first step.
        gold: columns that receive ``ground_truth``; ``extra_info``'s entries are columns, too.
    """

    def compute_score(
        data_source: Any = None, solution_str: Any = None, ground_truth: Any = None, extra_info: Any = None,
        data_sources: Any = None, solution_strs: Any = None, ground_truths: Any = None, extra_infos: Any = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        if solution_strs is None and solution_str is None:
            raise Error("compute_score got neither solution_str nor solution_strs")
        single = solution_strs is None
        texts = [solution_str] if single else list(solution_strs)
        golds = [ground_truth] if single else _listed(ground_truths, len(texts))
        extras = [extra_info] if single else _listed(extra_infos, len(texts))
        sources = [data_source] if single else _listed(data_sources, len(texts))
        columns = _columns(extras, {"data_source": sources, **dict.fromkeys(gold, golds)})
        scores, total = _scores(objective, texts, columns)
        rows = [
            {"score": float(total[row]), **dict(zip(objective.names, map(float, scores[row]), strict=True))}
            for row in range(len(texts))
        ]
        return rows[0] if single else rows

    return compute_score


def nemo_rl(objective: Objective, gold: Sequence[str] = GOLD) -> Callable[..., dict[str, Any]]:
    """The rewards of a NeMo-RL environment's ``step``: ``{"reward/NAME": Tensor[B]}``, which its estimator reads.

    The function takes what ``step`` gets: ``message_log_batch`` (lists of messages; the assistant's last one is scored)
    and ``metadata`` (a mapping a sample; its entries are columns, ``ground_truth`` stands for the gold columns). A
    missing reward is NaN. NeMo-RL's own estimator turns the whole batch into NaN there; gdpo's leaves it out.
    """

    def rewards(message_log_batch: Sequence[Any], metadata: Sequence[Any]) -> dict[str, Any]:
        import torch

        extras = list(metadata)
        golds = [entry.get("ground_truth") if isinstance(entry, Mapping) else None for entry in extras]
        texts = [_spoken(messages) for messages in message_log_batch]
        scores, _ = _scores(objective, texts, _columns(extras, dict.fromkeys(gold, golds)))
        return {
            f"reward/{name}": torch.tensor(scores[:, k], dtype=torch.float32) for k, name in enumerate(objective.names)
        }

    return rewards


def verifiers(objective: Objective, gold: Sequence[str] = GOLD) -> tuple[list[Callable[..., float]], list[float]]:
    """(functions, weights) for a rubric of verifiers before 0.4: ``vf.Rubric(funcs=functions, weights=weights)``.

    Each function takes ``completion, answer, **columns`` and returns the reward after its gate, NaN where missing.
    Since 0.4 rewards are methods of an environment, decorated with ``@vf.reward``: call ``objective.score`` in one.
    """

    def function(name: str) -> Callable[..., float]:
        place = objective.names.index(name)

        def score(completion: Any, answer: Any = None, prompt: Any = None, info: Any = None, **columns: Any) -> float:
            extra = {**(info if isinstance(info, Mapping) else {}), **columns}
            given = _columns([extra], {column: [answer] for column in gold} | {"prompts": [prompt]})
            gated = objective.gate(objective.score([completion], **given))
            return float(gated[0, place])

        score.__name__ = name
        return score

    weights = [objective.weights[name].value(Progress()) for name in objective.names]
    return [function(name) for name in objective.names], weights


def _scores(objective: Objective, texts: list[Any], columns: Mapping[str, Any]) -> tuple[Any, Any]:
    """[B, R] raw scores, and [B] the weighted sum after gates of what is there."""
    scores = objective.score(texts, **columns)
    weights = np.array([objective.weights[name].value(Progress()) for name in objective.names])
    return scores, np.nansum(np.asarray(objective.gate(scores)) * weights, axis=1)


def _columns(extras: Sequence[Any], given: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """The entries of a mapping a sample as columns, None where a sample lacks one; before those given by default."""
    names = {str(key) for extra in extras if isinstance(extra, Mapping) for key in extra}
    columns = {
        name: [extra.get(name) if isinstance(extra, Mapping) else None for extra in extras]
        for name in sorted(names - {"completions"})
    }
    found = dict(given)
    for name, values in columns.items():
        known = given.get(name)
        found[name] = values if known is None else [k if v is None else v for v, k in zip(values, known, strict=True)]
    return found


def _listed(values: Any, count: int) -> list[Any]:
    if values is None:
        return [None] * count
    if len(values) != count:
        raise Error(f"compute_score got {len(values)} values beside {count} solutions")
    return list(values)


def _spoken(messages: Any) -> list[dict[str, Any]]:
    """A message log without its tensors."""
    return [
        {key: value for key, value in message.items() if isinstance(value, str | list | type(None))}
        for message in messages
        if isinstance(message, Mapping)
    ]


def rewards_of(samples: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Any:
    """[B, R] float64 from ``reward_extra_info`` a sample; NaN where a name is absent or its value is no number."""
    matrix = np.full((len(samples), len(names)), math.nan)
    for row, sample in enumerate(samples):
        for k, name in enumerate(names):
            value = sample.get(name)
            if isinstance(value, bool | int | float | np.number):
                matrix[row, k] = float(value)
    return matrix


__all__ = ["nemo_rl", "rewards_of", "verifiers", "verl"]
