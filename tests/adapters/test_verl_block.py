"""gdpo's block in verl's config, and one run's session, on small stand-ins: no verl is needed."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from support import shared_cases
from verl_world import World

import gdpo
from gdpo.adapters.verl import Session, spread
from gdpo.adapters.verl_config import Settings
from gdpo.adapters.verl_read import complete, filtered, legacy_batch, segments, v1_batch
from gdpo.objective import Progress
from gdpo.rollouts.writer import RolloutWriter

NAN = float("nan")


def config(block, **algorithm):
    return {"algorithm": {"adv_estimator": "gdpo", "gdpo": block, **algorithm}}


def session(block, trainer=None, **algorithm):
    return Session(Settings.from_config(config(block, **algorithm)), trainer)


def test_the_block_becomes_an_objective():
    found = Settings.from_config(config({
        "rewards": {"correct": None, "format": 0.5, "brief": {"weight": 0.2, "given": "correct >= 1", "range": [0, 2]}},
        "weights": {"correct": {"schedule": "ramp", "start": 0, "end": 1, "steps": 10}},
        "gates": {"format": "correct >= 0.5"}, "options": {"clip": 3}, "rollouts_folder": "rollouts",
    }) | {"trainer": {"default_local_dir": "/runs/a"}})  # fmt: skip
    objective = found.objective
    assert found.names == objective.names == ["correct", "format", "brief"]
    assert [w.value(Progress(5)) for w in objective.weights.values()] == [0.5, 0.5, 0.2]
    assert set(objective.gates) == {"format", "brief"}
    assert objective.bounds()[2] == (0, 2)
    assert found.rollouts_folder == Path("/runs/a/rollouts")
    assert (found.kl, found.filter, found.strict) == ("off", "combined", True)
    assert yaml.safe_load(objective.to_yaml())["rewards"]["brief"]["given"] == "correct >= 1"
    with pytest.raises(gdpo.Error, match="read from verl's reward_extra_info"):
        objective.score(["a"])


def test_no_block_is_no_settings():
    assert Settings.from_config({}) is None
    assert Settings.from_config({"algorithm": {"adv_estimator": "gdpo"}}) is None
    assert Settings.from_config(config(None)) is None


def test_the_names_may_stand_in_the_weights_alone():
    assert Settings.from_config(config({"weights": {"a": 1, "b": -2.0}})).names == ["a", "b"]


@pytest.mark.parametrize(
    ("block", "beside", "said"),
    [
        ({}, {}, "algorithm.gdpo.rewards is"),
        ("gdpo", {}, "algorithm.gdpo is 'gdpo', but a mapping"),
        ({"rewards": ["a"], "gate": {}}, {}, "no key 'gate'; did you mean 'gates'"),
        ({"rewards": ["a"], "weights": {"b": 1}}, {}, "weights names 'b', which is no reward"),
        ({"rewards": ["a"], "weights": [1]}, {}, "mapping by the rewards' names"),
        ({"rewards": {"a": {"wieght": 1}}}, {}, "did you mean 'weight'"),
        ({"rewards": {"a": {"weight": 1}}, "weights": {"a": 2}}, {}, "weight of 'a' in rewards and in weights"),
        ({"rewards": {"a": "heavy"}}, {}, "a weight or a mapping was expected"),
        ({"rewards": ["levels"]}, {}, "rename it in compute_score"),
        ({"rewards": ["a"], "weights": {"a": "much"}}, {}, "a finite number or a schedule"),
        ({"rewards": ["a"], "gates": {"a": "b > 1"}}, {}, "the gate of 'a' names 'b'"),
        ({"rewards": ["a"], "method": "gdop"}, {}, "did you mean 'gdpo'"),
        ({"rewards": ["a"], "options": {"clp": 3}}, {}, "did you mean 'clip'"),
        ({"rewards": ["a"], "filter": "b"}, {}, "filter is 'b'"),
        ({"rewards": ["a"], "strict": "yes"}, {}, "true or false"),
        ({"rewards": ["a"], "kl": "drop"}, {}, "kl is 'drop'"),
        ({"rewards": ["kl"]}, {"use_kl_in_reward": True}, "algorithm.use_kl_in_reward needs for its penalty"),
        ({"rewards": ["a"]}, {"adv_estimator": "grpo"}, "set algorithm.adv_estimator=gdpo"),
        ({"rewards": ["a"]}, {"gdpo_reward_keys": ["a"]}, "gdpo_reward_keys belongs to verl's built-in gdpo"),
    ],
)
def test_a_wrong_block_is_an_error_that_says_so(block, beside, said):
    with pytest.raises(gdpo.Error, match=said.replace("(", r"\(")):
        Settings.from_config(config(block, **beside))


class Trainer(SimpleNamespace):
    """What a session asks of verl's trainer."""

    __slots__ = ("__weakref__",)


