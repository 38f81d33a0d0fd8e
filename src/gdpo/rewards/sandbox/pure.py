"""What a test may use beside the program's functions, computed in the trusted parent within bounds.

The arguments come from the program and may be made to blow up; an operation whose result would be too large fails the
test instead.
"""

from __future__ import annotations

import collections
import decimal
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

from gdpo.rewards.sandbox.runner import check_keys

MOST_ITEMS = 2_000_000
_MOST_BITS = 1_000_000
_MOST_SIZE = 20_000_000
_MOST_WORK = 2_000_000_000


class Failed(Exception):
    """The test does not pass."""


class Handle:
    """An object that stays in the sandbox; the parent knows nothing of it but its number."""

    __slots__ = ("text",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, text: str) -> None:
        self.text = text


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, str | bytes | list | tuple) and isinstance(right, str | bytes | list | tuple):
        bound(len(left) + len(right) <= _MOST_SIZE)
    return operator.add(left, right)


def _multiply(left: Any, right: Any) -> Any:
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str | bytes | list | tuple) and isinstance(other, int):
            bound(len(one) * max(0, other) <= _MOST_SIZE)
    _small(left, right)
    return left * right


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        bound(max(1, left.bit_length()) * abs(right) <= _MOST_BITS or left in (-1, 0, 1))
    return left**right


def _shift(left: Any, right: Any) -> Any:
    bound(isinstance(left, int) and isinstance(right, int) and left.bit_length() + right <= _MOST_BITS)
    return left << right


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str | bytes):
        text = left if isinstance(left, str) else left.decode("latin-1")
        bound(not re.search(r"[0-9]{4}|\*", text) and len(text) < 10_000)
    _small(left, right)
    return left % right


def _careful(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def run(left: Any, right: Any) -> Any:
        _small(left, right)
        return function(left, right)

    return run


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": _add, "Sub": operator.sub, "Mult": _multiply, "Pow": _power, "LShift": _shift, "Mod": _modulo,
    "Div": _careful(operator.truediv), "FloorDiv": _careful(operator.floordiv), "RShift": operator.rshift,
    "BitAnd": operator.and_, "BitOr": operator.or_, "BitXor": operator.xor,
}  # fmt: skip
BINARY_NAMES = {
    "Add": "add", "Sub": "sub", "Mult": "mul", "Pow": "pow", "LShift": "lshift", "Mod": "mod", "Div": "truediv",
    "FloorDiv": "floordiv", "RShift": "rshift", "BitAnd": "and_", "BitOr": "or_", "BitXor": "xor", "MatMult": "matmul",
}  # fmt: skip


def bound(holds: bool) -> None:
    """Fail the test unless the bound holds."""
    if not holds:
        raise Failed


def _small(*values: Any) -> None:
    for value in values:
        bound(not isinstance(value, int) or value.bit_length() <= _MOST_BITS)


def take(values: Any) -> list[Any]:
    """The items of something that is iterated over, if they are not too many."""
    found = list(itertools.islice(values, MOST_ITEMS + 1))
    bound(len(found) <= MOST_ITEMS)
    return found


def _keys(values: Iterable[Any]) -> list[Any]:
    found = take(values)
    try:
        check_keys(found)
    except ValueError:
        raise Failed from None
    return found


def _dict(*args: Any, **entries: Any) -> dict[Any, Any]:
    if args and not isinstance(args[0], dict):
        pairs = [tuple(take(pair)) for pair in take(args[0])]
        _keys(pair[0] for pair in pairs)
        return dict(pairs, **entries)
    return dict(*args, **entries)


def _count(values: Any = ()) -> dict[Any, int]:
    return dict(values) if isinstance(values, dict) else dict(collections.Counter(_keys(values)))


def text_of(value: Any = "", *rest: Any) -> str:
    """``str``, of integers of any size too."""
    if type(value) is int and value.bit_length() > 10_000:
        return str(decimal.Decimal(value))
    return str(value, *rest)


def _integer(*args: Any) -> int:
    if args and isinstance(args[0], str):
        bound(len(args[0]) <= 4000)
    return int(*args)


def _round(value: Any, digits: Any = None) -> Any:
    bound(digits is None or (isinstance(digits, int) and abs(digits) <= 1000))
    return round(value) if digits is None else round(value, digits)


def _sum(values: Any, start: Any = 0) -> Any:
    found = take(values)
    bound(isinstance(start, int | float | complex) or len(found) <= 1000)
    largest = max((value.bit_length() for value in found if isinstance(value, int)), default=0)
    bound(largest * len(found) <= _MOST_WORK)
    return sum(found, start)


def _pow(base: Any, exponent: Any, modulus: Any = None) -> Any:
    if modulus is None:
        return _power(base, exponent)
    for value in (base, exponent, modulus):
        bound(isinstance(value, int) and value.bit_length() <= 10_000)
    return pow(base, exponent, modulus)


def _range(*args: Any) -> range:
    found = range(*args)
    bound(found.start.bit_length() < 64 and found.stop.bit_length() < 64)
    return found


