"""The audit as a callback of a TRL training: what it says, when it stops, what it refuses."""

from __future__ import annotations

import time
import warnings

import pytest
import trl
from test_trl import PROMPTS, config, vowels

import gdpo
from gdpo import Objective, Reward
from gdpo.adapters import trl_audit
from gdpo.trl import AuditCallback, GDPOTrainer, attach
from gdpo.weights import ramp


def polite(completions, **columns):
    """Planted: no rollout differs from another, and the weight says that it should matter."""
    return [0.5] * len(completions)


def train(model, folder, callback, rewards=(vowels, polite), kind=GDPOTrainer, **changes):
    """A training of a few steps with a callback; what it warned about the rewards."""
    arguments = config(folder, **{"max_steps": 6, "num_generations": 4, "max_completion_length": 6, **changes})
    trainer = kind(str(model), list(rewards), arguments, PROMPTS, callbacks=[callback])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    said = [str(one.message) for one in caught]
    return trainer, [one for one in said if "Remedy" in one or "training stops" in one or "audit failed" in one]


def test_a_dead_reward_is_said_once(tiny_model, tmp_path):
    callback = AuditCallback(every=2)
    trainer, said = train(tiny_model, tmp_path, callback)
    assert trainer.state.global_step == 6
    assert [(one.id, one.reward, one.severity) for one in callback.findings] == [("dead", "polite", "error")]
    assert len(said) == 1
    assert said[0].startswith("polite is the same for every rollout in 100 % of the groups")
    assert "(error, step 2)" in said[0]
    assert "drop polite or grade it in finer steps" in said[0]
    assert callback.stopped_by is None


def test_a_dead_reward_stops_the_training(tiny_model, tmp_path):
    callback = AuditCallback("stop", every=3)
    trainer, said = train(tiny_model, tmp_path, callback)
    assert trainer.state.global_step == 3
    assert callback.stopped_by is callback.findings[0]
    assert said[-1] == f"training stops at step 3: {callback.findings[0].what}"
    assert len([line for line in trainer.state.log_history if "loss" in line]) == 3


def test_nothing_is_said_of_rewards_that_teach(tiny_model, tmp_path):
    callback = AuditCallback("stop", every=2)
    trainer, said = train(tiny_model, tmp_path, callback, rewards=[vowels])
    assert (trainer.state.global_step, said, callback.findings) == (6, [], [])


def test_what_is_left_is_audited_at_the_end(tiny_model, tmp_path):
    callback = AuditCallback("stop", every=50)
    trainer, said = train(tiny_model, tmp_path, callback, max_steps=3)
    assert trainer.state.global_step == 3
    assert ["(error, step 3)" in one for one in said] == [True]


def test_the_window_bounds_what_is_kept(tiny_model, tmp_path, monkeypatch):
    seen, real = [], trl_audit.audit

    def spied(dump, **settings):
        seen.append([batch.step for batch in dump.batches()])
        return real(dump, **settings)

    monkeypatch.setattr(trl_audit, "audit", spied)
    train(tiny_model, tmp_path, AuditCallback(every=2, window=3))
    assert seen == [[1, 2], [2, 3, 4], [4, 5, 6]]


def test_the_same_as_the_audit_of_the_table(tiny_model, tmp_path):
    """Moving weights and a gate: the numbers in memory are those on disk."""
    objective = Objective(
        vowels=vowels, polite=Reward(polite, weight=ramp(0.5, 1.0, steps=4), given="vowels >= 1"), method="gdpo"
    )
    trainer = trl.GRPOTrainer(
        str(tiny_model), objective.functions(), config(tmp_path, max_steps=4, num_generations=4), PROMPTS
    )
    callback = AuditCallback(every=4, severity="note")
    trainer.add_callback(callback)
    # With text the audit takes lengths in characters; in memory there are tokens only.
    attach(trainer, objective, rollouts_folder=tmp_path / "rollouts", rollouts_text=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    whole = gdpo.audit(tmp_path / "rollouts")
    key = [(one.id, one.reward, one.value, one.what) for one in whole.findings]
    assert [(one.id, one.reward, one.value, one.what) for one in callback.findings] == key
    memory = trl_audit.audit(callback._dump())
    assert memory.measures == whole.measures
    assert memory.method_from == whole.method_from == "the dump"


def test_an_audit_that_fails_does_not_end_the_training(tiny_model, tmp_path, monkeypatch):
    def broken(dump, **settings):
        raise ValueError("no such thing")

    monkeypatch.setattr(trl_audit, "audit", broken)
    trainer, said = train(tiny_model, tmp_path, AuditCallback("stop", every=2))
    assert trainer.state.global_step == 6
    assert said == ["the audit failed: ValueError: no such thing. Training goes on (this is said once)"]


def test_plain_trl_is_refused(tiny_model, tmp_path):
    with pytest.raises(gdpo.Error, match=r"sees rollouts of GDPOTrainer only: use it, or gdpo\.trl\.attach"):
        train(tiny_model, tmp_path, AuditCallback(), kind=trl.GRPOTrainer)


def test_wrong_settings(tiny_model, tmp_path):
    for settings, said in (
        ({"on_finding": "halt"}, "on_finding is 'halt', but 'warn' or 'stop'"),
        ({"severity": "bad"}, "severity is 'bad', but one of error"),
        ({"every": 0}, "every is 0, but a whole number"),
        ({"window": 2.5}, "window is 2.5, but a whole number"),
        ({"thresholds": {"ded": 0.5}}, "did you mean 'dead'"),
    ):
        with pytest.raises(gdpo.Error, match=said):
            AuditCallback(**settings)
    with pytest.raises(gdpo.Error, match="primary is 'vowel', which is no reward; did you mean 'vowels'"):
        train(tiny_model, tmp_path, AuditCallback(primary="vowel"))


def test_it_costs_little(tiny_model, tmp_path):
    """An audit of a full window of 128 rollouts a step, once in twenty steps."""
    import numpy as np

    from gdpo.adapters.trl import Step

    objective = Objective(vowels=vowels, polite=polite)
    callback, draw = AuditCallback(), np.random.default_rng(0)
    callback.gdpo_begin(objective)
    started = time.thread_time()
    for step in range(1, 101):
        scores = draw.integers(0, 2, (128, 2)).astype(float)
        estimate = objective.advantages(scores, 8)
        callback.gdpo_rollouts(Step(step, [], [], [8] * 128, scores, estimate, {}))
    kept = time.thread_time() - started
    started = time.thread_time()
    callback._audited()
    audited = time.thread_time() - started
    assert len(callback._steps) == 100
    assert kept / 100 < 0.01
    assert audited < 2.0
