"""NeMo-RL's own training loops with the adapter in them: ``grpo_train`` and ``async_grpo_train`` from a checkout.

Only generation, the policy and Ray's actors are stand-ins; batches, prompts, masks, the call of the estimator, penalties,
clipping, logging and checkpoints are NeMo-RL's. Skipped without ``NEMO_RL=checkout``; ``scripts/check_nemo_rl.py`` runs it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import nemo_rl_standin
import numpy as np
import polars as pl
import pytest
import torch

import gdpo
from gdpo.adapters import nemo_rl as adapter
from gdpo.adapters import nemo_rl_hooks as hooks

CHECKOUT = os.environ.get("NEMO_RL")
pytestmark = pytest.mark.skipif(not CHECKOUT, reason="needs NEMO_RL=checkout: runs NeMo-RL's own loops")

PROMPTS, SIZE, STEPS = 3, 4, 3
RAMP = {"schedule": "ramp", "start": 0.0, "end": 1.0, "steps": 4}
BLOCK = {"weights": {"zeal": 1.0, "accuracy": RAMP}, "gates": {"accuracy": "zeal >= 0.5"}, "task": "sums"}


@pytest.fixture(scope="module")
def grpo():
    _, finder = nemo_rl_standin.real(CHECKOUT, loops=True)
    adapter.install()  # as the launcher does: before anything has imported the loops
    import nemo_rl.algorithms.grpo as module

    yield module
    print(f"\n{module.__file__}; stubbed: {sorted(set(finder.used))}")
    nemo_rl_standin.leave(finder)


@pytest.fixture(autouse=True)
def _fresh():
    hooks.TRACKED.clear()
    hooks._restored.clear()


def scores(step):
    """[PROMPTS * SIZE, 2] of ``zeal`` and ``accuracy``; the second is missing on some rows, tied in the last group."""
    generator = np.random.default_rng(step)
    found = generator.integers(0, 3, (PROMPTS * SIZE, 2)) / 2
    found[-SIZE:, 1] = 0.5
    found[1, 1] = np.nan
    return found


def wanted(step):
    """What the estimator must give at ``step``, counted from 0."""
    table = scores(step)
    shut = (table[:, 0] < 0.5) & ~np.isnan(table[:, 1])
    table[shut, 1] = 0
    return gdpo.advantages(table, SIZE, weights=[1.0, step / 4])


def asked(step):
    """A batch as the data loader gives it: a prompt a row."""
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    prompts = [torch.tensor([k, step, 5][: 2 + k % 2]) for k in range(PROMPTS)]  # of unequal lengths, so padded
    return BatchedDataDict({
        "message_log": [[{"role": "user", "content": f"p{k}", "token_ids": ids}] for k, ids in enumerate(prompts)],
        "task_name": ["math"] * PROMPTS, "extra_env_info": [{} for _ in prompts],
        "loss_multiplier": torch.ones(PROMPTS), "idx": torch.arange(PROMPTS),
        "length": torch.tensor([len(ids) for ids in prompts]),
    })  # fmt: skip


def answered(batch, step):
    """The batch after the rollouts: an answer of 2 to 4 tokens each, and the environment's rewards."""
    for row, log in enumerate(batch["message_log"]):
        ids = torch.full((2 + row % 3,), 9)
        log.append({"role": "assistant", "content": f"a{row}", "token_ids": ids, "generation_logprobs": ids * 0.0})
    table = torch.tensor(scores(step), dtype=torch.float32)
    batch["reward/zeal"], batch["reward/accuracy"] = table[:, 0].clone(), table[:, 1].clone()
    batch["total_reward"], batch["truncated"] = table.nansum(1), torch.zeros(len(table), dtype=torch.bool)
    return batch, {"mean_gen_tokens_per_sample": 3.0, "gen_kl_error": 0.0}


