"""Rewards for calling tools."""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gdpo.core.errors import Error
from gdpo.rewards.base import RewardFunction, column_values, factory, model_text, reward
from gdpo.rewards.calls import (
    LONGEST,
    Call,
    Malformed,
    Style,
    block_of_calls,
    check_style,
    equal,
    gold_calls,
    read_calls,
)
from gdpo.rewards.matching import best_total

WORST, BEST = -3.0, 3.0


@factory("tool_correctness")
def tool_correctness(
    gold: str = "calls", style: Style = "auto", int_float: bool = True, text_number: bool = False
) -> RewardFunction:
    """ToolRL's correctness (arXiv 2504.13958), from -3 to 3, with the optimal matching that the paper describes.

    6 * score / S_max - 3, where score is the Jaccard index of the names (as multisets) plus, for each gold call and the
    predicted call of the same name paired with it, the Jaccard index of the parameters' names plus the number of
    parameters with equal value; S_max = 1 + sum over gold calls of (1 + number of parameters). The pairing is the one
    with the largest score (the reference code takes the best left, in gold order). A call that cannot be read: -3. All
    calls equal, in order: 3.

    Args:
        gold: the column with the right calls: a list of ``{"name", "parameters"}``, its JSON as text (which a data
            set keeps as it is; a list of mappings gets every other row's keys), or a response in ToolRL's tags. A row
            without a gold call, or one that cannot be read, gets None: only the format counts there.
        style: how the model writes calls, see ``gdpo.rewards.calls.read_calls``.
        int_float: whether 3 equals 3.0 (default: yes).
        text_number: whether ``"3"`` equals 3 (default: no).
    """
    same = _same(int_float, text_number)
    return _scored("tool_correctness", gold, style, (WORST, BEST), lambda made, right: correctness(made, right, same))


@factory("tool_exact")
def tool_exact(
    gold: str = "calls", style: Style = "auto", ordered: bool = False, int_float: bool = True, text_number: bool = False
) -> RewardFunction:
    """1 if the calls are exactly the gold calls, as a set (each as often as there), else 0; None without a gold value.

    Args:
        gold, style, int_float, text_number: as for ``tool_correctness``; here an empty list of gold calls counts: then
            the model must call nothing.
        ordered: whether the order counts.
    """
    same = _same(int_float, text_number)

    def score(predicted: list[Call], right: list[Call]) -> float:
        if len(predicted) != len(right):
            return 0.0
        if ordered:
            return float(all(_equal_calls(one, two, same) for one, two in zip(predicted, right, strict=True)))
        if Counter(call.name for call in predicted) != Counter(call.name for call in right):
            return 0.0
        pairs = [[float(_equal_calls(one, two, same)) for two in right] for one in predicted]
        return float(best_total(pairs) == len(right))

    return _scored("tool_exact", gold, style, (0.0, 1.0), score, none_counts=True)


@factory("tool_format")
def tool_format(gold: str | None = "calls", style: Style = "toolrl") -> RewardFunction:
    """1 if the completion has the expected form, else 0.

    In ToolRL's style it is exactly ``<think>...</think>`` and then ``<tool_call>...</tool_call>``,
    ``<response>...</response>`` or both, in this order, none empty, with white space between and nothing else.
    Thinking may name tags. Which of the two is due is read from the gold column: a response in ToolRL's tags shows its
    own blocks; calls ask for a ``<tool_call>`` block, an empty list for ``<response>``. In other styles: 1 if calls are
    due and all can be read, or none are due and none are made.

    Args:
        gold: as for ``tool_correctness``; None: either block will do. A row without a gold value gets None.
        style: as for ``tool_correctness``.
    """
    check_style(style)

    @reward(range=(0, 1), name="tool_format")
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        golds = (
            [None] * len(completions) if gold is None else column_values(columns, gold, len(completions), "tool_format")
        )
        return [_format(c, g, style, gold is None) for c, g in zip(completions, golds, strict=True)]

    return score


