"""GDPOTrainer, the mixin and attach() on the installed TRL: what they change, and what they refuse."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import types
import warnings
from pathlib import Path

import datasets
import numpy as np
import polars as pl
import pytest
import torch
import transformers
import trl
from test_trl import PROMPTS, config, digits, spy, vowels

import gdpo
from gdpo import Objective, Reward
from gdpo.adapters import trl_hook, trl_sampling
from gdpo.audit.explain import explain
from gdpo.rollouts import open_dump
from gdpo.trl import GDPOMixin, GDPOTrainer, attach

MANY = datasets.Dataset.from_dict({"prompt": ["x" * k + "abcdefgh"[k % 8] for k in range(1, 17)]})


def even(completions, **columns):
    return [float(len(text) % 2) for text in completions]


def test_metrics_have_a_prefix_and_the_dead_share_is_right(tiny_model, tmp_path):
    """TRL's frac_reward_zero_std looks at the batch under normalize_then_sum; ours at the groups."""

    def rare(completions, **columns):  # live in the first group of four only
        return [float(k < 4) if k < 8 else 1.0 for k in range(len(completions))]

    arguments = config(tmp_path, max_steps=1, per_device_train_batch_size=32)
    blind = hasattr(arguments, "multi_objective_aggregation")
    if blind:
        arguments.multi_objective_aggregation = "normalize_then_sum"
    stock = trl.GRPOTrainer(str(tiny_model), [rare], arguments, PROMPTS)
    ours = GDPOTrainer(str(tiny_model), [rare], arguments, PROMPTS)
    for trainer in (stock, ours):
        trainer.train()
    theirs, line = stock.state.log_history[0], ours.state.log_history[0]
    assert (theirs["frac_reward_zero_std"], line["frac_reward_zero_std"]) == (0.0 if blind else 0.75, 0.75)
    assert line["gdpo/dead_share"] == 0.75
    assert line["gdpo/rewards/rare/weight"] == 1.0
    assert "dead_share" not in line


def test_the_mixin_over_another_subclass(tiny_model, tmp_path):
    class Theirs(trl.GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            output["advantages"] = output["advantages"] * 0 + 7
            return output

    class Mine(GDPOMixin, Theirs):
        pass

    trainer = Mine(str(tiny_model), [vowels, digits], config(tmp_path, max_steps=1), PROMPTS)
    seen = spy(trainer)
    trainer.train()
    scores, advantages = seen[0]
    np.testing.assert_allclose(advantages, gdpo.advantages(scores.double(), 8), atol=1e-6)


def unsloth_like():
    """A copy of TRL's trainer in a module of its own, not a subclass of it: Unsloth's layout."""
    source = (
        Path(trl.trainer.grpo_trainer.__file__).read_text().replace("class GRPOTrainer(", "class _UnslothGRPOTrainer(")
    )
    module = types.ModuleType("UnslothGRPOTrainer")
    module.__package__ = "trl.trainer"
    sys.modules[module.__name__] = module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(source, "UnslothGRPOTrainer.py", "exec"), module.__dict__)

    class UnslothGRPOTrainer(module._UnslothGRPOTrainer):
        def __init__(self, model, reward_funcs, args=None, train_dataset=None, **kwargs):
            super().__init__(model=model, reward_funcs=reward_funcs, args=args, train_dataset=train_dataset, **kwargs)

    return UnslothGRPOTrainer


