"""The made task `programs` and the recipe `code`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gdpo import Error
from gdpo.rewards.sandbox.programs import read_tests
from gdpo.training import recipe, tasks
from gdpo.training.made import make
from gdpo.training.made.programs import FAMILIES

ALL = {"families": list(FAMILIES), "least_steps": 1, "most_steps": 5, "tests": 6}


def build(name: str, *changes: str):
    """The recipe's objective; skips where no sandbox starts."""
    try:
        return recipe.load(name, changes).build_objective()
    except Error as error:
        if "sandbox" in str(error):
            pytest.skip(str(error))
        raise


def scores(texts: list[str], rows: list[dict], *changes: str) -> dict[str, list[float | None]]:
    """The recipe's gated rewards of these programs, of which each character counts as a token."""
    objective = build("code", *changes)
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    matrix = objective.gate(objective.score(texts, completion_ids=[list(text) for text in texts], **columns))
    return {name: matrix[:, k].tolist() for k, name in enumerate(objective.names)}


@pytest.mark.parametrize("parameters", [{}, ALL])
def test_the_same_seed_gives_the_same_rows(parameters):
    rows = make("programs", 60, 3, **parameters)
    assert rows == make("programs", 60, 3, **parameters)
    assert rows != make("programs", 60, 4, **parameters)
    assert all(isinstance(value, str) for row in rows for value in row.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_reference_is_right(family):
    """Evaluated here, in the trusted process: the references are our own."""
    rows = make("programs", 400, 0, **(ALL | {"families": [family]}))
    for row in rows:
        names: dict = {}
        exec(row["reference"], names)
        found = json.loads(row["tests"])
        assert len(found) == len(set(found)) == 6
        assert read_tests(row["tests"]) is not None
        for test in found:
            exec(test, names)


def test_the_reference_is_best_in_every_reward_and_damage_costs():
    rows = make("programs", 12, 1, **ALL)
    best = scores([row["reference"] for row in rows], rows, "objective.rewards.length.n=400")
    assert best == {"passed": [1.0] * 12, "length": [1.0] * 12, "runs": [1.0] * 12}
    wrong = scores([row["reference"].replace("return", "return None and") for row in rows], rows)
    assert max(wrong["passed"]) < 1
    assert wrong["length"] == [0.0] * 12
    assert scores(["def f(x) return x"] * 12, rows)["runs"] == [0.0] * 12
    long = scores([row["reference"] + "\n# " + "x" * 500 for row in rows], rows)
    assert long == {"passed": [1.0] * 12, "length": [0.0] * 12, "runs": [1.0] * 12}


@pytest.mark.parametrize(
    "parameters",
    [{"families": ["prose"]}, {"families": "list"}, {"families": []}, {"least_steps": 0}, {"most_steps": 9},
     {"tests": 0}, {"step": 1}],
)  # fmt: skip
def test_a_bad_parameter_is_named(parameters):
    with pytest.raises(Error, match=next(iter(parameters)).rpartition("_")[2]):
        make("programs", 2, **parameters)


def test_the_shipped_data_has_prompts_apart():
    settings = recipe.load("math")  # a recipe whose objective needs no sandbox
    settings.data = settings.data.model_copy(update={"source": "made", "name": "programs", "parameters": {}})
    task = tasks.load(settings.data, held_out=64)
    asked = [row["prompt"][-1]["content"] for row in task.train]
    assert not {row["prompt"][-1]["content"] for row in task.held_out} & set(asked)
    assert not any(tasks.is_reserved(question) for question in asked)
    assert all(tasks.is_reserved(row["prompt"][-1]["content"]) for row in task.held_out)


def test_settings_for_a_larger_model():
    build("code")
    settings = recipe.load("code", ["model=org/name"])
    assert settings.data.parameters["families"] == list(FAMILIES)
    assert settings.objective.rewards["length"]["n"] > 16


@pytest.mark.slow
def test_the_recipe_trains(tmp_path):
    build("code")
    changes = ["steps=2", "per_device_train_batch_size=16", "evaluation.prompts=4", "evaluation.samples=2"]
    done = subprocess.run(
        [sys.executable, "-m", "gdpo", "train", "code", *changes, "name=small"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "small"
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    after = json.loads((folder / "evaluations" / "after.json").read_text())
    assert set(after["rewards"]) == {"passed", "length", "runs"}
    assert all(value["mean"] is not None for value in after["rewards"].values())
