"""Data: every source, held-out prompts that never meet training, and one sentence for what cannot be read."""

from __future__ import annotations

import gzip
import json

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SHARED

import gdpo
from gdpo.training import tasks
from gdpo.training.settings import DataSettings


def asked(rows):
    return [row["prompt"][-1]["content"] for row in rows]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


ROWS = [{"question": f"What is {n} + 1?", "answer": str(n + 1), "level": n % 3} for n in range(200)]


def test_made_on_the_spot_is_the_same_every_time():
    chain = DataSettings(name="chain_sum", size=500, parameters={"min_terms": 2, "max_terms": 3}, system="Think.")
    one, two = (tasks.load(chain, 20) for _ in range(2))
    assert one == two
    assert len(one.held_out) == 20
    assert not set(asked(one.train)) & set(asked(one.held_out))
    assert one.train[0]["prompt"][0] == {"role": "system", "content": "Think."}
    assert set(one.train[0]) == {"prompt", "answer"}


def test_training_never_uses_a_reserved_question():
    chain = DataSettings(name="chain_sum", size=2000, parameters={"min_terms": 2, "max_terms": 3})
    task = tasks.load(chain, 5)
    assert not any(tasks.is_reserved(question) for question in asked(task.train))
    assert all(tasks.is_reserved(question) for question in asked(task.held_out))


def test_reserved_is_a_tenth_by_hash():
    """SHA-256 of the text: the rule that scripts/build_nano.py leaves questions out by."""
    assert tasks.position("a") == pytest.approx(0xCA978112 / 2**32)
    share = sum(tasks.is_reserved(f"question {n}") for n in range(20_000)) / 20_000
    assert share == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "csv", "jsonl.gz", "named"])
def test_files(tmp_path, kind):
    path = tmp_path / f"data.{kind}"
    if kind == "jsonl":
        write(path, ROWS)
    elif kind == "json":
        path.write_text(json.dumps(ROWS))
    elif kind == "named":
        path = tmp_path / "data.json"
        path.write_text(json.dumps({"version": 1, "data": ROWS}))
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode()))
    else:
        frame = pl.DataFrame(ROWS)
        frame.write_parquet(path) if kind == "parquet" else frame.write_csv(path)
    task = tasks.load(DataSettings.model_validate(str(path)), 10)
    assert len(task.held_out) == 10
    row = task.train[0]
    number = int(row["prompt"][0]["content"].split()[2])
    assert row["answer"] == str(number + 1)
    assert int(row["level"]) == number % 3


def test_the_split_does_not_depend_on_the_order(tmp_path):
    one = tasks.load(DataSettings(source="file", path=str(write(tmp_path / "a.jsonl", ROWS))), 10)
    two = tasks.load(DataSettings(source="file", path=str(write(tmp_path / "b.jsonl", ROWS[::-1]))), 10)
    assert asked(one.held_out) == asked(two.held_out)
    assert set(asked(one.train)) == set(asked(two.train))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=40), st.integers(1, 30))
