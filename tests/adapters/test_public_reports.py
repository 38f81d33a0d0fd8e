"""Public bug reports about adapters, processes, resume and logging, in each adapter they concern."""

from __future__ import annotations

import re

import nemo_rl_standin
import numpy as np
import pytest
import torch
from test_slime import Sample, arguments
from test_trl import PROMPTS, config, vowels
from test_verl_block import Trainer, queue_of, session

import gdpo
from gdpo import Objective, Reward
from gdpo.adapters import nemo_rl, slime
from gdpo.adapters.verl_read import v1_batch
from gdpo.trl import GDPOTrainer

RAMP = {"schedule": "ramp", "start": 0.2, "end": 1.0, "steps": 100}


@pytest.mark.parametrize("returned", [[1.0], [1.0, 0.0]])
@pytest.mark.parametrize("by", ["objective", "reward_funcs"])
def test_p13_a_reward_of_another_length(tiny_model, tmp_path, returned, by):
    """huggingface/trl 6533, 6534: a list of one was spread over all completions."""

    def custom(completions, **columns):
        return list(returned)

    if by == "objective":
        trainer = GDPOTrainer(str(tiny_model), args=config(tmp_path, max_steps=1), train_dataset=PROMPTS,
                              objective=Objective(custom=custom, vowels=vowels))  # fmt: skip
    else:
        trainer = GDPOTrainer(str(tiny_model), [custom, vowels], config(tmp_path, max_steps=1), PROMPTS)
    with pytest.raises(Exception, match="custom") as found:
        trainer.train()
    assert {str(len(returned)), "16"} <= set(re.findall(r"\d+", str(found.value))), found.value


def test_p14_missing_names_in_slime(tmp_path):
    """verl 7151, 1044: the names are those of all samples, whichever comes first."""
    samples = [{"acc": 1}, {"acc": 0, "format": 1}, {"acc": None, "format": 0}, {"acc": 1}]
    scores = np.array([[1, np.nan], [0, 1], [np.nan, 0], [1, np.nan]])
    for order in (range(4), range(3, -1, -1)):
        order = list(order)
        _, found = slime.post_process(arguments(tmp_path), [Sample(0, reward=dict(samples[k])) for k in order])
        np.testing.assert_allclose(found, gdpo.advantages(scores, 4)[order], atol=1e-12)


def test_p15_segments_of_one_rollout_in_verl():
    """miles 2378, 1325, slime 2062: three outputs of a session are one rollout, whose advantage each gets."""
    rows = {"q_a_0": 0, "q_a_1": 0, "q_a_2": 1, "q_b_0": 0, "q_c_0": 0}  # the last output of a session is scored
    run = session({"rewards": ["a"]})
    queue, meta = queue_of({key: {"a": float(value)} for key, value in rows.items()})
    batch = v1_batch(run, queue, meta, {})
    batch.groups = ["q"] * 3
    found = run.advantages({"response_mask": torch.ones(5, 2)}, batch)
    np.testing.assert_allclose(found[:, 0], [1.15458506] * 3 + [-0.57729253] * 2, atol=1e-6)


def test_p16_leave_one_out():
    """NeMo-RL 1518: a leave-one-out spread divides by 0 + eps and gives a million; the spread stays the group's."""
    wanted = [1.499887486, -0.499962495, -0.499962495, -0.499962495]
    options = {"baseline": "leave-one-out"}
    run = session({"rewards": ["a"], "options": options})
    queue, meta = queue_of({f"q_{k}_0": {"a": float(k == 0)} for k in range(4)})
    batch = v1_batch(run, queue, meta, {})
    batch.groups = ["q"] * 4
    np.testing.assert_allclose(run.advantages({"response_mask": torch.ones(4, 1)}, batch)[:, 0], wanted, atol=1e-6)
    nemo_rl_standin.standin()
    try:
        nemo_rl.install()
        settings = nemo_rl_standin.config(gdpo={"weights": {"a": 1.0}, "options": options})
        found = nemo_rl.GDPOAdvantageEstimator(settings, None).compute_advantage(
            prompt_ids=torch.zeros(4, 2), rewards=None, mask=torch.ones(4, 3),
            repeated_batch={"reward/a": torch.tensor([1.0, 0, 0, 0])},
        )  # fmt: skip
    finally:
        nemo_rl_standin.leave()
    np.testing.assert_allclose(found[:, 0], wanted, atol=1e-6)


def test_p18_the_logged_total_is_weighted(tiny_model, tmp_path):
    """huggingface/trl 5352: the logged total was the unweighted 1.0."""

    def a(completions, **columns):
        return [1.0] * len(completions)

    def b(completions, **columns):
        return [0.0] * len(completions)

    objective = Objective(a=Reward(a, weight=0.7), b=Reward(b, weight=0.3))
    by_name = GDPOTrainer(
        str(tiny_model), args=config(tmp_path, max_steps=1), train_dataset=PROMPTS, objective=objective
    )
    settings = config(tmp_path, max_steps=1, reward_weights=[0.7, 0.3])
    by_place = GDPOTrainer(str(tiny_model), [a, b], settings, PROMPTS)
    for trainer in (by_name, by_place):
        trainer.train()
        line = trainer.state.log_history[0]
        assert line["reward"] == pytest.approx(0.7, abs=1e-6)  # TRL's own, float32
        assert line["gdpo/rewards/a/mean"] == pytest.approx(1.0, abs=1e-9)
        assert line["gdpo/rewards/b/mean"] == pytest.approx(0.0, abs=1e-9)
        assert line["gdpo/rewards/a/weight"] == pytest.approx(0.7, abs=1e-9)


def test_p18_in_verl():
    run = session({"weights": {"a": 0.7, "b": 0.3}})
    queue, meta = queue_of({f"q_{k}_0": {"a": 1, "b": 0} for k in range(4)})
    batch = v1_batch(run, queue, meta, {})
    batch.groups = ["q"] * 4
    run.advantages({"response_mask": torch.ones(4, 1)}, batch)
    wanted = {"a/mean": 1.0, "b/mean": 0.0, "a/weight": 0.7, "b/weight": 0.3}
    assert {key: batch.metrics[f"gdpo/rewards/{key}"] for key in wanted} == pytest.approx(wanted, abs=1e-9)


def test_p19_a_ramp_after_a_restart(tmp_path):
    """huggingface/trl 3148, 3247: at step 50 the weight is 0.6 after a resume, not 0.2."""
    weights = {0: 0.2, 25: 0.4, 50: 0.6, 75: 0.8, 100: 1.0, 150: 1.0}
    trainer = Trainer(global_steps=50, total_training_steps=150)
    session({"weights": {"a": RAMP}}, trainer).save(tmp_path)
    for step, weight in weights.items():
        again = session({"weights": {"a": RAMP}}, trainer)
        again.load(tmp_path)
        trainer.global_steps = step + 1
        assert again.objective.weights["a"].value(again.progress()) == pytest.approx(weight, abs=1e-12)
        args = arguments(tmp_path, weights={"a": RAMP, "b": 1.0})
        args.start_rollout_id = step  # what slime and miles go on from
        scores = np.array([[1.0, 0], [0, 1], [0, 0.5], [0, 0]])
        samples = [Sample(0, reward={"a": x, "b": y}) for x, y in scores.tolist()]
        _, found = slime.post_process(args, samples)
        np.testing.assert_allclose(found, gdpo.advantages(scores, 4, weights=[weight, 1.0]), atol=1e-12)
