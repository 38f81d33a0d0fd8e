"""The NeMo-RL adapter against a stand-in of its contract, or (``NEMO_RL=checkout``) against NeMo-RL's own code.

``scripts/check_nemo_rl.py`` runs this file on a checkout.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import nemo_rl_standin
import numpy as np
import polars as pl
import pytest
import torch
from nemo_rl_standin import config

import gdpo
from gdpo.adapters import nemo_rl as adapter
from gdpo.adapters import nemo_rl_hooks as hooks

CHECKOUT = os.environ.get("NEMO_RL")
only_standin = pytest.mark.skipif(bool(CHECKOUT), reason="bends the stand-in")


@pytest.fixture(scope="module")
def nemo():
    modules, finder = nemo_rl_standin.real(CHECKOUT) if CHECKOUT else nemo_rl_standin.standin()
    modules.stock = modules.estimator.GDPOAdvantageEstimator
    adapter.install()
    yield modules
    if finder is not None:
        print(f"\nNeMo-RL {hooks.version()} from {modules.estimator.__file__}; stubbed: {sorted(set(finder.used))}")
    nemo_rl_standin.leave(finder)


@pytest.fixture(autouse=True)
def _fresh():
    hooks.TRACKED.clear()
    hooks._restored.clear()


def batch(components, size, tokens=5, seed=0):
    """prompt ids, mask and batch for components by name, groups of ``size`` in shuffled order."""
    rows = len(next(iter(components.values())))
    order = np.random.default_rng(seed).permutation(rows)
    group = torch.as_tensor(order // size)
    prompts = torch.stack([group, group % 3, torch.full_like(group, 7)], 1)
    values = {f"reward/{k}": torch.tensor(np.asarray(v), dtype=torch.float32)[order] for k, v in components.items()}
    values["total_reward"] = sum(values.values())
    return order, {"prompt_ids": prompts, "rewards": values["total_reward"], "mask": torch.ones(rows, tokens),
                   "repeated_batch": values, "logprobs_policy": None, "logprobs_reference": None}  # fmt: skip


def made(nemo, **block):
    return nemo.estimator.GDPOAdvantageEstimator(config(gdpo=block), None)


def random(names, rows=24, seed=0):
    generator = np.random.default_rng(seed)
    return {name: generator.integers(0, 3, rows) / 2 for name in names}


def expected(components, order, size, **options):
    return gdpo.advantages(components, size, **options)[order]


def test_the_class_is_replaced_where_it_was_imported(nemo):
    assert nemo.estimator.GDPOAdvantageEstimator is adapter.GDPOAdvantageEstimator
    if not CHECKOUT:
        assert isinstance(sys.modules["nemo_rl.algorithms.grpo"].create(config()), adapter.GDPOAdvantageEstimator)
    adapter.install()  # twice is once


def test_the_callers_get_our_numbers(nemo):
    """Weights by name: NeMo-RL would give them to `accuracy`, `format`, `zeal` by alphabet."""
    parts = random(["zeal", "accuracy", "format"])
    order, arguments = batch(parts, 8)
    weights = {"zeal": 1.0, "format": 0.5, "accuracy": 2.0}
    result = made(nemo, weights=weights).compute_advantage(**arguments)
    assert result.shape == (24, 5)
    assert result.dtype == torch.float32
    assert result.untyped_storage().nbytes() == 24 * 4  # one value a rollout; the tokens are a view
    np.testing.assert_allclose(result[:, 0], expected(parts, order, 8, weights=weights), atol=1e-6)
    assert (result == result[:, :1]).all()


def test_without_a_block_each_component_counts(nemo):
    parts = random(["correctness", "format"])
    order, arguments = batch(parts, 4)
    result = nemo.estimator.GDPOAdvantageEstimator(config(), None).compute_advantage(**arguments)
    np.testing.assert_allclose(result[:, 0], expected(parts, order, 4), atol=1e-6)


@pytest.mark.parametrize("method", ["grpo", "dvao", "rvpo", "mo_grpo"])
def test_every_method(nemo, method):
    parts = random(["correctness", "format"])
    order, arguments = batch(parts, 8)
    result = made(nemo, method=method).compute_advantage(**arguments)
    np.testing.assert_allclose(result[:, 0], expected(parts, order, 8, method=method), atol=1e-6)


def test_gates_levels_and_leave_one_out_if_asked(nemo, caplog):
    parts = random(["correctness", "format", "length"])
    order, arguments = batch(parts, 8)
    objective = gdpo.Objective(
        **{name: gdpo.Reward(lambda completions, **_: None, given="correctness >= 1" if name == "length" else None)
           for name in parts},
        levels={"style": ["format", "length"]}, options={"baseline": "leave-one-out"},
    )  # fmt: skip
    wanted = objective.advantages(np.stack(list(parts.values()), 1), 8).advantages[order]
    with caplog.at_level(logging.WARNING):
        estimator = made(
            nemo, rewards=list(parts), gates={"length": "correctness >= 1"}, levels={"style": ["format", "length"]},
            options={"baseline": "leave-one-out"},
        )  # fmt: skip
        assert not caplog.records
        np.testing.assert_allclose(estimator.compute_advantage(**arguments)[:, 0], wanted, atol=1e-6)
        made(nemo)
        assert "use_leave_one_out_baseline is true" in caplog.text


def test_7428(nemo):
    """Seven 0.3 and one 1.0: NeMo-RL's leave-one-out spread of seven equal values is rounding; it squeezes the batch."""
    spike = torch.tensor([0.3] * 7 + [1.0])
    mean, std = nemo.utils.calculate_baseline_and_std_per_prompt(
        torch.zeros(8, 1, dtype=torch.long), spike, torch.ones(8), leave_one_out_baseline=True
    )
    theirs = (spike - mean) / (std + 1e-6)
    assert theirs[7] == pytest.approx(7428, rel=0.01)
    others = np.tile([0, 0, 0, 0, 1, 1, 1, 1], 3)
    parts = {"a": np.concatenate([spike.numpy(), others]), "b": np.concatenate([np.zeros(8), others])}
    order, arguments = batch(parts, 8)
    stock = nemo.stock(config(), None).compute_advantage(**arguments)[:, 0]
    rest = np.flatnonzero(order >= 8)
    assert stock[rest].abs().max() < 0.2
    ours = made(nemo).compute_advantage(**arguments)[:, 0]
    assert ours[rest].abs().min() > 0.5
    assert ours.abs().max() < 3
    np.testing.assert_allclose(ours, expected(parts, order, 8), atol=1e-5)


