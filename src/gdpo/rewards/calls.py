"""Tool calls as models write them, read without ever evaluating anything."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.rewards.base import model_text

Style = Literal["auto", "toolrl", "hermes", "llama3", "mistral", "openai", "python"]
LONGEST = 200_000
"""A text of calls longer than this (characters) is malformed: no trainer's completion is, and parsers need seconds."""
_MOST = 512
"""More calls than this in one completion are malformed."""
_DEEPEST = 100
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_NAMED = re.compile(r"(?:\[TOOL_CALLS\])?\s*([\w.-]{1,200})\s*(?:\[CALL_ID\][\w-]{1,100})?\[ARGS\]\s*")
_SPACE = re.compile(r"[\s;,]*")


class Malformed(ValueError):
    """A completion whose calls cannot be read."""


@dataclass(frozen=True)
class Call:
    """One call of a tool."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


def check_style(style: str) -> None:
    """Raise ``Error`` for a style that is not known."""
    if style not in get_args(Style):
        raise Error(f"style is {style!r}{nearest(str(style), get_args(Style))}")


def read_calls(completion: object, style: str = "auto") -> list[Call]:
    """The calls in a completion, in order; none where it makes none.

    - ``toolrl``: JSON objects with ``name`` and ``parameters`` between ``<tool_call>`` and ``</tool_call>``;
    - ``hermes`` (Qwen): the same with ``arguments``, one block a call;
    - ``llama3``: the whole text is JSON with ``name`` and ``parameters``, after ``<|python_tag|>`` or not;
    - ``mistral``: ``[TOOL_CALLS]`` and a JSON list, or ``[TOOL_CALLS]name[ARGS]{...}``;
    - ``openai``: the message's ``tool_calls``, or its JSON as text;
    - ``python``: ``[f(a=1), g(b="x")]`` with literal arguments, also in a code fence;
    - ``auto``: the first of these whose marks are there.

    ``parameters`` and ``arguments`` are read alike in every style, and so is an object of JSON given as a text. What
    stands inside ``<think>...</think>`` is no call.

    Raises:
        Malformed: there is a call that cannot be read.
    """
    if style in ("auto", "openai") and (found := _of_message(completion)) is not None:
        return found
    text = model_text(completion)
    if len(text) > LONGEST:
        raise Malformed("too long")
    text = after_thinking(text)
    reader = _READERS[_recognised(text) if style == "auto" else style]
    try:
        found = reader(text)
    except RecursionError:
        raise Malformed("nested too deeply") from None
    if len(found) > _MOST:
        raise Malformed("too many calls")
    return found


def gold_calls(value: object) -> list[Call] | None:
    """The calls that a gold value stands for: a list of mappings, its JSON, or a response in ToolRL's tags; None where
    the value is missing or cannot be read."""
    try:
        if isinstance(value, str):
            text = value.strip()
            if "<tool_call>" in text or "<response>" in text or "<think>" in text:
                return _tagged(after_thinking(text))
            return _from_list(json.loads(text)) if text else None
        if isinstance(value, Mapping):
            return [to_call(value)]
        if isinstance(value, Sequence):
            return _from_list(list(value))
    except (ValueError, RecursionError):
        return None
    return None


def to_call(value: object) -> Call:
    """A call from a mapping with ``name`` and ``parameters`` or ``arguments`` (none: null or left out).

    Raises:
        Malformed: it is no such mapping.
    """
    if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
        value = value["function"]
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or not value["name"]:
        raise Malformed("no mapping with a name")
    given = value["parameters"] if "parameters" in value else value.get("arguments")
    if isinstance(given, str):
        given = _json(given) if given.strip() else {}
    if given is None:
        given = {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise Malformed("parameters that are no mapping")
    if _depth(given) > _DEEPEST:
        raise Malformed("nested too deeply")
    return Call(value["name"], dict(given))


def after_thinking(text: str) -> str:
    """The text behind the first closed ``<think>`` block it begins with; the whole text where there is none."""
    start = text.lstrip()
    if start.startswith("<think>"):
        end = start.find("</think>")
        return start[end + len("</think>") :] if end >= 0 else ""
    _, mark, rest = text.partition("</think>")  # the chat template wrote the opening tag
    return rest if mark else text


def block_of_calls(text: str, start: int) -> tuple[list[Call], int]:
    """Calls between ``<tool_call>`` at ``start`` and its closing tag, and where that ends.

    The closing tag is looked for behind the JSON, so that a tag or a brace inside a string cuts nothing.

    Raises:
        Malformed: anything but JSON objects with a name stands there, or the block does not close.
    """
    position = start + len(_OPEN)
    calls: list[Call] = []
    while True:
        position = _skip(text, position)
        if text.startswith(_CLOSE, position):
            return calls, position + len(_CLOSE)
        value, position = _decode(text, position)
        calls += _from_list(value) if isinstance(value, list) else [to_call(value)]
        if len(calls) > _MOST:
            raise Malformed("too many calls")


def equal(left: object, right: object, int_float: bool = True, text_number: bool = False) -> bool:
    """Whether two plain values are the same, by type too: True is not 1.

    Args:
        left, right: what JSON gives.
        int_float: whether 3 equals 3.0.
        text_number: whether ``"3"`` equals 3, and ``"true"`` equals True.
    """
    if isinstance(left, bool) or isinstance(right, bool):
        if text_number and (isinstance(left, str) or isinstance(right, str)):
            return str(left).strip().lower() == str(right).strip().lower()
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right and (int_float or type(left) is type(right))
    if text_number and isinstance(left, str | int | float) and isinstance(right, str | int | float):
        one, two = _number(left), _number(right)
        if one is not None and two is not None:
            return one == two
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(equal(left[k], right[k], int_float, text_number) for k in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(equal(one, two, int_float, text_number) for one, two in pairs)
    return type(left) is type(right) and left == right


def _number(value: object) -> float | int | None:
    if isinstance(value, int | float):
        return value
    text = str(value).strip()
    if len(text) > 40 or not re.fullmatch(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?", text):
        return None
    return int(text) if re.fullmatch(r"[-+]?[0-9]+", text) else float(text)


def _recognised(text: str) -> str:
    if _OPEN in text:
        return "toolrl"
    if "[TOOL_CALLS]" in text:
        return "mistral"
    bare = text.replace("<|python_tag|>", "").strip()
    if bare.startswith("{") or re.match(r"\[\s*\{", bare):
        return "openai"
    if re.match(r"(?:```\w*\s*)?\[?\s*[A-Za-z_][\w.]*\(", bare):
        return "python"
    return "toolrl"


def _of_message(completion: object) -> list[Call] | None:
    """Calls of the last message of the assistant, where it has ``tool_calls``."""
    if isinstance(completion, str) or not isinstance(completion, Sequence):
        return None
    for message in reversed(completion):
        if isinstance(message, Mapping) and message.get("role", "assistant") == "assistant":
            calls = message.get("tool_calls")
            if not calls:
                return None
            if not isinstance(calls, Sequence) or isinstance(calls, str):
                raise Malformed("tool_calls is no list")
            return _from_list(list(calls))
    return None


def _from_list(values: object) -> list[Call]:
    if isinstance(values, Mapping):
        if isinstance(values.get("tool_calls"), list):
            values = values["tool_calls"]
        else:
            return [to_call(values)]
    if not isinstance(values, list):
        raise Malformed("no list of calls")
    return [to_call(value) for value in values]


def _tagged(text: str) -> list[Call]:
    calls: list[Call] = []
    position = 0
    while (start := text.find(_OPEN, position)) >= 0:
        found, position = block_of_calls(text, start)
        calls += found
        if len(calls) > _MOST:
            raise Malformed("too many calls")
    return calls


def _bare(text: str) -> list[Call]:
    """JSON objects one after another, or one list; text that does not begin like JSON makes no call."""
    text = text.replace("<|python_tag|>", "").replace("<|eom_id|>", "").replace("<|eot_id|>", "").strip()
    if not text.startswith(("{", "[")):
        return []
    calls, position = [], 0
    while position < len(text):
        value, position = _decode(text, position)
        calls += _from_list(value) if isinstance(value, list) else _from_list([value] if _is_call(value) else value)
        position = _skip(text, position)
        if len(calls) > _MOST:
            raise Malformed("too many calls")
    return calls


def _is_call(value: object) -> bool:
    return isinstance(value, dict) and "tool_calls" not in value


def _mistral(text: str) -> list[Call]:
    _, mark, rest = text.partition("[TOOL_CALLS]")
    if not mark:
        return []
    rest = rest.removesuffix("</s>").strip()
    if rest.startswith(("[", "{")):
        return _bare(rest)
    calls, position = [], 0
    while position < len(rest):
        match = _NAMED.match(rest, position)
        if not match:
            raise Malformed("no name[ARGS]")
        value, position = _decode(rest, match.end())
        calls.append(to_call({"name": match[1], "parameters": value}))
        position = _skip(rest, position)
        if len(calls) > _MOST:
            raise Malformed("too many calls")
    return calls


def _python(text: str) -> list[Call]:
    text = text.strip()
    fence = re.match(r"```\w*\n(.*?)```", text, re.S)
    text = fence[1].strip() if fence else text
    if not re.match(r"\[?\s*[A-Za-z_][\w.]*\(", text):
        return []
    if max(_nesting(text), text.count("(") // 50) > _DEEPEST:
        raise Malformed("nested too deeply")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise Malformed("no Python call") from None
    nodes = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
    return [_python_call(node) for node in nodes]


def _python_call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        raise Malformed("no call with named arguments")
    try:
        parameters = {str(k.arg): _plain(ast.literal_eval(k.value)) for k in node.keywords}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise Malformed("an argument that is no literal") from None
    return to_call({"name": ast.unparse(node.func), "parameters": parameters})


def _plain(value: Any) -> Any:
    """A Python literal as JSON has it."""
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise Malformed("a key that is no text")
        return {key: _plain(entry) for key, entry in value.items()}
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise Malformed("no plain value")


def _refuse(constant: str) -> Any:
    raise Malformed(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _decode(text: str, position: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, position)
    except (ValueError, RecursionError):  # an integer of more than 4,300 digits is a ValueError, too
        raise Malformed("no JSON") from None


def _json(text: str) -> Any:
    value, end = _decode(text.strip(), 0)
    if end != len(text.strip()):
        raise Malformed("text behind the JSON")
    return value


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _depth(value: object) -> int:
    """How deeply lists and mappings are nested, without recursion; stops beyond what is allowed."""
    level, depth = [value], 0
    while level and depth <= _DEEPEST + 1:
        level = [
            inner
            for entry in level
            for inner in (entry.values() if isinstance(entry, Mapping) else entry if isinstance(entry, list) else ())
        ]
        depth += bool(level)
    return depth


def _nesting(text: str) -> int:
    depth = most = 0
    for character in text:
        if character in "([{":
            depth += 1
            most = max(most, depth)
        elif character in ")]}":
            depth -= 1
    return most


_READERS: dict[str, Callable[[str], list[Call]]] = {
    "toolrl": _tagged,
    "hermes": _tagged,
    "llama3": _bare,
    "openai": _bare,
    "mistral": _mistral,
    "python": _python,
}
