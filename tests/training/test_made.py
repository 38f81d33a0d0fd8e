"""Data made on the spot: the same every time, gold values that are right, and recipes that run on it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import product

import pytest

from gdpo.core.errors import Error
from gdpo.rewards import math_answer, tool_correctness, tool_exact, tool_format
from gdpo.training import recipe, tasks
from gdpo.training.made import make, tool_calls
from gdpo.training.settings import DataSettings

OPTIONS = [
    {"tools": tools, "nested": nested, "optional": optional, "parallel": parallel, "distractors": distractors,
     "form": form}
    for tools, nested, optional, parallel, distractors, form in product(
        [(2, 4), (8, 8)], [False, True], [False, True], [False, True], ["far", "near", "mixed"], ["short", "json"]
    )
]  # fmt: skip


def written(calls) -> str:
    lines = "\n".join(json.dumps(call) for call in calls)
    return f"<think>which one</think>\n<tool_call>\n{lines}\n</tool_call>"


def offered(question: str) -> dict[str, dict[str, tuple[str, bool]]]:
    """Tools as the question shows them: for each, type and optionality of its parameters. Read by rules of its own."""
    found = {}
    for line in question.split("\n")[:-1]:
        if line.startswith("{"):
            schema = json.loads(line)
            inner = schema["parameters"]
            types = {"string": "str", "integer": "int", "boolean": "bool", "object": "object"}
            found[schema["name"]] = {
                key: (types[value["type"]], key not in inner["required"]) for key, value in inner["properties"].items()
            }
        else:
            name, _, rest = line.removesuffix(")").partition("(")
            plain = re.sub(r"\{[^}]*\}", "object", rest)
            found[name] = {
                key.removesuffix("?"): (kind, key.endswith("?"))
                for key, kind in (part.split(":") for part in plain.split(", ") if part)
            }
    return found


@pytest.mark.parametrize(("name", "size"), [("tool_calls", 50), ("short_reasoning", 50)])
def test_the_same_arguments_give_the_same_rows(name, size):
    assert make(name, size, 3) == make(name, size, 3)
    assert make(name, size, 3) != make(name, size, 4)
    assert make(name, size, 3)[:20] == make(name, 20, 3)
    settings = DataSettings(source="made", name=name, size=400)
    task = tasks.load(settings, held_out=20)
    assert task == tasks.load(settings, held_out=20)
    assert len(task.held_out) == 20
    assert not any(tasks.is_reserved(row["prompt"][-1]["content"]) for row in task.train)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(str(value) for value in o.values()))
def test_gold_calls_score_the_maximum_and_distractors_less(options):
    made = make("tool_calls", 30, 5, **options)
    golds = [row["calls"] for row in made]
    right = [written(json.loads(gold)) for gold in golds]
    assert tool_correctness()(right, calls=golds) == [3.0] * 30
    assert tool_exact()(right, calls=golds) == [1.0] * 30
    assert tool_format()(right, calls=golds) == [1.0] * 30
    for row, gold in zip(made, golds, strict=True):
        calls = json.loads(gold)
        tools = offered(row["question"])
        assert options["tools"][0] <= len(tools) <= options["tools"][1]
        others = [name for name in tools if name not in {call["name"] for call in calls}]
        wrong = [written([{**calls[0], "name": name}, *calls[1:]]) for name in others]
        wrong += [written([*calls, {"name": name, "parameters": {}}]) for name in others]
        assert all(score < 3.0 for score in tool_correctness()(wrong, calls=[gold] * len(wrong)))


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(str(value) for value in o.values()))
def test_gold_calls_fit_the_tools_and_the_request(options):
    seen = set()
    for row in make("tool_calls", 60, 6, **options):
        tools, request = offered(row["question"]), row["question"].split("\n")[-1]
        calls = json.loads(row["calls"])
        halves = [call["name"].split("_") for call in calls]
        assert len({call["name"] for call in calls}) == len(calls)
        for call, (verb, noun) in zip(calls, halves, strict=True):
            assert any(f"{said} the {noun}" in request for said in tool_calls.VERBS[verb])
            known = tools[call["name"]]
            assert {key for key, (_, optional) in known.items() if not optional} <= call["parameters"].keys()
            for key, value in call["parameters"].items():
                kind, optional = known[key]
                assert {"str": str, "int": int, "bool": bool, "object": dict}[kind] is type(value)
                for inner in value.values() if isinstance(value, dict) else [value]:
                    text = str(inner).lower() if isinstance(inner, bool) else str(inner)
                    assert re.search(rf"\b{text}\b", request)
                seen |= {"nested"} if kind == "object" else set()
                seen |= {"optional"} if optional else set()
            seen |= {"left out"} if known.keys() - call["parameters"].keys() else set()
        seen |= {"parallel"} if len(calls) > 1 else set()
        for name in tools:
            verb, noun = name.split("_")
            if [verb, noun] not in halves and options["distractors"] == "far":
                assert verb != halves[0][0]
                assert noun != halves[0][1]
            elif [verb, noun] not in halves and options["distractors"] == "near":
                assert (verb == halves[0][0]) != (noun == halves[0][1])
    expected = {"nested"} if options["nested"] else set()
    expected |= {"optional", "left out"} if options["optional"] else set()
    assert seen == expected | ({"parallel"} if options["parallel"] else set())


def test_pairs_can_be_held_out():
    def pairs(rows):
        calls = [call for row in rows for call in json.loads(row["calls"])]
        return {(name, value) for call in calls for name, value in call["parameters"].items()}

    seen, held_out = (pairs(make("tool_calls", 3000, 0, pairs=kind)) for kind in ("seen", "held_out"))
    assert not any(tool_calls.is_held_out_pair(*pair) for pair in seen)
    chosen = [pair for pair in held_out if tool_calls.is_held_out_pair(*pair)]
    assert len(chosen) >= 20
    assert not seen & set(chosen)


@pytest.mark.parametrize("terms", [(3, 5), (2, 2), (8, 12)])
def test_answers_are_right_by_arithmetic(terms):
    made = make("short_reasoning", 400, 1, terms=terms, largest=50)
    kinds = set()
    for row in made:
        numbers = [int(digits) for digits in re.findall(r"\d+", row["question"])]
        adding = "largest" not in row["question"]
        assert terms[0] <= len(numbers) <= terms[1]
        assert 1 <= min(numbers) <= max(numbers) <= 50
        assert int(row["answer"]) == (sum(numbers) if adding else max(numbers))
        kinds.add(adding)
    assert kinds == {True, False}
    golds = [row["answer"] for row in made]
    right = [f"<think>so</think><answer>{gold}</answer>" for gold in golds]
    wrong = [f"<think>so</think><answer>{int(gold) + 1}</answer>" for gold in golds]
    assert math_answer()(right, answer=golds) == [1.0] * 400
    assert math_answer()(wrong, answer=golds) == [0.0] * 400


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("tool_calls", {"tools": [1, 4]}, "tools=[1, 4]"),
        ("tool_calls", {"tools": [2, 9]}, "within 2 to 8"),
        ("tool_calls", {"tools": 3}, "two whole numbers"),
        ("tool_calls", {"parameters": [3, 2]}, "within 1 to 3"),
        ("tool_calls", {"distractors": "close"}, "far, near, mixed"),
        ("tool_calls", {"nested": "yes"}, "true or false"),
        ("tool_calls", {"nest": True}, "'nest'"),
        ("short_reasoning", {"terms": [1, 2]}, "within 2 to 20"),
        ("short_reasoning", {"largest": 0}, "at least 1"),
        ("short_reasoning", {"kinds": ["product"]}, "sum, max"),
        ("short_reasoning", {"kinds": []}, "sum, max"),
    ],
)
def test_bad_parameters_are_named(name, parameters, words):
    with pytest.raises(Error) as caught:
        make(name, 5, 0, **parameters)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["tools", "concise"])
def test_larger_models_get_the_whole_task(name):
    small, large = recipe.load(name), recipe.load(name, ["model=some/model"])
    assert small.model == f"nano-{name}"
    assert large.dtype == "bfloat16"
    assert large.trainer["gradient_checkpointing"] is True
    assert large.data.system
    questions = [
        [row["prompt"][-1]["content"] for row in tasks.load(settings.data, held_out=16).held_out]
        for settings in (small, large)
    ]
    assert min(map(len, questions[1])) > min(map(len, questions[0]))
    if name == "tools":
        asked = make("tool_calls", 200, 0, **large.data.parameters)
        assert {len(json.loads(row["calls"])) for row in asked} == {1, 2}
        assert {len(row["question"].split("\n")) - 1 for row in asked} == set(range(2, 9))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rewards"), [("tools", {"correct", "format"}),
                                                 ("concise", {"correct", "format", "length"})])  # fmt: skip
def test_the_recipe_runs(tmp_path, name, rewards):
    changes = ["steps=2", "save_steps=2", "evaluation.prompts=16", "evaluation.samples=2", "name=short"]
    done = subprocess.run(
        [sys.executable, "-m", "gdpo", "train", name, *changes], cwd=tmp_path, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "short"
    for when in ("before", "after"):
        found = json.loads((folder / "evaluations" / f"{when}.json").read_text())["rewards"]
        assert found.keys() == rewards
        assert all(value["missing"] == 0 for value in found.values())
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) == 2
