"""audit, replay and explain, end to end and in Python."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import gdpo
from gdpo.audit.explain import explain
from gdpo.audit.replay import replay
from gdpo.audit.run import audit
from gdpo.auditing import parse, sweep
from gdpo.cli import app
from gdpo.rollouts import open_dump


@pytest.fixture
def dump(tmp_path):
    """TRL's layout: 6 steps x 8 groups x 8 rollouts; ``saved`` drowns the others under grpo, ``format`` is dead."""
    generator = np.random.default_rng(0)
    for step in range(1, 7):
        correct = (generator.random(64) < 0.5).astype(float)
        saved = generator.random(64) * 100
        grpo = gdpo.advantages(np.stack([correct, np.ones(64), saved], 1), 8, "grpo")
        pl.DataFrame(
            {
                "step": [step] * 64, "prompt": [f"<b>{step}</b> {row // 8}" for row in range(64)],
                "completion": [f"answer {row} \u202e" for row in range(64)], "correct": correct, "format": [1.0] * 64,
                "saved": saved, "advantage": grpo,
            }
        ).write_parquet(tmp_path / f"completions_{step:05d}.parquet")  # fmt: skip
    return tmp_path


def run(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    return result.exit_code, result.output, result.exception


def test_audit(dump):
    found = audit(open_dump(dump))
    assert found.method == "grpo"
    assert found.method_from == "its advantages"
    assert {"dominance", "dead"} <= {finding.id for finding in found.findings}
    assert found.findings == sorted(found.findings, key=lambda f: -f.cost)
    dominance = next(finding for finding in found.findings if finding.id == "dominance")
    assert dominance.reward == "saved"
    assert "normalize_then_sum" in dominance.remedy
    status, output, _ = run("audit", dump)
    assert status == 0
    assert max(map(len, output.splitlines())) <= 100
    assert "saved" in output.splitlines()[0] or "format" in output.splitlines()[0]


def test_audit_json_and_status(dump):
    status, output, _ = run("audit", dump, "--json", "--fail-on", "error")
    assert status == 1
    found = json.loads(output)
    assert found["schema"] == 1
    assert (found["rollouts"], found["groups"], found["group_sizes"]) == (384, 48, {"8": 48})
    assert {"measures", "verdict", "findings", "skipped", "duplicates_dropped", "missing"} <= found.keys()
    assert {"id", "severity", "remedy", "interval", "rollouts"} <= found["findings"][0].keys()
    assert run("audit", dump, "--rewards", "correct", "--fail-on", "warning")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["audit", "nowhere"], "nowhere"), (["audit", "{dump}", "metod=gdpo"], "did you mean 'method'"),
        (["audit", "{dump}", "weights=2"], "weights.NAME=VALUE"), (["audit", "{dump}", "weights.saved=much"], "a number"),
        (["audit", "{dump}", "bounds.saved=[1,0]"], "low < high"), (["audit", "{dump}", "primary=corect"], "did you mean 'correct'"),
        (["audit", "{dump}", "--fail-on", "worst"], "severity is 'worst'"), (["audit", "{dump}", "--rewards", "corect"], "corect"),
        (["replay", "{dump}", "primary=correct"], "needs a change"), (["explain", "{dump}", "9-9"], "no rollout '9-9'"),
        (["replay", "{dump}", "weights.format=0.1,x"], "a number"), (["audit", "{dump}", "thresholds.dread=1"], "dread"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(dump, arguments, said):
    status, _, error = run(*[argument.format(dump=dump) for argument in arguments])
    assert status == 1
    assert isinstance(error, gdpo.Error)
    assert said in str(error)
    assert "\n" not in str(error)


def test_one_rollout_a_group_is_not_enough(tmp_path):
    pl.DataFrame({"step": [1] * 40, "prompt": [str(k) for k in range(40)], "completion": ["x"] * 40, "correct": [0.5] * 40}).write_parquet(
        tmp_path / "a.parquet"
    )  # fmt: skip
    found = audit(open_dump(tmp_path / "a.parquet"))
    assert found.verdict.startswith("Not enough to say")
    assert not found.enough


def test_explain_adds_up_to_the_advantage(dump):
    scores = pl.read_parquet(dump / "completions_00002.parquet").select("correct", "format", "saved").to_numpy()
    for method in ("grpo", "gdpo", "dvao"):
        expected = gdpo.advantages(scores, 8, method)
        for row in (0, 17, 63):
            found = explain(open_dump(dump), f"2-{row}", method=method)
            assert found.advantage == pytest.approx(expected[row], abs=1e-12)
            assert sum(part.contribution for part in found.parts) == pytest.approx(found.advantage, abs=1e-12)
            assert len(found.mates) == 8
    status, output, _ = run("explain", dump, "2-17")
    assert status == 0
    assert "format is 1 for every rollout of the group, so it adds nothing" in " ".join(output.split())
    assert "\u202e" not in output
    assert json.loads(run("explain", dump, "2-17", "--json")[1])["rollout"] == "2-17"


def test_replay(dump):
    found = replay(
        open_dump(dump),
        {"gdpo": {"method": "gdpo"}, "same": {"method": "grpo"}, "light": {"weights": {"saved": 0.001}}},
    )
    assert [one.label for one in found] == ["as it was", "gdpo", "same", "light"]
    assert found[0].measures["dominance"]["saved"] > 0.99
    assert 0.3 < found[1].measures["dominance"]["saved"] < 0.7
    assert (found[2].sign_flips, found[2].changed) == (0.0, [])
    assert found[2].correlation == pytest.approx(1)
    before, after = ([], [])
    for step in range(1, 7):
        scores = (
            pl.read_parquet(dump / f"completions_{step:05d}.parquet").select("correct", "format", "saved").to_numpy()
        )
        before.append(gdpo.advantages(scores, 8, "grpo"))
        after.append(gdpo.advantages(scores, 8, "gdpo"))
    before, after = np.concatenate(before), np.concatenate(after)
    assert found[1].sign_flips == pytest.approx(np.mean(np.sign(before) * np.sign(after) < 0))
    assert found[1].correlation == pytest.approx(np.corrcoef(before, after)[0, 1])
    largest = np.argmax(np.abs(after - before))
    assert found[1].changed[0]["before"] == pytest.approx(before[largest])
    status, output, _ = run("replay", dump, "method=gdpo,dvao", "weights.saved=0.1,1", "primary=correct")
    assert status == 0
    assert "unearned" in output


def test_sweeps():
    sets, common = sweep(
        [
            "method=gdpo,dvao",
            "weights.format=0.1,1",
            "gates.format=soft(correct, 0, 1)",
            "primary=correct",
            "steps=2..3",
        ]
    )
    assert common == {"primary": "correct", "steps": (2, 3)}
    assert len(sets) == 4
    assert list(sets.values())[1] == {
        "method": "gdpo",
        "weights": {"format": 1},
        "gates": {"format": "soft(correct, 0, 1)"},
    }
    assert parse(["bounds.a=[0, 2]", "options.clip=3"]) == {"bounds": {"a": (0, 2)}, "options": {"clip": 3}}


def test_frames_and_paths_in_python(dump):
    frame = pl.concat([pl.read_parquet(path) for path in sorted(dump.glob("*.parquet"))])
    one, two = gdpo.audit(frame), gdpo.audit(dump)
    assert one.measures == two.measures
    assert [finding.id for finding in one.findings] == [finding.id for finding in two.findings]
    assert gdpo.audit(open_dump(dump), method="gdpo").method == "gdpo"


def test_the_summary_is_of_the_whole_dump(tmp_path):
    """Examples are read from the first steps again, which begins the reader's own summary anew."""
    generator = np.random.default_rng(1)
    for step in range(1, 8):
        pl.DataFrame(
            {"step": [step] * 40_000, "prompt": [str(row // 8) for row in range(40_000)], "completion": ["x"] * 40_000,
             "a": generator.random(40_000), "b": 100 * generator.random(40_000)}
        ).write_parquet(tmp_path / f"completions_{step:05d}.parquet")  # fmt: skip
    found = audit(open_dump(tmp_path))
    assert found.findings
    assert (found.summary.rollouts, found.summary.groups, len(found.summary.steps)) == (280_000, 35_000, 7)