class Queue:
    """A TransferQueue: fields by key."""

    def __init__(self, **fields):
        self.fields = fields

    def kv_batch_get(self, keys, partition_id, select_fields):
        return {name: [self.fields[name][key] for key in keys] for name in select_fields}


def queue_of(infos):
    keys = list(infos)
    fields = {key: {"reward_extra_info": info} for key, info in infos.items()}
    return Queue(extra_fields=fields), SimpleNamespace(keys=keys, tags=[{}] * len(keys), partition_id="train")


@pytest.mark.data
@pytest.mark.parametrize("case", [case for case in shared_cases("reports.json") if case.id in ("P14", "P19")] or
                         shared_cases("reports.json"))  # fmt: skip
def test_reports(case, tmp_path):
    given, want = case["input"], case["expect"]
    if case["id"] == "P14":
        block = {"rewards": given["wanted"]}
        right = np.array(want["rewards"], dtype=float)
        samples = given["reward_extra_info_by_sample"]
        for order in (range(4), reversed(range(4))):
            order = list(order)
            queue, meta = queue_of({f"q_{i}_0": samples[i] for i in order})
            np.testing.assert_array_equal(v1_batch(session(block), queue, meta, {}).scores, right[order])
            filled = complete([samples[i] for i in order], given["wanted"])
            assert [set(info) for info in filled] == [{"acc", "format", "score"}] * 4
            columns = {key: np.array([info[key] for info in filled]) for key in filled[0]}
            found = legacy_batch(session(block), torch.ones(4, 2), ["q"] * 4, columns, None).scores
            np.testing.assert_array_equal(found, right[order])
        return
    ramp = {"schedule": "ramp", "start": 0.2, "end": 1.0, "steps": 100}
    trainer = Trainer(global_steps=given["train_to_step"], total_training_steps=150)
    first = session({"weights": {"a": ramp}}, trainer)
    first.save(tmp_path)
    again = session({"weights": {"a": ramp}}, trainer)
    again.load(tmp_path)
    for step, weight in zip(given["read_weight_at_steps"], want["weights"], strict=True):
        trainer.global_steps = step + 1
        assert again.objective.weights["a"].value(again.progress()) == pytest.approx(weight, abs=1e-12)


def test_a_name_that_no_reward_has():
    queue, meta = queue_of({"q_0_0": {"acc": 1}, "q_1_0": {"format": 0}})
    with pytest.raises(gdpo.Error, match=r"reward 'acct' .* did you mean 'acc'\? \(there: acc, format\)"):
        v1_batch(session({"rewards": ["acct"]}), queue, meta, {})
    with pytest.warns(UserWarning, match="reward 'length' .* known: acc, format"):
        v1_batch(session({"rewards": ["acc", "length"], "strict": False}), queue, meta, {})
    queue, meta = queue_of({"q_0_0": {}})
    with pytest.raises(gdpo.Error, match="holds nothing; have compute_score return a mapping"):
        v1_batch(session({"rewards": ["acc"]}), queue, meta, {})
    only_first = session({"rewards": ["acc"]})
    v1_batch(only_first, *queue_of({"q_0_0": {"acc": 1}}), {})
    assert np.isnan(v1_batch(only_first, *queue_of({"q_0_0": {"other": 1}}), {}).scores).all()


