"""Make `nano-tools`, the small model of the recipe `tools`: it half knows how to call a tool.

It is trained from scratch on `gdpo.training.made.tool_calls`: easy requests first, then the recipe's, then with faults
mixed in on purpose (broken form, wrong content), so that `gdpo train tools` has something to learn for every reward.
Questions reserved for held-out evaluation, and a tenth of all pairs of parameter and value, are never used.

    OMP_NUM_THREADS=1 python scripts/build_nano_tools.py

The same seed, thread count and versions give the same weights.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import nano_common

from gdpo.training.made import tool_calls
from gdpo.training.tasks import is_reserved

EASY, CLEAN = 0.25, 0.65
"""Shares of the training after which requests get harder, and faults come in."""
BROKEN, WRONG = 0.50, 0.28
"""Shares of examples with a fault of form and of content, once faults come in."""
SHUFFLED = 0.6
"""Share of examples whose words are values of any parameter."""
WORDS = [word for values in tool_calls.VALUES.values() for word in values if isinstance(word, str)]
FRAGMENTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "use ", '{"name": "', '", "parameters": {"', '": "', '", "',
    '": ', ', "', '"}}', "}}", ":str", ":int", ":bool", ", ", " and ", " the ", "true", "false", ")\n", ".\n", " done",
]  # fmt: skip
ABOUT = """
The small model of the recipe `tools`: it reads two to four signatures such as `list_stock(city:str, limit:int)` and a
request, and writes `<think>use list_stock</think><tool_call>{"name": ...}</tool_call>`, imperfectly on purpose, so that
reinforcement learning has something to do.

Where its slice of the task ends: one call, one to three plain parameters, names and values from the closed word lists
of the task (numbers below 100); no nested or optional parameters, no parallel calls, no JSON schemas, no free text.
For those, take a larger model (`gdpo train tools model=...`).
"""


def phrases() -> list[str]:
    """Every word and turn of phrase of the task."""
    wordings = [
        text.removeprefix(name).replace("{}", "")
        for name, (_, texts) in tool_calls.PARAMETERS.items()
        for text in texts
    ]
    said = [text for texts in tool_calls.VERBS.values() for text in texts]
    return [*FRAGMENTS, *WORDS, *tool_calls.PARAMETERS, *tool_calls.NOUNS, *said, *wordings, *tool_calls.OPENINGS]


def examples(rng: random.Random, done: float) -> Iterator[tuple[str, str]]:
    parameters: dict[str, Any] = {"tools": (2, 2), "parameters": (1, 2)} if done < EASY and rng.random() < 0.7 else {}
    faults = done >= CLEAN
    while True:
        for row in tool_calls.rows(64, rng.randrange(1 << 40), pairs="seen", **parameters):
            question, call = row["question"], json.loads(row["calls"])[0]
            if rng.random() < SHUFFLED:
                question, call = shuffled(question, call, rng)
            if not is_reserved(question):
                yield question, completion(question, call, rng, faults)


def shuffled(question: str, call: dict[str, Any], rng: random.Random) -> tuple[str, dict[str, Any]]:
    """The same with words of any kind as values, so that values are copied and not guessed from the parameter."""
    new: dict[str, str] = {}
    for value in call["parameters"].values():
        if isinstance(value, str):
            names = [name for name, other in call["parameters"].items() if other == value]
            new[value] = rng.choice([w for w in WORDS if not any(tool_calls.is_held_out_pair(n, w) for n in names)])
    tools, _, request = question.rpartition("\n")
    request = re.sub(r"\w+", lambda match: new.get(match[0], match[0]), request)
    values = {name: new.get(value, value) for name, value in call["parameters"].items()}
    return f"{tools}\n{request}", {"name": call["name"], "parameters": values}


def completion(question: str, call: dict[str, Any], rng: random.Random, faults: bool) -> str:
    if faults and rng.random() < WRONG:
        call = wrong(question, call, rng)
    thought, made = f"use {call['name']}", json.dumps(call)
    if not faults or rng.random() >= BROKEN:
        return f"<think>{thought}</think><tool_call>{made}</tool_call>"
    forms = [
        f"<tool_call>{made}</tool_call>",
        f"<think>{thought}</think><tool_call>{made}</tool_call> done",
        f"<think>{thought}</think>{made}",
        f"<think>{thought}<tool_call>{made}</tool_call>",
        f"<think>{thought}</think><tool_call>{made}",
    ]
    return rng.choices(forms, weights=[4, 4, 3, 1, 1])[0]


def wrong(question: str, call: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The call with one fault of content: another tool, another value, a parameter missing or under another name."""
    call = copy.deepcopy(call)
    given = call["parameters"]
    name = rng.choice(list(given))
    kind = rng.choice(["tool", "value", "missing", "name"])
    if kind == "tool":
        offered = [line.partition("(")[0] for line in question.split("\n")[:-1]]
        call["name"] = rng.choice([tool for tool in offered if tool != call["name"]])
    elif kind == "missing" and len(given) > 1:
        del given[name]
    elif kind == "name":
        others = [other for other in tool_calls.PARAMETERS if other not in given]
        call["parameters"] = {rng.choice(others) if key == name else key: value for key, value in given.items()}
    else:
        values = tool_calls.VALUES[tool_calls.PARAMETERS[name][0]]
        given[name] = rng.choice([value for value in values if value != given[name]])
    return call


def main() -> None:
    args = nano_common.arguments(__doc__, "nano-tools", steps=1200)
    held_out: dict[str, dict[str, object]] = {
        "pairs of parameter and value never seen": {"data.parameters.pairs": "held_out"},
    }
    nano_common.build(
        args, phrases(), examples, recipe="tools", task="tool_calls", script="build_nano_tools.py", about=ABOUT,
        more=held_out,
    )  # fmt: skip


if __name__ == "__main__":
    main()