@pytest.mark.parametrize("layout", ["trl", "unsloth"])
def test_attach(tiny_model, tmp_path, layout):
    kind = trl.GRPOTrainer if layout == "trl" else unsloth_like()
    assert (layout == "trl") == issubclass(kind, trl.GRPOTrainer)
    trainer = kind(str(tiny_model), [vowels, digits], config(tmp_path, reward_weights=[1.0, 1.0]), PROMPTS)
    # By name: the objective's order is another.
    objective = Objective(digits=Reward(digits, weight=0.5), vowels=vowels)
    assert attach(trainer, objective, rollouts_folder=tmp_path / "rollouts") is trainer
    assert isinstance(trainer, kind)
    seen = spy(trainer)
    trainer.train()
    assert trainer.reward_weights.tolist() == [1.0, 0.5]
    for scores, advantages in seen:
        expected = gdpo.advantages(scores.double(), 8, weights=[1.0, 0.5])
        np.testing.assert_allclose(advantages, expected, atol=1e-6)
    frame = pl.read_parquet(tmp_path / "rollouts" / "step-000002.parquet")
    np.testing.assert_allclose(frame["reward/vowels"], seen[1][0][:, 0])
    assert "gdpo/rewards/digits/mean" in trainer.state.log_history[0]


def test_what_attach_refuses(tiny_model, tmp_path):
    trainer = trl.GRPOTrainer(str(tiny_model), [vowels, digits], config(tmp_path), PROMPTS)
    with pytest.raises(gdpo.Error, match="has the reward 'digits', but the objective has"):
        attach(trainer, Objective(vowels=vowels))
    with pytest.raises(gdpo.Error, match="'vowel', which the trainer has not; did you mean 'vowels'"):
        attach(trainer, Objective(vowels=vowels, digits=digits, vowel=vowels))
    assert type(trainer) is trl.GRPOTrainer
    with pytest.raises(gdpo.Error, match="object has no _calculate_rewards|has no reward_funcs"):
        attach(object())
    trainer._generate_and_score_completions = lambda inputs: None
    with pytest.raises(gdpo.Error, match="own _generate_and_score_completions on this object, put there by another"):
        attach(trainer)
    del trainer._generate_and_score_completions
    attach(trainer)
    with pytest.raises(gdpo.Error, match="GDPOGRPOTrainer, which has gdpo's advantages already"):
        attach(trainer)


def test_the_contract_with_this_trl():
    """Fails where TRL moves the hook; gdpo then says so before training, and must be adapted."""
    trl_hook.check_class(trl.GRPOTrainer)


