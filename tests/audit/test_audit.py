"""Measures against plain loops, planted and clean runs, replay, explain and against."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from made_dumps import dump_of

import gdpo
from gdpo.audit import measures
from gdpo.audit.against import compare
from gdpo.audit.chunks import chunks, joined
from gdpo.audit.collect import collect
from gdpo.audit.explain import explain
from gdpo.audit.replay import replay
from gdpo.audit.run import audit, known_setting
from gdpo.audit.setting import Setting
from gdpo.audit.simulate import FAULTS, simulate
from gdpo.audit.tables import measure_table
from gdpo.auditing import sweep
from gdpo.rollouts import open_dump, rollout_frame, write_frame
from gdpo.training import recipe

NAMES = ("a", "b", "c")


def ragged(seed, steps=5, missing=0.1):
    random = np.random.default_rng(seed)
    made, rows = [], []
    for _ in range(steps):
        sizes = random.integers(1, 7, 6)
        group = np.repeat(np.arange(6), sizes)
        random.shuffle(group)
        scores = np.stack(
            [random.integers(0, 2, len(group)), random.normal(size=len(group)), random.integers(0, 3, len(group)) / 2],
            1,
        ).astype(float)
        scores[random.random(scores.shape) < missing] = np.nan
        made.append((scores, group))
        rows.append({"length": random.integers(1, 99, len(group))})
    return dump_of(made, NAMES, rows=rows), made, rows


def loop_dead(made, k):
    tied = with_values = 0
    for scores, group in made:
        for g in np.unique(group):
            values = scores[group == g, k]
            values = values[~np.isnan(values)]
            with_values += len(values) > 0
            tied += len(values) > 0 and values.min() == values.max()
    return tied / with_values


def loop_distinct(made, method):
    advantages = rewards = 0
    for scores, group in made:
        found = gdpo.advantages(scores, group, method)
        for g in np.unique(group):
            rows = scores[group == g]
            live = any(len(set(column[~np.isnan(column)])) > 1 for column in rows.T)
            if live:
                advantages += len({round(float(a), 9) + 0.0 for a in found[group == g]})
                rewards += len({tuple("nan" if np.isnan(v) else v for v in row) for row in rows.tolist()})
    return advantages, rewards


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", ["grpo", "gdpo"])
def test_measures_equal_plain_loops(seed, method):
    dump, made, _ = ragged(seed)
    table = audit(dump, method=method).measures
    for k, name in enumerate(NAMES):
        assert table["dead_share"][name] == pytest.approx(loop_dead(made, k), abs=1e-12)
    advantages, rewards = loop_distinct(made, method)
    assert table["resolution"][method]["distinct_advantages"] == advantages
    assert table["resolution"][method]["distinct_reward_vectors"] == rewards
    whole = [gdpo.estimate(scores, group, method) for scores, group in made]
    a, c = np.concatenate([e.advantages for e in whole]), np.concatenate([e.contributions for e in whole])
    expected = measures.contribution_share(a, c)
    np.testing.assert_allclose([table[f"dominance_{method}"][name] for name in NAMES], expected, atol=1e-12)
    z = np.concatenate([e.normalized for e in whole])
    both = [(made[s][1] * 0 == 0) & e.live[e.group][:, 0] & e.live[e.group][:, 1] for s, e in enumerate(whole)]
    raw = np.concatenate([scores for scores, _ in made])
    mask = np.concatenate(both) & ~np.isnan(raw[:, 0]) & ~np.isnan(raw[:, 1])
    assert table["correlation"][0]["both_vary"] == pytest.approx(np.corrcoef(z[mask, 0], z[mask, 1])[0, 1], abs=1e-9)


def flat(value, where=""):
    """Every number of a nested table, by its place."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: one for name, entry in items for key, one in flat(entry, f"{where}/{name}").items()}
    return {where: value}


def test_streaming_changes_no_number():
    dump, _, _ = ragged(7, steps=9)
    setting = Setting(NAMES, method="gdpo")
    one, *others = [flat(measure_table(collect(chunks(dump, target), setting, ["grpo"]))) for target in (1, 40, 10_000)]
    for other in others:
        assert one.keys() == other.keys()
        for place, value in one.items():
            assert other[place] == (pytest.approx(value, abs=1e-9) if isinstance(value, float) else value), place


def test_a_chunk_sorts_groups_and_keeps_rows_together():
    dump, made, rows = ragged(1, steps=2)
    chunk = joined(list(dump.batches()))
    assert (np.diff(chunk.group) >= 0).all()
    first = np.argsort(made[0][1], kind="stable")
    np.testing.assert_array_equal(chunk.column("length")[: len(first)], np.asarray(rows[0]["length"])[first])