def test_held_out_and_training_never_meet(tmp_path_factory, questions, held_out):
    path = write(tmp_path_factory.mktemp("data") / "a.jsonl", [{"question": q, "answer": "1"} for q in questions])
    source = DataSettings(source="file", path=str(path))
    if len(set(questions)) < 2:
        with pytest.raises(gdpo.Error, match="at least 2"):
            tasks.load(source, held_out)
        return
    task = tasks.load(source, held_out)
    assert task.train
    assert task.held_out
    assert not set(asked(task.train)) & set(asked(task.held_out))
    assert len(asked(task.held_out)) <= max(1, len(set(questions)) // 5)


def test_gsm8ks_fields(tmp_path):
    rows = [
        {"question": f"Q{n}", "answer": f"Half of {2 * n} is <<{2 * n}/2={n}>>{n}.\n#### {n},000"} for n in range(20)
    ]
    task = tasks.load(DataSettings(source="file", path=str(write(tmp_path / "g.jsonl", rows))), 2)
    row = (
        next(row for row in task.train if row["prompt"][0]["content"] == "Q7")
        if "Q7" in asked(task.train)
        else task.train[0]
    )
    assert row["answer"].endswith(",000")
    assert row["solution"].endswith(f"#### {row['answer']}")


@pytest.mark.data
@pytest.mark.skipif(not (SHARED / "data" / "gsm8k").is_dir(), reason="GSM8K lies beside a developer's checkout only")
def test_gsm8k_itself():
    task = tasks.load(DataSettings.model_validate(str(SHARED / "data" / "gsm8k" / "train.jsonl")), 32)
    assert len(task.held_out) == 32
    assert len(task.train) > 6000
    found = gdpo.rewards.math_answer(extraction="hashes")(
        [row["solution"] for row in task.train], answer=[row["answer"] for row in task.train]
    )
    assert found == [1.0] * len(found)


def test_other_fields_and_messages(tmp_path):
    rows = [{"messages_in": [{"role": "user", "content": f"Q{n}"}], "gold": n} for n in range(20)]
    path = write(tmp_path / "m.jsonl", rows)
    source = DataSettings(
        source="file", path=str(path), question_field="messages_in", answer_field="gold", template="{question}!"
    )
    task = tasks.load(source, 2)
    assert all(text.startswith("Q") and text.endswith("!") for text in asked(task.train))
    assert task.train[0]["answer"].isdigit()


def test_braces_in_a_question_are_text(tmp_path):
    rows = [{"question": f"{{0}} {{question}} {n}", "answer": "1"} for n in range(9)]
    task = tasks.load(
        DataSettings(source="file", path=str(write(tmp_path / "b.jsonl", rows)), template="<{question}>"), 1
    )
    assert asked(task.train)[0].startswith("<{0} {question} ")


def test_a_separate_evaluation_file(tmp_path):
    write(tmp_path / "train.jsonl", ROWS)
    write(tmp_path / "test.jsonl", [*ROWS[:5], {"question": "new", "answer": "1"}])
    source = DataSettings(source="file", path=str(tmp_path / "train.jsonl"), held_out_path=str(tmp_path / "test.jsonl"))
    task = tasks.load(source, 100)
    assert len(task.held_out) == 6
    assert len(task.train) == 195
    assert any("5 questions" in note for note in task.notes)


def test_repeated_questions_and_small_data_are_said(tmp_path):
    task = tasks.load(DataSettings(source="file", path=str(write(tmp_path / "a.jsonl", ROWS[:10] * 2))), 50)
    assert len(task.held_out) == 2
    assert any("10 rows ask a question asked before" in note for note in task.notes)
    assert any("2 are held out, not 50" in note for note in task.notes)


def test_a_folder_laid_out_like_the_hub(tmp_path):
    (tmp_path / "set" / "data").mkdir(parents=True)
    pl.DataFrame(ROWS).write_parquet(tmp_path / "set" / "data" / "train-00000-of-00001.parquet")
    task = tasks.load(DataSettings.model_validate(str(tmp_path / "set")), 10)
    assert len(task.held_out) == 10


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", '{"question": "x", "answer": "1"}\n{"question": "y", "ans', "line 2 is not JSON"),
        ("a.jsonl", '{"question": "x", "answer": "1"}\n{"question": "y"}\n', "line 2 has no 'answer'"),
        ("a.jsonl", '{"question": "x", "answer": ""}\n', "line 1 has no 'answer'"),
        ("a.jsonl", '{"q": "x", "a": "1"}\n', r"columns \['a', 'q'\], but a question was expected"),
        ("a.jsonl", "[1]\n[2]\n", "question was expected"),
        ("a.jsonl", '{"question": "x", "answer": "1"}\n3\n', "line 2 is '3'"),
        ("a.jsonl", '{"question": 3, "answer": "1"}\n', "of type int, but text was expected"),
        (
            "a.jsonl",
            '{"question": "x", "answer": "1", "completion_ids": 1}\n',
            "a name that rewards get from the trainer",
        ),
        ("a.jsonl", "", "has no rows"),
        ("a.json", '{"a": 1}', "no list of records"),
        ("a.json", "{", "is not JSON"),
        ("a.parquet", "PAR1", "cannot be read"),
        ("a.jsonl.gz", "no gzip", "cannot be read"),
        ("a.txt", "x", "is of kind '.txt'"),
    ],
)
def test_unreadable_data_is_one_sentence(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    with pytest.raises(gdpo.Error, match=said):
        tasks.load(DataSettings(source="file", path=str(tmp_path / name)), 1)


def test_latin_1_and_folders_are_said(tmp_path):
    (tmp_path / "a.jsonl").write_bytes('{"question": "é", "answer": "1"}'.encode("latin-1"))
    with pytest.raises(gdpo.Error, match="cannot be read"):
        tasks.load(DataSettings(source="file", path=str(tmp_path / "a.jsonl")), 1)
    with pytest.raises(gdpo.Error, match="is no file"):
        tasks.load(DataSettings(source="file", path=str(tmp_path)), 1)


def test_no_hub(monkeypatch):
    with pytest.raises(gdpo.Error, match="data set 'org/none' cannot be loaded"):
        tasks.load(DataSettings(source="hub", name="org/none"), 1)
