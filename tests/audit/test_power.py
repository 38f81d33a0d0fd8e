"""The kept table of the audit's power; ``benchmarks/audit_power.py`` makes it."""

from __future__ import annotations

import json
from pathlib import Path

from gdpo.audit.simulate import FAULTS

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "audit_power.json"


def test_the_table_keeps_its_promise():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert results["faults"].keys() == FAULTS.keys()
    for name, fault in FAULTS.items():
        cell = results["faults"][name]["power"][f"{fault.dose:g}"]
        assert cell["seeds"] >= 200
        assert cell["found"] >= 0.95, name
        none = results["faults"][name]["power"][f"{fault.doses[0]:g}"]
        assert none["found"] == 0, name
    assert results["clean"]["seeds"] >= 1000
    assert results["clean"]["share"] < 0.01
