"""Patterns, JSON by schema, scripts and partial credit, with what they cost on hostile text."""

from __future__ import annotations

import functools
import json
import os
import pickle
import threading
import time
import warnings

import pytest
from hostile import COMPLETIONS, check_megabytes
from hypothesis import given, settings

import gdpo
from gdpo import rewards
from gdpo.rewards.bounded import BoundedCheck

GOOD = "<think>a</think>\n<answer>1</answer>"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (GOOD, 1), (GOOD + " bye", 0.875), ("<think></think><answer>1</answer>", 0.875), ("", 0), ("think", 0),
        ("<think>", 0.25), ("<think>a</think>", 0.5), ("<think>a</think><answer>1", 0.75), ("<answer>1</answer>", 0.5),
        ("<answer>1</answer><think>a</think>", 0.5), ("<think><think>a</think>", 0.25), ("</think><think>", 0.25),
        ("<think>a</think><answer>1</answer><answer>1</answer>", 0.5),
    ],
)  # fmt: skip
def test_tags_with_partial_credit(text, share):
    assert rewards.tags("think", "answer", partial=True)([text]) == [share]
    assert rewards.tags("think", "answer")([text]) == [float(share == 1)]


def test_partial_credit_is_for_the_models_own_marks():
    score = rewards.tags("think", "answer", partial=True, opened=True)
    found = score(["", "a</think>", "a</think><answer>1</answer>", "a</think><answer>1</answer>."])
    assert found == [0, pytest.approx(1 / 3), 1, pytest.approx(2.5 / 3)]


@pytest.mark.parametrize(
    ("options", "text", "expected"),
    [
        ({"regex": r"\d+"}, "12", 1), ({"regex": r"\d+"}, "12 ", 0), ({"regex": r"\d+", "full": False}, "a 12 ", 1),
        ({"regex": "yes|no", "flags": "i"}, "YES", 1), ({"regex": "a.b"}, "a\nb", 0),
        ({"regex": "a.b", "flags": "s"}, "a\nb", 1), ({"regex": "(?s)<a>.*</a>"}, "<a>\n</a>", 1), ({"regex": ""}, "", 1),
        ({"regex": "a+", "longest": 5}, "aaaaa", 1), ({"regex": "a+", "longest": 5}, "aaaaaa", 0),
        ({"regex": "\ud800"}, "\ud800", 1), ({"regex": "x"}, None, 0),
    ],
)  # fmt: skip
def test_matches(options, text, expected):
    assert rewards.matches(**options)([text]) == [expected]


def test_a_pattern_that_would_take_for_ever_costs_its_own_score_only():
    score = rewards.matches(r"(a+)+b")
    hostile = "a" * 40
    started = time.monotonic()
    with pytest.warns(UserWarning, match="2 completions took matches too long"):
        assert score(["aab", hostile, "ab", hostile, "x"]) == [1, 0, 1, 0, 0]
    assert time.monotonic() - started < 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert score([hostile, "ab"]) == [0, 1]


def test_many_such_completions_end_the_look_at_the_batch(monkeypatch):
    monkeypatch.setattr("gdpo.rewards.format.BoundedCheck", functools.partial(BoundedCheck, seconds=0.05))
    score = rewards.matches(r"(a+)+b")
    with pytest.warns(UserWarning, match="10 completions took matches too long.*and 3 after them"):
        assert score(["a" * 40] * 12 + ["ab"]) == [0] * 10 + [None] * 3
    assert score(["ab"]) == [1]


def test_patterns_in_threads_forks_and_other_processes():
    score = rewards.matches(r"\d+")
    assert score(["1"]) == [1]
    found = []
    threads = [threading.Thread(target=lambda: found.append(score(["1", "a"] * 500))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[1, 0] * 500] * 4
    assert pickle.loads(pickle.dumps(score))(["1", "a"]) == [1, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forking beside threads
        child = os.fork()
    if child == 0:
        os._exit(0 if score(["1", "a"]) == [1, 0] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert score(["1", "a"]) == [1, 0]


def test_the_process_ends_with_the_reward():
    score = rewards.matches("a")
    score(["a"])
    check = next(cell.cell_contents for cell in score._function.__closure__ if hasattr(cell.cell_contents, "forget"))
    process = check._process
    assert process.poll() is None
    del score, check
    assert process.returncode is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "Ada", "age": 36}', 1), (' {"name": "Ada", "age": 36}\n', 1), ('{"name": "Ada"}', 0),
        ('{"name": "Ada", "age": -1}', 0), ('{"name": "Ada", "age": 36, "x": 1}', 0), ('{"name": "Ada", "age": NaN}', 0),
        ('{"name": "Ada", "age": 36} ok', 0), ("", 0), ("[]", 0), ('{"name": "Ada", "age": true}', 0), ("{" * 5000, 0),
        ('{"name":' * 5000, 0), ('{"name": "\ud800", "age": 1}', 1), ('{"name": "[[[[", "age": 36.0}', 1),
        ('{"name": "Ada", "age": ' + "9" * 5000 + "}", 0),
    ],
)  # fmt: skip
def test_json_schema(text, expected):
    assert rewards.json_schema(PERSON)([text]) == [expected]


def test_json_schema_from_text_and_file(tmp_path):
    path = tmp_path / "person.json"
    path.write_text(json.dumps(PERSON))
    for given_schema in (json.dumps(PERSON), str(path), path):
        assert rewards.json_schema(given_schema)(['{"name": "Ada", "age": 36}', "{}"]) == [1, 0]


