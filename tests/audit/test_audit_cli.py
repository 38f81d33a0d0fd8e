"""`gdpo audit`, `replay` and `explain` as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest


def gdpo(*words, status=0):
    done = subprocess.run(
        [sys.executable, "-m", "gdpo", *map(str, words)], capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == status, done.stderr
    return done.stdout if status != 2 else done.stderr


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """As TRL writes it: format never varies, length runs to hundreds."""
    random = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("completions")
    for step in (1, 2, 3):
        size = random.integers(1, 300, 96)
        pl.DataFrame(
            {
                "step": [step] * 96,
                "prompt": [f"question {step}.{row // 8}" for row in range(96)],
                "completion": [f"\x1b[31m<script>{'x' * n}" for n in size],
                "correct": random.integers(0, 2, 96).astype(float),
                "format": np.ones(96),
                "brief": -size.astype(float),
            }
        ).write_parquet(folder / f"completions_{step:05d}.parquet")
    return folder


def test_audit_prints_the_verdict_first_and_fits_80_columns(dump):
    shown = gdpo("audit", dump)
    lines = shown.splitlines()
    assert lines[0].startswith("trl: 288 rollouts, 36 groups (36 of 8), 3 steps; method grpo (assumed)")
    assert "\x1b" not in shown
    assert max(map(len, lines)) <= 100
    for id in ("dominance", "scale", "dead", "length"):
        assert f"  {id}" in shown
    assert 'multi_objective_aggregation="normalize_then_sum"' in shown.replace("\n         ", " ")


def test_audit_json_and_fail_on(dump):
    found = json.loads(gdpo("audit", dump, "--json", "--fail-on", "error", status=1))
    assert found["schema"] == 1
    assert (found["format"], found["rollouts"], found["group_sizes"]) == ("trl", 288, {"8": 36})
    one = next(one for one in found["findings"] if one["id"] == "dead")
    assert one["reward"] == "format"
    assert one["severity"] == "error"
    assert {"measure", "value", "interval", "remedy", "rollouts", "threshold", "rests_on", "cost"} <= set(one)
    assert found["examples"][one["rollouts"][0]]["rewards"]["format"]["value"] == 1
    gdpo("audit", dump, "--fail-on", "note", status=1)
    gdpo(
        "audit",
        dump,
        "method=gdpo",
        "thresholds.dead=2",
        "thresholds.length=2",
        "thresholds.scale=1e9",
        "thresholds.dominance=2",
        "--fail-on",
        "note",
    )


def test_parts_of_a_run_against_each_other(dump):
    assert "0 of" in gdpo("audit", dump, "steps=1..1", "--against", dump, "against.steps=1..1")
    other = json.loads(
        gdpo("audit", dump / "completions_00001.parquet", "--against", dump / "completions_00002.parquet", "--json")
    )
    assert {change["measure"] for change in other["changes"]} >= {"mean", "dead_share", "dominance"}


def test_replay_and_sweep(dump):
    shown = gdpo("replay", dump, "method=gdpo,dvao", "weights.brief=0.1,1")
    assert shown.count("method=gdpo") == 4
    found = json.loads(gdpo("replay", dump, "method=gdpo", "gates.brief=correct >= 1", "--json"))
    assert found["before"]["method"] == "grpo"
    assert found["after"][0]["dominance"]["brief"] < 0.7 < found["before"]["dominance"]["brief"]


def test_explain(dump):
    name = json.loads(gdpo("audit", dump, "--json"))["findings"][0]["rollouts"][0]
    shown = gdpo("explain", dump, name)
    assert f"Rollout {name} of step" in shown
    assert "format is 1 for the whole group and adds nothing." in shown
    assert "\x1b" not in shown
    found = json.loads(gdpo("explain", dump, name, "method=gdpo", "--json"))
    assert sum(part["contribution"] for part in found["parts"]) == pytest.approx(found["advantage"], abs=1e-12)


@pytest.mark.parametrize(("words", "message"), [
    (["audit", "nowhere"], "nowhere"),
    (["audit", "DUMP", "colour=3"], "colour"),
    (["audit", "DUMP", "method=gdop"], "did you mean 'gdpo'"),
    (["audit", "DUMP", "weights.brif=3"], "did you mean 'brief'"),
    (["audit", "DUMP", "primary=brif"], "did you mean 'brief'"),
    (["audit", "DUMP", "--fail-on", "panic"], "severity"),
    (["replay", "DUMP"], "nothing to change"),
    (["explain", "DUMP", "none"], "no rollout"),
    (["audit", "DUMP", "steps=77..78", "--against", "DUMP"], "Not enough to say"),
])  # fmt: skip
def test_bad_input_is_one_sentence_and_status_2(dump, words, message):
    said = gdpo(*[str(dump) if word == "DUMP" else word for word in words], status=2)
    assert message in said
    assert said.count("\n") == 1