def test_groups_that_cancel_count_in_full():
    scores = np.array([[1, 0], [0, 1], [1, 1], [0, 0], [1, 0], [0, 1]], float)
    dump = dump_of([(scores, [0, 0, 1, 1, 2, 2])], ("a", "b"))
    table = audit(dump, method="mo_grpo").measures
    # Two groups of three cancel: each sum of |z| is 4 * 0.7070, as is that of the one left, which cancels nothing.
    assert table["cancellation_mo_grpo"] == pytest.approx(2 / 3, abs=1e-6)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_by_name(fault):
    for seed in range(4):
        found = audit(simulate(fault, seed)).findings
        assert any(one.id == FAULTS[fault].finding and FAULTS[fault].reward in one.rewards for one in found), seed


def test_clean_runs_are_called_clean():
    for seed in range(8):
        result = audit(simulate(None, seed))
        assert result.findings == []
        assert result.verdict.startswith("Nothing wrong was found in 2,048 rollouts")
        assert result.enough


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_power_over_200_seeds(fault):
    def hit(seed):
        found = audit(simulate(fault, 5000 + seed)).findings
        if fault is None:
            return bool(found)
        return any(one.id == FAULTS[fault].finding and FAULTS[fault].reward in one.rewards for one in found)

    share = sum(hit(seed) for seed in range(200)) / 200
    assert share < 0.01 if fault is None else share >= 0.95


def test_few_groups_and_single_rollouts_are_not_enough_to_say():
    random = np.random.default_rng(0)
    few = dump_of([(random.random((16, 2)), np.repeat(np.arange(4), 4))], ("a", "b"))
    assert audit(few).verdict.startswith("Not enough to say: 4 groups of two rollouts")
    single = dump_of([(random.random((64, 2)), np.arange(64))], ("a", "b"))
    result = audit(single)
    assert "one rollout a group" in result.verdict
    assert not result.enough
    some = dump_of([(random.random((40, 2)), np.repeat(np.arange(10), 4))], ("a", "b"))
    assert audit(some).verdict.startswith("Not enough to say: nothing wrong was found")
    none = dump_of([], ("a", "b"))
    assert audit(none).verdict == "Not enough to say: there are no rollouts."


def test_the_package_is_callable_and_takes_a_table():
    random = np.random.default_rng(0)
    table = pl.DataFrame(
        {
            "step": np.repeat([1, 2], 64),
            "prompt": [f"p{row // 4}" for row in range(128)],
            "completion": ["x" * (row % 7 + 1) for row in range(128)],
            "correct": random.integers(0, 2, 128).astype(float),
            "style": random.random(128),
            "advantage": np.zeros(128),
        }
    )
    result = gdpo.audit(table)
    assert result.summary.rollouts == 128
    assert list(result.weights) == ["correct", "style"]
    assert gdpo.audit(table, thresholds={"dead": 0.0001, "surely_dead": 0.0}).findings
    with pytest.raises(gdpo.Error, match="did you mean 'dead'"):
        gdpo.audit(table, thresholds={"deed": 1})
    with pytest.raises(gdpo.Error, match="cannot be audited"):
        gdpo.audit(3)


def test_replay_tells_what_a_change_does():
    dump = simulate("scale", 0)
    changes, _ = sweep(["method=gdpo,dvao", "weights.style=0.1,1"])
    before, *after = replay(dump, changes)
    assert [one.label for one in after] == [
        "method=gdpo weights.style=0.1",
        "method=gdpo weights.style=1",
        "method=dvao weights.style=0.1",
        "method=dvao weights.style=1",
    ]
    assert before.method == "grpo"
    assert before.measures["dominance"]["style"] > 0.9
    assert after[1].measures["dominance"]["style"] < 0.5
    assert 0 < after[1].sign_flips < 0.5
    gaps = [abs(one["after"] - one["before"]) for one in after[1].changed]
    assert gaps == sorted(gaps, reverse=True)
    everything = {}
    for chunk in chunks(dump):
        one, two = (Setting(tuple(dump.rewards), method=m).estimate(chunk).advantages for m in ("grpo", "gdpo"))
        everything |= dict(zip(chunk.ids(), np.abs(one - two), strict=True))
    assert gaps[0] == pytest.approx(max(everything.values()))


def test_replay_with_a_gate():
    before, after = replay(simulate(None, 1), {"gate": {"gates": {"style": "correct >= 1"}}}, primary="correct")
    assert after.measures["unearned"] < before.measures["unearned"]
    assert after.measures["unearned_share"]["correct"] == after.measures["unearned"]
    with pytest.raises(gdpo.Error, match="no reward"):
        replay(simulate(None, 1), {"gate": {"gates": {"style": "korrect >= 1"}}})


@pytest.mark.parametrize("method", ["grpo", "gdpo", "dvao", "rvpo", "gd2po"])
def test_explain_adds_up(method):
    dump, made, _ = ragged(3)
    for step, row in ((1, 0), (3, 5)):
        found = explain(dump, f"{step}-{row}", method=method)
        scores, group = made[step - 1]
        assert found.advantage == pytest.approx(float(gdpo.advantages(scores, group, method)[row]), abs=1e-12)
        assert sum(part.contribution for part in found.parts) == pytest.approx(found.advantage, abs=1e-12)
        assert len(found.mates) == (group == group[row]).sum()
    with pytest.raises(gdpo.Error, match="no rollout '1-9999'"):
        explain(dump, "1-9999")