@pytest.mark.parametrize(
    ("extraction", "text", "expected"),
    [
        ("fence", 'Here:\n```json\n{"a": 1}\n```\nDone.', 1), ("fence", '```\n{"a": 1}\n```', 1), ("fence", '{"a": 1}', 0),
        ("fence", '```json\n{"a": "x"}\n```\nno:\n```json\n{"a": 1}\n```', 1), ("fence", '```python\n{"a": 1}\n```', 0),
        ("fence", '```json\n{"a": 1}\n```\nno:\n```json\n{"a": "x"}\n```', 0), ("fence", '```json\n{"a": 1}', 0),
        ("answer_tags", '<answer>{"a": 1}</answer>', 1), ("answer_tags", '{"a": 1}', 0),
    ],
)  # fmt: skip
def test_where_the_json_stands(extraction, text, expected):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert rewards.json_schema(schema, extraction)([text]) == [expected]


def test_json_schemas_that_could_take_for_ever():
    different = json.dumps([{"a": number} for number in range(6000)])
    unique = rewards.json_schema({"type": "array", "uniqueItems": True})
    started = time.monotonic()
    assert unique([different, "[1, 1.0]", "[1, true]", '[{"a": 1}, {"a": 1.0}]', '[[1], ["1"]]']) == [1, 0, 1, 0, 1]
    pattern = rewards.json_schema({"type": "string", "pattern": "^(a+)+$"})
    with pytest.warns(UserWarning, match="took json_schema too long"):
        assert pattern(['"' + "a" * 40 + 'b"', '"aa"']) == [0, 1]
    tree = {"anyOf": [{"type": "array", "items": {"$ref": "#"}}] * 4 + [{"type": "integer"}]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert rewards.json_schema(tree)(["[" * 30 + '"x"' + "]" * 30, "[[1]]"]) == [0, 1]
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("script", "text", "expected"),
    [
        ("latin", "Hello, world! 42", 1), ("latin", "Привет", 0), ("cyrillic", "Привет, мир", 1), ("han", "今天天气很好", 1),
        ("han", "今天 weather", 0), ("arabic", "مرحبا", 1), ("devanagari", "नमस्ते", 1), ("latin", "42 + 1", 0), ("latin", "", 0),
        (("han", "kana"), "今日は晴れです", 1), ("han", "今日は晴れです", 0), ("hangul", "안녕하세요", 1), ("greek", "καλημέρα", 1),
        ("latin", "ＡＢＣ", 1), ("latin", "Let 𝑥𝑦𝑧𝑤𝑣 be", 1), ("latin", "abcdefghiя", 1), ("latin", "abcdefghяя", 0),
    ],
)  # fmt: skip
def test_language(script, text, expected):
    assert rewards.language(script)([text]) == [expected]


def test_language_with_partial_credit():
    assert rewards.language("latin", at_least=0.8, partial=True)(["abя", "abcdя", "я"]) == [
        pytest.approx(2 / 3 / 0.8), 1, 0,
    ]  # fmt: skip


ANY = [
    rewards.tags("think", "answer", partial=True), rewards.tags("a", strict=True, partial=True),
    rewards.matches(r".*?\d", flags="s"), rewards.matches("é", full=False), rewards.json_schema(True),
    rewards.json_schema({"type": "object"}, "fence"), rewards.json_schema(PERSON, "answer_tags"), rewards.language(),
    rewards.language(["han", "kana"], partial=True),
]  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(COMPLETIONS)
def test_no_text_makes_a_reward_raise(completions):
    for score in ANY:
        found = score(completions, prompts=completions)
        assert len(found) == len(completions)
        assert all(0.0 <= value <= 1.0 for value in found)


@pytest.mark.parametrize("score", [*ANY, rewards.matches(".*b.*c.*d", longest=2_000_000)], ids=repr)
def test_megabytes(score):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_megabytes(score)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: rewards.matches("("), "regex='\\('.*no regular expression"),
        (lambda: rewards.matches(3), "regex=3"),
        (lambda: rewards.matches("a", flags="q"), "flags='q'"),
        (lambda: rewards.matches("a", longest=0), "longest=0"),
        (lambda: rewards.json_schema({"type": "objekt"}), "schema that is none, at \\$.type"),
        (lambda: rewards.json_schema("{"), "no JSON"),
        (lambda: rewards.json_schema("none.json"), "cannot read its schema from 'none.json'"),
        (lambda: rewards.json_schema(3), "schema=3"),
        (lambda: rewards.json_schema({"$ref": "#/$defs/x"}), "'#/\\$defs/x', which leads nowhere"),
        (lambda: rewards.json_schema({"$ref": "https://example.org/x"}), "leads nowhere"),
        (lambda: rewards.json_schema(True, "fences"), "did you mean 'fence'"),
        (lambda: rewards.language("latn"), "did you mean 'latin'"),
        (lambda: rewards.language([]), "script=\\[\\]"),
        (lambda: rewards.language(at_least=1.5), "at_least=1.5"),
    ],
)
def test_errors(build, said):
    with pytest.raises(gdpo.Error, match=said):
        build()


def test_jsonschema_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jsonschema", None)
    with pytest.raises(gdpo.Error, match=r"json_schema needs the library jsonschema.*gdpo\[rewards\]"):
        rewards.json_schema({})
