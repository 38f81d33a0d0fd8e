"""The verl adapter in verl's own code: its config, its compute_advantage, its v1 trainer on a real TransferQueue."""

from __future__ import annotations

import json
import warnings

import numpy as np
import polars as pl
import pytest
import torch

import gdpo

pytest.importorskip("verl")
pytest.importorskip("ray")

import gdpo.adapters.verl_plugin as plugin  # what the entry point loads

warnings.simplefilter("ignore")

NAMES = ["correct", "format", "concise"]
NAN = float("nan")


def config(*overrides, block=None):
    """verl's own default config, composed as its command line does, with gdpo's block."""
    import verl
    from hydra import compose, initialize_config_dir

    folder = f"{verl.__path__[0]}/trainer/config"
    with initialize_config_dir(folder, version_base=None):
        made = compose("ppo_trainer", overrides=[*overrides, "algorithm.adv_estimator=gdpo"])
    if block is not None:
        from omegaconf import OmegaConf, open_dict

        with open_dict(made):
            made.algorithm.gdpo = OmegaConf.create(block)
    return made


def scores(seed=0, groups=6, size=4):
    """[n, 3]: three rewards, ties among them, the third missing on some rows."""
    generator = np.random.default_rng(seed)
    matrix = np.column_stack([
        generator.integers(0, 2, groups * size), generator.random(groups * size).round(1),
        generator.random(groups * size),
    ]).astype(float)  # fmt: skip
    matrix[:size, :2] = 0.7
    matrix[generator.random(len(matrix)) < 0.3, 2] = NAN
    return matrix


def data_proto(matrix, uid, lengths, names=NAMES):
    """A batch as the legacy trainer has it when it computes advantages."""
    from verl import DataProto

    rows, width = len(matrix), int(max(lengths))
    mask = (torch.arange(width)[None, :] < torch.as_tensor(lengths)[:, None]).long()
    token_scores = torch.zeros(rows, width)
    token_scores[torch.arange(rows), torch.as_tensor(lengths) - 1] = torch.tensor(np.nansum(matrix, 1)).float()
    tensors = {
        "prompts": torch.full((rows, 3), 65), "responses": torch.full((rows, width), 66), "response_mask": mask,
        "attention_mask": torch.cat([torch.ones(rows, 3).long(), mask], 1), "token_level_scores": token_scores,
        "token_level_rewards": token_scores,
    }  # fmt: skip
    columns = {"uid": np.array(uid, dtype=object), **{n: matrix[:, k] for k, n in enumerate(names)}}
    return DataProto.from_dict(tensors=tensors, non_tensors=columns)


def compute(data, made):
    from verl.trainer.ppo.ray_trainer import compute_advantage

    return compute_advantage(data, adv_estimator=made.algorithm.adv_estimator, config=made.algorithm)


@pytest.fixture
def batch():
    matrix = scores()
    uid = [f"q{row // 4}" for row in range(len(matrix))]
    lengths = np.random.default_rng(1).integers(1, 9, len(matrix))
    order = np.random.default_rng(2).permutation(len(matrix))  # verl balances, so groups are scattered
    return matrix[order], [uid[k] for k in order], lengths


BLOCK = {
    "rewards": NAMES, "weights": {"correct": 1.0, "format": 0.5, "concise": 0.25}, "gates": {"concise": "correct >= 1"},
}  # fmt: skip


def expected(matrix, uid, weights=(1.0, 0.5, 0.25), method="gdpo", gate=True):
    gated = matrix.copy()
    if gate:
        shut = (gated[:, 0] < 1) & ~np.isnan(gated[:, 2])
        gated[shut, 2] = 0
    return gdpo.advantages(gated, uid, method, weights=list(weights))


def test_legacy_advantages_are_gdpos(batch):
    matrix, uid, lengths = batch
    made = config(block=BLOCK)
    data = compute(data_proto(matrix, uid, lengths), made)
    want = torch.tensor(expected(matrix, uid)).float()[:, None] * data.batch["response_mask"]
    assert data.batch["advantages"].dtype == torch.float32
    torch.testing.assert_close(data.batch["advantages"], want, rtol=0, atol=1e-6)
    assert data.batch["returns"] is data.batch["advantages"]


