"""slime's and miles's hook, on samples of their shape."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import gdpo
from gdpo.adapters import slime


@dataclass
class Sample:
    group_index: int | None = None
    prompt: str = "p"
    response: str = "r"
    response_length: int = 3
    reward: object = None
    remove_sample: bool = False
    metadata: dict = field(default_factory=dict)


def batch(rows=16, size=4, groups=True):
    generator = np.random.default_rng(0)
    scores = generator.integers(0, 2, (rows, 2)).astype(float)
    samples = [
        Sample(group_index=row // size if groups else None, reward={"format": b, "correct": a})
        for row, (a, b) in enumerate(scores.tolist())
    ]
    return scores, samples


def arguments(tmp_path, **block):
    return SimpleNamespace(
        gdpo={"rollouts_folder": "rollouts", **block},
        n_samples_per_prompt=4,
        advantage_estimator="grpo",
        save=str(tmp_path),
    )


@pytest.mark.parametrize("groups", [True, False])
def test_advantages_and_table(tmp_path, groups):
    scores, samples = batch(groups=groups)
    args = arguments(tmp_path, weights={"correct": 1.0, "format": 0.5})
    raw, processed = slime.post_process(args, samples)
    np.testing.assert_allclose(processed, gdpo.advantages(scores, 4, weights=[1.0, 0.5]))
    np.testing.assert_allclose(raw, scores @ [1.0, 0.5])
    assert type(raw[0]) is float
    slime.post_process(args, samples)
    slime._run[id(args)][1].writer.flush()
    frame = pl.read_parquet(tmp_path / "rollouts" / "step-000002.parquet")
    np.testing.assert_allclose(frame["advantage"], processed)


def test_shuffled_groups_removed_samples_missing_rewards(tmp_path):
    scores, samples = batch()
    del samples[3].reward["format"]
    samples[5].reward["format"] = None
    samples[6].remove_sample = True
    scores[[3, 5], 1] = np.nan
    order = np.random.default_rng(1).permutation(16)
    _, processed = slime.post_process(arguments(tmp_path), [samples[k] for k in order])
    # Without weights in the block, each reward counts; the columns are by name.
    expected = gdpo.advantages(scores, 4, include=np.arange(16) != 6)
    np.testing.assert_allclose(processed, expected[order], atol=1e-12)


def test_a_ramp_moves_by_rollouts(tmp_path):
    scores, samples = batch()
    args = arguments(
        tmp_path, rewards={"correct": 1, "format": {"weight": {"schedule": "ramp", "start": 0, "end": 1, "steps": 2}}}
    )
    args.start_rollout_id = 1
    _, processed = slime.post_process(args, samples)
    np.testing.assert_allclose(processed, gdpo.advantages(scores, 4, weights=[1.0, 0.5]), atol=1e-12)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"advantage_estimator": "ppo"}, "--advantage-estimator is 'ppo'"),
        ({"normalize_advantages": True}, "--normalize-advantages whitens"),
        ({"gdpo": {"weights": {"correct": 1.0}}}, "has the component 'format', but gdpo has the rewards"),
        ({"gdpo": {"weihgts": {}}}, "did you mean 'weights'"),
    ],
)
def test_errors(tmp_path, change, said):
    args = arguments(tmp_path)
    vars(args).update(change)
    with pytest.raises(gdpo.Error, match=said):
        slime.post_process(args, batch()[1])


def test_a_reward_that_is_no_dict(tmp_path):
    with pytest.raises(gdpo.Error, match="is 1.0, but a dict"):
        slime.post_process(arguments(tmp_path), [Sample(reward=1.0)] * 4)
    with pytest.raises(gdpo.Error, match="'a' of a sample is 'x'"):
        slime.post_process(arguments(tmp_path), [Sample(reward={"a": "x"})] * 4)
