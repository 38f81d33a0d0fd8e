"""``gdpo lint`` as a user runs it: targets, data of every kind, output, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import yaml

from gdpo import cli

FILE = Path(__file__).with_name("planted.py")
FEW = """
import gdpo
from gdpo.rewards import model_text

@gdpo.reward(range=(0, 1))
def sound(completions, **columns):
    return [float("<answer>4" in model_text(c)) for c in completions]

def loud(completions, **columns):
    print("hello")
    return sound(completions)

@gdpo.reward(range=(0, 1))
def broken(completions, **columns):
    return [1.0]

def at_heart(completions, topic, **columns):
    said = [model_text(c) for c in completions]
    return [float(text == f"<answer>{t['name']}</answer>") if t else None for text, t in zip(said, topic)]
"""


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    sys.argv = ["gdpo", "lint", *map(str, arguments)]
    try:
        cli.main()
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def few(tmp_path):
    path = tmp_path / "few.py"
    path.write_text(FEW)
    return path


def test_a_sound_reward_says_what_was_tried(capsys, few):
    status, out, err = run(capsys, f"{few}:sound")
    assert (status, err) == (0, "")
    assert "sound: no findings (" in out
    assert "no findings; on 68 made-up rows and hostile texts" in out


def test_a_finding_stands_with_evidence_and_remedy_in_80_columns(capsys, few):
    status, out, _ = run(capsys, f"{few}:broken", f"{few}:loud")
    assert status == 1
    assert "error    broken  wrong-number-of-scores" in out
    assert "It returns 1 scores for 68 completions" in out
    assert "→ Return a list with one score a completion" in out
    assert max(map(len, out.splitlines())) <= 80
    assert all(line == line.rstrip() for line in out.splitlines())


@pytest.mark.parametrize(("severity", "status"), [("error", 0), ("warning", 0), ("note", 1)])
def test_fail_on(capsys, few, severity, status):
    assert run(capsys, f"{few}:loud", "--fail-on", severity)[0] == status


def test_json(capsys, few):
    status, out, _ = run(capsys, f"{few}:broken", f"{few}:loud", "--json")
    found = json.loads(out)
    assert status == 1
    assert {(f["id"], f["reward"]) for f in found["findings"]} == {
        ("wrong-number-of-scores", "broken"), ("no-bounds", "loud"), ("prints", "loud")
    }  # fmt: skip
    assert found["counts"] == {"error": 1, "warning": 0, "note": 2}
    assert (found["data"], found["rows"]) == (None, 68)
    assert found["rewards"]["loud"]["calls"] > 20


ROWS = [
    {"prompt": f"What is {k}?", "completion": f"<answer>{k + d}</answer>", "answer": str(k), "topic": {"name": str(k)}}
    for k in range(6)
    for d in (0, 1)
]


def written(path: Path) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in ROWS))
    elif path.suffix == ".parquet":
        pl.DataFrame(ROWS).write_parquet(path)
    else:
        pl.DataFrame(ROWS).drop("topic").write_csv(path)
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows.csv"])
def test_data(capsys, tmp_path, name):
    path = written(tmp_path / name)
    status, out, err = run(capsys, "math_answer", "integer_answer", "--data", path, "--json")
    found = json.loads(out)
    assert (status, found["rows"], found["data"]) == (0, 12, str(path)), err
    # Every completion of these rows holds an integer.
    assert [(f["id"], f["reward"]) for f in found["findings"]] == [("constant", "integer_answer")]


def test_columns_of_another_kind_need_data_and_get_it(capsys, few, tmp_path):
    status, out, _ = run(capsys, f"{few}:at_heart")
    assert status == 0
    assert "needs-columns" in out
    assert "--data FILE" in " ".join(out.split())
    status, out, _ = run(capsys, f"{few}:at_heart", "--data", written(tmp_path / "rows.jsonl"), "--json")
    assert {f["id"] for f in json.loads(out)["findings"]} == {"no-bounds"}
    status, out, _ = run(capsys, f"{few}:at_heart", "--data", written(tmp_path / "rows.csv"))
    assert status == 1
    assert "It needs the column 'topic', which the data lacks." in out


@pytest.mark.slow
def test_completions_are_made_from_gold_answers(capsys, tmp_path):
    path = tmp_path / "gsm8k.jsonl"
    path.write_text(
        "\n".join(json.dumps({"question": f"Q{k}", "answer": f"So {k}+1.\n#### {k + 1}"}) for k in range(5))
    )
    status, out, _ = run(capsys, "math_answer", "--data", path)
    assert (status, "math_answer: no findings" in out) == (0, True)
    assert "65 rows of" in out
    path.write_text(path.read_text().replace("#### 3", r"#### \\boxed{"))
    status, out, _ = run(capsys, "math_answer", "--data", path, "--json")
    (finding,) = json.loads(out)["findings"]
    assert finding["id"] == "gold-not-read"


@pytest.mark.slow
def test_a_recipe_with_its_own_rows_and_changes(capsys):
    status, out, err = run(capsys, "math", "--json")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert list(found["rewards"]) == ["correct", "format", "integer"]
    assert found["data"] == "recipe math"
    assert found["findings"] == []


@pytest.mark.slow
def test_an_objective_and_a_recipe_with_a_users_reward(capsys, few, tmp_path):
    objective = {"rewards": {"mine": {"reward": "few.py:loud", "range": [0, 1]}, "whole": "integer_answer"}}
    path = tmp_path / "objective.yaml"
    path.write_text(yaml.safe_dump(objective))
    status, out, _ = run(capsys, path, "--json")
    assert status == 0
    assert [(f["id"], f["reward"]) for f in json.loads(out)["findings"]] == [("prints", "mine")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to lint"),
        (["mathh"], "did you mean 'math'"),
        (["few.py:nothing"], "has no function 'nothing'"),
        (["none.py:f"], "does not exist"),
        (["few.py:sound", "math"], "a recipe is linted alone"),
        (["few.py:sound", "steps=3"], "changes a recipe"),
        (["few.py:sound", "--fail-on", "fatal"], "severity is 'fatal'"),
        (["few.py:sound", "--data", "none.jsonl"], "none.jsonl does not exist"),
        (["few.py:sound", "--data", "rows.txt"], "'.txt'"),
        (["few.py:sound", "--data", "empty.jsonl"], "empty.jsonl has no rows"),
        (["few.py:sound", "--data", "odd.jsonl"], "odd.jsonl, line 1 is '3', but a record"),
        (["few.py:sound", "--data", "holes.jsonl"], "line 2 has no 'completion'"),
        (["math", "stepz=3"], "no key 'stepz'"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(capsys, few, monkeypatch, arguments, said):
    monkeypatch.chdir(few.parent)
    Path("rows.txt").write_text("a")
    Path("empty.jsonl").write_text("\n")
    Path("odd.jsonl").write_text("3\n")
    Path("holes.jsonl").write_text('{"completion": "a"}\n{"completion": null}\n')
    status, out, err = run(capsys, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_functions_are_linted_without_pytorch(few):
    code = (
        f"import sys; sys.argv = ['gdpo', 'lint', '{few}:sound']\nfrom gdpo.cli import main\ntry:\n    main()\n"
        "finally:\n    print('HEAVY', [m for m in ('torch', 'transformers', 'trl', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "HEAVY []" in done.stdout


@pytest.mark.slow
def test_the_gold_answers_of_verls_files_are_found(capsys, tmp_path):
    path = tmp_path / "verl.parquet"
    rows = [
        {"prompt": [{"role": "user", "content": f"Q{k}"}], "reward_model": {"ground_truth": f"{k}"}} for k in range(4)
    ]
    pl.DataFrame(rows).write_parquet(path)
    reward = tmp_path / "mine.py"
    reward.write_text("from gdpo.rewards import math_answer\nmine = math_answer(gold='ground_truth')\n")
    status, out, _ = run(capsys, f"{reward}:mine", "--data", path)
    assert (status, "math_answer: no findings" in out, "not checked" in out) == (0, True, False)