def test_a_moved_hook_is_an_error_at_start(tiny_model, tmp_path):
    class Moved(trl.GRPOTrainer):
        def _calculate_rewards(self, batch):
            return None

    class Gone(trl.GRPOTrainer):
        _generate_and_score_completions = None

    class Bypassed(trl.GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            self._calculate_rewards = lambda *args: torch.zeros(len(inputs), 1)
            return super()._generate_and_score_completions(inputs)

    arguments = (str(tiny_model), [vowels], config(tmp_path), PROMPTS)
    for kind, said in ((Moved, r"takes \(batch\), but \(inputs, prompts"), (Gone, "has no _generate_and_score")):
        with pytest.raises(gdpo.Error, match=f"TRL {trl.__version__}.*{said}|{said}.*TRL"):
            type("Mine", (GDPOMixin, kind), {})(*arguments)
    with pytest.raises(gdpo.Error, match="without _calculate_rewards"):
        type("Mine", (GDPOMixin, Bypassed), {})(*arguments).train()


def groups_of(frame):
    return frame.group_by("group").agg(pl.col("advantage").abs().max()).sort("group")


@pytest.mark.parametrize("which", ["combined", "hard"])
def test_dynamic_sampling(tiny_model, tmp_path, which):
    """Dead groups are replaced by groups of other prompts; the loss gets whole, aligned tensors."""
    rounds = []

    def hard(completions, **columns):  # dead in most groups
        rounds.append(len(completions))
        return [float(text[:1] in "abcdefghijklm" and len(text) % 3 == 0) for text in completions]

    trainer = GDPOTrainer(
        str(tiny_model), [hard, even] if which == "hard" else [hard], config(tmp_path, log_completions=True,
        num_completions_to_print=0, per_device_train_batch_size=32, num_generations=4, max_steps=2, beta=0.1, seed=3),
        MANY, resample=which, resample_rounds=4, rollouts_folder=tmp_path / "rollouts",
    )  # fmt: skip
    outputs, real = [], trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: outputs.append(real(inputs)) or outputs[-1]
    trainer.train()
    line = trainer.state.log_history[0]
    assert line["gdpo/resample_rounds"] >= 1
    assert line["gdpo/resampled_groups"] >= 1
    assert min(rounds) < 32  # as many as are needed, not all
    frame = pl.read_parquet(tmp_path / "rollouts" / "step-000001.parquet")
    spread = frame.group_by("group").agg((pl.col("reward/hard").max() - pl.col("reward/hard").min()).alias("spread"))
    assert int((spread["spread"] == 0).sum()) == line["gdpo/groups_without_signal_left"]
    assert (frame.group_by("group").agg(pl.col("prompt").n_unique())["prompt"] == 1).all()
    again = gdpo.advantages(frame.select(pl.col("^reward/.*$")).to_numpy(), 4)
    np.testing.assert_allclose(frame["advantage"], again, atol=1e-12)
    output = outputs[0]
    np.testing.assert_allclose(output["advantages"], again, atol=1e-6)
    tokens = output["completion_mask"].sum(1)
    assert tokens.tolist() == frame["length"].to_list()
    assert output.get("num_items_in_batch", tokens.sum()) == tokens.sum()
    decoded = [
        trainer.processing_class.decode(ids[mask.bool()], skip_special_tokens=True)
        for ids, mask in zip(output["completion_ids"], output["completion_mask"], strict=True)
    ]
    assert decoded == frame["completion"].to_list()
    asked = trainer.processing_class.batch_decode(output["prompt_ids"], skip_special_tokens=True)
    assert asked == frame["prompt"].to_list()
    if not (tmp_path / "completions").exists():
        return  # older versions keep no table
    theirs = pl.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
    assert theirs["completion"].to_list() == frame["completion"].to_list()
    np.testing.assert_allclose(theirs["hard"], frame["reward/hard"])
    np.testing.assert_allclose(theirs["advantage"], frame["advantage"], atol=1e-6)


def test_places_of_fresh_groups():
    signal, good = np.array([1, 0, 0, 1], dtype=bool), np.array([0, 1, 1, 1], dtype=bool)
    assert trl_sampling._sources(signal, good, 0).tolist() == [-1, 1, 2, -1]
    assert trl_sampling._sources(signal, good, 1).tolist() == [-1, 1, 2, -1]
    # Two processes: the first has one dead group and one good one, the second one and two.
    assert trl_sampling._sources(signal, good, 2).tolist() == [-1, 1, 2, -1]
    # Fresh groups never leave their process.
    assert trl_sampling._sources(signal, np.array([1, 0], dtype=bool), 2).tolist() == [-1, 0, -1, -1]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"resample": "vowel"}, "did you mean 'vowels'"), ({"resample": "combined", "resample_rounds": 0}, "at least 1")],
)
def test_wrong_sampling(tiny_model, tmp_path, options, said):
    with pytest.raises(gdpo.Error, match=said):
        GDPOTrainer(str(tiny_model), [vowels], config(tmp_path), PROMPTS, **options)


@pytest.mark.skipif("get_eval_dataloader" not in vars(trl.GRPOTrainer), reason="this TRL takes no streams")
def test_sampling_needs_an_index(tiny_model, tmp_path):
    stream = PROMPTS.to_iterable_dataset()
    with pytest.raises(gdpo.Error, match="the training data is a stream"):
        GDPOTrainer(str(tiny_model), [vowels], config(tmp_path), stream, resample="combined")


def test_truncated_completions_left_out(tiny_model, tmp_path):
    steps = []
    trainer = GDPOTrainer(
        str(tiny_model), [vowels, even], config(tmp_path, max_steps=1, max_completion_length=40, per_device_train_batch_size=32),
        PROMPTS, exclude_truncated=True, on_step=steps.append, rollouts_folder=tmp_path / "rollouts",
    )  # fmt: skip
    trainer.train()
    step = steps[0]
    dump = open_dump(tmp_path / "rollouts")
    for row in (0, 7, 31):
        one = explain(dump, f"1-{row}")  # the table says who counted
        assert one.advantage == pytest.approx(one.recorded, abs=1e-9)
    cut = np.array(step.lengths) >= 40
    assert 0 < cut.sum() < 32
    expected = gdpo.advantages(step.scores, 8, include=~cut)
    np.testing.assert_allclose(step.estimate.advantages, expected, atol=1e-12)
    assert (step.estimate.advantages[cut] == 0).all()


