"""What the tests share."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SHARED = Path(__file__).resolve().parents[1].parent / "shared"
"""Public data and cases beside a developer's checkout; a stranger's clone does without."""


def shared_cases(name: str) -> list:
    """The cases of a file, or one that is skipped with the reason."""
    path = SHARED / "cases" / name
    if path.is_file():
        return [pytest.param(case, id=case["id"]) for case in json.loads(path.read_text(encoding="utf-8"))]
    return [pytest.param(None, marks=pytest.mark.skip(reason=f"{name} lies beside a developer's checkout only"))]
