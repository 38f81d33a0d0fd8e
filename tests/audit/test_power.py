"""Planted faults are found by name, and clean runs are clean; ``benchmarks/audit_power.py`` has the whole table."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("audit_power", ROOT / "benchmarks" / "audit_power.py")
power = importlib.util.module_from_spec(spec)
spec.loader.exec_module(power)


@pytest.mark.parametrize("fault", power.FAULTS)
def test_planted_faults_are_found_and_clean_runs_are_clean(fault):
    _, ids, doses = power.FAULTS[fault]
    for seed in range(1000, 1004):
        assert power.audited(fault, doses[-1], seed) & ids
        assert power.audited(fault, 0, seed) == set()


def test_the_table_keeps_its_promise():
    results = json.loads((ROOT / "benchmarks" / "results" / "audit_power.json").read_text())
    assert results["seeds"] >= 200
    assert results["least found at the last dose"] >= 0.95
    assert results["clean runs with a finding, mean"] < 0.01