def test_the_built_in_beside_it(batch):
    """Without the block verl's own runs, missing rewards and all: one NaN poisons the batch."""
    matrix, uid, lengths = batch
    made = config("+algorithm.gdpo_reward_keys=[correct,format,concise]")
    data = compute(data_proto(matrix, uid, lengths), made)
    assert data.batch["advantages"].isnan().any()
    from verl.trainer.ppo import core_algos

    data = data_proto(np.nan_to_num(matrix), uid, lengths)
    original = core_algos.ADV_ESTIMATOR_REGISTRY["gdpo"]._gdpo_original
    want, _ = original(
        data.batch["token_level_rewards"], data.batch["response_mask"], np.array(uid), config=made.algorithm,
        non_tensor_batch=data.non_tensor_batch, batch=data.batch,
    )  # fmt: skip
    assert torch.equal(compute(data, made).batch["advantages"], want)
    with pytest.raises(AssertionError, match="gdpo_reward_keys"):
        compute(data_proto(matrix, uid, lengths), config())


def test_legacy_names_that_no_reward_has(batch):
    matrix, uid, lengths = batch
    with pytest.raises(
        gdpo.Error, match=r"reward 'corect' .* did you mean 'correct'\? \(there: concise, correct, format"
    ):
        compute(data_proto(matrix, uid, lengths), config(block={"rewards": ["corect"]}))


def test_text_that_numpy_made_of_numbers():
    """acc = [1, "unknown", 0, 1] arrives as text (P14)."""
    data = data_proto(np.zeros((4, 0)), ["a"] * 4, [2] * 4, names=[])
    data.non_tensor_batch["acc"] = np.array([1, "unknown", 0, 1])
    found = compute(data, config(block={"rewards": ["acc"]})).batch["advantages"][:, 0]
    torch.testing.assert_close(
        found.double(), torch.tensor(gdpo.advantages([[1], [NAN], [0], [1]], 4)), rtol=0, atol=1e-6
    )


def test_kl_in_reward_is_one_more_reward(batch):
    matrix, uid, lengths = batch
    data = data_proto(matrix, uid, lengths)
    penalty = -0.01 * torch.rand(data.batch["response_mask"].shape) * data.batch["response_mask"]
    data.batch["token_level_rewards"] = data.batch["token_level_scores"] + penalty
    made = config("algorithm.use_kl_in_reward=True", block=BLOCK)
    with pytest.warns(UserWarning, match="enters the advantages as reward 'kl'"):
        found = compute(data, made).batch["advantages"][:, 0]
    gated = matrix.copy()
    gated[(gated[:, 0] < 1) & ~np.isnan(gated[:, 2]), 2] = 0
    both = np.column_stack([gated, penalty.sum(1).numpy()])
    want = gdpo.advantages(both, uid, weights=[1, 0.5, 0.25, 1], scale=["group"] * 3 + ["none"])
    torch.testing.assert_close(found, torch.tensor(want).float(), rtol=0, atol=1e-5)
    made = config("algorithm.use_kl_in_reward=True", block={**BLOCK, "kl": "ignore"})
    with pytest.warns(UserWarning, match="no effect on the advantages"):
        found = compute(data, made).batch["advantages"][:, 0]
    torch.testing.assert_close(found, torch.tensor(expected(matrix, uid)).float(), rtol=0, atol=1e-6)


def test_verl_checks_the_block_before_ray_starts():
    from verl.utils.config import validate_config

    for block, said in (
        ({"rewards": ["a"], "wieghts": {}}, "did you mean 'weights'"),
        ({"rewards": ["a"], "weights": {"b": 1}}, "weights names 'b', which is no reward"),
    ):
        with pytest.raises(gdpo.Error, match=said):
            validate_config(config=config(block=block), use_reference_policy=False, use_critic=False)
    made = config(block=BLOCK)
    made.algorithm.adv_estimator = "grpo"
    with pytest.raises(gdpo.Error, match="set algorithm.adv_estimator=gdpo"):
        validate_config(config=made, use_reference_policy=False, use_critic=False)


def test_workers_of_the_legacy_trainer_get_every_name(monkeypatch):
    """P14 where verl's own agent loop would stop with a KeyError."""
    from types import SimpleNamespace

    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    seen = []
    wrapper = AgentLoopWorker._postprocess
    inner = {cell.cell_contents for cell in wrapper.__closure__ or () if callable(cell.cell_contents)}
    assert wrapper._gdpo_original in inner
    infos = [{"acc": 1}, {"score": 1, "acc": 0, "format": 1}, {"acc": "unknown", "format": 0}, {"score": 0, "acc": 1}]
    made = SimpleNamespace(config=config(block={"rewards": ["acc", "format"]}))
    inputs = [SimpleNamespace(extra_fields={"reward_extra_info": info}) for info in infos]
    with pytest.raises(AttributeError):  # verl's own goes on from here, on what these stand-ins lack
        wrapper(made, inputs)
    seen = [entry.extra_fields["reward_extra_info"] for entry in inputs]
    np.testing.assert_array_equal([[i["acc"], i["format"]] for i in seen], [[1, NAN], [0, 1], [NAN, 0], [1, NAN]])
    assert all(set(info) == {"acc", "format", "score"} for info in seen)