def test_a_colocated_reward_models_fields():
    queue, meta = queue_of({"q_0_0": {}, "q_1_0": {}})
    queue.fields["helpful"] = {"q_0_0": 0.5, "q_1_0": 1.5}
    assert v1_batch(session({"rewards": ["helpful"]}), queue, meta, {}).scores.tolist() == [[0.5], [1.5]]


def test_segments_and_padding():
    """Rows of one session are one rollout, scored by the last of them; padding is none."""
    row, final = segments(["a_0_0", "a_0_1", "a_1_0", "pad_0_0", "a_0_10"], [False, False, False, True, False])
    assert row.tolist() == [0, 0, 1, -1, 0]
    assert final.tolist() == [4, 2]
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [0, 0], [1, 1]])
    found = spread(np.array([2.0, -1.0]), row, mask)
    assert found.tolist() == [[2, 2], [2, 0], [-1, -1], [0, 0], [2, 2]]
    floating = mask.float()
    spread(np.array([2.0, -1.0]), row, floating)
    assert torch.equal(floating, mask.float())  # the mask stays as it is


def advance(run, scores, step=1, groups=None):
    queue, meta = queue_of({f"q{step}_{i}_0": {"a": row[0], "b": row[1]} for i, row in enumerate(scores)})
    batch = v1_batch(run, queue, meta, {})
    batch.groups = ["q"] * len(scores) if groups is None else groups
    batch.text = lambda: ([[1]] * len(scores), [[2, 3]] * len(scores))
    return run.advantages({"response_mask": torch.ones(len(scores), 2).long()}, batch), batch.metrics


SCORES = [[0, 1], [1, 0.5], [1, 0], [0, 0.25]]


@pytest.mark.parametrize("method", ["gdpo", "grpo", "dvao", "rvpo", "mo_grpo", "rloo", "gd2po", "dara"])
def test_every_method(method):
    found, metrics = advance(session({"weights": {"a": 1, "b": 0.5}, "method": method}), SCORES)
    want = gdpo.advantages(np.array(SCORES), 4, method, weights=[1, 0.5])
    torch.testing.assert_close(found[:, 0].double(), torch.tensor(want), rtol=0, atol=1e-6)
    assert metrics["gdpo/rewards/b/weight"] == 0.5


def test_levels_and_token_weighting():
    found, _ = advance(session({"rewards": ["a", "b"], "levels": {"style": ["b"]}}), SCORES)
    objective = gdpo.Objective(a=len, b=len, levels={"style": ["b"]})
    want = objective.advantages(np.array(SCORES, dtype=float), 4).advantages
    torch.testing.assert_close(found[:, 0].double(), torch.tensor(want), rtol=0, atol=1e-6)
    found, _ = advance(session({"rewards": ["a", "b"], "options": {"batch_norm": "token"}}), SCORES)
    want = gdpo.advantages(np.array(SCORES), 4, batch_norm="token", lengths=[2] * 4)
    torch.testing.assert_close(found[:, 0].double(), torch.tensor(want), rtol=0, atol=1e-6)


def test_the_table_of_a_step_in_several_parts(tmp_path):
    """verl may take a global step in mini-batches (parameter_sync_step): one file, written with the last of them."""
    trainer = Trainer(global_steps=7, total_training_steps=9, parameter_sync_step=2, local_trigger_step=0)
    run = session({"rewards": ["a", "b"], "rollouts_folder": str(tmp_path), "task": "sums"}, trainer)
    advance(run, SCORES, 1)
    run.close()
    assert not list(tmp_path.iterdir())
    trainer.local_trigger_step = 1
    advance(run, SCORES, 2)
    run.close()
    table = pl.read_parquet(tmp_path / "step-000007.parquet")
    assert table["group"].to_list() == [0] * 4 + [1] * 4
    assert table["rollout"].to_list() == [f"q{part}_{i}" for part in (1, 2) for i in range(4)]
    assert set(table["task"]) == {"sums"}
    assert table["completion"][0] == "2 3"  # without a tokenizer, the ids
    np.testing.assert_allclose(table["contribution/a"] + table["contribution/b"], table["advantage"], atol=1e-12)