def _product(values: Any, *, start: Any = 1) -> Any:
    for value in take(values):
        bound(not isinstance(start, int) or start.bit_length() <= 50_000)
        start = _multiply(start, value)
    return start


def _few(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        for value in args:
            bound(not isinstance(value, int) or abs(value) <= 5000)
        return function(*args)

    return run


def _bits(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        for value in args:
            bound(not isinstance(value, int) or value.bit_length() <= 20_000)
        return function(*args)

    return run


ON_ITEMS: dict[str, Callable[..., Any]] = {
    "all": all, "any": any, "sum": _sum, "list": lambda values=(): take(values), "tuple": lambda v=(): tuple(take(v)),
    "set": lambda values=(): set(_keys(values)), "frozenset": lambda values=(): frozenset(_keys(values)),
    "dict": _dict, "OrderedDict": _dict, "Counter": _count,
    "enumerate": lambda v, start=0: list(enumerate(take(v), start)),
    "zip": lambda *parts: list(zip(*map(take, parts), strict=False)), "reversed": lambda values: take(values)[::-1],
}  # fmt: skip
"""Builtins that go through the items of their arguments; objects of the program become lists first."""

ON_VALUES: dict[str, Callable[..., Any]] = {
    "abs": abs, "len": len, "str": text_of, "repr": repr, "int": _integer, "float": float, "bool": bool,
    "complex": complex, "bytes": lambda v=b"": bytes(v) if isinstance(v, bytes) else bytes(take(v)), "round": _round,
    "divmod": lambda a, b: (_careful(operator.floordiv)(a, b), _modulo(a, b)), "pow": _pow, "chr": chr, "ord": ord,
    "hex": hex, "bin": bin, "oct": oct, "range": _range, "ascii": ascii, "hash": hash,
}  # fmt: skip
"""Builtins of one value."""

TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (int, float, bool, str, bytes, list, tuple, dict, set, frozenset, complex, object, range, type)
}

MATH: dict[str, Any] = {
    "pi": math.pi, "e": math.e, "tau": math.tau, "inf": math.inf, "nan": math.nan, "isclose": math.isclose,
    "factorial": _few(math.factorial), "comb": _few(math.comb), "perm": _few(math.perm), "prod": _product,
} | {
    name: _bits(getattr(math, name))
    for name in (
        "sqrt", "floor", "ceil", "trunc", "fabs", "isnan", "isinf", "isfinite", "gcd", "lcm", "isqrt", "exp", "log",
        "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "hypot", "degrees",
        "radians", "copysign", "pow", "fmod", "dist", "cbrt", "sinh", "cosh", "tanh",
    )
}  # fmt: skip

_SEARCH = {"count", "find", "rfind", "index", "rindex", "startswith", "endswith"}
_TEXT = _SEARCH | {
    "capitalize", "casefold", "lower", "upper", "swapcase", "title", "strip", "lstrip", "rstrip", "split", "rsplit",
    "splitlines", "partition", "rpartition", "removeprefix", "removesuffix", "isalnum", "isalpha", "isascii", "isdigit",
    "islower", "isspace", "istitle", "isupper", "join", "replace", "ljust", "rjust", "center", "zfill",
}  # fmt: skip
_SETS = {
    "union", "intersection", "difference", "symmetric_difference", "issubset", "issuperset", "isdisjoint", "copy",
}  # fmt: skip
METHODS: dict[type, set[str]] = {
    str: _TEXT | {"isdecimal", "isnumeric", "isidentifier", "isprintable", "encode"},
    bytes: _TEXT | {"decode", "hex"},
    list: {"count", "index", "copy", "append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear"},
    tuple: {"count", "index"},
    dict: {"get", "keys", "values", "items", "copy", "pop", "update", "setdefault"},
    set: _SETS | {"add", "discard", "remove"},
    frozenset: _SETS,
    int: {"bit_length", "bit_count", "is_integer", "conjugate"},
    float: {"is_integer", "hex", "conjugate"},
    complex: {"conjugate"},
}
METHOD_NAMES = set().union(*METHODS.values())
_CODECS = {"utf-8", "utf8", "ascii", "latin-1"}
_WIDTHS = {"ljust", "rjust", "center", "zfill"}


def method(value: Any, name: str, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Call a method of a plain value."""
    bound(name in METHODS.get(type(value), ()))
    if name in _WIDTHS:
        bound(isinstance(args[0], int) and args[0] <= MOST_ITEMS)
    elif name in ("encode", "decode"):
        bound(all(arg in _CODECS for arg in args) and not keywords)  # others are slow, or are imported by their name
    elif name == "replace":
        bound((len(value) + 1) * max(1, len(args[1])) <= _MOST_SIZE)
    elif name == "join":
        args = [take(args[0])]
        bound(len(value) * len(args[0]) <= _MOST_SIZE)
    elif isinstance(value, set | frozenset):
        args = [arg if isinstance(arg, set | frozenset) else _keys(arg) if name in _SETS else arg for arg in args]
    elif isinstance(value, dict) and name in ("keys", "values", "items"):
        return {"keys": set, "values": list, "items": list}[name](getattr(value, name)())
    return getattr(value, name)(*args, **keywords)
