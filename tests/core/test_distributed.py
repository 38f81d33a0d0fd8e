"""Over 2 and 4 gloo processes, started by torchrun: the numbers of one process, the same error everywhere, no hang."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gdpo

WORKER = Path(__file__).with_name("distributed_worker.py")


def torchrun(case, processes, folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [*command, str(WORKER), case, str(folder)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_equal_to_one_process(processes, tmp_path):
    for result in torchrun("equal", processes, tmp_path):
        assert result["count"] == 4 * (6 * 14 + 14 + 5 * 2)
        assert result["worst"] < 1e-9


@pytest.mark.parametrize("processes", [2, 4])
def test_a_group_across_ranks(processes, tmp_path):
    expected = [0, 0, 1.224677006, -1.224677006, 1.414097314, 0, -1.414097314, 0]
    for result in torchrun("public_case", processes, tmp_path):
        np.testing.assert_allclose(result["advantages"], np.array(expected)[result["rows"]], rtol=0, atol=1e-6)


def test_segments_on_different_ranks(tmp_path):
    expected = np.array([1.15458506, 1.15458506, 1.15458506, -0.57729253, -0.57729253])
    for result in torchrun("segments", 2, tmp_path):
        np.testing.assert_allclose(result["advantages"], expected[result["rows"]], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_stream_over_ranks(tmp_path):
    first, second = torchrun("stream", 2, tmp_path)
    assert max(first["worst"], second["worst"]) < 1e-9
    assert first["state"] == second["state"]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_bad_input_on_one_rank_is_an_error_on_all(processes, tmp_path):
    results = torchrun("error", processes, tmp_path)
    last = processes - 1
    expected = [
        f"rank {last}: reward 'reward_1' is inf at row 3",
        f"rank {last}: the weight of 'reward_1' is nan",
        f"rank {last} has rewards ['reward_0', 'reward_1'], but rank 0 has ['reward_0', 'reward_1', 'reward_2']",
        f"rank {last}: groups has shape (5,), but one id a rollout was expected: [48]",
        f"rank {last} has options",
        f"rank {last} has method 'grpo', but rank 0 has 'gdpo'",
        f"rank {last} has rewards ['a', 'b', 'x'], but rank 0 has ['a', 'b', 'c']",
        "the weights of 'reward_0' have both signs",
        f"groups of 4 do not fit the rollouts of all ranks: {48 * processes - 1} is not a multiple",
        f"rank {last}: rewards cannot be read as numbers",
        "method 'sa_mrpo' needs the bounds of 'reward_0'",
        "kappa is -1, but a positive number was expected",
        "every weight is 0 on every rank",
        f"rank {last}: include has shape (1,)",
    ]
    for result in results:
        assert len(result["said"]) == len(expected)
        for said, wanted in zip(result["said"], expected, strict=True):
            assert said.startswith(wanted)
        assert result["after"] > 0


def test_without_a_process_group():
    with pytest.raises(gdpo.Error, match=r"torch\.distributed is not initialised"):
        gdpo.distributed.advantages(np.zeros((4, 2)), 4)