class Policy(MagicMock):
    """Trains on nothing; keeps the advantages that it was given."""

    def get_logprobs(self, data, timer=None):
        return {"logprobs": torch.zeros(data["input_ids"].shape)}

    def get_reference_policy_logprobs(self, data, timer=None):
        return {"reference_logprobs": torch.zeros(data["input_ids"].shape)}

    def train(self, data, loss_fn, timer=None, **kwargs):
        self.seen.append({key: data[key].clone() for key in ("advantages", "token_mask", "sample_mask")})
        measured = {"global_valid_toks": [10], "token_mult_prob_error": [1.0], "gen_kl_error": [0.0]}
        return {"loss": torch.tensor(0.5), "grad_norm": torch.tensor(1.0), "all_mb_metrics": measured}


def config(module, folder, **changes):
    """NeMo-RL's own config object, with its defaults where it has them."""
    from nemo_rl.algorithms.advantage_estimator import AdvEstimatorConfig

    estimator = AdvEstimatorConfig(name="gdpo", **{"gdpo": BLOCK, **changes})
    settings = dict(
        max_num_steps=STEPS, max_num_epochs=1, num_prompts_per_step=PROMPTS, num_generations_per_prompt=SIZE,
        max_rollout_turns=1, val_period=0, val_start_at=-1, val_at_start=False, val_at_end=False, seed=0,
        stop_at_validation_metric=None, stop_at_validation_threshold=None, use_leave_one_out_baseline=True,
        normalize_rewards=True, overlong_filtering=False, advantage_clip_low=None, advantage_clip_high=None,
        reward_scaling=module.RewardScalingConfig.model_construct(enabled=False),
        reward_shaping=module.RewardShapingConfig.model_construct(enabled=False), use_dynamic_sampling=False,
        async_grpo=module.AsyncGRPOConfig.model_construct(
            enabled=False, max_trajectory_age_steps=1, max_generation_failures=0
        ),
        seq_logprob_error_threshold=None, adv_estimator=estimator,
    )  # fmt: skip
    generation = {"temperature": 1.0, "top_p": 1.0, "top_k": None, "backend": "vllm", "colocated": {"enabled": True},
                  "vllm_cfg": {"async_engine": True}}  # fmt: skip
    from nemo_rl.algorithms.loss import ClippedPGLossConfig

    return module.MasterConfig.model_construct(
        grpo=module.GRPOConfig.model_construct(**settings),
        policy={"precision": "float32", "train_global_batch_size": PROMPTS * SIZE, "train_micro_batch_size": 1,
                "max_total_sequence_length": 64, "make_sequence_length_divisible_by": 1, "generation": generation},
        loss_fn=ClippedPGLossConfig(use_importance_sampling_correction=True), checkpointing=checkpointing(folder),
        cluster={"num_nodes": 1, "gpus_per_node": 1}, logger={"num_val_samples_to_print": 1},
        data={"use_multiple_dataloader": False}, env={},
    )  # fmt: skip


def checkpointing(folder):
    return {"enabled": True, "checkpoint_dir": str(folder / "results"), "checkpoint_must_save_by": None,
            "metric_name": None, "higher_is_better": False, "keep_top_k": 9, "save_period": 1,
            "save_optimizer": False}  # fmt: skip


class Lines:
    """One of NeMo-RL's loggers."""

    def __init__(self):
        self.lines = []

    def log_metrics(self, metrics, step, prefix="", *args, **kwargs):
        self.lines.append((step, prefix, dict(metrics)))

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