def test_an_offset_loses_nothing(nemo):
    """1000 + {0, .1, .2, .3}: E[x^2] - E[x]^2 in float32 has spread 0 there (or noise), so NeMo-RL does not divide."""
    parts = {"a": np.tile([1000, 1000.1, 1000.2, 1000.3], 4), "b": np.tile([0, 1, 1, 0], 4)}
    order, arguments = batch(parts, 4)
    plain = {"a": np.tile([0, 0.1, 0.2, 0.3], 4), "b": parts["b"]}
    exact = expected(plain, order, 4)
    stock = nemo.stock(config(use_leave_one_out_baseline=False), None).compute_advantage(**arguments)[:, 0]
    assert np.abs(stock.numpy() - exact).max() > 0.1
    np.testing.assert_allclose(made(nemo).compute_advantage(**arguments)[:, 0], exact, atol=2e-3)


def test_missing_and_tied(nemo):
    parts = random(["a", "b"])
    parts["a"][:8] = 0.7
    parts["b"][:8] = 0.1
    parts["b"][10:14] = np.nan
    order, arguments = batch(parts, 8)
    result = made(nemo).compute_advantage(**arguments)[:, 0].numpy()
    np.testing.assert_allclose(result, expected(parts, order, 8), atol=1e-6)
    assert (result[order < 8] == 0).all()
    assert np.isfinite(result).all()


@pytest.mark.parametrize("how", ["mask", "keyword", "batch"])
def test_valid_rollouts_only(nemo, how):
    """A rollout without a token in the loss, or marked invalid, moves neither mean nor spread of its group."""
    parts = random(["a", "b"])
    order, arguments = batch(parts, 8)
    valid = torch.ones(24)
    valid[[2, 11]] = 0
    if how == "mask":
        arguments["mask"] = arguments["mask"] * valid[:, None]
    elif how == "keyword":
        arguments["valid_mask"] = valid
    else:
        arguments["repeated_batch"]["valid_mask"] = valid
    include = np.empty(24, dtype=bool)
    include[order] = valid.numpy() > 0
    result = made(nemo).compute_advantage(**arguments)[:, 0].numpy()
    np.testing.assert_allclose(result, expected(parts, order, 8, include=include), atol=1e-6)
    assert (result[[2, 11]] == 0).all()
    counted = made(nemo, masked="count").compute_advantage(**arguments)[:, 0].numpy()
    same = expected(parts, order, 8) if how == "mask" else expected(parts, order, 8, include=include)
    np.testing.assert_allclose(counted, same, atol=1e-6)


