"""What a page is made from: shapes, pulls and kept groups beside the same counted the plain way on the whole dump."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from gdpo.audit import kept as kept_module
from gdpo.audit import pulls as pulls_module
from gdpo.audit.chunks import chunks
from gdpo.audit.collect import collect
from gdpo.audit.kept import SAMPLED, cut
from gdpo.audit.setting import Setting
from gdpo.audit.shapes import BINS, STRETCHES, PartShapes
from gdpo.audit.sums import EPS
from gdpo.rollouts import Batch, Dump, Summary

NAMES = ["one", "two", "three"]


def dump_of(steps, names, rows=None):
    """``steps``: a list of (scores [B, R], group [B]); ``rows``: columns for each step."""
    batches = [
        Batch(at, np.asarray(scores, float), group, pl.DataFrame(
            {"rollout": [f"{at}-{row}" for row in range(len(scores))]} | (rows[at - 1] if rows else {})
        ))
        for at, (scores, group) in enumerate(steps, 1)
    ]  # fmt: skip
    return Dump(list(names), "gdpo", {}, Summary(format="gdpo", rewards=list(names)), lambda: iter(batches))


def some_dump(steps=9, groups=20, size=6, prompts=None, seed=0, missing=0.1):
    generator = np.random.default_rng(seed)
    made, rows = [], []
    for step in range(steps):
        group = np.arange(groups).repeat(size)
        scores = np.stack(
            [generator.integers(0, 2, groups * size), generator.normal(size=groups * size), np.ones(groups * size)], 1
        ).astype(float)
        scores[generator.random(scores.shape) < missing] = np.nan
        made.append((scores, group))
        column = {} if prompts is None else {"prompt": [prompts(step, g) for g in group]}
        rows.append(column | {"completion": [f"{step} {row}" for row in range(len(group))]})
    return dump_of(made, NAMES, rows=rows)


def collected(dump, target=500, method="gdpo", **settings):
    return collect(chunks(dump, target), Setting(tuple(NAMES), method=method, **settings), ("grpo", "gdpo")).kept


def whole(dump, method="gdpo"):
    """Contributions and scores of the whole dump, and each row's step."""
    setting = Setting(tuple(NAMES), method=method)
    parts = [(setting.estimate(chunk), chunk) for chunk in chunks(dump, 1)]
    return (
        np.concatenate([np.asarray(made.contributions) for made, _ in parts]),
        np.concatenate([chunk.scores for _, chunk in parts]),
        np.concatenate([np.full(len(chunk.scores), chunk.steps[0]) for _, chunk in parts]),
    )


@pytest.mark.parametrize("target", [1, 500, 10**6])
def test_shapes_count_every_rollout_once(target):
    dump = some_dump()
    shapes = collected(dump, target).shapes
    parts, scores, _ = whole(dump)
    counts = shapes.whole()
    assert (counts.sum(axis=1) == len(parts)).all()
    assert (counts[:, BINS + 1] == np.isnan(scores).sum(axis=0)).all()
    known = ~np.isnan(scores)
    assert (counts[:, BINS] == ((parts == 0) & known).sum(axis=0)).all()
    for k in range(2):
        edges, shares = shapes.bars(k)
        values = parts[known[:, k] & (parts[:, k] != 0), k]
        direct, _ = np.histogram(np.clip(values, edges[0], np.nextafter(edges[-1], 0)), edges)
        np.testing.assert_allclose(shares, direct / known[:, k].sum(), atol=1e-12)
        assert len(shares) <= 40
        assert shares.sum() + shapes.zero()[k] == pytest.approx(1)
    assert shapes.zero()[2] == 1


def test_quantiles_are_those_of_the_values_to_a_bin():
    dump = some_dump(steps=4, groups=60)
    shapes = collected(dump, 1).shapes
    parts, scores, steps = whole(dump)
    found = shapes.quantiles()
    for at, step in enumerate(np.unique(steps)):
        values = parts[(steps == step) & ~np.isnan(scores[:, 1]), 1]
        direct = np.quantile(values, (0.05, 0.25, 0.75, 0.95), method="inverted_cdf")
        assert np.abs(found[1, at] - direct).max() <= shapes.widths[1]