# v1: a real Ray, a real TransferQueue, verl's own _compute_advantage.


@pytest.fixture(scope="module")
def queue():
    tq = pytest.importorskip("transfer_queue")
    import ray
    from omegaconf import OmegaConf

    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield tq
    tq.close()
    ray.shutdown()


class Letters:
    """A tokenizer."""

    def decode(self, ids, skip_special_tokens=True):
        return "".join(chr(int(i)) for i in ids)


def put(tq, matrix, uid, lengths, names=NAMES, outputs=None, padding=0):
    """Trajectories as verl's agent loop puts them; what is missing has no key in ``reward_extra_info``."""
    from transfer_queue import KVBatchMeta
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    keys, fields, tags, seen = [], [], [], {}
    for row, name in enumerate(uid):
        session = seen.get(name, 0)
        seen[name] = session + 1
        info = {n: float(v) for n, v in zip(names, matrix[row], strict=True) if not np.isnan(v)}
        for output in range(1 if outputs is None else outputs[row]):
            n = int(lengths[row])
            reward = torch.zeros(n)
            reward[-1] = float(np.nansum(matrix[row]))
            keys.append(f"{name}_{session}_{output}")
            fields.append({
                "uid": name, "prompts": torch.full((3,), 65), "responses": torch.full((n,), 66 + output),
                "response_mask": torch.ones(n).long(), "rm_scores": reward, "rollout_log_probs": torch.zeros(n),
                "old_log_probs": torch.full((n,), -1.0), "ref_log_prob": torch.full((n,), -1.5),
                "values": torch.zeros(n), "extra_fields": {"reward_extra_info": {"score": reward[-1].item(), **info}},
            })  # fmt: skip
            tags.append({"status": "success", "response_len": n})
    for k in range(padding):
        keys.append(f"padabc_{k}_0")
        fields.append({**fields[0], "uid": "padabc", "responses": torch.tensor([0]), "response_mask": torch.zeros(1).long(),
                       "rm_scores": torch.zeros(1), "rollout_log_probs": torch.zeros(1), "values": torch.zeros(1),
                       "old_log_probs": torch.zeros(1), "ref_log_prob": torch.zeros(1)})  # fmt: skip
        tags.append({"status": "success", "is_padding": True})
    tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(fields), tags=tags)
    return KVBatchMeta(partition_id="train", keys=keys, tags=tags)


def trainer_v1(made, step=1):
    """verl's sync trainer without its models."""
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    trainer = object.__new__(PPOTrainerSync)
    trainer.config, trainer.global_steps, trainer.total_training_steps = made, step, 10
    trainer.tokenizer, trainer.trainer_mode, trainer.use_critic = Letters(), "sync", False
    if made.algorithm.use_kl_in_reward:
        from verl.trainer.ppo import core_algos

        trainer.kl_ctrl_in_reward = core_algos.get_kl_controller(made.algorithm.kl_ctrl)
    return trainer


def read(tq, meta):
    data = tq.kv_batch_get(keys=meta.keys, partition_id="train", select_fields=["advantages", "returns"])
    assert all(torch.equal(a, r) for a, r in zip(data["advantages"].unbind(), data["returns"].unbind(), strict=True))
    return [row.numpy() for row in data["advantages"].unbind()]


@pytest.mark.slow
def test_v1_advantages_metrics_and_table(queue, batch, tmp_path):
    matrix, uid, lengths = batch
    outputs = np.where(np.arange(len(uid)) % 5 == 0, 2, 1)
    meta = put(queue, matrix, uid, lengths, outputs=outputs, padding=3)
    made = config(block={**BLOCK, "rollouts_folder": str(tmp_path / "rollouts")})
    trainer, metrics = trainer_v1(made), {}
    trainer._compute_advantage(meta, metrics=metrics)
    want = expected(matrix, uid)
    found = read(queue, meta)
    rows = np.repeat(np.arange(len(uid)), outputs)
    for row, values in zip(rows, found[: len(rows)], strict=True):
        np.testing.assert_allclose(values, np.full(lengths[row], want[row]), atol=1e-6)
    assert all((values == 0).all() for values in found[len(rows) :])
    gated_mean = np.nanmean(matrix[:, 1])
    assert metrics["gdpo/rewards/format/mean"] == pytest.approx(gated_mean)
    assert metrics["gdpo/rewards/concise/weight"] == 0.25
    assert 0 < metrics["gdpo/dead_share"] < 1
    trainer._gdpo.close()
    table = pl.read_parquet(tmp_path / "rollouts" / "step-000001.parquet")
    assert len(table) == len(uid)
    np.testing.assert_allclose(table["advantage"], want, atol=1e-6)
    assert table["reward/concise"].null_count() == int(np.isnan(matrix[:, 2]).sum())
    assert table["rollout"].n_unique() == len(uid)
    assert table["completion"][1] == "B" * int(lengths[1])
    assert table["prompt"][0] == "AAA"
    assert table["group"].n_unique() == len(set(uid))
    metadata = pl.read_parquet_metadata(tmp_path / "rollouts" / "step-000001.parquet")
    assert metadata["gdpo.framework"].startswith("verl 0.9")