@pytest.mark.skipif(
    "num_generations_eval" not in trl.GRPOConfig.__dataclass_fields__, reason="this TRL has one group size for both"
)
def test_evaluation_groups_of_another_size(tiny_model, tmp_path):
    trainer = GDPOTrainer(
        str(tiny_model), [vowels], config(tmp_path, max_steps=1, num_generations_eval=2, per_device_eval_batch_size=8,
        eval_strategy="steps", eval_steps=1), PROMPTS, eval_dataset=PROMPTS, resample="combined", resample_rounds=1,
    )  # fmt: skip
    seen = spy(trainer)
    trainer.train()
    scores, advantages = seen[-1]
    assert len(scores) == 8
    np.testing.assert_allclose(advantages, gdpo.advantages(scores.double(), 2), atol=1e-6)
    line = next(line for line in trainer.state.log_history if "eval_loss" in line)
    assert line["eval_gdpo/live_groups"] <= 4


def test_conversations(tiny_model, tmp_path):
    def long(completions, **columns):
        return [float(len(completion[0]["content"])) for completion in completions]

    rows = datasets.Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in ("a", "bc")])
    trainer = GDPOTrainer(
        str(tiny_model), [long], config(tmp_path, max_steps=1), rows, rollouts_folder=tmp_path / "rollouts"
    )
    trainer.train()
    frame = pl.read_parquet(tmp_path / "rollouts" / "step-000001.parquet")
    assert frame["prompt"][0].startswith('[{"role": "user"') or '"user"' in frame["prompt"][0]
    assert '"assistant"' in frame["completion"][0]
    hidden = GDPOTrainer(
        str(tiny_model),
        [long],
        config(tmp_path, max_steps=1),
        rows,
        rollouts_folder=tmp_path / "hidden",
        rollouts_text=False,
    )
    hidden.train()
    frame = pl.read_parquet(tmp_path / "hidden" / "step-000001.parquet")
    assert frame["prompt"].null_count() == frame["completion"].null_count() == len(frame)
    assert frame["reward/long"].null_count() == 0


def test_environment_rewards_join_the_objective(tiny_model, tmp_path):
    """The column that TRL adds for an environment's get_reward; its functions are made in TRL's own __init__."""

    class WithEnvironment(trl.GRPOTrainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)

            def get_reward(environments=None, completions=(), **columns):
                return [float(len(text)) for text in completions]

            self.reward_funcs.append(get_reward)
            self.reward_func_names.append("Calculator")
            self.reward_processing_classes.append(None)
            self.reward_weights = torch.cat([self.reward_weights, torch.ones(1)])

    class Mine(GDPOMixin, WithEnvironment):
        pass

    objective = Objective(vowels=Reward(vowels, weight=0.5), method="mo_grpo")
    trainer = Mine(str(tiny_model), args=config(tmp_path, max_steps=1), train_dataset=PROMPTS, objective=objective)
    assert trainer.objective.names == ["vowels", "Calculator"]
    assert trainer.objective.method == "mo_grpo"
    seen = spy(trainer)
    trainer.train()
    scores, advantages = seen[0]
    expected = gdpo.advantages(scores.double(), 8, "mo_grpo", weights=[0.5, 1.0])
    np.testing.assert_allclose(advantages, expected, atol=1e-5)


class Door:
    """An environment without tools that owns its reward."""

    opened = 0

    def reset(self, **row):
        Door.opened += 1
        self.reward = None if Door.opened % 5 == 0 else float(Door.opened % 3)
        return " Push or pull?"

    def get_reward(self):
        return self.reward