def test_without_text(tmp_path):
    run = session({"rewards": ["a", "b"], "rollouts_folder": str(tmp_path), "rollouts_text": False})
    advance(run, SCORES)
    run.close()
    assert set(pl.read_parquet(tmp_path / "step-000001.parquet")["completion"]) == {""}


def test_a_full_disk_is_one_warning_and_training_goes_on(tmp_path, monkeypatch):
    import gdpo.rollouts.table as table

    real = pl.DataFrame.write_parquet

    def full(self, path, **options):
        Path(path).write_bytes(b"half a file")
        raise OSError(28, "No space left on device")

    run = session({"rewards": ["a", "b"], "rollouts_folder": str(tmp_path)})
    monkeypatch.setattr(table.pl.DataFrame, "write_parquet", full)

    def three_steps():
        for step in (1, 2, 3):
            advance(run, SCORES, step)
        run.close()

    with pytest.warns(UserWarning, match="No space left") as seen:
        three_steps()
    assert len(seen) == 1
    assert run.writer.lost == 3
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(table.pl.DataFrame, "write_parquet", real)
    advance(run, SCORES, 4)
    run.close()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000004.parquet"]


def test_the_writer_holds_few_tables(tmp_path):
    """Beyond those that may wait, ``put`` waits for the disk, and gives up after its patience."""
    import threading

    gate = threading.Event()
    writer = RolloutWriter(tmp_path, waiting=2, patience=0.05)

    def slow():
        gate.wait(10)
        return pl.DataFrame({"step": [1]})

    def six_steps():
        for step in range(1, 7):
            writer.put(step, slow, {})

    with pytest.warns(UserWarning, match="has not answered for 0.05 s"):
        six_steps()
    assert not writer.flush(0.05)
    assert writer.lost >= 3
    gate.set()
    assert writer.flush(10)
    assert len(list(tmp_path.iterdir())) == 6 - writer.lost


def test_state(tmp_path):
    run = session({"rewards": ["a", "b"]})
    advance(run, SCORES)
    run.save(tmp_path)
    assert json.loads((tmp_path / "gdpo.json").read_text())["tokens"] == 8
    again = session({"rewards": ["a", "b"]})
    again.load(tmp_path)
    assert again.progress() == Progress(1, None, 8)
    with pytest.raises(gdpo.Error, match=r"saved state is of rewards \['a', 'b'\]"):
        session({"rewards": ["a", "c"]}).load(tmp_path)
    (tmp_path / "gdpo.json").write_text("{")
    with pytest.raises(gdpo.Error, match="cannot be read"):
        again.load(tmp_path)
    again.load(tmp_path / "another")  # a run that was begun without gdpo


def test_groups_without_signal():
    infos = {
        **{f"learns_{i}_0": {"a": i % 2, "b": 1 - i % 2} for i in range(4)},
        **{f"tied_{i}_0": {"a": 1, "b": 0.5} for i in range(4)},
        **{f"missing_{i}_0": {"a": 1} for i in range(4)},
        **{f"side_{i}_0": {"a": 1, "b": i / 4} for i in range(4)},
    }
    queue, _ = queue_of(infos)
    uids = {"learns", "tied", "missing", "side"}

    def judge(block):
        buffer = SimpleNamespace(
            filter_groups_metric="reward", finished_keys={"train": uids}, partitions={"train": infos},
            _dapo_classification_cache=defaultdict(dict),
        )  # fmt: skip
        assert filtered(buffer, queue, session(block), "val")[0] == set()
        return filtered(buffer, queue, session(block), "train")

    assert judge({"weights": {"a": 1, "b": 0.5}})[0] == {"tied", "missing"}
    assert judge({"weights": {"a": 1, "b": 1}})[0] == {"tied", "missing", "learns"}  # they cancel: no signal indeed
    assert judge({"weights": {"a": 1, "b": 1}, "filter": "a"})[0] == {"tied", "missing", "side"}
    assert judge({"weights": {"a": 1, "b": 0.5}})[1] == {1.25: 1, 1.0: 1}
    levels = {"one": ["a"], "two": {"rewards": ["b"], "weight": 0.5}}
    assert judge({"rewards": ["a", "b"], "levels": levels})[0] == {"tied", "missing"}
    later = {"schedule": "ramp", "start": 0, "end": 1, "steps": 10}
    assert judge({"weights": {"a": later, "b": later}})[0] == set()  # nothing teaches yet: dropping all would never end