def world(module, folder, **changes):
    """What both loops take: policy, generation, data, NeMo-RL's own logger and checkpoint manager."""
    from nemo_rl.utils.checkpoint import CheckpointManager
    from nemo_rl.utils.logger import Logger

    (folder / "results").mkdir(exist_ok=True)
    off = {f"{name}_enabled": False for name in ("wandb", "swanlab", "tensorboard", "mlflow")}
    logger, kept = Logger({"log_dir": str(folder / "logs"), "monitor_gpus": False, **off}), Lines()
    logger.loggers.append(kept)
    policy, generation = Policy(), MagicMock(spec=["prepare_for_generation", "finish_generation", "blocks_training",
                                                   "clear_logger_metrics", "get_logger_metrics"])  # fmt: skip
    policy.seen = []
    policy.sharding_annotations.get_axis_size.return_value = 1
    generation.blocks_training.return_value = False
    loader = MagicMock()
    loader.__len__.return_value, loader.state_dict.return_value = STEPS, {}
    checkpoints = CheckpointManager(checkpointing(folder))
    return SimpleNamespace(
        policy=policy, generation=generation, loader=loader, logger=logger, kept=kept, checkpoints=checkpoints,
        config=config(module, folder, **changes), folder=folder,
    )  # fmt: skip


def patched(module):
    stack = ExitStack()
    for name, value in {
        "should_use_nemo_gym": lambda *a, **k: False, "should_use_async_rollouts": lambda *a, **k: False,
        "refit_policy_generation": lambda *a, **k: {}, "print_performance_metrics": lambda *a, **k: {},
        "_preserve_router_replay_routed_experts": lambda *a, **k: None,
        "_should_log_nemo_gym_responses": lambda *a, **k: False,
    }.items():  # fmt: skip
        stack.enter_context(patch.object(module, name, value))
    return stack


def train(module, made, first=0, state=None):
    steps = iter(range(first, STEPS + first))
    made.loader.__iter__.side_effect = lambda: (asked(step) for step in range(first, STEPS))

    def rollout(*args, input_batch, **kwargs):
        return answered(input_batch, next(steps))

    with patched(module) as stack:
        stack.enter_context(patch.object(module, "run_multi_turn_rollout", rollout))
        tokenizer = SimpleNamespace(pad_token_id=0)
        module.grpo_train(
            made.policy, made.generation, made.loader, None, tokenizer, MagicMock(), {}, None, made.logger,
            made.checkpoints, state or module._initial_grpo_save_state(), made.config,
        )  # fmt: skip


def check(made, first=0):
    for step, given in enumerate(made.policy.seen, first):
        mask = given["token_mask"] * given["sample_mask"][:, None]
        want = torch.tensor(wanted(step), dtype=torch.float32)[:, None]
        torch.testing.assert_close(given["advantages"] * mask, want * mask, rtol=0, atol=1e-6)
        assert mask.sum() > 0
    logged = {step: metrics for step, prefix, metrics in made.kept.lines if prefix == "train" and "loss" in metrics}
    for step in range(first, STEPS):
        path = made.folder / "logs" / "rollouts" / f"step-{step + 1:06d}.parquet"
        for _ in range(200):  # the loop's estimator is gone, and its writer goes on by itself
            if path.exists():
                break
            time.sleep(0.05)
        frame = pl.read_parquet(path)
        np.testing.assert_allclose(frame["advantage"], wanted(step), atol=1e-6)
        np.testing.assert_allclose(frame["reward/accuracy"].fill_null(np.nan), scores(step)[:, 1], atol=1e-6)
        assert (frame["prompt"][5], frame["completion"][5]) == ("p1", "a5")
        assert logged[step + 1]["gdpo/rewards/accuracy/weight"] == pytest.approx(step / 4)


def test_grpo_train(grpo, tmp_path):
    made = world(grpo, tmp_path)
    train(grpo, made)
    assert len(made.policy.seen) == STEPS
    check(made)
    rows = (tmp_path / "logs" / "train_data_step2.jsonl").read_text().splitlines()
    their = [json.loads(row)["advantages"] for row in rows]
    assert len(their) == PROMPTS * SIZE
    np.testing.assert_allclose([np.ravel(row)[0] for row in their], wanted(1), atol=1e-6)


