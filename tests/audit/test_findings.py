"""Findings: their order, what their evidence may hold, and their JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import gdpo
from gdpo.audit.findings import Finding, at_or_above


def made(severity="error", reward="a", id="some-id", **more):
    return Finding(id, severity, reward, "It is so.", more.pop("evidence", {}), "Mend it.", **more)


def test_the_worst_comes_first_then_by_reward_and_id():
    findings = [
        made("note"),
        made("warning", "b"),
        made("error", "b"),
        made("error", "a", "z"),
        made("error", "a", "b"),
    ]
    ordered = [(f.severity, f.reward, f.id) for f in sorted([*findings, made("error", None)])]
    assert ordered == [
        ("error", None, "some-id"), ("error", "a", "b"), ("error", "a", "z"), ("error", "b", "some-id"),
        ("warning", "b", "some-id"), ("note", "a", "some-id"),
    ]  # fmt: skip
    assert [len(at_or_above(findings, s)) for s in ("error", "warning", "note")] == [3, 4, 5]


def test_evidence_is_plain_short_and_json():
    evidence = {
        "number": np.float32(0.5), "array": np.arange(3), "nan": math.nan, "long": "x" * 10_000, "odd": "\ud800",
        "rows": range(100), "object": object(), 3: {"deep": np.int64(1)},
    }  # fmt: skip
    found = made(evidence=evidence, value=math.inf, interval=(0.1, 0.2), rollouts=("1-2",), measure="m").to_dict()
    back = json.loads(json.dumps(found, allow_nan=False))
    assert back["evidence"]["number"] == 0.5
    assert back["evidence"]["array"] == [0, 1, 2]
    assert back["evidence"]["nan"] == "nan"
    assert len(back["evidence"]["long"]) == 160
    assert back["evidence"]["odd"] == "?"
    assert back["evidence"]["rows"][-1] == "… 80 more"
    assert back["evidence"]["3"] == {"deep": 1}
    assert (back["measure"], back["interval"], back["rollouts"]) == ("m", [0.1, 0.2], ["1-2"])
    assert "measure" not in made().to_dict()


def test_an_unknown_severity_is_an_error():
    with pytest.raises(gdpo.Error, match="severity is 'fatal', but one of error, warning, note"):
        made("fatal")
