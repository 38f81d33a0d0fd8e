"""ToolRL's and BFCL's files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support import SHARED

import gdpo
from gdpo import rewards
from gdpo.training import tasks
from gdpo.training.readers import recognised, rows_of
from gdpo.training.settings import DataSettings

BFCL = Path(os.environ.get("BFCL_DATA", "none"))
"""``bfcl_eval/data`` of the unpacked wheel ``bfcl-eval`` (PyPI, downloaded with --no-deps)."""
GOLD = '<think> t </think>\n<tool_call>\n{"name": "f", "parameters": {"a": "1"}}\n</tool_call>'


def test_toolrl_rows():
    rl = {"prompt": [{"role": "system", "content": "tools"}, {"role": "user", "content": "q"}], "data_source": "rlla",
          "reward_model": {"ground_truth": GOLD, "style": "rule"}, "extra_info": {"index": 0}}  # fmt: skip
    (row,) = recognised([("row 1", rl)], None)
    assert row == {"question": "q", "messages": rl["prompt"], "calls": GOLD}
    supervised = {"instruction": "tools", "input": "q", "output": GOLD}
    assert recognised([("record 1", supervised)], None) == [row]
    with pytest.raises(gdpo.Error, match="row 2 lacks a prompt"):
        recognised([("row 1", rl), ("row 2", {"prompt": []})], None)


def test_eurus_programs():
    def row(truth, ability="code"):
        return {
            "prompt": [{"role": "user", "content": "Add."}],
            "ability": ability,
            "reward_model": {"ground_truth": truth},
        }

    truth = json.dumps({"inputs": ["1 2\n", ["3", "4"]], "outputs": ["3\n", ["7"]]})
    rows = [
        ("row 1", row("42", "math")),
        ("row 2", row(truth)),
        ("row 3", row(json.dumps({"fn_name": "f", "inputs": [], "outputs": []}))),
    ]
    (found,) = recognised(rows, None)
    assert json.loads(found["tests"]) == [{"stdin": "1 2\n", "stdout": "3\n"}, {"stdin": "3\n4", "stdout": "7"}]
    assert found["question"] == "Add."


def bfcl(folder, answers=True):
    (folder / "possible_answer").mkdir()
    questions = [
        {"id": f"simple_{k}", "question": [[{"role": "user", "content": "Area?"}]],
         "function": [{"name": f"area_{k}", "parameters": {"type": "dict", "properties": {}}}]}
        for k in range(3)
    ]  # fmt: skip
    path = folder / "BFCL_v4_simple.json"
    path.write_text("\n".join(map(json.dumps, questions)))
    if answers:
        lines = [
            json.dumps({"id": q["id"], "ground_truth": [{f"area_{k}": {"b": [1, ""]}}]})
            for k, q in enumerate(questions)
        ]
        (folder / "possible_answer" / path.name).write_text("\n".join(lines) + "\n")
    return path


def test_bfcl_rows(tmp_path):
    path = bfcl(tmp_path)
    task = tasks.load(DataSettings(source="file", path=str(path)), held_out=1)
    assert (len(task.train), len(task.held_out)) == (2, 1)  # the same question over other tools is another row
    row = task.train[0]
    name = next(iter(json.loads(row["ground_truth"])[0]))
    assert row["prompt"][0]["role"] == "system"
    assert f'"{name}"' in row["prompt"][0]["content"]
    call = f'<think>t</think><tool_call>{{"name": "{name}", "parameters": {{}}}}</tool_call>'
    assert rewards.bfcl_match()([call], ground_truth=[row["ground_truth"]]) == [1.0]


def test_bfcl_without_its_answers(tmp_path):
    path = bfcl(tmp_path, answers=False)
    with pytest.raises(gdpo.Error, match="their answers were expected in"):
        tasks.load(DataSettings(source="file", path=str(path)), held_out=1)


@pytest.mark.data
@pytest.mark.skipif(
    not (SHARED / "data" / "toolrl").is_dir(), reason="ToolRL's data lies beside a developer's checkout only"
)
@pytest.mark.parametrize(("name", "count"), [("rlla_sft.json", 389), ("rlla_test.parquet", 80)])
def test_toolrl_files(name, count):
    task = tasks.load(DataSettings(source="file", path=str(SHARED / "data" / "toolrl" / name)), held_out=16)
    assert len(task.train) + len(task.held_out) <= count
    assert len(task.held_out) == 16
    assert all(row["prompt"][0]["role"] == "system" for row in task.train)


def made(possible, change=False):
    """The first allowed answer as calls, or the same with one argument changed."""

    def value(allowed):
        if isinstance(allowed, dict):
            return {k: value(v[0] if isinstance(v, list) and v else v) for k, v in allowed.items() if v != [""]}
        return [value(entry) for entry in allowed] if isinstance(allowed, list) else allowed

    calls = [
        {"name": name, "arguments": {k: value(v[0]) for k, v in parameters.items() if v and v[0] != ""}}
        for entry in possible
        for name, parameters in entry.items()
    ]
    if change:
        changed = next((call for call in calls if call["arguments"]), None)
        if changed is None:
            return None
        first = next(iter(changed["arguments"]))
        changed["arguments"][first] = "no such answer"
    return "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)


@pytest.mark.data
@pytest.mark.skipif(not BFCL.is_dir(), reason="BFCL_DATA names no folder with BFCL's data")
@pytest.mark.parametrize(
    ("name", "count"), [("simple_python", 400), ("multiple", 200), ("parallel", 200), ("parallel_multiple", 200)]
)
def test_bfcl_gold_answers(name, count):
    path = BFCL / f"BFCL_v4_{name}.json"
    rows = recognised(rows_of(path), path)
    assert len(rows) == count
    gold = [row["ground_truth"] for row in rows]
    possible = [json.loads(text) for text in gold]
    score = rewards.bfcl_match()
    assert set(score([made(answer) for answer in possible], ground_truth=gold)) == {1.0}
    changed = [(text, g) for answer, g in zip(possible, gold, strict=True) if (text := made(answer, change=True))]
    assert len(changed) > 0.99 * count
    assert set(score([text for text, _ in changed], ground_truth=[g for _, g in changed])) == {0.0}