@factory("bfcl_match")
def bfcl_match(gold: str = "ground_truth", style: Style = "auto") -> RewardFunction:
    """1 if the calls match one of the allowed answers (BFCL's AST check), else 0; None without a gold value.

    Args:
        gold: the column with the possible answers: a list of ``{function: {parameter: [allowed, ...]}}``, or its JSON
            as text. ``""`` among the allowed values means that the parameter may be left out.
        style: as for ``tool_correctness``.

    As in BFCL, text is compared without case, white space and ``,./-_*^``, an integer stands for a float but not the
    other way round, and the order of calls does not count. Calls are paired optimally; BFCL takes the first that fits.
    """

    def score(predicted: list[Call], right: Any) -> float:
        if len(predicted) != len(right):
            return 0.0
        pairs = [[float(_allowed(call, *possible)) for possible in right] for call in predicted]
        return float(best_total(pairs) == len(right))

    return _scored("bfcl_match", gold, style, (0.0, 1.0), score, read=_possible, none_counts=True)


def correctness(predicted: Sequence[Call], gold: Sequence[Call], same: Callable[[Any, Any], bool] = equal) -> float:
    """ToolRL's score of predicted calls, see ``tool_correctness``."""
    if len(predicted) == len(gold) and all(_equal_calls(p, g, same) for p, g in zip(predicted, gold, strict=True)):
        return BEST
    names, right = Counter(call.name for call in predicted), Counter(call.name for call in gold)
    score = (names & right).total() / max((names | right).total(), 1)
    for name in right:
        wanted = [call for call in gold if call.name == name]
        given = [call for call in predicted if call.name == name]
        score += best_total([[_pair(g, p, same) for p in given] for g in wanted])
    most = 1 + sum(1 + len(call.parameters) for call in gold)
    return (BEST - WORST) * score / most + WORST


def _pair(gold: Call, predicted: Call, same: Callable[[Any, Any], bool]) -> float:
    left, right = gold.parameters, predicted.parameters
    either = len(left.keys() | right.keys())
    jaccard = len(left.keys() & right.keys()) / either if either else 1.0
    return jaccard + sum(key in right and same(value, right[key]) for key, value in left.items())


def _equal_calls(one: Call, two: Call, same: Callable[[Any, Any], bool]) -> bool:
    return one.name == two.name and same(one.parameters, two.parameters)


def _same(int_float: bool, text_number: bool) -> Callable[[Any, Any], bool]:
    for name, value in (("int_float", int_float), ("text_number", text_number)):
        if not isinstance(value, bool):
            raise Error(f"{name} is {value!r}, but true or false was expected")
    return lambda left, right: equal(left, right, int_float, text_number)


def _scored(
    name: str, gold: str, style: str, bounds: tuple[float, float], compare: Callable[[list[Call], Any], float],
    read: Callable[[object], Any] = gold_calls, none_counts: bool = False,
) -> RewardFunction:  # fmt: skip
    """A reward that reads the calls of each completion and compares them with the gold column."""
    check_style(style)
    warned = False

    @reward(range=bounds, name=name)
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        nonlocal warned
        golds = column_values(columns, gold, len(completions), name)
        scores: list[float | None] = []
        unread = 0
        for completion, value in zip(completions, golds, strict=True):
            right = read(value)
            unread += right is None
            if right is None or (not right and not none_counts):
                scores.append(None)
                continue
            try:
                scores.append(compare(read_calls(completion, style), right))
            except (Malformed, RecursionError):
                scores.append(bounds[0])
        if unread and not warned:
            warned = True
            warnings.warn(f"{unread} rows have no {gold!r} that can be read: no {name} there (said once)", stacklevel=2)
        return scores

    score.usable = lambda **columns: [read(value) is not None for value in columns[gold]]  # type: ignore[attr-defined]
    return score


