"""The held-out evaluation: sample completions for prompts that training never sees, and score them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gdpo.objective import Objective
from gdpo.rollouts import rollout_frame, write_frame
from gdpo.training.recipe import Recipe
from gdpo.training.run import RunFolder


@dataclass
class Sampled:
    """Completions of held-out prompts: B = prompts x samples, a prompt's samples side by side."""

    prompts: list[Any]
    completions: list[Any]
    ids: list[list[int]]
    """[B] completion token ids, without what follows the end."""
    finished: list[bool]
    """[B] whether the model ended by itself within the length."""
    columns: dict[str, list[Any]]


def sample(model: Any, tokenizer: Any, rows: list[dict[str, Any]], recipe: Recipe) -> Sampled:
    """Sample ``evaluation.samples`` completions for each row, from a seed of their own.

    Args:
        model, tokenizer: a causal language model and its tokenizer, with a chat template.
        rows: data rows with ``prompt`` (messages) and the columns that rewards need.
    """
    import torch

    settings = recipe.evaluation
    repeated = [row for row in rows for _ in range(settings.samples)]
    tokenizer.padding_side = "left"
    end = {tokenizer.eos_token_id, *_as_list(model.generation_config.eos_token_id)} - {None}
    ids: list[list[int]] = []
    training = model.training
    model.eval()
    with torch.random.fork_rng(devices=_devices(model)), torch.no_grad():
        torch.manual_seed(recipe.seed + 1_000_003)
        for start in range(0, len(repeated), settings.batch_size):
            prompts = [row["prompt"] for row in repeated[start : start + settings.batch_size]]
            batch = tokenizer.apply_chat_template(
                prompts, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
            ).to(model.device)
            output = model.generate(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], do_sample=True,
                temperature=settings.temperature, top_k=0, top_p=1.0, max_new_tokens=recipe.max_completion_length,
                pad_token_id=tokenizer.pad_token_id, eos_token_id=sorted(end), use_cache=True,
            )  # fmt: skip
            ids += output[:, batch["input_ids"].shape[1] :].tolist()
    model.train(training)
    trimmed = [_until(sequence, end) for sequence in ids]
    texts = tokenizer.batch_decode(trimmed, skip_special_tokens=True)
    columns = {key: [row.get(key) for row in repeated] for key in rows[0] if key != "prompt"}
    return Sampled(
        [row["prompt"] for row in repeated], [[{"role": "assistant", "content": text}] for text in texts], trimmed,
        [bool(sequence) and sequence[-1] in end for sequence in trimmed], columns,
    )  # fmt: skip


def evaluate(
    model: Any, tokenizer: Any, rows: list[dict[str, Any]], objective: Objective, recipe: Recipe, run: RunFolder,
    name: str, step: int,
) -> dict[str, Any]:  # fmt: skip
    """Evaluate on held-out rows and write ``evaluations/NAME.json`` and ``.parquet``; the JSON's content is returned.

    Standard errors are those of the mean over prompts (a prompt's samples are not independent).
    """
    started = time.perf_counter()
    sampled = sample(model, tokenizer, rows, recipe)
    scores = objective.score(
        sampled.completions, prompts=sampled.prompts, completion_ids=sampled.ids, **sampled.columns
    )
    size = recipe.evaluation.samples
    group = np.repeat(np.arange(len(rows)), size)
    frame = rollout_frame(
        step=step, prompts=sampled.prompts, completions=sampled.completions, lengths=[len(ids) for ids in sampled.ids],
        names=objective.names, scores=scores, group=group, task="held-out",
    )  # fmt: skip
    best = _at_best(objective, scores)
    together = recipe.evaluation.all_of or objective.names
    chosen = [objective.names.index(k) for k in together]
    result = {
        "step": step,
        "prompts": len(rows),
        "samples": len(sampled.ids),
        "temperature": recipe.evaluation.temperature,
        "rewards": {
            reward: {**_mean(scores[:, k], size), "pass": _mean(best[:, k], size)["mean"],
                     "missing": int(np.isnan(scores[:, k]).sum())}
            for k, reward in enumerate(objective.names)
        },
        "all_of": {"names": together, **_mean(best[:, chosen].min(axis=1), size)},
        "completion_length": float(np.mean([len(ids) for ids in sampled.ids])),
        "truncated": float(1 - np.mean(sampled.finished)),
        "seconds": round(time.perf_counter() - started, 2),
    }  # fmt: skip
    folder = Path(run.path) / "evaluations"
    write_frame(frame, folder / f"{name}.parquet")
    run.write_json(f"evaluations/{name}.json", result)
    return result


def _at_best(objective: Objective, scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[B, R] 1.0 where a reward is at its declared maximum (1 where none is declared), NaN where missing."""
    tops = [1.0 if bounds is None else bounds[1] for bounds in objective.bounds()]
    return np.where(np.isnan(scores), np.nan, (scores >= np.array(tops)).astype(float))


def _mean(values: np.ndarray[Any, Any], size: int) -> dict[str, float | None]:
    """Mean, and its standard error over prompts; None where nothing applies."""
    present = ~np.isnan(values)
    if not present.any():
        return {"mean": None, "stderr": None}
    grouped, there = np.where(present, values, 0.0).reshape(-1, size), present.reshape(-1, size)
    kept = there.any(axis=1)
    means = grouped[kept].sum(axis=1) / there[kept].sum(axis=1)
    stderr = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else None
    return {"mean": float(values[present].mean()), "stderr": stderr}


def _until(sequence: list[int], end: set[int]) -> list[int]:
    """Tokens up to and with the first end token."""
    for index, token in enumerate(sequence):
        if token in end:
            return sequence[: index + 1]
    return sequence


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _devices(model: Any) -> list[Any]:
    return [model.device] if model.device.type == "cuda" else []
