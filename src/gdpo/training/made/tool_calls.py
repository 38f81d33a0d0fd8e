"""Tool calls: signatures of tools, a request, and the calls that it asks for, all made up on the spot.

A row has ``question`` (the tools, then the request on the last line) and ``calls`` (JSON: a list of ``name`` and
``parameters``). The words come from closed lists, so that a tiny model can have a token for each.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gdpo.core.errors import Error

VERBS = {
    "list": ("list", "show me"), "find": ("find", "look up"), "book": ("book", "reserve"),
    "cancel": ("cancel", "call off"), "send": ("send", "dispatch"), "open": ("open", "bring up"),
    "check": ("check", "verify"), "update": ("update", "change"), "delete": ("delete", "remove"),
    "order": ("order", "buy"), "count": ("count", "tally"), "share": ("share", "pass on"),
}  # fmt: skip
"""First half of a tool's name, and how a request says it."""
NOUNS = (
    "stock", "room", "flight", "ticket", "report", "invoice", "parcel", "meeting", "song", "recipe", "photo", "contact",
    "garden", "lesson", "review", "budget", "letter", "engine", "museum", "ferry", "permit", "survey", "lamp", "bridge",
)  # fmt: skip
"""Second half of a tool's name."""
VALUES: dict[str, tuple[Any, ...]] = {
    "place": ("Lima", "Oslo", "Cairo", "Paris", "Quito", "Delhi", "Tokyo", "Accra", "Berlin", "Madrid", "Vienna",
              "Lagos", "Sydney", "Boston", "Prague", "Dublin"),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "name": ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Iris", "Jonas", "Karim", "Lucia",
             "Mei", "Nadia", "Omar", "Petra"),
    "colour": ("red", "blue", "green", "yellow", "black", "white", "purple", "orange"),
    "language": ("French", "Hindi", "Arabic", "Spanish", "German", "Swahili", "Korean", "Polish"),
    "topic": ("chess", "music", "travel", "poetry", "cooking", "history", "sailing", "physics", "football", "painting"),
    "level": ("low", "normal", "high"),
    "number": tuple(range(1, 100)),
    "clock": tuple(range(1, 25)),
    "flag": (True, False),
}  # fmt: skip
"""The values of each kind."""
PARAMETERS = {
    "city": ("place", ("city {}", "in {}")),
    "origin": ("place", ("origin {}", "from {}")),
    "day": ("day", ("day {}", "on {}")),
    "person": ("name", ("person {}", "for {}")),
    "sender": ("name", ("sender {}", "signed by {}")),
    "colour": ("colour", ("colour {}", "painted {}")),
    "language": ("language", ("language {}", "written in {}")),
    "topic": ("topic", ("topic {}", "about {}")),
    "priority": ("level", ("priority {}", "priority set to {}")),
    "limit": ("number", ("limit {}", "at most {}")),
    "page": ("number", ("page {}", "starting at page {}")),
    "hour": ("clock", ("hour {}", "at hour {}")),
    "urgent": ("flag", ("urgent {}", "urgent set to {}")),
}
"""Kind of value and wordings of each parameter; no two parameters share a wording."""
OBJECTS = {"visit": ("city", "hour"), "period": ("day", "hour"), "note": ("topic", "language")}
"""Nested parameters, and what each holds."""
OPENINGS = ("", "please ", "can you ", "now ")
Distractors = Literal["far", "near", "mixed"]
Form = Literal["short", "json"]
Pairs = Literal["all", "seen", "held_out"]


@dataclass(frozen=True)
class Tool:
    """A tool: its name's halves and its parameters, each with whether it is optional."""

    verb: str
    noun: str
    parameters: Mapping[str, bool] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Such as ``list_stock``."""
        return f"{self.verb}_{self.noun}"

    def signature(self) -> str:
        """Such as ``list_stock(city:str, limit?:int)``."""
        shown = [f"{name}{'?' * optional}:{_short_type(name)}" for name, optional in self.parameters.items()]
        return f"{self.name}({', '.join(shown)})"

    def schema(self) -> dict[str, Any]:
        """The tool as JSON schema."""
        properties = {name: _json_type(name) for name in self.parameters}
        required = [name for name, optional in self.parameters.items() if not optional]
        return {
            "name": self.name, "description": f"{self.verb} the {self.noun}",
            "parameters": {"type": "object", "properties": properties, "required": required},
        }  # fmt: skip


def rows(
    size: int, seed: int, tools: Sequence[int] = (2, 4), parameters: Sequence[int] = (1, 3), nested: bool = False,
    optional: bool = False, distractors: Distractors = "mixed", parallel: bool = False, form: Form = "short",
    pairs: Pairs = "all",
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of the task.

    Args:
        size: how many.
        seed: which.
        tools: fewest and most tools offered, 2 to 8.
        parameters: fewest and most parameters of a tool, 1 to 3.
        nested: a parameter may be an object with two entries of its own.
        optional: parameters may be optional (``limit?:int``); the request names some of those, and the right call has
            only what it names.
        distractors: the tools that are not asked for: "near" share the verb or the noun, "far" share nothing, "mixed"
            are either.
        parallel: a request may ask for two calls, of two tools.
        form: how tools are shown: "short" (signatures) or "json" (JSON schemas).
        pairs: "seen" leaves a tenth of all pairs of parameter and value out, "held_out" takes those wherever there are
            any; "all" takes both.

    Raises:
        Error: a value out of these bounds.
    """
    _check_range("tools", tools, 2, 8)
    _check_range("parameters", parameters, 1, 3)
    for name, value, known in (
        ("distractors", distractors, ("far", "near", "mixed")), ("form", form, ("short", "json")),
        ("pairs", pairs, ("all", "seen", "held_out")),
    ):  # fmt: skip
        if value not in known:
            raise Error(f"tool_calls has {name}={value!r}, but one of {', '.join(known)} was expected")
    for name, flag in (("nested", nested), ("optional", optional), ("parallel", parallel)):
        if not isinstance(flag, bool):
            raise Error(f"tool_calls has {name}={flag!r}, but true or false was expected")
    rng = random.Random(seed)
    made = []
    for _ in range(size):
        offered = _tools(rng, rng.randint(*tools), tuple(parameters), nested, optional, distractors)
        wanted = offered[: 2 if parallel and rng.random() < 0.5 else 1]
        asked = [_ask(rng, tool, pairs) for tool in wanted]
        request = rng.choice(OPENINGS) + ", then ".join(text for text, _ in asked) + "."
        rng.shuffle(offered)
        shown = "\n".join(t.signature() if form == "short" else json.dumps(t.schema()) for t in offered)
        made.append({"question": f"{shown}\n{request}", "calls": json.dumps([call for _, call in asked])})
    return made


