"""Public data sets with a shape of their own, recognised by their columns: ToolRL's, BFCL's, Eurus-2's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdpo.core.errors import Error
from gdpo.training.tables import read_rows

SYSTEM = """You can call the tools below. First think between <think> and </think>. Then write one JSON object a call, \
{{"name": "...", "parameters": {{...}}}}, each on a line of its own, between <tool_call> and </tool_call>, and nothing \
else.

Tools:
{tools}"""
"""The system message for data that comes with tools but without a prompt that explains them."""


def recognised(rows: list[tuple[str, Any]], path: Path | None) -> list[dict[str, Any]] | None:
    """Rows with ``question``, ``messages`` and gold columns, where the file is one of these; else None.

    ToolRL (github.com/qiancheng0/ToolRL): ``calls`` is the gold response in its tags. BFCL (the package ``bfcl-eval``):
    ``ground_truth`` is the JSON of the possible answers, from the folder ``possible_answer`` beside the file.
    Eurus-2-RL (hub: PRIME-RL/Eurus-2-RL-Data): ``tests`` is the JSON of its pairs of standard input and output; rows
    of mathematics are left out.

    Raises:
        Error: BFCL's questions without their possible answers.
    """
    first = next((row for _, row in rows if isinstance(row, dict)), {})
    if "<think>" in str(_at(first, "reward_model", "ground_truth")) and isinstance(first.get("prompt"), list):
        return [_toolrl(row, place) for place, row in rows]
    if isinstance(first.get("prompt"), list) and any(_pairs(row) for _, row in rows[:100]):
        return [_program(row, pairs) for _, row in rows if (pairs := _pairs(row))]
    if {"instruction", "input", "output"} <= first.keys() and "<think>" in str(first["output"]):
        return [_toolrl_supervised(row, place) for place, row in rows]
    if isinstance(first.get("question"), list) and isinstance(first.get("function"), list) and "id" in first:
        return _bfcl(rows, path)
    return None


def _toolrl(row: Any, place: str) -> dict[str, Any]:
    gold, messages = _at(row, "reward_model", "ground_truth"), row.get("prompt") if isinstance(row, dict) else None
    if not isinstance(gold, str) or not isinstance(messages, list) or not messages:
        raise Error(f"{place} lacks a prompt or reward_model.ground_truth, which ToolRL's rows have")
    kept = [{"role": str(m["role"]), "content": str(m["content"])} for m in messages]
    return {"question": kept[-1]["content"], "messages": kept, "calls": gold}


def _toolrl_supervised(row: Any, place: str) -> dict[str, Any]:
    if not isinstance(row, dict) or not all(isinstance(row.get(k), str) for k in ("instruction", "input", "output")):
        raise Error(f"{place} lacks one of instruction, input and output, which ToolRL's rows have")
    messages = [{"role": "system", "content": row["instruction"]}, {"role": "user", "content": row["input"]}]
    return {"question": row["input"], "messages": messages, "calls": row["output"]}


def _pairs(row: Any) -> list[dict[str, str]]:
    """Pairs of standard input and output in a row of Eurus-2-RL; none in any other."""
    text = _at(row, "reward_model", "ground_truth")
    if not isinstance(text, str) or not text.lstrip().startswith("{"):
        return []
    try:
        value = json.loads(text)
    except ValueError:
        return []
    given, expected = (value.get(key) if isinstance(value, dict) else None for key in ("inputs", "outputs"))
    if not isinstance(given, list) or not isinstance(expected, list) or "fn_name" in value:
        return []  # calls of a named function are no pairs of texts
    return [{"stdin": _lines(one), "stdout": _lines(two)} for one, two in zip(given, expected, strict=False)]


def _lines(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _program(row: Any, pairs: list[dict[str, str]]) -> dict[str, Any]:
    messages = [{"role": str(m["role"]), "content": str(m["content"])} for m in row["prompt"]]
    return {"question": messages[-1]["content"], "messages": messages, "tests": json.dumps(pairs, ensure_ascii=False)}


def _bfcl(rows: list[tuple[str, Any]], path: Path | None) -> list[dict[str, Any]]:
    answers = {} if path is None else _bfcl_answers(path)
    found = []
    for place, row in rows:
        turns = row["question"][0] if row["question"] and isinstance(row["question"][0], list) else row["question"]
        messages = [{"role": str(m["role"]), "content": str(m["content"])} for m in turns]
        if not messages:
            raise Error(f"{place} has an empty question")
        if row.get("id") not in answers:
            raise Error(f"{place} has id {row.get('id')!r}, which the possible answers beside {path} do not have")
        tools = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in row["function"])
        system = SYSTEM.format(tools=tools)
        if messages[0]["role"] == "system":
            messages[0] = {"role": "system", "content": messages[0]["content"] + "\n\n" + system}
        else:
            messages.insert(0, {"role": "system", "content": system})
        # Two questions may read alike and offer other tools.
        asked = messages[-1]["content"] + "\n" + tools
        gold = json.dumps(answers[row["id"]], ensure_ascii=False)
        found.append({"question": asked, "messages": messages, "ground_truth": gold})
    return found


def _bfcl_answers(path: Path) -> dict[Any, Any]:
    beside = path.parent / "possible_answer" / path.name
    if not beside.is_file():
        raise Error(f"{path} holds BFCL's questions, but their answers were expected in {beside}")
    content = beside.read_text(encoding="utf-8")
    return {
        row["id"]: row["ground_truth"] for row in (json.loads(line) for line in content.splitlines() if line.strip())
    }


def rows_of(path: Path) -> list[tuple[str, Any]]:
    """``read_rows``, also for a file that is named ``.json`` but holds one record a line, as BFCL's do."""
    try:
        return read_rows(path)
    except Error:
        lines = path.read_text(encoding="utf-8-sig").split("\n") if path.suffix.lower() == ".json" else []
        try:
            if not isinstance(json.loads(lines[0]), dict) or not any(line.strip() for line in lines[1:]):
                raise
        except (ValueError, IndexError):
            lines = []
        if not lines:
            raise
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append((f"line {number}", json.loads(line)))
            except ValueError as error:
                raise Error(f"{path} is neither JSON nor one record a line (line {number}: {error})") from None
    return rows


def _at(row: Any, *keys: str) -> Any:
    for key in keys:
        row = row.get(key) if isinstance(row, Mapping) else None
    return row
