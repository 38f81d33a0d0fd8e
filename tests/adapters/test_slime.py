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
    index: int | None = None
    rollout_id: int | None = None


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


def test_a_reward_without_a_score_in_a_later_batch(tmp_path):
    """The first batch must name each reward (None is no score); a later one may lack it."""
    scores, samples = batch()
    args = arguments(tmp_path, weights={"correct": 1.0, "format": 1.0})
    for sample in samples:
        sample.reward["format"] = None
    alone = gdpo.advantages(scores[:, :1], 4)
    np.testing.assert_allclose(slime.post_process(args, samples)[1], alone, atol=1e-12)
    for sample in samples:
        del sample.reward["format"]
    np.testing.assert_allclose(slime.post_process(args, samples)[1], alone, atol=1e-12)
    with pytest.raises(gdpo.Error, match="names the reward 'format', but this batch has the components .'correct'"):
        slime.post_process(arguments(tmp_path, weights={"correct": 1.0, "format": 1.0}), samples)


def test_samples_of_one_rollout_count_once(tmp_path):
    """slime's fan-out: a rollout that was split into samples has one weight in its group, and one row in the table."""
    scores, samples = batch()
    for row, sample in enumerate(samples):
        sample.index = row
    parts = [0, 0, 0, *range(16), 9]  # three and one more
    split = [Sample(**{**vars(samples[row]), "index": None}) for row in parts]
    for sample, row in zip(split, parts, strict=True):
        sample.rollout_id = row
    args = arguments(tmp_path)
    expected = gdpo.advantages(scores, 4)
    np.testing.assert_allclose(slime.post_process(args, split)[1], expected[parts], atol=1e-12)
    slime._run[id(args)][1].writer.flush()
    frame = pl.read_parquet(tmp_path / "rollouts" / "step-000001.parquet")
    assert len(frame) == 16
    assert frame["length"].to_list() == [12, *[3] * 8, 6, *[3] * 6]
    split[1].reward = {"correct": 7.0, "format": split[1].reward["format"]}
    with pytest.raises(gdpo.Error, match="samples of rollout 0 have the values .* for reward 'correct'"):
        slime.post_process(args, split)


def test_a_resumed_run_goes_on_where_megatron_loads(tmp_path):
    """The process that calls the hook has its arguments from before the checkpoint was read."""
    scores, samples = batch()
    ramp = {"correct": 1, "format": {"weight": {"schedule": "ramp", "start": 0, "end": 1, "steps": 10}}}
    (tmp_path / "load").mkdir()
    (tmp_path / "load" / "latest_checkpointed_iteration.txt").write_text("4\n")
    for own, step in (({}, 0), ({"start_rollout_id": 2}, 2), ({"load": str(tmp_path / "load")}, 5),
                      ({"load": str(tmp_path / "load"), "ckpt_step": 2}, 3), ({"load": str(tmp_path)}, 0)):  # fmt: skip
        args = arguments(tmp_path, rewards=ramp)
        vars(args).update({"start_rollout_id": None, **own})
        _, processed = slime.post_process(args, samples)
        np.testing.assert_allclose(processed, gdpo.advantages(scores, 4, weights=[1.0, step / 10]), atol=1e-12)
        slime._run[id(args)][1].writer.flush()
        assert (tmp_path / "rollouts" / f"step-{step + 1:06d}.parquet").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reward_key": None}, "--reward-key is not set"),
        ({"custom_advantage_function_path": "a.b"}, "--custom-advantage-function-path is 'a.b'"),
        ({"gdpo": {"weights": {"correct": 1.0, "fromat": 1.0}}}, "'fromat', but .* did you mean 'format'"),
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
    with pytest.raises(gdpo.Error, match="infinit.*'a'|'a'.*inf"):
        slime.post_process(arguments(tmp_path), [Sample(reward={"a": float("inf") if k else 0.0}) for k in range(4)])
    with pytest.raises(gdpo.Error, match="'a' of a sample is 'x'"):
        slime.post_process(arguments(tmp_path), [Sample(reward={"a": "x"})] * 4)