def test_many_steps_stay_in_few_stretches():
    dump = some_dump(steps=300, groups=2, size=3)
    shapes = collected(dump, 40).shapes
    assert len(shapes.counts) <= STRETCHES
    assert shapes.whole().sum() == 300 * 6 * 3
    assert shapes.stretch_ends()[-1] == 299


def test_a_reward_that_awakes_late_gets_its_own_bins():
    shapes, at = PartShapes(), 0
    for scale in (0.0, 3.0, 1e9):
        chunk = next(chunks(some_dump(steps=1, groups=2, size=4, missing=0)))
        parts = np.full((8, 3), scale) * np.array([1, -1] * 4)[:, None]
        shapes.add(chunk, parts, np.ones((3, 8), bool))
        at += 8
    assert shapes.whole().sum() == 3 * at
    assert (shapes.widths > 0).all()
    assert (shapes.whole()[:, [0, BINS - 1]].sum(axis=1) == 8).all()  # what lies beyond is in the outermost bins


def test_pulls_by_prompt_are_what_the_definition_says():
    dump = some_dump(prompts=lambda step, group: f"prompt {group % 7}")
    weights = {"one": 2.0, "two": -1.0}
    found = collected(dump, 300, weights=weights).pulls
    lost, push, groups, pair = {}, {}, {}, {}
    for batch in dump.batches():
        for group in np.unique(batch.group):
            values = batch.scores[batch.group == group]
            std = np.nan_to_num(np.nanstd(values, axis=0, ddof=1))
            live = np.array([len(set(v[~np.isnan(v)].tolist())) > 1 for v in values.T])
            z = np.where(np.isnan(values) | ~live, 0, (values - np.nanmean(values, axis=0)) / (std + EPS))
            z *= [2, -1, 1]
            key = f"prompt {group % 7}"
            groups[key] = groups.get(key, 0) + 1
            push[key] = push.get(key, 0) + np.abs(z).sum()
            lost[key] = lost.get(key, 0) + (np.abs(z).sum(axis=1) - np.abs(z.sum(axis=1))).sum()
            opposite = z[:, 0] * z[:, 1] < 0
            pair[key] = pair.get(key, 0) + 2 * np.minimum(np.abs(z[:, 0]), np.abs(z[:, 1]))[opposite].sum()
    ranked = sorted(lost, key=lambda key: -lost[key])
    assert found.by_text
    assert found.pairs == [(0, 1), (0, 2), (1, 2)]
    for pull, key in zip(found.most(), ranked, strict=True):
        assert pull.groups == groups[key]
        assert (pull.push, pull.lost, pull.pairs[0]) == pytest.approx((push[key], lost[key], pair[key]))
    assert found.whole().lost == pytest.approx(sum(lost.values()))
    assert found.losing(0.2) == sum(lost[key] >= 0.2 * push[key] for key in lost)


def test_a_prompt_that_loses_most_keeps_its_worst_group(monkeypatch):
    monkeypatch.setattr(pulls_module, "KEPT", 4)
    dump = some_dump(steps=30, prompts=lambda step, group: f"{step} {group}", missing=0)
    kept = collected(dump, 1)
    most = kept.pulls.most()
    assert len(most) == 4
    assert {pull.at for pull in most} == set(kept.pulled)
    for pull in most:
        group = kept.pulled[pull.at]
        assert group.prompt == f"{group.step - 1} {group.group}"
        assert len(group.rollouts) == 6


def test_without_prompts_each_group_stands_for_itself():
    found = collected(some_dump(steps=3)).pulls
    assert not found.by_text
    assert len(found.rows) == 60


def test_prompts_beyond_the_cap_are_counted(monkeypatch):
    monkeypatch.setattr(pulls_module, "MOST_PROMPTS", 25)
    found = collected(some_dump(steps=3, prompts=lambda step, group: f"{step} {group}"), 1).pulls
    assert len(found.rows) == 25
    assert found.left_out == 35
    assert found.whole().groups == 25


def test_with_many_rewards_few_pairs_are_followed():
    generator = np.random.default_rng(0)
    names = [f"r{k}" for k in range(12)]
    scores = generator.normal(size=(800, 12))
    scores[:, 7] = -scores[:, 3] + 0.01 * scores[:, 7]
    dump = dump_of([(scores, np.arange(100).repeat(8))], names)
    found = collect(chunks(dump), Setting(tuple(names)), ("grpo",)).kept.pulls
    assert len(found.pairs) == pulls_module.MOST_PAIRS
    assert found.pairs[int(np.argmax(found.whole().pairs))] == (3, 7)


