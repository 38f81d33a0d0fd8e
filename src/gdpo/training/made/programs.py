"""Small Python functions to write, with tests: a starting value and steps, in words.

``Write f(x, y): x plus y, then times 3.`` Every step works on the result of the one before it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gdpo.core.errors import Error

FAMILIES = ("arithmetic", "conditional", "text", "list")
"""In the order of their difficulty."""
_NAMES = ("f", "g", "h")
_SUM, _PRODUCT, _ATOM = 0, 1, 2
"""How tightly an expression binds."""


@dataclass(frozen=True)
class Step:
    """One step: in words, as code about ``{}``, and as what it does.

    Attributes:
        words: such as "plus 3".
        code: such as "{} + 3".
        needs: how tightly what stands for ``{}`` has to bind; else it goes into brackets.
        binds: how tightly the result binds.
        apply: (value, second argument) -> value.
    """

    words: str
    code: str
    needs: int
    binds: int
    apply: Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Program:
    """A function to write: its arguments, its words, its expression, and what it does."""

    arguments: tuple[str, ...]
    words: str
    code: str
    apply: Callable[..., Any]
    inputs: Callable[[random.Random], tuple[Any, ...]]


def rows(
    size: int,
    seed: int = 0,
    families: Sequence[str] = ("arithmetic",),
    least_steps: int = 1,
    most_steps: int = 2,
    tests: int = 4,
) -> list[dict[str, Any]]:
    """Functions to write.

    Args:
        size: how many.
        seed: which.
        families: kinds of functions, of ``FAMILIES``; each as often as the others.
        least_steps, most_steps: steps of a function, from 1 to 5.
        tests: asserts a function, from 1 to 20.

    Returns:
        Rows with ``question``, ``tests`` (JSON: a list of asserts, each with other arguments) and ``reference`` (a
        program that passes them).

    Raises:
        Error: a parameter's value outside of what is said above.
    """
    if isinstance(families, str) or not families or any(name not in FAMILIES for name in families):
        raise Error(f"programs has families={families!r}, but a list of {', '.join(FAMILIES)} was expected")
    if not 1 <= least_steps <= most_steps <= 5:
        raise Error(
            f"programs has steps from {least_steps} to {most_steps}, "
            "but 1 <= least_steps <= most_steps <= 5 was expected"
        )
    if not 1 <= tests <= 20:
        raise Error(f"programs has tests={tests!r}, but a number from 1 to 20 was expected")
    rng = random.Random(seed)
    return [_row(rng, rng.choice(list(families)), rng.randint(least_steps, most_steps), tests) for _ in range(size)]


def _row(rng: random.Random, family: str, steps: int, tests: int) -> dict[str, Any]:
    program = _MAKERS[family](rng, steps)
    name = rng.choice(_NAMES)
    head = f"{name}({', '.join(program.arguments)})"
    asserts: dict[str, None] = {}
    for _ in range(200):  # few inputs may be possible
        given = program.inputs(rng)
        shown = ", ".join(map(repr, given))
        asserts[f"assert {name}({shown}) == {program.apply(*given)!r}"] = None
        if len(asserts) == tests:
            break
    return {
        "question": f"Write {head}: {program.words}.",
        "tests": json.dumps(list(asserts)),
        "reference": f"def {head}:\n    return {program.code}",
    }


def _arithmetic(rng: random.Random, steps: int) -> Program:
    two = rng.random() < 0.5
    arguments: tuple[str, ...] = rng.choice([("x", "y"), ("a", "b")]) if two else (rng.choice(["x", "a", "n"]),)
    # The second argument is used once, so that it is never there for nothing.
    use = rng.randrange(steps) if two else None
    chosen = [_number_step(rng, arguments[1] if place == use else None) for place in range(steps)]
    return _chain(arguments, chosen, lambda r: tuple(r.randint(-9, 20) for _ in arguments))


def _conditional(rng: random.Random, steps: int) -> Program:
    argument = rng.choice(["x", "a", "n"])
    limit = rng.randint(2, 9)
    yes = _chain((argument,), [_number_step(rng, None) for _ in range(max(1, steps - 1))], _no_input)
    no = _chain((argument,), [_number_step(rng, None)], _no_input)

    def apply(value: int) -> Any:
        return yes.apply(value) if value > limit else no.apply(value)

    return Program(
        (argument,), f"{yes.words} where {argument} is above {limit}, else {no.words}",
        f"{yes.code} if {argument} > {limit} else {no.code}", apply,
        lambda r: (r.choice([limit, limit + 1, r.randint(-9, 20)]),),
    )  # fmt: skip


def _text(rng: random.Random, steps: int) -> Program:
    times, ending = rng.randint(2, 4), rng.choice(["ab", "xy", "!", "-"])
    known = [
        Step("reversed", "{}[::-1]", _ATOM, _ATOM, lambda s, _: s[::-1]),
        Step("in upper case", "{}.upper()", _ATOM, _ATOM, lambda s, _: s.upper()),
        Step("without its first letter", "{}[1:]", _ATOM, _ATOM, lambda s, _: s[1:]),
        Step(f"repeated {times} times", f"{{}} * {times}", _PRODUCT, _PRODUCT, lambda s, _: s * times),
        Step(f"followed by {ending!r}", f"{{}} + {ending!r}", _SUM, _SUM, lambda s, _: s + ending),
    ]
    chosen = rng.sample(known, min(steps, len(known)))
    return _chain(("s",), chosen, lambda r: ("".join(r.choice("abcde") for _ in range(r.randint(0, 6))),))


def _list(rng: random.Random, steps: int) -> Program:
    limit, number = rng.randint(2, 9), rng.randint(2, 9)
    known = [
        Step(f"only the numbers above {limit}", f"[v for v in {{}} if v > {limit}]", _SUM, _ATOM,
             lambda a, _: [v for v in a if v > limit]),
        Step("only the even numbers", "[v for v in {} if v % 2 == 0]", _SUM, _ATOM,
             lambda a, _: [v for v in a if v % 2 == 0]),
        Step(f"each number times {number}", f"[v * {number} for v in {{}}]", _SUM, _ATOM,
             lambda a, _: [v * number for v in a]),
        Step("sorted", "sorted({})", _SUM, _ATOM, lambda a, _: sorted(a)),
        Step("in reverse order", "{}[::-1]", _ATOM, _ATOM, lambda a, _: a[::-1]),
    ]  # fmt: skip
    ends = [
        Step("the sum of the numbers", "sum({})", _SUM, _ATOM, lambda a, _: sum(a)),
        Step("how many numbers there are", "len({})", _SUM, _ATOM, lambda a, _: len(a)),
    ]
    chosen = rng.sample(known, min(steps, len(known)))
    if rng.random() < 0.5:
        chosen[-1] = rng.choice(ends)
    return _chain(("a",), chosen, lambda r: ([r.randint(-5, 15) for _ in range(r.randint(0, 6))],))


_MAKERS: dict[str, Callable[[random.Random, int], Program]] = {
    "arithmetic": _arithmetic, "conditional": _conditional, "text": _text, "list": _list,
}  # fmt: skip


def _number_step(rng: random.Random, second: str | None) -> Step:
    """Plus, minus or times a number, or the second argument."""
    number = rng.randint(2, 9)
    operand = second or str(number)

    def other(y: Any) -> Any:
        return y if second else number

    return rng.choice([
        Step(f"plus {operand}", f"{{}} + {operand}", _SUM, _SUM, lambda x, y: x + other(y)),
        Step(f"minus {operand}", f"{{}} - {operand}", _SUM, _SUM, lambda x, y: x - other(y)),
        Step(f"times {operand}", f"{{}} * {operand}", _PRODUCT, _PRODUCT, lambda x, y: x * other(y)),
    ])  # fmt: skip


def _chain(
    arguments: tuple[str, ...], steps: Sequence[Step], inputs: Callable[[random.Random], tuple[Any, ...]]
) -> Program:
    """Steps one after the other, from the first argument."""
    code, binds = arguments[0], _ATOM
    for step in steps:
        code = step.code.format(code if binds >= step.needs else f"({code})")
        binds = step.binds

    def apply(first: Any, second: Any = None) -> Any:
        for step in steps:
            first = step.apply(first, second)
        return first

    words = f"{arguments[0]} " + ", then ".join(step.words for step in steps)
    return Program(arguments, words, code, apply, inputs)


def _no_input(rng: random.Random) -> tuple[Any, ...]:
    raise AssertionError("a branch has no input of its own")
