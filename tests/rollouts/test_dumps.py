"""The dumps that frameworks leave, and what must be found in each."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from support import SHARED

from gdpo import Error
from gdpo.rollouts import open_dump

FOLDER = SHARED / "cases" / "dumps"
FILE = FOLDER / "expect.json"
CASES = json.loads(FILE.read_text(encoding="utf-8"))["files"] if FILE.is_file() else []
ERRORS = {"empty": "empty", "pickle": "pickle", "metrics": "step means", "packed": "zstd", "no rewards": "no reward"}
KEYS = ("format", "rollouts", "groups", "group_sizes", "steps", "rewards", "missing", "duplicates_dropped", "weights")

pytestmark = pytest.mark.data


def outcome(path):
    """What a reader found, with the keys of expect.json."""
    dump = open_dump(path)
    batches = list(dump.batches())
    summary = dump.summary
    assert sum(len(batch.scores) for batch in batches) == summary.rollouts
    assert sum(batch.groups for batch in batches) == summary.groups
    ids = [name for batch in batches for name in batch.rows["rollout"]]
    assert len(set(ids)) == len(ids) == summary.rollouts
    found = {key: getattr(summary, key) for key in KEYS if key != "weights"}
    found |= {"weights": dump.weights, "group_sizes": {str(size): n for size, n in summary.group_sizes.items()}}
    found |= {"said": " ".join([*summary.notes, *summary.skipped]), "skipped": summary.skipped, "batches": batches}
    return found


@pytest.mark.skipif(not CASES, reason="the dumps lie beside a developer's checkout only")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["path"])
def test_expected(case):
    path = FOLDER / case["path"]
    if "error" in case:
        with pytest.raises(Error, match=ERRORS[case["error"]]):
            outcome(path)
        return
    found = outcome(path)
    expected = {"duplicates_dropped": 0, **{key: case[key] for key in KEYS if key in case}}
    allowed = [expected] + [expected | either for either in case.get("either", []) if "error" not in either]
    allowed += [expected | {"rewards": rewards} for rewards in case.get("either_rewards", [])]
    assert any(all(found[key] == wanted[key] for key in KEYS if key in wanted) for wanted in allowed), found
    for place in case.get("reported", []) + case.get("infinite", []):
        assert re.search(rf"{place['reward']}\b", found["said"])
        if "line" in place:
            assert f"line {place['line']}" in found["said"]
    assert len(found["skipped"]) >= len(case.get("skipped", []))
    for place in case.get("skipped", []):
        assert any(f"line {place['line']}" in text and place["kind"] in text for text in found["skipped"])
    if "failed_episodes" in case:
        assert "failed" in found["said"]
    if case.get("has_advantage"):
        assert all(np.isfinite(batch.rows["advantage"].to_numpy()).all() for batch in found["batches"])
    for words in ("no per-reward scores in this dump", "a run of equal prompts was split", "groups of different sizes"):
        if words in case.get("must_say", ""):
            assert words in found["said"]