def test_a_part_of_a_dump_counts_itself_only():
    dump = simulate(None, 3)
    part = dump.within(2, 4)
    found = audit(part)
    assert (found.summary.rollouts, found.summary.groups, found.summary.steps) == (768, 96, [2, 3, 4])
    assert found.summary.group_sizes == {8: 96}
    assert found.summary.missing["clear"] == sum(np.isnan(b.scores).sum() for b in part.batches())


def test_against_is_sure_of_what_changed_only():
    same = compare(audit(simulate(None, 1)), audit(simulate(None, 1)))
    assert not any(change.sure for change in same)
    changed = compare(audit(simulate("dead", 1)), audit(simulate(None, 1)))
    sure = [change for change in changed if change.sure and change.measure == "dead_share"]
    assert [change.about for change in sure] == ["style"]
    assert sure[0].difference == pytest.approx(0.9, abs=0.05)
    with pytest.raises(gdpo.Error, match="share no reward"):
        compare(audit(simulate(None, 1)), audit(ragged(0)[0]))


def test_a_run_of_ours_is_audited_under_its_own_objective(tmp_path):
    """Gate, moving weight and method stand in the dump; explain then gives the advantage that was trained on."""
    from gdpo.objective import Progress

    def score(completions, **columns):
        raise AssertionError

    random = np.random.default_rng(0)
    objective = gdpo.Objective(
        correct=gdpo.Reward(score, range=(0, 1)),
        format=gdpo.Reward(score, weight=gdpo.weights.ramp(0.2, 1.0, steps=4)),
        concise=gdpo.Reward(score, weight=0.5, given="correct >= 1"),
    )
    metadata = {"gdpo.framework": "gdpo", "gdpo.objective": objective.to_yaml()}
    group = np.repeat(np.arange(12), 8)
    for step in range(4):
        scores = np.stack([random.random(96) < 0.01, random.integers(0, 2, 96), random.random(96)], 1).astype(float)
        made = objective.advantages(scores, group, Progress(step))
        frame = rollout_frame(
            step=step,
            prompts=[f"{step}.{g}" for g in group],
            completions=["text"] * 96,
            lengths=[4] * 96,
            names=objective.names,
            scores=scores,
            group=group,
            estimate=made,
        )
        write_frame(frame, tmp_path / f"step-{step:06d}.parquet", metadata)
    result = gdpo.audit(tmp_path)
    assert (result.method, result.method_from, result.primary) == ("gdpo", "the dump", "correct")
    found = {one.id: one for one in result.findings}
    assert found["gate"].reward == "concise"
    assert found["gate"].evidence["gate"] == "correct >= 1"
    assert found["unearned"].reward == "correct"
    one = explain(open_dump(tmp_path), "2-17")
    assert one.advantage == pytest.approx(one.recorded, abs=1e-12)
    assert one.parts[1].weight == pytest.approx(0.6)


@pytest.mark.parametrize("name", recipe.names())
def test_the_table_of_every_recipe_is_audited_under_its_objective(name, tmp_path):
    """What a run writes of its objective is enough for the audit, whatever options its rewards take."""
    objective = recipe.load(name).build_objective()
    random = np.random.default_rng(0)
    lows = [0.0 if bounds is None else bounds[0] for bounds in objective.bounds()]
    scores = lows + random.random((96, len(objective.names)))
    made = objective.advantages(scores, 8, lengths=np.full(96, 4.0))
    frame = rollout_frame(
        step=1, prompts=[str(row // 8) for row in range(96)], completions=["text"] * 96, lengths=[4] * 96,
        names=objective.names, scores=scores, group=np.arange(96) // 8, estimate=made,
    )  # fmt: skip
    write_frame(frame, tmp_path / "step-000001.parquet", {"gdpo.objective": objective.to_yaml()})
    dump = open_dump(tmp_path)
    assert known_setting(dump).bounds == {
        name: bounds for name, bounds in zip(objective.names, objective.bounds(), strict=True) if bounds is not None
    }
    one = explain(dump, "1-17")
    assert one.method_from == "the dump"
    assert one.advantage == pytest.approx(one.recorded, abs=1e-9)


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_a_reward_at_its_bound_in_every_rollout_is_dead(level):
    """Public report: a similarity that was 0 for every rollout (P12 of the cases beside a checkout)."""
    random = np.random.default_rng(0)
    steps = [(np.stack([random.integers(0, 2, 64), np.full(64, level)], 1), np.arange(64) // 8) for _ in range(4)]
    found = {one.id: one for one in audit(dump_of(steps, ("correct", "similar")), bounds={"similar": (0, 1)}).findings}
    assert found["dead"].reward == "similar"
    assert found["dead"].severity == "error"
    assert found["saturation"].reward == "similar"