@pytest.mark.slow
def test_v1_built_in_gdpo_fails(queue, batch):
    """verl's own gdpo on its own default trainer."""
    matrix, uid, lengths = batch
    meta = put(queue, np.nan_to_num(matrix), uid, lengths)
    trainer = trainer_v1(config("+algorithm.gdpo_reward_keys=[correct,format,concise]"))
    with pytest.raises(KeyError, match="prompts"):
        trainer._compute_advantage(meta, metrics={})


@pytest.mark.slow
def test_v1_without_the_block_is_verls(queue, batch):
    matrix, uid, lengths = batch
    meta = put(queue, matrix, uid, lengths)
    made = config()
    made.algorithm.adv_estimator = "grpo"
    metrics = {}
    trainer_v1(made)._compute_advantage(meta, metrics=metrics)
    plain = gdpo.preset("verl").advantages(
        torch.tensor(np.nansum(matrix, 1, keepdims=True)).float(), np.array(uid), method="grpo"
    )
    np.testing.assert_allclose([row[0] for row in read(queue, meta)], plain, atol=1e-5)
    assert not any(name.startswith("gdpo") for name in metrics)


@pytest.mark.slow
def test_v1_kl_in_reward(queue, batch):
    matrix, uid, lengths = batch
    meta = put(queue, matrix, uid, lengths)
    made = config("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.02", block=BLOCK)
    metrics = {}
    with pytest.warns(UserWarning, match="reward 'kl'"):
        trainer_v1(made)._compute_advantage(meta, metrics=metrics)
    gated = matrix.copy()
    gated[(gated[:, 0] < 1) & ~np.isnan(gated[:, 2]), 2] = 0
    both = np.column_stack([gated, -0.02 * 0.5 * lengths])
    want = gdpo.advantages(both, uid, weights=[1, 0.5, 0.25, 1], scale=["group"] * 3 + ["none"])
    np.testing.assert_allclose([row[0] for row in read(queue, meta)], want, atol=1e-5)
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(0.5)
    assert metrics["gdpo/rewards/kl/mean"] == pytest.approx((-0.01 * lengths).mean(), rel=1e-5)


@pytest.mark.slow
def test_v1_unknown_reward_and_missing_names(queue, batch):
    """P14 on the real queue: the union of names, by sample; a name that no sample has is an error."""
    infos = [{"acc": 1}, {"score": 1, "acc": 0, "format": 1}, {"acc": "unknown", "format": 0}, {"score": 0, "acc": 1}]
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    meta = put(queue, np.zeros((4, 0)), ["p14"] * 4, [2, 3, 2, 2], names=[])
    fields = [{"extra_fields": {"reward_extra_info": info}} for info in infos]
    queue.kv_batch_put(keys=meta.keys, partition_id="train", fields=list_of_dict_to_tensordict(fields))
    trainer_v1(config(block={"rewards": ["acc", "format"]}))._compute_advantage(meta, metrics={})
    want = gdpo.advantages([[1, NAN], [0, 1], [NAN, 0], [1, NAN]], 4)
    np.testing.assert_allclose([row[0] for row in read(queue, meta)], want, atol=1e-6)
    with pytest.raises(gdpo.Error, match=r"reward 'formt' .* did you mean 'format'\? \(there: acc, format, score\)"):
        trainer_v1(config(block={"rewards": ["acc", "formt"]}))._compute_advantage(meta, metrics={})


@pytest.mark.slow
def test_v1_another_plug_in(queue, batch, monkeypatch):
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    matrix, uid, lengths = batch
    meta = put(queue, matrix, uid, lengths)
    ours = PPOTrainer._compute_advantage
    space = {"__name__": "somebody.elses", "ours": ours}
    exec("def _compute_advantage(self, batch, metrics):\n    return ours(self, batch, metrics)", space)
    monkeypatch.setattr(PPOTrainer, "_compute_advantage", space["_compute_advantage"])
    with pytest.raises(gdpo.Error, match=r"PPOTrainer._compute_advantage of verl 0.9.1 is taken by 'somebody.elses'"):
        trainer_v1(config(block=BLOCK))._compute_advantage(meta, metrics={})


