"""Every dump beside a developer's checkout: what was read and measured is what was counted by hand."""

from __future__ import annotations

import json
import math

import pytest
from support import SHARED

from gdpo.audit.run import audit
from gdpo.rollouts import open_dump

DUMPS = SHARED / "cases" / "dumps"
pytestmark = pytest.mark.data


def measured():
    path = DUMPS / "expect.json"
    if not path.is_file():
        reason = "the dumps lie beside a developer's checkout only"
        return [pytest.param(None, None, marks=pytest.mark.skip(reason=reason))]
    expect = json.loads(path.read_text(encoding="utf-8"))
    entries = next(value for value in expect.values() if isinstance(value, dict | list) and "planted" in str(value))
    pairs = entries.items() if isinstance(entries, dict) else ((entry["path"], entry) for entry in entries)
    return [pytest.param(name, entry, id=name) for name, entry in pairs if "measures" in entry]


def compare(found, expected, where):
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert key in found, f"{where}.{key}: {sorted(found)}"
            compare(found[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, (one, two) in enumerate(zip(found, expected, strict=True)):
            compare(one, two, f"{where}[{number}]")
    elif isinstance(expected, float):
        assert found is not None, where
        assert math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9), f"{where}: {found} {expected}"
    else:
        assert found == expected, where


@pytest.mark.parametrize(("name", "entry"), measured())
def test_measures_are_those_of_the_cases(name, entry):
    options = {"method": entry["method"]} if "method" in entry else {}
    if "run_weights" in entry:
        options["weights"] = entry["run_weights"]
    found = audit(open_dump(DUMPS / name), **options)
    compare(found.measures, entry["measures"], name)
