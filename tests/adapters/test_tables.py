"""Every adapter's table of the same scores gets the same audit: TRL, verl (its two readers), NeMo-RL, slime."""

from __future__ import annotations

from types import SimpleNamespace

import datasets
import nemo_rl_standin
import numpy as np
import polars as pl
import pytest
import torch
from tables import (
    COMPLETIONS,
    LENGTHS,
    NAMES,
    PROMPTS,
    ROWS,
    SIZE,
    STEPS,
    WEIGHTS,
    check_same,
    objective,
    reference,
    scores,
)

from gdpo.adapters import nemo_rl, slime
from gdpo.adapters import nemo_rl_hooks as hooks
from gdpo.adapters.verl import Session
from gdpo.adapters.verl_config import Settings
from gdpo.adapters.verl_read import legacy_batch, v1_batch


def missing(step):
    """[ROWS] the scores as mappings, a missing one left out."""
    return [
        {name: float(value) for name, value in zip(NAMES, row, strict=True) if not np.isnan(value)}
        for row in scores(step)
    ]


def write_trl(folder, method):
    """A real trainer on a tiny model, whose reward functions return the planted scores."""
    from transformers import set_seed

    from gdpo.trl import GDPOTrainer, GRPOConfig

    steps = {name: iter(range(1, STEPS + 1)) for name in NAMES}

    def planted(k, name):
        def reward(completions, **columns):
            column = scores(next(steps[name]))[:, k]
            return [None if np.isnan(value) else float(value) for value in column]

        reward.__name__ = name
        return reward

    set_seed(0)
    arguments = GRPOConfig(
        str(folder.parent / "trl"), use_cpu=True, max_steps=STEPS, per_device_train_batch_size=ROWS,
        num_generations=SIZE, max_completion_length=6, gradient_checkpointing=False, save_strategy="no",
        report_to="none", disable_tqdm=True, reward_weights=list(WEIGHTS.values()), learning_rate=0.0,
    )  # fmt: skip
    trainer = GDPOTrainer(
        str(folder.parent / "model"), [planted(k, name) for k, name in enumerate(NAMES)], arguments,
        datasets.Dataset.from_dict({"prompt": [f"{k:03d}" for k in range(PROMPTS * STEPS)]}), method=method,
        rollouts_folder=folder,
    )  # fmt: skip
    trainer.train()


@pytest.mark.parametrize("method", ["gdpo", "grpo"])
def test_trl(tiny_model, tmp_path, method, capsys):
    (tmp_path / "model").symlink_to(tiny_model)
    write_trl(tmp_path / "rollouts", method)
    check_same(tmp_path / "rollouts", reference(tmp_path / "want", method, tmp_path / "rollouts"), capsys)


class Letters:
    """A tokenizer: an id a letter."""

    def decode(self, ids, skip_special_tokens=True):
        return "".join(chr(int(code)) for code in ids)


class Trainer(SimpleNamespace):
    """What a session asks of verl's trainer."""

    __slots__ = ("__weakref__",)


def verl_session(folder, method, text):
    block = {"weights": WEIGHTS, "method": method, "rollouts_folder": str(folder), "rollouts_text": text}
    trainer = Trainer(global_steps=0, total_training_steps=STEPS, tokenizer=Letters())
    settings = Settings.from_config({"algorithm": {"adv_estimator": "gdpo", "gdpo": block}})
    return trainer, Session(settings, trainer)


def codes(texts, width, left=False):
    """[len(texts), width] letters as ids, padded with 0."""
    padded = [text.rjust(width, "\0") if left else text.ljust(width, "\0") for text in texts]
    return torch.tensor([[ord(letter) for letter in text] for text in padded])


def verl_step(step):
    """(order, uids, tensors) of a step, rows balanced over workers, so that groups are scattered."""
    order = np.random.default_rng(step).permutation(ROWS)
    mask = (torch.arange(max(LENGTHS))[None] < torch.tensor(LENGTHS)[order][:, None]).long()
    prompts = codes([f"p{step}-{row // SIZE}" for row in order], 8, left=True)
    responses = codes([COMPLETIONS[row] for row in order], 7)
    attention = torch.cat([prompts > 0, responses > 0], 1).long()
    tensors = {"prompts": prompts, "responses": responses, "attention_mask": attention, "response_mask": mask}
    return order, [f"uid{step}-{row // SIZE}" for row in order], tensors


def write_verl_legacy(folder, method, text):
    """As verl hands a step to the estimator."""
    trainer, run = verl_session(folder, method, text)
    for step in range(1, STEPS + 1):
        order, uid, tensors = verl_step(step)
        trainer.global_steps = step
        columns = {name: scores(step)[order, k] for k, name in enumerate(NAMES)}
        run.advantages(tensors, legacy_batch(run, tensors["response_mask"], uid, columns, tensors))
    run.close()