def test_ids_by_the_bytes_of_the_rows(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(-3, 3, (200, 4), generator=generator)
    wanted = np.unique(rows.numpy(), axis=0, return_inverse=True)[1].ravel()

    def same(ids):
        return len(set(zip(ids.tolist(), wanted.tolist(), strict=True))) == len(set(wanted.tolist()))

    assert same(adapter.group_ids(rows))
    assert same(adapter.group_ids(rows.int()))
    assert adapter.group_ids(torch.tensor([5, 3, 5])).tolist() == [1, 0, 1]

    class Ones:
        def integers(self, *args, **kwargs):
            return np.ones(args[2], dtype=np.uint64)

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Ones())  # rows of one sum collide
    assert same(adapter.group_ids(rows))


def test_names_of_older_versions():
    assert adapter.component_keys({"reward2": 0, "reward10": 0, "reward1": 0, "rewards": 0}) == {
        "reward1": "reward1", "reward2": "reward2", "reward10": "reward10"}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"reward_weights": [1.0, 0.5]}, "alphabetical order of their names"),
        ({"normalize_rewards": False}, "options.scale=none"),
        ({"gdpo": {"method": "gdop"}}, "did you mean 'gdpo'"),
        ({"gdpo": {"weight": {}}}, "did you mean 'weights'"),
        ({"gdpo": {"rewards": ["format"], "weights": {"formt": 1}}}, "names 'formt'.*did you mean 'format'"),
        ({"gdpo": {"rewards": ["a"], "gates": {"a": "b > 1"}}}, "names 'b'"),
        ({"gdpo": {"gates": {"a": "b > 1"}}}, "name them"),
        ({"gdpo": {"masked": "no"}}, "masked is 'no'"),
    ],
)
def test_a_wrong_config_is_an_error_at_start(nemo, settings, said):
    with pytest.raises(gdpo.Error, match=said):
        nemo.estimator.GDPOAdvantageEstimator(config(**settings), None)


def test_without_the_launcher_a_guarded_config_stops(nemo):
    """``reward_weights: []`` beside the block: NeMo-RL's own estimator, which does not read the block, trains nothing."""
    parts = random(["a", "b"])
    order, arguments = batch(parts, 8)
    guarded = config(reward_weights=[], gdpo={"weights": {"a": 1.0, "b": 0.5}})
    with pytest.raises(ValueError, match="reward_weights has 0 entries"):
        nemo.stock(guarded, None).compute_advantage(**arguments)
    result = nemo.estimator.GDPOAdvantageEstimator(guarded, None).compute_advantage(**arguments)[:, 0]
    np.testing.assert_allclose(result, expected(parts, order, 8, weights=[1.0, 0.5]), atol=1e-6)


def test_scores_that_are_no_numbers(nemo):
    """An infinity is an error that names the reward; a reward missing throughout leaves the others as they are."""
    parts = random(["a", "b"])
    order, arguments = batch(parts, 8)
    arguments["repeated_batch"]["reward/b"][:] = np.nan
    result = made(nemo).compute_advantage(**arguments)[:, 0]
    np.testing.assert_allclose(result, expected({"a": parts["a"]}, order, 8), atol=1e-6)
    arguments["repeated_batch"]["reward/b"][3] = np.inf
    with pytest.raises(gdpo.Error, match="infinit.*'b'|'b'.*inf"):
        made(nemo).compute_advantage(**arguments)


def test_a_batch_that_does_not_fit_the_config(nemo):
    _, arguments = batch(random(["correctness", "format"]), 8)
    with pytest.raises(gdpo.Error, match="names the reward 'formatt'.*did you mean 'format'"):
        made(nemo, weights={"correctness": 1, "formatt": 1}).compute_advantage(**arguments)
    with pytest.raises(gdpo.Error, match="has the component 'format', but"):
        made(nemo, weights={"correctness": 1}).compute_advantage(**arguments)
    arguments["repeated_batch"] = {"total_reward": arguments["rewards"]}
    with pytest.raises(gdpo.Error, match="no reward components"):
        made(nemo).compute_advantage(**arguments)


def test_another_estimator_refuses_the_block(nemo):
    with pytest.raises(gdpo.Error, match="name is 'grpo' beside"):
        nemo.estimator.GRPOAdvantageEstimator(config(name="grpo", gdpo={}), None)
    nemo.estimator.GRPOAdvantageEstimator(config(name="grpo"), None)


class Kept:
    def __init__(self):
        self.lines = []

    def log_metrics(self, metrics, step, prefix="", *args, **kwargs):
        self.lines.append((step, prefix, metrics))