@pytest.mark.skipif(
    "get_reward()" not in Path(trl.trainer.grpo_trainer.__file__).read_text(), reason="this TRL has no such environment"
)
def test_a_real_environment(tiny_model, tmp_path):
    """TRL's own environments: their reward joins the objective with weight 1, missing where they give none."""

    def long(completions, **columns):
        return [float(len(completion[0]["content"])) for completion in completions]

    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model, padding_side="left")
    tokenizer.chat_template = (  # TRL asks for one that can render calls of tools
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}"
        "{% for call in message['tool_calls'] or [] %}{{ call['function']['name'] }}{{ call['function']['arguments'] }}"
        "{% endfor %}\n{% endfor %}"
    )
    rows = datasets.Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in ("a", "bc")])
    trainer = GDPOTrainer(
        str(tiny_model), args=config(tmp_path, max_steps=1), train_dataset=rows, environment_factory=Door,
        processing_class=tokenizer,
        objective=Objective(long=Reward(long, weight=0.5)), rollouts_folder=tmp_path / "rollouts",
    )  # fmt: skip
    assert trainer.objective.names == ["long", "Door"]
    trainer.train()
    frame = pl.read_parquet(tmp_path / "rollouts" / "step-000001.parquet")
    assert frame["reward/Door"].null_count() > 0
    assert frame["weight/Door"].unique().to_list() == [1.0]
    scores = frame.select("reward/long", "reward/Door").to_numpy()
    np.testing.assert_allclose(frame["advantage"], gdpo.advantages(scores, 8, weights=[0.5, 1.0]), atol=1e-12)


def test_a_full_disk_costs_the_table_not_the_run(tiny_model, tmp_path, monkeypatch):
    real = os.replace

    def full(source, target):
        if "rollouts" in str(target):
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr("gdpo.rollouts.table.os.replace", full)
    trainer = GDPOTrainer(
        str(tiny_model), [vowels], config(tmp_path, max_steps=3), PROMPTS, rollouts_folder=tmp_path / "rollouts"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    said = [str(entry.message) for entry in caught if "rollouts" in str(entry.message)]
    assert len(said) == 1
    assert "No space left" in said[0]
    assert trainer.state.global_step == 3
    assert trainer._gdpo_writer.lost == 3
    assert list((tmp_path / "rollouts").iterdir()) == []


def test_a_writer_that_must_not_fail(tiny_model, tmp_path, monkeypatch, caplog):
    """Under the name GRPOTrainer, which `gdpo train` uses, a full disk ends the run."""
    from gdpo.trl import GRPOTrainer

    def full(source, target):
        raise OSError(28, "No space left on device")

    trainer = GRPOTrainer(str(tiny_model), [vowels], config(tmp_path), PROMPTS, rollouts_folder=tmp_path / "rollouts")
    monkeypatch.setattr("gdpo.rollouts.table.os.replace", full)
    with caplog.at_level(logging.ERROR), pytest.raises(gdpo.Error, match="No space left on device; free space"):
        trainer.train()


RESUMED = """
import os, signal, sys
from test_trl import PROMPTS, config, vowels
from test_trl_trainer import Learning, even
from gdpo import Objective, Reward
from gdpo.trl import GDPOTrainer
from gdpo.weights import ramp
import json
model, folder, kill = sys.argv[1:]
objective = Objective(vowels=Reward(vowels, weight=ramp(0.0, 1.0, steps=4)), even=Reward(even, weight=Learning()))
def watch(step):
    weights = {name: schedule.value(trainer._gdpo_progress()) for name, schedule in trainer.objective.weights.items()}
    with open(folder + "/weights.jsonl", "a") as file:
        file.write(json.dumps([step.step, weights]) + "\\n")
    if step.step == int(kill):
        os.kill(os.getpid(), signal.SIGKILL)
trainer = GDPOTrainer(model, args=config(folder, max_steps=5, save_strategy="steps", save_steps=1), train_dataset=PROMPTS,
                      objective=objective, on_step=watch)
trainer.train(resume_from_checkpoint=kill == "0")
"""


class Learning(gdpo.weights.Schedule):
    """A weight that has seen so many batches."""

    def __init__(self):
        self.seen = 0

    def value(self, progress):
        return 1.0 + self.seen / 8

    def observe(self, scores, progress):
        self.seen += 1

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]

    def config(self):
        return 1.0