def _format(completion: object, gold: object, style: str, either: bool) -> float | None:
    calls = None if either else gold_calls(gold)
    if calls is None and not either:
        return None
    if style != "toolrl":
        try:
            made = read_calls(completion, style)
        except Malformed:
            return 0.0
        return float(either or bool(made) == bool(calls))
    wanted = [_blocks_of(gold)] if _blocks_of(gold) else [["tool_call"] if calls else ["response"]]
    if either:
        wanted = [["tool_call"], ["response"], ["tool_call", "response"]]
    found = _blocks(model_text(completion))
    return float(found is not None and found in wanted)


def _blocks_of(gold: object) -> list[str]:
    """The blocks behind the thinking in a gold response in ToolRL's tags."""
    if not isinstance(gold, str) or not re.search("<(?:think|tool_call|response)>", gold):
        return []
    return _blocks(gold) or [name for name in ("tool_call", "response") if f"<{name}>" in gold]


def _blocks(text: str) -> list[str] | None:
    """The names of the blocks behind ``<think>...</think>``; None where the text is anything else than blocks."""
    if len(text) > LONGEST:
        return None
    text = text.strip()
    position, names = 0, []
    while position < len(text):
        match = _BLOCK.match(text, position)
        if not match or match[1] in names:
            return None
        end = _end(text, match[1], match.start(1) - 1)
        closing = end - len(match[1]) - 3
        if end < 0 or not text[match.end() : closing].strip():
            return None
        # Thinking may name the tags of what follows, as ToolRL's own gold responses do.
        misled = {"think": _THINK, "response": _TAG}.get(match[1])
        if misled and misled.search(text, match.end(), closing):
            return None
        names.append(match[1])
        position = end
    return names[1:] if names[:1] == ["think"] else None


_BLOCK = re.compile(r"\s*<(think|tool_call|response)>")
_THINK = re.compile("<think>")
_TAG = re.compile(r"</?(?:think|tool_call|response)>")


def _end(text: str, name: str, start: int) -> int:
    """Where the block that opens at ``start`` ends; -1 where it does not close."""
    if name == "tool_call":
        try:
            return block_of_calls(text, start)[1]
        except Malformed:  # what is inside is the other reward's to judge, but it must hold no tag
            inside = _TAG.search(text, start + len("<tool_call>"))
            return inside.end() if inside and inside[0] == "</tool_call>" else -1
    closing = text.find(f"</{name}>", start)
    return closing + len(name) + 3 if closing >= 0 else -1


def _possible(value: object) -> list[tuple[str, Mapping[str, Any]]] | None:
    try:
        entries = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None
    if isinstance(entries, Mapping):
        entries = [entries]
    if not isinstance(entries, list):
        return None
    found = []
    for entry in entries:
        if not isinstance(entry, Mapping) or len(entry) != 1:
            return None
        ((name, parameters),) = entry.items()
        if not isinstance(parameters, Mapping) or not all(isinstance(v, list) for v in parameters.values()):
            return None
        found.append((str(name), parameters))
    return found


def _allowed(call: Call, name: str, parameters: Mapping[str, Any]) -> bool:
    return call.name == name and _fits(call.parameters, parameters)


def _fits(given: Mapping[str, Any], allowed: Mapping[str, Any]) -> bool:
    """Every given entry is among the allowed values, and what is missing may be missing."""
    if any(key not in allowed for key in given):
        return False
    return all(_among(given[key], values) if key in given else "" in values for key, values in allowed.items())


def _among(value: object, allowed: Sequence[Any]) -> bool:
    return any(_alike(value, option) for option in allowed)


def _alike(value: object, option: object) -> bool:
    if isinstance(value, str) and isinstance(option, str):
        return _letters(value) == _letters(option)
    if isinstance(value, Mapping) and isinstance(option, Mapping):
        return _fits(value, {k: v if isinstance(v, list) else [v] for k, v in option.items()})
    if isinstance(value, list) and isinstance(option, list):
        return len(value) == len(option) and all(map(_alike, value, option))
    if isinstance(option, float) and not isinstance(value, bool) and isinstance(value, int | float):
        return value == option
    return type(value) is type(option) and value == option


def _letters(text: str) -> str:
    return re.sub(r"[ ,./\-_*^]", "", text).lower().replace("'", '"')
