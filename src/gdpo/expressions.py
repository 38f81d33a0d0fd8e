"""One small grammar for gates and conditions, such as ``correct >= 1`` or ``correct >= 1 and format > 0.5``.

Comparisons (``< <= == != >= >``, chained as in ``0 < length <= 1``) of reward names and numbers, joined by ``and``,
``or``, ``not`` and parentheses; ``soft(correct, 0.2, 0.8)`` holds by degrees, from 0 at 0.2 to 1 at 0.8 (``and``
multiplies degrees). The text is parsed, never evaluated as code. Missing values (NaN) make a comparison
unknown, and unknown follows three-valued logic: ``unknown or true`` is true, ``unknown and true`` is unknown.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from gdpo.core.backend import Array, namespace
from gdpo.core.errors import Error

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.GtE: operator.ge,
    ast.Gt: operator.gt,
}
_LONGEST = 500


class Condition:
    """A parsed condition over named vectors.

    Args:
        text: for example ``correct >= 1``.

    Raises:
        Error: the text is not a condition; the message shows the part that is not understood.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or not text.strip():
            raise Error(f"condition {text!r} is empty, but a comparison such as 'correct >= 1' was expected")
        if len(text) > _LONGEST:
            raise Error(f"condition {text[:40]!r}... has {len(text)} characters, but at most {_LONGEST} were expected")
        self.text = text.strip()
        try:
            tree = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            raise Error(f"condition {text!r} cannot be read ({reason}); write it like 'correct >= 1'") from None
        names: set[str] = set()
        self._check(tree, names)
        self._tree = tree
        self.names = frozenset(names)
        """The names it refers to."""

    def __call__(self, values: Mapping[str, Array]) -> Array:
        """[B] 1.0 where the condition holds, 0.0 where not, between for ``soft``; NaN where a missing value leaves it
        unknown."""
        return self._truth(self._tree, values)

    def __repr__(self) -> str:
        return f"Condition({self.text!r})"

    def _check(self, node: ast.expr, names: set[str]) -> None:
        match node:
            case ast.BoolOp(values=parts):
                for part in parts:
                    self._check(part, names)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                self._check(inner, names)
            case ast.Compare(left=left, ops=operators, comparators=rest) if all(type(o) in _COMPARE for o in operators):
                found = [name for operand in (left, *rest) if (name := self._operand(operand)) is not None]
                if not found:
                    raise Error(f"condition {self.text!r} compares numbers only, but a reward's name was expected")
                names.update(found)
            case ast.Call(func=ast.Name(id="soft"), args=[ast.Name(id=name), low, high], keywords=[]):
                bounds = _constant(low), _constant(high)
                if None in bounds or not bounds[0] < bounds[1]:  # type: ignore[operator]
                    raise Error(f"condition {self.text!r}: soft(reward, low, high) with low < high was expected")
                names.add(name)
            case _:
                segment = ast.get_source_segment(self.text, node)
                raise Error(f"condition {self.text!r}: {segment!r} is not a comparison such as 'correct >= 1'")

    def _operand(self, node: ast.expr) -> str | None:
        """A name, or None for a number."""
        if isinstance(node, ast.Name):
            return node.id
        if _constant(node) is not None:
            return None
        part = ast.get_source_segment(self.text, node)
        raise Error(f"condition {self.text!r}: {part!r} is neither the name of a reward nor a number")

    def _truth(self, node: ast.expr, values: Mapping[str, Array]) -> Array:
        match node:
            case ast.BoolOp(op=join, values=parts):
                truths = [self._truth(part, values) for part in parts]
                result = truths[0]
                for truth in truths[1:]:
                    result = _and(result, truth) if isinstance(join, ast.And) else 1 - _and(1 - result, 1 - truth)
                return result
            case ast.UnaryOp(operand=part):
                return 1 - self._truth(part, values)
            case ast.Compare(left=left, ops=operators, comparators=rest):
                operands = [_value(part, values) for part in (left, *rest)]
                result = None
                for step, compare in enumerate(operators):
                    truth = _compared(_COMPARE[type(compare)], operands[step], operands[step + 1])
                    result = truth if result is None else _and(result, truth)
                return result
            case ast.Call(args=[ast.Name(id=name), low, high]):
                value, start, end = values[name], _constant(low) or 0.0, _constant(high) or 0.0
                return ((value - start) / (end - start)).clip(0.0, 1.0)
        raise AssertionError(node)  # _check has refused everything else


def _constant(node: ast.expr) -> float | None:
    sign = 1.0
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        sign = -1.0 if isinstance(node.op, ast.USub) else 1.0
        node = node.operand
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return sign * float(node.value)
    return None


def _value(node: ast.expr, values: Mapping[str, Array]) -> Array:
    return values[node.id] if isinstance(node, ast.Name) else _constant(node)


def _compared(compare: Callable[[Any, Any], Any], left: Array, right: Array) -> Array:
    xp = namespace(right if isinstance(left, float) else left)
    unknown = (left != left) | (right != right)
    return xp.where(unknown, xp.nan, xp.where(compare(left, right), 1.0, 0.0))


def _and(left: Array, right: Array) -> Array:
    xp = namespace(left)
    false = (left == 0) | (right == 0)
    return xp.where(false, 0.0, left * right)
