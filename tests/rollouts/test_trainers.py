"""Dumps that the real trainers' code writes while it runs."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import gdpo
from gdpo.audit import measures
from gdpo.audit.explain import explain
from gdpo.rollouts import open_dump

PYTHON = os.environ.get("GDPO_VERL_PYTHON", sys.executable)
"""A Python that has verl, which wants an environment of its own."""


def vowels(completions, **columns):
    return [float(sum(c in "aeiou" for c in text)) for text in completions]


def digits(completions, **columns):
    return [None if len(text) % 7 == 0 else float(any(c.isdigit() for c in text)) for text in completions]


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["normalize_then_sum", "sum_then_normalize"])
def test_a_real_trl_run(tiny_model, tmp_path, aggregation):
    import datasets
    from trl import GRPOConfig, GRPOTrainer

    arguments = GRPOConfig(
        str(tmp_path), use_cpu=True, max_steps=3, per_device_train_batch_size=16, num_generations=8, logging_steps=1,
        max_completion_length=12, gradient_checkpointing=False, report_to="none", disable_tqdm=True, learning_rate=1e-3,
        log_completions=True, num_completions_to_print=0, multi_objective_aggregation=aggregation, save_steps=2,
    )  # fmt: skip
    scored = []

    class Spied(GRPOTrainer):
        def _calculate_rewards(self, *args):
            scored.append(super()._calculate_rewards(*args))
            return scored[-1]

    prompts = datasets.Dataset.from_dict({"prompt": ["abc", "hello", "what", "no"]})
    Spied(str(tiny_model), [vowels, digits], arguments, prompts).train()
    dump = open_dump(tmp_path)  # the whole output folder, with checkpoints, optimizer.pt and trainer_state.json
    batches = list(dump.batches())
    assert (dump.summary.format, dump.rewards, dump.summary.skipped) == ("trl", ["vowels", "digits"], [])
    assert dump.summary.steps == [1, 2, 3]
    assert dump.summary.group_sizes == {8: 6}
    for batch, matrix in zip(batches, scored, strict=True):
        np.testing.assert_array_equal(batch.scores, matrix.double().numpy())
        if aggregation == "normalize_then_sum":
            expected = gdpo.estimate(batch.scores, batch.group).advantages
        else:  # TRL's sum counts what is missing as 0
            expected = gdpo.estimate(np.nan_to_num(batch.scores), batch.group, method="grpo").advantages
        np.testing.assert_allclose(batch.rows["advantage"].to_numpy(), expected, atol=2e-4)
    found = check_audit(dump)
    if aggregation == "normalize_then_sum":
        assert (found.method, found.method_from) == ("gdpo", "its advantages")


def check_audit(dump, method=None):
    """The audit's numbers are those of ``gdpo.estimate`` on the same scores."""
    found = gdpo.audit(dump, method=method)
    batches = list(dump.batches())
    made = [gdpo.estimate(batch.scores, batch.group, method=found.method) for batch in batches]
    assert found.summary.rollouts == sum(len(batch.scores) for batch in batches)
    live = np.concatenate([one.live for one in made])
    for k, name in enumerate(dump.rewards):
        known = np.concatenate([np.bincount(batch.group, ~np.isnan(batch.scores[:, k])) > 0 for batch in batches])
        dead = (known & ~live[:, k]).sum() / known.sum()
        assert found.measures["dead_share"][name] == pytest.approx(dead, abs=1e-12)
    share = measures.contribution_share(
        np.concatenate([one.advantages for one in made]), np.concatenate([one.contributions for one in made])
    )
    dominance = [found.measures[f"dominance_{found.method}"][name] for name in dump.rewards]
    np.testing.assert_allclose(dominance, share, atol=1e-9)
    for row in (0, len(batches[0].scores) - 1):
        name = batches[0].rows["rollout"][row] if "rollout" in batches[0].rows.columns else f"{batches[0].step}-{row}"
        one = explain(dump, str(name), method=found.method)
        assert one.advantage == pytest.approx(float(made[0].advantages[row]), abs=1e-9)
    return found


WRITER = """
import sys
import numpy as np
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

folder = sys.argv[1]
for step in (1, 2):
    inputs = ["q0", "q1"] * 4
    outputs = [f"step {step} \\u2028 row {row}\\x85" for row in range(8)]
    info = {"acc": [float(row % 2) for row in range(8)], "passed": [row < 3 for row in range(8)],
            "judge": list(np.linspace(0, 1, 8)), "pred": [f"x{row}" for row in range(8)],
            "safe": [None if row % 3 else 1.0 for row in range(8)]}
    RayPPOTrainer._write_generations(inputs, outputs, ["1"] * 8, [0.5] * 8, info, folder, step)
try:
    outputs[5] = "\\ud800"
    RayPPOTrainer._write_generations(inputs, outputs, ["1"] * 8, [0.5] * 8, info, folder, 3)
except UnicodeEncodeError:
    print("died")
"""


@pytest.mark.slow
def test_real_verl_code(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if subprocess.run([PYTHON, "-c", "import verl"], env=environment, capture_output=True).returncode:
        pytest.skip("verl is not installed; GDPO_VERL_PYTHON names a Python that has it")
    result = subprocess.run([PYTHON, "-c", WRITER, str(tmp_path)], env=environment, capture_output=True, text=True)
    assert "died" in result.stdout, result.stderr[-2000:]
    dump = open_dump(tmp_path)
    batches = list(dump.batches())
    assert (dump.summary.format, dump.rewards) == ("verl", ["acc", "passed", "judge", "safe"])
    assert [len(batch.scores) for batch in batches[:2]] == [8, 8]
    np.testing.assert_allclose(batches[0].scores[:, 2], np.linspace(0, 1, 8))
    assert batches[0].group.tolist() == [0, 1] * 4
    assert batches[0].rows["completion"][3] == "step 1 \u2028 row 3\x85"
    assert dump.summary.missing["safe"] >= 10
    assert dump.summary.steps[:2] == [1, 2]
    check_audit(dump, "gdpo")
    check_audit(dump, "grpo")