@pytest.mark.parametrize("target", [1, 700, 10**6])
def test_the_sample_is_the_same_however_the_dump_is_cut(target):
    kept = collected(some_dump(steps=20), target)
    chosen = [(group.step, group.group) for group in kept.chosen()]
    assert len(chosen) == SAMPLED
    assert chosen == [(g.step, g.group) for g in collected(some_dump(steps=20), 200).chosen()]
    assert len({step for step, _ in chosen}) > 5


def test_the_sample_is_fair():
    keys = kept_module._key(np.arange(400_000)).astype(np.float64) / 2**64
    counts, _ = np.histogram(keys, 20, (0, 1))
    assert np.abs(counts / 20_000 - 1).max() < 0.03
    assert abs(np.corrcoef(keys[:-1], keys[1:])[0, 1]) < 0.01


def test_kept_rollouts_carry_the_numbers_of_the_estimate():
    dump = some_dump(steps=2)
    kept = collected(dump, 1)
    setting = Setting(tuple(NAMES), method="gdpo")
    by_step = {chunk.steps[0]: (chunk, setting.estimate(chunk)) for chunk in chunks(dump, 1)}
    for group in kept.chosen():
        chunk, made = by_step[group.step]
        rows = np.flatnonzero(chunk.group == group.group)
        for one, row in zip(group.rollouts, rows, strict=True):
            assert one.completion == f"{group.step - 1} {row}"
            assert one.advantage == made.advantages[row]
            assert one.contributions == list(made.contributions[row])
            assert one.normalized == list(made.normalized[row])
            assert sum(one.contributions) == pytest.approx(one.advantage)


def test_telling_groups_are_those_where_two_methods_differ_most():
    scores = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0], [0, 0, 0]], float)
    plain = np.tile([[1.0, 0, 0], [0, 0, 0]], (3, 1))
    dump = dump_of([(np.concatenate([plain, plain, scores]), np.arange(3).repeat(6))], NAMES)
    kept = collected(dump, method="grpo")
    gap, number, _, group = kept.telling[0]
    assert (number, group.group) == (2, 2)
    own = {round(one.advantage, 6) for one in group.rollouts}
    other = {round(one.other, 6) for one in group.rollouts}
    assert len(other) - len(own) == gap == 1
    assert [entry[1] for entry in kept.telling] == [2]


def test_large_groups_are_thinned_evenly():
    generator = np.random.default_rng(0)
    dump = dump_of([(generator.normal(size=(300, 3)), np.zeros(300, int))], NAMES)
    (group,) = collected(dump).chosen()
    assert group.size == 300
    assert len(group.rollouts) == kept_module.MEMBERS
    advantages = [one.advantage for one in group.rollouts]
    assert max(advantages) > 2
    assert min(advantages) < -2


def test_long_texts_are_cut_and_say_so():
    text = cut("a" * 10_000 + "b" * 10_000, 900)
    assert text.startswith("aaa")
    assert text.endswith("bbb")
    assert "19,100 characters left out" in text
    assert len(text) < 1000
    chat = json.dumps([{"role": "user", "content": "x" * 50_000}, {"role": "assistant", "content": "short"}])
    shown = json.loads(cut(chat, 4000))
    assert [message["role"] for message in shown] == ["user", "assistant"]
    assert len(shown[0]["content"]) < 2200
    assert shown[1]["content"] == "short"
    assert cut("[{" * 5000, 300).count("left out") == 1


def test_memory_does_not_grow_with_the_dump():
    """Twenty times the steps, the same number of kept groups and texts."""
    for steps in (5, 100):
        kept = collected(some_dump(steps=steps, prompts=lambda step, group: f"{step} {group}"), 1)
        assert len(kept.sampled) <= SAMPLED
        assert len(kept.pulled) <= pulls_module.KEPT
        assert len(kept.telling) <= kept_module.TELLING
        assert kept.pulls.sums.nbytes <= 2 * (20 * steps) * 6 * 8  # the one thing that grows, with the prompts only


def test_a_group_is_numbered_in_its_step():
    chunk = next(chunks(some_dump(steps=3, groups=4, size=2)))
    assert [chunk.place(row) for row in range(0, 24, 2)] == [0, 1, 2, 3] * 3