def is_held_out_pair(parameter: str, value: object) -> bool:
    """Whether ``pairs="seen"`` leaves this parameter with this value out: a tenth, by CRC-32; no flags."""
    return not isinstance(value, bool) and zlib.crc32(f"{parameter}={value}".encode()) % 10 == 0


def _tools(
    rng: random.Random, count: int, parameters: tuple[int, ...], nested: bool, optional: bool, distractors: str
) -> list[Tool]:
    """The tool asked for, then the others; names differ."""
    halves = [(rng.choice(list(VERBS)), rng.choice(NOUNS))]
    verb, noun = halves[0]
    while len(halves) < count:
        near = distractors == "near" or (distractors == "mixed" and rng.random() < 0.5)
        if near:
            other = (verb, rng.choice(NOUNS)) if rng.random() < 0.5 else (rng.choice(list(VERBS)), noun)
        else:
            other = (rng.choice([v for v in VERBS if v != verb]), rng.choice([n for n in NOUNS if n != noun]))
        if other not in halves:
            halves.append(other)
    return [Tool(*half, _parameters(rng, rng.randint(*parameters), nested, optional)) for half in halves]


def _parameters(rng: random.Random, count: int, nested: bool, optional: bool) -> dict[str, bool]:
    names = rng.sample(list(PARAMETERS), count)
    if nested and rng.random() < 0.5:
        names[rng.randrange(count)] = rng.choice(list(OBJECTS))
    return {name: optional and rng.random() < 0.4 for name in names}


def _ask(rng: random.Random, tool: Tool, pairs: str) -> tuple[str, dict[str, Any]]:
    """The words that ask for a tool, and the call that they ask for, its parameters in the order of the words."""
    given = {name: _value(rng, name, pairs) for name, free in tool.parameters.items() if not free or rng.random() < 0.5}
    order = list(given)
    rng.shuffle(order)
    said = [_say(rng, name, given[name]) for name in order]
    text = f"{rng.choice(VERBS[tool.verb])} the {tool.noun}"
    if said:
        text += " " + " and ".join([", ".join(said[:-1]), said[-1]] if said[1:] else said)
    return text, {"name": tool.name, "parameters": {name: given[name] for name in order}}


def _value(rng: random.Random, name: str, pairs: str) -> Any:
    if name in OBJECTS:
        return {inner: _value(rng, inner, pairs) for inner in OBJECTS[name]}
    values = VALUES[PARAMETERS[name][0]]
    if pairs != "all":
        chosen = [value for value in values if is_held_out_pair(name, value) == (pairs == "held_out")]
        values = tuple(chosen) or values
    return rng.choice(values)


def _say(rng: random.Random, name: str, value: Any) -> str:
    if isinstance(value, dict):
        return f"{name} with {' and '.join(f'{key} {_text(inner)}' for key, inner in value.items())}"
    return rng.choice(PARAMETERS[name][1]).format(_text(value))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _short_type(name: str) -> str:
    if name in OBJECTS:
        return "{" + ", ".join(f"{inner}:{_short_type(inner)}" for inner in OBJECTS[name]) + "}"
    return {str: "str", int: "int", bool: "bool"}[type(VALUES[PARAMETERS[name][0]][0])]


def _json_type(name: str) -> dict[str, Any]:
    if name in OBJECTS:
        inner = OBJECTS[name]
        return {"type": "object", "properties": {key: _json_type(key) for key in inner}, "required": list(inner)}
    return {"type": {"str": "string", "int": "integer", "bool": "boolean"}[_short_type(name)]}


def _check_range(name: str, bounds: object, least: int, most: int) -> None:
    pair = list(bounds) if isinstance(bounds, list | tuple) else []
    whole = len(pair) == 2 and all(isinstance(end, int) and not isinstance(end, bool) for end in pair)
    if not whole or not least <= pair[0] <= pair[1] <= most:
        raise Error(f"tool_calls has {name}={bounds!r}, but two whole numbers within {least} to {most} were expected")