def test_a_step_without_any_weight_and_with_all_levels_tied():
    """Both give advantages of 0 and metrics, and the run goes on."""
    later = {"schedule": "ramp", "start": 0, "end": 1, "steps": 10}
    levels = {"all": ["a", "b"]}
    for block, scores in (({"weights": {"a": later, "b": later}}, SCORES),
                          ({"rewards": ["a", "b"], "levels": levels}, [[1, 0.5]] * 4)):  # fmt: skip
        found, metrics = advance(session(block), scores)
        assert not found.any()
        assert metrics["gdpo/rewards/a/mean"] == np.mean([row[0] for row in scores])


RUN = """
import sys, verl
class C(dict):
    def __getattr__(self, name):
        if name in self: return self[name]
        raise AttributeError(name)
block = C(rewards=["a"]) if "block" in sys.argv else None
config = C(algorithm=C(adv_estimator="gdpo", gdpo=block), trainer=C(use_v1=True, default_local_dir="."))
{body}
"""
V1 = "from verl.trainer.ppo.v1.trainer_base import PPOTrainer\nprint(PPOTrainer(config)._compute_advantage(None, {}))"
LEGACY = "from verl.trainer.ppo.ray_trainer import RayPPOTrainer\nRayPPOTrainer(config)\nprint('made')"
START = "from verl.utils.config import validate_config\nvalidate_config(config)\nprint('valid')"


@pytest.mark.parametrize(
    ("change", "body", "said"),
    [
        ({"version": "0.10.0", "without": "_compute_advantage"}, V1, "verl 0.10.0 has no '_compute_advantage' in PPOTrainer"),
        ({"version": "0.10.0", "without": "_compute_advantage"}, START, "trainer.use_v1=False"),
        ({"version": "0.10.0", "without": "PPOTrainer"}, START, "verl 0.10.0 has no PPOTrainer"),
        ({"version": "0.10.0", "without": "compute_data_metrics"}, LEGACY, "has no 'compute_data_metrics'"),
        ({}, V1, "taken by 'other_plugin'"),
    ],
)  # fmt: skip
def test_a_run_that_asks_for_gdpo_and_cannot_have_it_stops(tmp_path, change, body, said):
    """At its start, naming version and remedy; the same run without the block does not notice gdpo."""
    world = World(tmp_path).gdpo().verl(**change)
    if not change:
        world.other()
    done = world.run("-c", RUN.format(body=body), "block")
    assert done.returncode != 0
    assert said in done.stderr
    assert "gdpo.core.errors.Error" in done.stderr
    if change.get("without") not in ("PPOTrainer", "_compute_advantage") or body == START:
        done = world.run("-c", RUN.format(body=body))
        assert done.returncode == 0, done.stderr


def test_installing_changes_nothing(tmp_path):
    world = World(tmp_path).gdpo().verl()
    body = V1 + "\nfrom verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY as r\nprint(r['gdpo'](config={}, " \
        "token_level_rewards=0, response_mask=0))"  # fmt: skip
    done = world.run("-c", RUN.format(body=body))
    assert done.stdout.split("\n")[:2] == ["built in", "('built in', 'built in')"], done.stderr


def test_the_example_is_a_block():
    example = yaml.safe_load((Path(__file__).parents[2] / "examples" / "verl_gdpo.yaml").read_text())
    assert Settings.from_config(example).names == ["correct", "format", "concise"]
