"""When two results are the same: integers exactly, floats within 1e-6, absolute or relative."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

_TOLERANCE = 1e-6
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?|[-+]?inf", re.ASCII | re.IGNORECASE)
_INTEGER = re.compile(r"[-+]?[0-9]+", re.ASCII)


def same(left: Any, right: Any, otherwise: Callable[[Any, Any], bool] = lambda left, right: left is right) -> bool:
    """Whether two plain values are equal as Python has it, two floats within 1e-6 wherever they stand.

    Args:
        left, right: values of exact plain types, nested.
        otherwise: decides where neither is plain.
    """
    if isinstance(left, float) and isinstance(right, float):
        return left == right or math.isclose(left, right, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    if isinstance(left, complex) and isinstance(right, complex):
        return abs(left - right) <= _TOLERANCE * max(1.0, abs(left), abs(right))
    if isinstance(left, list | tuple) and type(left) is type(right):
        return len(left) == len(right) and all(same(a, b, otherwise) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(value, right[key], otherwise) for key, value in left.items())
    if isinstance(left, set | frozenset) and isinstance(right, set | frozenset):
        return left == right or _same_numbers(left, right)
    if _plain(left) and _plain(right):
        return bool(left == right)
    if _plain(left) or _plain(right):
        return False  # an object of the program, whatever it says of itself
    return otherwise(left, right)


def same_output(found: str, expected: str) -> bool:
    """Whether an output is the expected one, line by line and word by word.

    White space at line ends, ``\\r\\n`` and empty lines at the end make no difference. Where the expected word is
    written as a float, numbers within 1e-6 are equal; every other word has to be the same.
    """
    left, right = _lines(found), _lines(expected)
    if len(left) != len(right):
        return False
    for line, other in zip(left, right, strict=True):
        if line == other:
            continue
        words, others = line.split(), other.split()
        if len(words) != len(others) or not all(map(_same_word, words, others)):
            return False
    return True


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().replace("\r\n", "\n").split("\n")]


def _same_word(found: str, expected: str) -> bool:
    if found == expected:
        return True
    if len(found) > 400 or not _NUMBER.fullmatch(expected) or _INTEGER.fullmatch(expected):
        return False
    return _NUMBER.fullmatch(found) is not None and same(float(found), float(expected))


def _plain(value: Any) -> bool:
    return value is None or isinstance(
        value, bool | int | float | complex | str | bytes | list | tuple | set | frozenset | dict | range | type
    )


def _same_numbers(left: Any, right: Any) -> bool:
    """Sets of numbers, in order; a float beside another may differ by the tolerance."""
    if len(left) != len(right) or not all(isinstance(value, int | float) for value in (*left, *right)):
        return False
    return all(a == b or same(a, b) for a, b in zip(sorted(left), sorted(right), strict=True))