def logger_of(nemo, folder):
    settings = {"log_dir": str(folder), "monitor_gpus": False,
                **{f"{name}_enabled": False for name in ("wandb", "swanlab", "tensorboard", "mlflow")}}  # fmt: skip
    logger, kept = nemo.logger.Logger(settings), Kept()
    logger.loggers.append(kept)
    return logger, kept


def test_metrics_and_the_table_beside_the_jsonl(nemo, tmp_path):
    """The order of NeMo-RL's loop: rollout metrics, advantages, JSONL, training metrics."""
    parts = random(["correctness", "format"])
    order, arguments = batch(parts, 8)
    logger, kept = logger_of(nemo, tmp_path / "logs")
    estimator = made(nemo, weights={"correctness": 1.0, "format": 0.5}, task="gsm8k")
    for step in (1, 2):
        logger.log_metrics({"gen_tokens": 3.0}, step, prefix="train")
        advantages = estimator.compute_advantage(**arguments)
        content = [[f"prompt {row // 8}", f"completion {row}"] for row in order]  # NeMo-RL's: a text a turn
        logger.log_batched_dict_as_jsonl(
            {"content": content, "rewards": arguments["rewards"].tolist(), "advantages": advantages.tolist()},
            f"train_data_step{step}.jsonl",
        )
        logger.log_metrics({"loss": 0.1}, step=step, prefix="train")
        logger.log_metrics({"total": 0.1}, step, prefix="timing/train")
    assert [sorted(k for k in m if not k.startswith("gdpo/")) for _, _, m in kept.lines[:3]] == [
        ["gen_tokens"], ["loss"], ["total"]]  # fmt: skip
    step, prefix, metrics = kept.lines[1]
    assert (step, prefix, metrics["gdpo/rewards/format/weight"]) == (1, "train", 0.5)
    assert metrics["gdpo/rewards/correctness/mean"] == pytest.approx(parts["correctness"].mean())
    assert not any(key.startswith("gdpo/") for _, _, m in (kept.lines[0], kept.lines[2]) for key in m)
    estimator.writer.flush()
    assert (tmp_path / "logs" / "train_data_step1.jsonl").is_file()
    frame = pl.read_parquet(tmp_path / "logs" / "rollouts" / "step-000002.parquet")
    assert list(map(list, frame.select("prompt", "completion").rows())) == content
    np.testing.assert_allclose(frame["advantage"], advantages[:, 0], atol=1e-6)
    scores = frame.select("reward/correctness", "reward/format").to_numpy()
    again = gdpo.advantages(scores, frame["group"].to_numpy(), weights=[1.0, 0.5])
    np.testing.assert_allclose(again, frame["advantage"], atol=1e-6)
    assert set(frame["task"]) == {"gsm8k"}
    assert frame["rollout"].n_unique() == 24


def test_a_step_in_chunks_is_one_table(nemo, tmp_path):
    """The single controller computes advantages chunk by chunk and logs once."""
    logger, kept = logger_of(nemo, tmp_path)
    estimator = made(nemo)
    for seed in (0, 1):
        estimator.compute_advantage(**batch(random(["a", "b"], seed=seed), 8)[1])
    logger.log_metrics({"loss": 1.0}, step=1, prefix="train")
    estimator.writer.flush()
    frame = pl.read_parquet(tmp_path / "rollouts" / "step-000001.parquet")
    assert len(frame) == 48
    assert frame["group"].n_unique() == 6
    assert frame["rollout"].n_unique() == 48
    assert len(kept.lines) == 1


RAMP = {"rewards": {"a": {"weight": {"schedule": "ramp", "start": 0.0, "end": 1.0, "steps": 4}}, "b": 1.0}}


def test_a_ramp_goes_on_after_a_checkpoint(nemo, tmp_path):
    settings = {"checkpoint_dir": str(tmp_path / "results"), "metric_name": None, "higher_is_better": False,
                "keep_top_k": 3, "save_period": 1, "save_optimizer": False}  # fmt: skip
    (tmp_path / "results").mkdir()
    parts = random(["a", "b"])
    order, arguments = batch(parts, 8)
    logger, kept = logger_of(nemo, tmp_path)
    checkpoints = nemo.checkpoint.CheckpointManager(settings)
    estimator = made(nemo, **RAMP)
    for step in (1, 2, 3):
        estimator.compute_advantage(**arguments)
        path = checkpoints.init_tmp_checkpoint(step, {"total_steps": step})
        checkpoints.finalize_checkpoint(path)
        logger.log_metrics({}, step, prefix="train")
    assert [m["gdpo/rewards/a/weight"] for _, _, m in kept.lines] == [0.0, 0.25, 0.5]

    hooks.TRACKED.clear()  # a new process
    checkpoints = nemo.checkpoint.CheckpointManager(settings)
    checkpoints.load_training_info(checkpoints.get_latest_checkpoint_path())
    resumed = made(nemo, **RAMP)
    result = resumed.compute_advantage(**arguments)[:, 0]
    np.testing.assert_allclose(result, expected(parts, order, 8, weights={"a": 0.75, "b": 1.0}), atol=1e-6)


