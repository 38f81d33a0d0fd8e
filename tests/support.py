"""Cases and data that lie beside a developer's checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[1].parent / "shared"
"""Public data and cases beside a developer's checkout; a stranger's clone does without."""


def shared_cases(name: str) -> list:
    """The cases of a file, or one that is skipped with the reason."""
    path = SHARED / "cases" / name
    if path.is_file():
        return [pytest.param(case, id=case["id"]) for case in json.loads(path.read_text(encoding="utf-8"))]
    return [pytest.param(None, marks=pytest.mark.skip(reason=f"{name} lies beside a developer's checkout only"))]