def test_grpo_train_resumes(grpo, tmp_path):
    """A checkpoint after step 2, as if the run had been killed in step 3: the ramp goes on, no step is written twice."""
    made = world(grpo, tmp_path)
    made.config.grpo.max_num_steps = 2
    train(grpo, made)
    hooks.TRACKED.clear()
    again = world(grpo, tmp_path)
    latest = again.checkpoints.get_latest_checkpoint_path()
    state = grpo._get_grpo_save_state(again.checkpoints.load_training_info(latest))
    assert state.total_steps == 2
    train(grpo, again, first=2, state=state)
    assert len(again.policy.seen) == 1
    check(again, first=2)
    names = sorted(path.name for path in (tmp_path / "logs" / "rollouts").iterdir())
    assert names == [f"step-{step:06d}.parquet" for step in (1, 2, 3)]
    assert gdpo.rollouts.open_dump(tmp_path / "logs" / "rollouts").rewards == ["zeal", "accuracy"]


class Remote:
    """A Ray actor in this process: its methods by name, called with ``.remote``; others answer None."""

    def __init__(self, **methods):
        self.methods = methods

    def __getattr__(self, name):
        return SimpleNamespace(remote=self.methods.get(name, lambda *args, **kwargs: None))


def trajectories(step):
    """What the replay buffer gives for a step: a batch of each prompt's rollouts."""
    batch, metrics = answered(asked(step).repeat_interleave(SIZE), step)
    parts = [batch.slice(k * SIZE, (k + 1) * SIZE) for k in range(PROMPTS)]
    return {"trajectories": [{"batch": part, "rollout_metrics": metrics} for part in parts], "avg_trajectory_age": 0.0}


def test_async_grpo_train(grpo, tmp_path):
    """The asynchronous loop: batches out of the replay buffer, prompt by prompt."""
    made = world(grpo, tmp_path)
    made.config.policy["generation"]["colocated"]["enabled"] = False
    made.config.checkpointing["enabled"] = False
    buffer = Remote(
        size=lambda: PROMPTS, has_complete_batch=lambda *a: True, sample=lambda current_weight_version, **k:
        trajectories(current_weight_version), get_debug_info=lambda: {"total_trajectories": 0, "trajectory_versions": []},
    )  # fmt: skip
    collector = Remote(
        get_efficiency_metrics=dict, get_status=lambda: {"data_exhausted": False}, get_rollouts_state=dict
    )
    utilities = SimpleNamespace(
        ReplayBuffer=SimpleNamespace(options=lambda **k: SimpleNamespace(remote=lambda **k: buffer)),
        AsyncTrajectoryCollector=SimpleNamespace(options=lambda **k: SimpleNamespace(remote=lambda **k: collector)),
    )
    ray = SimpleNamespace(get=lambda found, **k: found, wait=lambda refs, **k: (refs, []), kill=lambda actor: None)
    with patched(grpo) as stack:
        stack.enter_context(patch.object(grpo, "should_use_async_rollouts", lambda *args: True))
        stack.enter_context(patch.dict(sys.modules, {"nemo_rl.algorithms.async_utils": utilities}))
        stack.enter_context(patch.object(grpo, "ray", ray))
        stack.enter_context(patch.object(grpo, "get_actor_python_env", lambda name: "/usr/bin/python"))
        grpo.async_grpo_train(
            made.policy, made.generation, made.loader, None, SimpleNamespace(pad_token_id=0), MagicMock(), {}, None,
            made.logger, made.checkpoints, grpo._initial_grpo_save_state(), made.config, max_trajectory_age_steps=1,
        )  # fmt: skip
    assert len(made.policy.seen) == STEPS
    check(made)


def test_a_name_that_no_reward_has_ends_the_run(grpo, tmp_path):
    made = world(grpo, tmp_path, gdpo={"weights": {"zeal": 1.0, "acuracy": 1.0}})
    with pytest.raises(gdpo.Error, match="names the reward 'acuracy'.*did you mean 'accuracy'"):
        train(grpo, made)
    assert not made.policy.seen
    with pytest.raises(gdpo.Error, match="no key 'wieghts'"):
        train(grpo, world(grpo, tmp_path, gdpo={"wieghts": {}}))