def test_an_estimator_in_an_actor(nemo):
    """The single controller sends the estimator to an actor: the class must be ours there, the step the same."""
    estimator = made(nemo, **RAMP)
    parts = random(["a", "b"])
    order, arguments = batch(parts, 8)
    estimator.step = 2
    sent = pickle.loads(pickle.dumps(estimator))
    assert sent in hooks.TRACKED
    np.testing.assert_allclose(
        sent.compute_advantage(**arguments)[:, 0], expected(parts, order, 8, weights={"a": 0.5, "b": 1.0}), atol=1e-6
    )


def test_no_loop_over_prompts(nemo):
    """8,192 rollouts of 1,024 prompts of 512 tokens, four rewards: the built-in loops over prompts for each reward."""
    parts = random(["a", "b", "c", "d"], rows=8192)
    _, arguments = batch(parts, 8, tokens=64)
    arguments["prompt_ids"] = torch.cat([arguments["prompt_ids"], torch.zeros(8192, 509, dtype=torch.long)], 1)
    estimator = made(nemo)
    estimator.compute_advantage(**arguments)
    started = time.perf_counter()
    estimator.compute_advantage(**arguments)
    seconds = time.perf_counter() - started
    print(f"\n8192 rollouts x 4 rewards, 1024 prompts of 512 tokens: {seconds:.3f} s")
    assert seconds < 3


@only_standin
def test_a_changed_contract_is_an_error(nemo, monkeypatch):
    def broken(**changes):
        kind = type("GDPOAdvantageEstimator", (nemo.stock,), {"__module__": hooks.MODULE, "__init__": nemo.stock.__init__,
                    "compute_advantage": nemo.stock.compute_advantage, **changes})  # fmt: skip
        monkeypatch.setattr(nemo.estimator, "GDPOAdvantageEstimator", kind)

    def other(self, batch): ...

    broken(compute_advantage=other)
    with pytest.raises(gdpo.Error, match="test_nemo_rl, another plug-in"):
        adapter.install()
    other.__module__ = hooks.MODULE
    with pytest.raises(gdpo.Error, match="compute_advantage of NeMo-RL .* takes .'self', 'batch'.*2026-08"):
        adapter.install()
    broken(__module__="other_plugin")
    with pytest.raises(gdpo.Error, match="comes from other_plugin, another plug-in"):
        adapter.install()
    monkeypatch.delattr(nemo.estimator, "GDPOAdvantageEstimator")
    with pytest.raises(gdpo.Error, match="has no GDPOAdvantageEstimator"):
        adapter.install()


@only_standin
def test_the_launcher(tmp_path):
    """The user's script runs as if called, with our estimator in place."""
    (tmp_path / "run_grpo.py").write_text(
        "import sys\n"
        "from helper import NAME\n"
        "from nemo_rl.algorithms.advantage_estimator import GDPOAdvantageEstimator\n"
        "if __name__ == '__main__':\n"
        "    print(NAME, sys.argv[1:], GDPOAdvantageEstimator.__module__)\n"
    )
    (tmp_path / "helper.py").write_text("NAME = 'helper'\n")
    code = (
        "import sys, nemo_rl_standin; nemo_rl_standin.standin();"
        "from gdpo.adapters.nemo_rl import main; main(sys.argv[1:])"
    )
    paths = [str(Path(__file__).parent), str(Path(gdpo.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run_grpo.py"), "--config", "my.yaml", "grpo.max_num_steps=2"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.splitlines()[-1] == "helper ['--config', 'my.yaml', 'grpo.max_num_steps=2'] gdpo.adapters.nemo_rl"
    )


@only_standin
def test_the_launcher_says_what_is_wrong(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="usage"):
        adapter.main([])
    with pytest.raises(SystemExit, match="is no file"):
        adapter.main([str(tmp_path / "none.py")])
    done = subprocess.run(
        [sys.executable, "-m", "gdpo.adapters.nemo_rl", __file__],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert "run this where NeMo-RL is installed" in done.stderr
