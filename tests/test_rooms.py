"""The house: a room imports only rooms before it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import gdpo

ROOMS = ["core", "expressions", "rewards", "weights", "levels", "objective", "export", "rollouts", "audit", "lint",
         "report", "adapters", "doctor", "training", "listing", "linting", "auditing", "following", "cli"]  # fmt: skip
SOURCE = Path(gdpo.__file__).parent


def imported(tree: ast.AST) -> set[str]:
    """Rooms that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("gdpo.")}
    return found & set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_before_it(room):
    files = list((SOURCE / room).rglob("*.py")) or [SOURCE / f"{room}.py"]
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    for file in files:
        beyond = imported(ast.parse(file.read_text(encoding="utf-8"))) - allowed
        assert not beyond, f"{file.name} of {room} imports {beyond}"


def test_files_and_functions_stay_short():
    """About 400 lines a file and 50 a function; longer ones need a reason here."""
    for file in SOURCE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert text.count("\n") <= 420, file
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno - node.lineno <= 65, f"{file.name}: {node.name}"
