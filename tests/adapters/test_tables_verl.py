"""The rollout table that verl's own code leads to, legacy trainer and v1, gets the audit of the same scores."""

from __future__ import annotations

import numpy as np
import pytest
from tables import LENGTHS, NAMES, SIZE, STEPS, WEIGHTS, check_same, reference, scores

pytest.importorskip("verl")
pytest.importorskip("ray")

from test_verl import compute, config, data_proto, put, queue, trainer_v1  # noqa: F401

from gdpo.adapters import verl_hooks


def block(folder, method):
    return {"weights": WEIGHTS, "method": method, "rollouts_folder": str(folder), "rollouts_text": False}


def balanced(step):
    order = np.random.default_rng(step).permutation(len(LENGTHS))
    return scores(step)[order], [f"uid{step}-{row // SIZE}" for row in order], np.array(LENGTHS)[order]


@pytest.mark.parametrize("method", ["gdpo", "grpo"])
def test_verls_compute_advantage(tmp_path, method, capsys):
    made = config(block=block(tmp_path / "rollouts", method))
    for step in range(1, STEPS + 1):
        compute(data_proto(*balanced(step), names=NAMES), made)
    verl_hooks._session(made.algorithm).close()
    check_same(tmp_path / "rollouts", reference(tmp_path / "want", method, text=False), capsys)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gdpo", "grpo"])
def test_verls_v1_trainer(queue, tmp_path, method, capsys):  # noqa: F811
    made = config(block=block(tmp_path / "rollouts", method))
    trainer = trainer_v1(made)
    for step in range(1, STEPS + 1):
        trainer.global_steps = step
        trainer._compute_advantage(put(queue, *balanced(step), names=NAMES), metrics={})
    trainer._gdpo.close()
    check_same(tmp_path / "rollouts", reference(tmp_path / "want", method, text=False), capsys)
