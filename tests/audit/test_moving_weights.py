"""A run whose weights are all 0 for a time can be audited, replayed and explained."""

import numpy as np
import pytest
from typer.testing import CliRunner

from gdpo import Objective, Progress, Reward
from gdpo.adapters.metrics import step_metrics
from gdpo.cli import app
from gdpo.rollouts import rollout_frame
from gdpo.rollouts.writer import RolloutWriter
from gdpo.weights import ramp


def never(completions, **columns):
    raise AssertionError


@pytest.mark.parametrize("levels", [None, {"both": ["a", "b"]}])
def test_schedules_that_begin_at_0(tmp_path, levels):
    rewards = {"a": Reward(never, weight=ramp(0, 1, steps=3)), "b": Reward(never, weight=ramp(0, 2, steps=3))}
    objective = Objective(levels=levels, **rewards)
    writer, generator = RolloutWriter(tmp_path), np.random.default_rng(0)
    for step in range(4):
        scores = generator.integers(0, 2, (32, 2)).astype(float)
        estimate = objective.advantages(scores, 8, Progress(step))
        metrics = step_metrics(objective, estimate, scores, estimate.group, Progress(step))
        assert metrics["rewards/b/weight"] == min(step / 3, 1) * 2
        assert bool(estimate.advantages.any()) == (step > 0)
        table = rollout_frame(
            step=step + 1, prompts=[f"p{row // 8}" for row in range(32)], completions=["x"] * 32, lengths=[1] * 32,
            names=objective.names, scores=scores, group=estimate.group, estimate=estimate, task="",
        )  # fmt: skip
        writer.put(step + 1, lambda table=table: table, {"gdpo.objective": objective.to_yaml()})
    writer.flush()
    for command in (["audit"], ["replay", "method=grpo"], ["explain", "1-3"]):
        done = CliRunner().invoke(app, [command[0], str(tmp_path), *command[1:]])
        assert done.exit_code == 0, (command, done.output, done.exception)