def write_verl_v1(folder, method, text):
    """From a TransferQueue, rows in the order of their keys, a missing reward without an entry."""
    trainer, run = verl_session(folder, method, text)
    for step in range(1, STEPS + 1):
        order, uid, tensors = verl_step(step)
        trainer.global_steps, infos = step, missing(step)
        keys = [f"{name}_{row % SIZE}_0" for name, row in zip(uid, order, strict=True)]
        place = {key: k for k, key in enumerate(keys)}

        def get(keys, partition_id, select_fields, order=order, place=place, tensors=tensors, infos=infos):
            rows = [place[key] for key in keys]
            if select_fields == ["extra_fields"]:
                return {"extra_fields": [{"reward_extra_info": infos[order[k]]} for k in rows]}
            return {name: Rows(tensors[name][k][tensors[name][k] > 0] for k in rows) for name in select_fields}

        meta = SimpleNamespace(keys=keys, tags=[{}] * ROWS, partition_id="train")
        batch = v1_batch(run, SimpleNamespace(kv_batch_get=get), meta, {})
        batch.groups = uid
        run.advantages(tensors, batch)
    run.close()


class Rows(list):
    """A nested tensor."""

    def unbind(self):
        return list(self)


def write_nemo_rl(folder, method, text):
    """NeMo-RL's order: the estimator, then its JSONL and its metrics."""
    modules, _ = nemo_rl_standin.standin()
    block = {"weights": WEIGHTS, "method": method, "rollouts_folder": folder.name, "rollouts_text": text}
    try:
        nemo_rl.install()
        logger = modules.logger.Logger({"log_dir": str(folder.parent)})
        made = modules.estimator.GDPOAdvantageEstimator(nemo_rl_standin.config(gdpo=block), None)
        for step in range(1, STEPS + 1):
            order, _, tensors = verl_step(step)
            prompts = torch.as_tensor(np.stack([order // SIZE, np.full(ROWS, step)], 1))
            batch = {f"reward/{name}": torch.tensor(scores(step)[order, k]).float() for k, name in enumerate(NAMES)}
            made.compute_advantage(prompts, batch["reward/correct"], tensors["response_mask"].float(), batch)
            content = [[f"p{step}-{row // SIZE}", COMPLETIONS[row]] for row in order]
            logger.log_batched_dict_as_jsonl({"content": content}, f"train_data_step{step}.jsonl")
            logger.log_metrics({"loss": 0.0}, step, prefix="train")
        assert made.writer.flush(10)
    finally:
        hooks.TRACKED.clear()
        nemo_rl_standin.leave()


def write_slime(folder, method, text):
    """Samples whose rewards are mappings."""
    args = SimpleNamespace(
        gdpo={"weights": WEIGHTS, "method": method, "rollouts_folder": str(folder), "rollouts_text": text},
        n_samples_per_prompt=SIZE, advantage_estimator="grpo", save=None,
    )  # fmt: skip
    for step in range(1, STEPS + 1):
        order, infos = np.random.default_rng(step).permutation(ROWS), missing(step)
        samples = [
            SimpleNamespace(group_index=int(row) // SIZE, prompt=f"p{step}-{row // SIZE}", response=COMPLETIONS[row],
                            response_length=LENGTHS[row], reward=infos[row],
                            remove_sample=not LENGTHS[row])
            for row in order
        ]  # fmt: skip
        slime.post_process(args, samples)
    assert slime._run[id(args)][1].writer.flush(10)


WRITERS = {"verl_legacy": write_verl_legacy, "verl_v1": write_verl_v1, "nemo_rl": write_nemo_rl, "slime": write_slime}


@pytest.mark.parametrize(("method", "text"), [("gdpo", True), ("grpo", True), ("gdpo", False)])
@pytest.mark.parametrize("name", WRITERS)
def test_the_same_scores_get_the_same_audit(name, method, text, tmp_path, capsys):
    WRITERS[name](tmp_path / "rollouts", method, text)
    check_same(tmp_path / "rollouts", reference(tmp_path / "want", method, text=text), capsys)
    frame = pl.read_parquet(tmp_path / "rollouts" / "step-000002.parquet").filter(pl.col("completion") == "ccccc")
    assert set(frame["prompt"]) == ({f"p2-{k}" for k in (1, 2, 4, 6)} if text else set())


@pytest.mark.parametrize("name", ["nemo_rl", "slime"])
def test_rollouts_that_were_left_out(name, tmp_path, capsys, monkeypatch):
    """A rollout without a token in the loss (or removed) moved nothing, and moves nothing in the audit."""
    out = [2, 9, 10]
    planted = scores

    def without(step):
        table = planted(step)
        table[out] = np.nan
        return table

    length = [0 if row in out else tokens for row, tokens in enumerate(LENGTHS)]
    monkeypatch.setattr("test_tables.LENGTHS", length)
    WRITERS[name](tmp_path / "rollouts", "gdpo", True)
    monkeypatch.setattr("tables.LENGTHS", length)
    monkeypatch.setattr("tables.scores", without)
    check_same(tmp_path / "rollouts", reference(tmp_path / "want"), capsys)
    frame = pl.read_parquet(tmp_path / "rollouts" / "step-000001.parquet").filter(pl.col("length") == 0)
    assert frame["advantage"].to_list() == [0.0] * 3
    assert frame["gated/correct"].null_count() == 3


def test_the_scores_have_what_is_planted():
    """By hand: under a sum style carries most of the variance and format none."""
    estimate = objective("grpo").advantages(scores(1), SIZE)
    share = [np.cov(estimate.advantages, estimate.contributions[:, k])[0, 1] for k in range(3)]
    assert share[1] / np.var(estimate.advantages, ddof=1) > 0.9
    assert share[2] == 0
    assert 0 < np.isnan(scores(1)[:, 1]).sum() < ROWS / 3