@pytest.mark.slow
def test_killed_and_resumed(tiny_model, tmp_path):
    """SIGKILL in step 4: the ramp and the weight that learns go on where the checkpoint of step 3 left them."""
    (tmp_path / "script.py").write_text(RESUMED)
    source = str(Path(gdpo.__file__).parents[1])
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), source])
    for kill, code in (("4", -signal.SIGKILL), ("0", 0)):
        done = subprocess.run(
            [sys.executable, str(tmp_path / "script.py"), str(tiny_model), str(tmp_path), kill],
            env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr[-3000:]
    import json

    lines = [json.loads(line) for line in (tmp_path / "weights.jsonl").read_text().splitlines()]
    # `watch` runs after the step was observed, so the learning weight is one batch on.
    assert [step for step, _ in lines] == [1, 2, 3, 4, 4, 5]
    assert [weights["vowels"] for _, weights in lines] == [0.0, 0.25, 0.5, 0.75, 0.75, 1.0]
    assert [weights["even"] for _, weights in lines] == [1.125, 1.25, 1.375, 1.5, 1.5, 1.625]


SPREAD = """
import json, os, sys
import torch
from test_trl import config
from test_trl_trainer import MANY
from gdpo.trl import GDPOTrainer
model, folder, which = sys.argv[1:]
rank = int(os.environ["RANK"])
def hard(completions, **columns):
    return [float(text[:1] in "abcdefghijklm" and len(text) % 3 == 0) for text in completions]
def here(completions, **columns):  # missing on the second process
    return [None if rank else float(len(text) % 5) for text in completions]
trainer = GDPOTrainer(model, [hard, here], config(folder, per_device_train_batch_size=int(os.environ["ROWS"]),
                      num_generations=4, max_steps=2, max_completion_length=12 + 8 * rank), MANY,
                      rollouts_folder=folder + "/rollouts", resample=which or None, resample_rounds=2)
real, saved = trainer._generate_and_score_completions, []
def keep(inputs):
    output = real(inputs)
    saved.append(output["advantages"].clone())
    torch.save(saved, f"{folder}/advantages-{rank}.pt")
    return output
trainer._generate_and_score_completions = keep
trainer.train()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "which"), [(6, ""), (8, "hard"), (6, "combined")])
def test_two_processes_with_uneven_shards(tiny_model, tmp_path, rows, which):
    """Groups of four over processes of six rows; a reward missing on one of them; groups replaced on both."""
    (tmp_path / "script.py").write_text(SPREAD)
    source = str(Path(gdpo.__file__).parents[1])
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), source])
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
         str(tmp_path / "script.py"), str(tiny_model), str(tmp_path), which],
        env={**os.environ, "ROWS": str(rows), "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    parts = [torch.load(tmp_path / f"advantages-{rank}.pt", weights_only=True) for rank in (0, 1)]
    for step in (1, 2):
        frame = pl.read_parquet(tmp_path / "rollouts" / f"step-{step:06d}.parquet")
        assert len(frame) == 2 * rows
        whole = torch.cat([part[step - 1] for part in parts])
        np.testing.assert_allclose(whole, frame["advantage"], atol=1e-6)
        scores = frame.select("reward/hard", "reward/here").to_numpy()
        np.testing.assert_allclose(gdpo.advantages(scores, 4), frame["advantage"], atol=1e-12)
        assert (frame.group_by("group").agg(pl.col("prompt").n_unique())["prompt"] == 1).all()
        assert frame["reward/here"][rows:].null_count() == rows