@pytest.mark.slow
def test_v1_group_filter(queue, tmp_path):
    """The summed reward ties where gdpo still learns, and the other way round."""
    from collections import defaultdict

    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    groups = {
        "learns": [[1, 0], [0, 1], [1, 0], [0, 1]],  # unequal weights: the plain sum is 1 throughout
        "tied": [[1, 0.5]] * 4,
        "side": [[1, 0.2], [1, 0.4], [1, 0.6], [1, 0.8]],
    }
    matrix = np.array([row for rows in groups.values() for row in rows], dtype=float)
    uid = [name for name, rows in groups.items() for _ in rows]
    meta = put(queue, matrix, uid, [3] * len(uid), names=["correct", "format"])
    block = {"rewards": ["correct", "format"], "weights": {"correct": 1.0, "format": 0.5}}

    def dropped(extra):
        made = config("algorithm.filter_groups.enable=True", block={**block, **extra})
        trainer = trainer_v1(made)
        trainer.replay_buffer = buffer = object.__new__(ReplayBuffer)
        buffer.filter_groups_metric = "reward"
        buffer.partitions = {"train": {key: {} for key in meta.keys}}
        buffer.finished_keys = {"train": set(groups)}
        buffer._dapo_classification_cache = defaultdict(dict)
        blind = set(ReplayBuffer._dapo_filtered_keys(buffer, "train")[0])
        buffer._dapo_classification_cache = defaultdict(dict)
        plugin.sys.modules["gdpo.adapters.verl_hooks"].attach(trainer, "verl.trainer.ppo.v1.trainer_base")
        found, counts = buffer._dapo_filtered_keys("train")
        assert buffer._dapo_filtered_keys("train") == (found, counts)  # judged once
        return blind, found, counts

    blind, found, counts = dropped({})
    assert blind == {"learns", "tied"}
    assert found == {"tied"}
    assert list(counts) == [1.25]
    assert dropped({"filter": "correct"})[1] == {"tied", "side"}


@pytest.mark.slow
def test_v1_resume_with_a_ramping_weight(queue, batch, tmp_path):
    """P19 in verl's own save and load: at step 50 the weight is 0.6 after the resume, too."""
    matrix, uid, lengths = batch
    ramp = {"schedule": "ramp", "start": 0.2, "end": 1.0, "steps": 100}
    made = config(
        f"trainer.default_local_dir={tmp_path}", "trainer.resume_mode=auto",
        block={"rewards": NAMES, "weights": {"correct": ramp}},
    )  # fmt: skip

    class Workers:
        def save_checkpoint(self, *args, **options): ...
        def load_checkpoint(self, *args, **options): ...

    class Loader:
        def state_dict(self):
            return {}

        def load_state_dict(self, state): ...

    def fresh(step):
        trainer = trainer_v1(made, step)
        trainer.actor_rollout_wg, trainer.train_dataloader = Workers(), Loader()
        trainer.checkpoint_callback = type("C", (), {"on_save": lambda self, **options: None})()
        return trainer

    trainer = fresh(51)
    metrics = {}
    trainer._compute_advantage(put(queue, matrix, uid, lengths), metrics=metrics)
    assert metrics["gdpo/rewards/correct/weight"] == pytest.approx(0.6)
    trainer._save_checkpoint()
    state = json.loads((tmp_path / "global_step_51" / "gdpo.json").read_text())
    assert state["tokens"] == int(lengths.sum())
    other = fresh(0)
    other._load_checkpoint()
    assert other.global_steps == 51
    assert other._gdpo.tokens == int(lengths.sum())
    other.global_steps += 1
    metrics = {}
    other._compute_advantage(put(queue, matrix, uid, lengths), metrics=metrics)
    assert metrics["gdpo/rewards/correct/weight"] == pytest.approx(0.608)


@pytest.mark.slow
def test_a_ray_worker_loads_the_plug_in(queue):
    import ray

    @ray.remote
    def look():
        import sys

        import verl  # noqa: F401

        module = sys.modules.get("gdpo.adapters.verl_plugin")
        return None if module is None else dict(module.STATE)

    from importlib.metadata import entry_points

    if not any(entry.name == "gdpo" for entry in entry_points(group="verl.plugins")):
        pytest.skip("gdpo is not installed with its entry point here")
    assert ray.get(look.remote()) == {"verl.utils.config": ""}
