"""The audit on the planted dumps, whose numbers were computed by other code, and on real trainers' files."""

from __future__ import annotations

import json

import pytest
from support import SHARED

import gdpo
from gdpo.audit.run import audit
from gdpo.rollouts import open_dump

ROOT = SHARED / "cases" / "dumps"
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not ROOT.is_dir(), reason="the dumps lie beside a developer's checkout"),
]
EXPECT = json.loads((ROOT / "expect.json").read_text(encoding="utf-8")) if ROOT.is_dir() else {"files": []}
PLANTED = [case for case in EXPECT["files"] if "measures" in case]


def assert_equal(found, expected, where):
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert key in found, f"{where} has no {key}"
            assert_equal(found[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for at, value in enumerate(expected):
            assert_equal(found[at], value, f"{where}[{at}]")
    elif isinstance(expected, float | int):
        assert found == pytest.approx(expected, abs=1e-9), where
    else:
        assert found == expected, where


@pytest.mark.parametrize("case", PLANTED, ids=lambda case: case["path"])
def test_measures_are_exactly_those_of_the_case(case):
    found = audit(open_dump(ROOT / case["path"]), weights=case.get("file_weights"))
    assert_equal(found.measures, case["measures"], "measures")


@pytest.mark.parametrize("case", PLANTED, ids=lambda case: case["path"])
def test_planted_findings_are_found_by_name(case):
    found = audit(open_dump(ROOT / case["path"])).findings
    for wanted in case["findings"]:
        same = [one for one in found if one.id == wanted["kind"]]
        if "reward" in wanted:
            same = [one for one in same if one.reward == wanted["reward"]]
        if "rewards" in wanted:
            same = [one for one in same if set(one.rewards) == set(wanted["rewards"])]
        if "method" in wanted:
            same = [one for one in same if one.method == wanted["method"]]
        if "sign" in wanted:
            same = [one for one in same if one.evidence["sign"] == wanted["sign"]]
        assert same, wanted
        assert same[0].rollouts
        assert same[0].interval[0] <= same[0].value <= same[0].interval[1]
    others = {one.id for one in found} - {one["kind"] for one in case["findings"]}
    assert others <= {"unearned", "missing", "dominance", "scale", "no-signal"}


@pytest.mark.parametrize("name", ["trl/text", "trl/chat", "trl/relog", "trl/lost"])
def test_the_method_of_a_real_trainer_is_told_from_its_advantages(name):
    found = audit(open_dump(ROOT / name))
    assert (found.method, found.method_from) == ("gdpo", "its advantages")


@pytest.mark.parametrize("name", ["verl_v1", "nemo_rl", "areal"])
def test_a_total_alone_is_not_enough_to_say(name):
    found = gdpo.audit(ROOT / name)
    assert found.verdict.startswith("Not enough to say")
    assert found.findings == []
    assert found.summary.rollouts > 0


@pytest.mark.parametrize("case", [case for case in EXPECT["files"] if "rewards" in case], ids=lambda case: case["path"])
def test_every_dump_gives_json_with_what_was_read(case):
    try:
        result = gdpo.audit(ROOT / case["path"]).to_dict()
    except gdpo.Error:
        assert any("error" in other for other in case.get("either", []))
        return
    json.dumps(result, allow_nan=False)
    outcomes = [case, *case.get("either", [])]
    assert result["rollouts"] == case["rollouts"]
    assert {"format", "groups", "group_sizes", "steps", "rewards", "missing", "duplicates_dropped", "skipped", "measures",
            "verdict", "findings"} <= set(result)  # fmt: skip
    assert any(outcome.get("group_sizes", case["group_sizes"]) == result["group_sizes"] for outcome in outcomes)
