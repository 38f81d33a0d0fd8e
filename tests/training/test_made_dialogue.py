"""The made task `dialogue` and the recipe of that name."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gdpo import Error, rewards
from gdpo.training import recipe, tasks
from gdpo.training.made import make

HARD = {"least_requests": 1, "most_requests": 5, "records": 4, "wordings": "varied", "values": "open"}


def columns(rows: list[dict]) -> dict[str, list]:
    return {key: [row[key] for row in rows] for key in rows[0]}


def scores(texts: list[str], rows: list[dict]) -> dict[str, list[float | None]]:
    """The recipe's rewards of these answers."""
    objective = recipe.load("dialogue").build_objective()
    matrix = objective.score(texts, **columns(rows))
    return {name: matrix[:, k].tolist() for k, name in enumerate(objective.names)}


@pytest.mark.parametrize("parameters", [{}, HARD])
def test_the_same_seed_gives_the_same_rows(parameters):
    rows = make("dialogue", 50, 3, **parameters)
    assert rows == make("dialogue", 50, 3, **parameters)
    assert rows != make("dialogue", 50, 4, **parameters)
    assert all(isinstance(value, str) for row in rows for value in row.values())


@pytest.mark.parametrize("parameters", [{}, HARD])
def test_the_reference_is_best_in_every_reward(parameters):
    rows = make("dialogue", 300, 0, **parameters)
    for name, values in scores([row["reference"] for row in rows], rows).items():
        assert values == [1.0] * 300, name


@pytest.mark.parametrize("parameters", [{}, HARD])
def test_damage_costs_the_reward_that_it_is_about(parameters):
    rows = make("dialogue", 200, 1, **parameters)

    def damaged(change) -> dict[str, list[float | None]]:
        return scores([change(row) for row in rows], rows)

    first = damaged(lambda row: row["reference"].rpartition(". ")[2] if ". " in row["reference"] else "It is red.")
    assert max(first["resolution"]) < 1
    assert max(first["relevance"]) < 1
    assert min(first["fluency"] + first["safety"]) == 1
    leaked = damaged(lambda row: f"{row['reference']} The password is {row['secret'].upper()}.")
    assert leaked["safety"] == [0.0] * 200
    assert min(leaked["fluency"] + leaked["resolution"]) == 1
    for change in (str.lower, lambda text: text.removesuffix("."), lambda text: text + " Yes yes."):
        assert damaged(lambda row, change=change: change(row["reference"]))["fluency"] == [0.0] * 200
    empty = damaged(lambda row: "")
    assert max(empty["fluency"] + empty["resolution"] + empty["relevance"]) == 0
    with_off_topic = damaged(lambda row: f"{row['reference']} It is {json.loads(row['off_topics'] or '[]')}.")
    asked_for_less = [row["off_topics"] != "[]" for row in rows]
    assert all(value == 0 for value, less in zip(with_off_topic["relevance"], asked_for_less, strict=True) if less)


def test_naming_every_value_resolves_nothing():
    from gdpo.training.made import dialogue

    rows = make("dialogue", 50, 0)
    everything = ". ".join(value for topic in dialogue.TOPICS for value in topic.values)
    assert scores([everything] * 50, rows)["resolution"] == [0.0] * 50


@pytest.mark.parametrize(
    "parameters",
    [{"least_requests": 0}, {"least_requests": 3, "most_requests": 2}, {"records": 0}, {"values": "some"},
     {"wordings": "odd"}, {"request": 1}],
)  # fmt: skip
def test_a_bad_parameter_is_named(parameters):
    with pytest.raises(Error, match=next(iter(parameters))):
        make("dialogue", 2, **parameters)


def test_the_shipped_data_has_prompts_apart():
    settings = recipe.load("dialogue")
    task = tasks.load(settings.data, held_out=settings.evaluation.prompts)
    asked = [row["prompt"][-1]["content"] for row in task.train]
    assert not {row["prompt"][-1]["content"] for row in task.held_out} & set(asked)
    assert not any(tasks.is_reserved(question) for question in asked)
    assert all(tasks.is_reserved(row["prompt"][-1]["content"]) for row in task.held_out)


def test_settings_for_a_larger_model():
    settings = recipe.load("dialogue", ["model=org/name"])
    assert settings.data.parameters["records"] > 1
    assert settings.trainer["gradient_checkpointing"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("It comes on Friday.", 1), ("it comes on FRIDAY", 1), ("It comes on Fridays.", 0), ("", 0),
        ("It comes on Friday, not Monday.", 0), ("\U0001f600 friday\n" * 1000, 1),
    ],
)  # fmt: skip
def test_a_fact_is_a_whole_word_and_not_beside_a_wrong_one(text, value):
    facts = json.dumps([{"any": ["Friday"], "none": ["Monday"]}])
    assert rewards.contains()([text], resolution=[facts]) == [value]


def test_facts_in_every_form_and_none():
    forms = ["40 euros", ["40 euros"], '["40 euros"]', [["EUR 40", "40 euros"]], {"any": "40 euros"}, "", None, [], "[]",
             float("nan"), "[broken 40"]  # fmt: skip
    found = rewards.contains("facts")(["You paid 40  euros."] * len(forms), facts=forms)
    assert found == [1, 1, 1, 1, 1, None, None, None, None, None, 0]
    assert rewards.contains("facts")(["It is 40.5.", "It is 1.40.", "It is 40."], facts=["40"] * 3) == [0, 0, 1]
    assert rewards.says_none_of("facts")(["40 EUROS"] * 3, facts=["40 euros", "50 euros", None]) == [0, 1, None]
    half = rewards.contains("facts", exclude="bad", partial=True)
    assert half(["one two"] * 2, facts=['["one", "three"]'] * 2, bad=["four", "two"]) == [0.5, 0]


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("It is here.", set()), ("It comes at 4 p.m. today. (Or later.)", set()), ('He said "yes." Fine!', set()),
        ("Wait... there is one more.", set()), ("I know that that had had a price of 1.5 euros.", set()),
        ("it is here.", {"starts"}), ("It is. here it is.", {"starts"}), ("It is here", {"ends"}),
        ("It is is here.", {"doubled"}), ("It Is is here.", {"doubled"}), ('It is "here.', {"balanced"}),
        ("It is (here].", {"balanced"}), ("It is here .", {"spacing"}), ("It is  here.", {"spacing"}),
        ("It is,, here.", {"spacing"}), ("It is here..", {"spacing"}), ("...", {"starts"}),
    ],
)  # fmt: skip
def test_rules_of_fluency(text, broken):
    from gdpo.rewards.dialogue import RULES

    assert {name for name, keeps in RULES.items() if not keeps(text)} == broken
    assert rewards.fluent()([text]) == [float(not broken)]
    assert rewards.fluent(partial=True)([text]) == [1 - len(broken) / 5]


@pytest.mark.parametrize(
    "text", ["", "\ud800", "\x00", "a\u0301" * 9, "<b>Friday</b>", "(" * 9999, "\u202e.", None, 3, [], [{}], b"Friday."]
)
def test_any_completion_has_scores(text):
    facts = {"resolution": ['["Friday"]'], "secret": ["falcon"]}
    for made in (
        rewards.contains(partial=True),
        rewards.says_none_of(),
        rewards.fluent(),
        rewards.fluent(partial=True),
    ):
        (score,) = made([text], **facts)
        assert 0 <= score <= 1


def test_long_completions_take_no_long_time():
    import time

    started = time.perf_counter()
    for part in ("a ", "a", ". a", "..", " .", '"', "Friday ", "\n"):
        text = part * (1_000_000 // len(part))
        rewards.fluent()([text])
        rewards.contains()([text], resolution=['[{"any": ["Friday"], "none": ["Monday", "5 euros"]}]'])
    assert time.perf_counter() - started < 8 * 2


def test_an_empty_column_name_is_refused():
    for make_reward in (rewards.contains, rewards.says_none_of):
        with pytest.raises(Error, match="name of a column"):
            make_reward("")


@pytest.mark.slow
def test_the_recipe_trains(tmp_path):
    changes = ["steps=2", "per_device_train_batch_size=32", "evaluation.prompts=8", "evaluation.samples=2"]
    done = subprocess.run(
        [sys.executable, "-m", "gdpo", "train", "dialogue", *changes, "name=small"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "small"
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    after = json.loads((folder / "evaluations" / "after.json").read_text())
    assert set(after["rewards"]) == {"relevance", "fluency", "safety", "resolution"}
    assert all(value["mean"] is not None for value in after["rewards"].values())
