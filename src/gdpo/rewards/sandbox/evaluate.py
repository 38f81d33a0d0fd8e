"""Evaluates asserts in the trusted parent, by a small interpreter of Python's syntax tree.

Only calls of the program's own names go to the sandbox, and only plain values (and numbers that stand for objects kept
there) come back. Comparisons, builtins and arithmetic are computed here; ``eval`` is never used. What the program says
of its own objects (their length, text or attributes) counts as much as what its functions return; but an object is
never equal to a plain value, and no operation between an object and a plain value is left to the program, which would
learn what is expected.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator
from typing import Any

from gdpo.rewards.sandbox import pure
from gdpo.rewards.sandbox.calls import UNKNOWN, Calls, Function
from gdpo.rewards.sandbox.child import Reference
from gdpo.rewards.sandbox.compare import same
from gdpo.rewards.sandbox.pure import Failed, Handle

_MOST_STEPS = 5_000_000
_ORDER = {"Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge}
_ORDER_NAMES = {"Lt": "lt", "LtE": "le", "Gt": "gt", "GtE": "ge"}
_UNARY = {"USub": "neg", "UAdd": "pos", "Invert": "invert"}


class Evaluator(Calls):
    """Evaluates the tests of one program.

    Args:
        ask: calls something in the sandbox: a reference, positional and keyword arguments.
        own: names of builtins that stand for the program's functions.
        check: raises when the time is over.
    """

    def run(self, tree: ast.Module) -> None:
        """Run one test.

        Raises:
            Failed: it does not pass.
        """
        self._steps = 0
        try:
            self._block(tree.body, {})
        except (ArithmeticError, TypeError, ValueError, LookupError, AttributeError, RecursionError, MemoryError):
            raise Failed from None  # such as None - 5: the value is not what the test takes

    def _block(self, body: list[ast.stmt], scope: dict[str, Any]) -> None:
        for node in body:
            if isinstance(node, ast.Assert):
                if not self.true(self.value(node.test, scope)):
                    raise Failed
            elif isinstance(node, ast.Expr):
                self.value(node.value, scope)
            elif isinstance(node, ast.Assign):
                found = self.value(node.value, scope)
                for target in node.targets:
                    self._bind(target, found, scope)
            elif isinstance(node, ast.For):
                for item in self.items(self.value(node.iter, scope)):
                    self._bind(node.target, item, scope)
                    self._block(node.body, scope)
                self._block(node.orelse, scope)
            elif isinstance(node, ast.If):
                self._block(node.body if self.true(self.value(node.test, scope)) else node.orelse, scope)
            elif isinstance(node, ast.ImportFrom):
                scope.update({alias.name: pure.MATH[alias.name] for alias in node.names})

    def _bind(self, target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            scope[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            values = self.items(value)
            if len(values) != len(target.elts):
                raise Failed
            for part, item in zip(target.elts, values, strict=True):
                self._bind(part, item, scope)

    def value(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        """The value of an expression."""
        self._steps += 1
        if self._steps % 256 == 0:
            self.check()
            if self._steps > _MOST_STEPS:
                raise Failed
        evaluate = getattr(self, f"_{type(node).__name__.lower()}")
        return evaluate(node, scope)

    def _constant(self, node: ast.Constant, scope: dict[str, Any]) -> Any:
        return node.value

    def _name(self, node: ast.Name, scope: dict[str, Any]) -> Any:
        if node.id in scope:
            return scope[node.id]
        found = self.known(node.id)
        if found is not UNKNOWN:
            return found
        return self.ask(Reference(f"get:{node.id}"), [], {})

    def _lambda(self, node: ast.Lambda, scope: dict[str, Any]) -> Any:
        return Function(self.value, node, scope)

    def _arguments(self, node: ast.Call, scope: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                args += self.items(self.value(argument.value, scope))
            else:
                args.append(self.value(argument, scope))
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            found = self.value(keyword.value, scope)
            keywords.update(found if keyword.arg is None else {keyword.arg: found})
        return args, keywords

    def _call(self, node: ast.Call, scope: dict[str, Any]) -> Any:
        function = node.func
        if isinstance(function, ast.Name) and function.id not in scope:
            known = self.known(function.id)
            if known is UNKNOWN:
                return self.ask(Reference(f"name:{function.id}"), *self._arguments(node, scope))
            if isinstance(known, type):
                known = Reference(f"builtin:{function.id}")
            return self.apply(known, *self._arguments(node, scope))
        if isinstance(function, ast.Attribute) and not _is_math(function):
            return self._method(function, *self._arguments(node, scope), scope)
        return self.apply(self.value(function, scope), *self._arguments(node, scope))

    def _method(self, node: ast.Attribute, args: list[Any], keywords: dict[str, Any], scope: dict[str, Any]) -> Any:
        holder = self._holder(node.value, scope)
        if not isinstance(holder, Handle | Reference):
            return pure.method(holder, node.attr, [self.plain_items(arg) for arg in args], keywords)
        # The lookup and the call are two steps: the first always gives an object, a function of the program.
        bound = self.ask(Reference("builtin:getattr"), [holder, node.attr], {})
        return self.apply(bound, args, keywords)

    def _holder(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        """What an attribute is taken from; a name of the program stays a name, since it may be a module or a class."""
        if isinstance(node, ast.Name) and node.id not in scope and self.known(node.id) is UNKNOWN:
            return Reference(f"name:{node.id}")
        return self.value(node, scope)

    def _attribute(self, node: ast.Attribute, scope: dict[str, Any]) -> Any:
        if _is_math(node):
            return pure.MATH[node.attr]
        holder = self._holder(node.value, scope)
        if isinstance(holder, complex | float | int) and node.attr in ("real", "imag"):
            return getattr(holder, node.attr)
        if not isinstance(holder, Handle | Reference):
            raise Failed
        return self.ask(Reference("builtin:getattr"), [holder, node.attr], {})

    def _subscript(self, node: ast.Subscript, scope: dict[str, Any]) -> Any:
        holder = self.value(node.value, scope)
        if isinstance(node.slice, ast.Slice):
            parts = (node.slice.lower, node.slice.upper, node.slice.step)
            bounds = [None if part is None else self.value(part, scope) for part in parts]
            if isinstance(holder, Handle):
                holder = self.items(holder)
            return holder[slice(*bounds)]
        index = self.value(node.slice, scope)
        if isinstance(holder, Handle):
            return self.ask(Reference("operator:getitem"), [holder, index], {})
        return holder[index]

    def _binop(self, node: ast.BinOp, scope: dict[str, Any]) -> Any:
        left, right, name = self.value(node.left, scope), self.value(node.right, scope), type(node.op).__name__
        if isinstance(left, Handle) and isinstance(right, Handle):
            return self.ask(Reference(f"operator:{pure.BINARY_NAMES[name]}"), [left, right], {})
        if isinstance(left, Handle) or isinstance(right, Handle) or name not in pure.BINARY:
            raise Failed
        if any(isinstance(value, int) and value.bit_length() > 10_000 for value in (left, right)):
            self.check()  # such steps take their time
        return pure.BINARY[name](left, right)

    def _unaryop(self, node: ast.UnaryOp, scope: dict[str, Any]) -> Any:
        found = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            return not self.true(found)
        name = _UNARY[type(node.op).__name__]
        if isinstance(found, Handle):
            return self.ask(Reference(f"operator:{name}"), [found], {})
        return getattr(operator, name)(found)

    def _boolop(self, node: ast.BoolOp, scope: dict[str, Any]) -> Any:
        stop = isinstance(node.op, ast.Or)
        found: Any = None
        for part in node.values:
            found = self.value(part, scope)
            if self.true(found) == stop:
                break
        return found

    def _compare(self, node: ast.Compare, scope: dict[str, Any]) -> Any:
        left = self.value(node.left, scope)
        for kind, part in zip(node.ops, node.comparators, strict=True):
            right = self.value(part, scope)
            if not self._holds(type(kind).__name__, left, right):
                return False
            left = right
        return True

    def _holds(self, kind: str, left: Any, right: Any) -> bool:
        if kind in ("Eq", "NotEq"):
            return self._same(left, right) == (kind == "Eq")
        if kind in ("Is", "IsNot"):
            found = left.text == right.text if isinstance(left, Handle) and isinstance(right, Handle) else left is right
            return found == (kind == "Is")
        if kind in ("In", "NotIn"):
            return self._within(left, right) == (kind == "In")
        if isinstance(left, Handle) and isinstance(right, Handle):
            return self.true(self.ask(Reference(f"operator:{_ORDER_NAMES[kind]}"), [left, right], {}))
        if isinstance(left, Handle) or isinstance(right, Handle):
            raise Failed
        return bool(_ORDER[kind](left, right))

    def _within(self, value: Any, holder: Any) -> bool:
        if isinstance(holder, str | bytes):
            return value in holder
        if isinstance(holder, dict | set | frozenset) and not isinstance(value, Handle | float):
            return value in holder
        return any(self._same(value, item) for item in self.items(holder))

    def _same(self, left: Any, right: Any) -> bool:
        def objects(one: Any, other: Any) -> bool:
            if isinstance(one, Handle) and isinstance(other, Handle):
                return self.true(self.ask(Reference("operator:eq"), [one, other], {}))
            return one is other

        return same(left, right, objects)

    def _ifexp(self, node: ast.IfExp, scope: dict[str, Any]) -> Any:
        return self.value(node.body if self.true(self.value(node.test, scope)) else node.orelse, scope)

    def _elements(self, nodes: list[ast.expr], scope: dict[str, Any]) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                found += self.items(self.value(node.value, scope))
            else:
                found.append(self.value(node, scope))
        return found

    def _list(self, node: ast.List, scope: dict[str, Any]) -> list[Any]:
        return self._elements(node.elts, scope)

    def _tuple(self, node: ast.Tuple, scope: dict[str, Any]) -> Any:
        return tuple(self._elements(node.elts, scope))

    def _set(self, node: ast.Set, scope: dict[str, Any]) -> Any:
        return pure.ON_ITEMS["set"](self._elements(node.elts, scope))

    def _dict(self, node: ast.Dict, scope: dict[str, Any]) -> Any:
        found: dict[Any, Any] = {}
        for key, entry in zip(node.keys, node.values, strict=True):
            value = self.value(entry, scope)
            found.update(value if key is None else {self.value(key, scope): value})
        return found

    def _rows(self, generators: list[ast.comprehension], scope: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if not generators:
            yield scope
            return
        first, *rest = generators
        for item in self.items(self.value(first.iter, scope)):
            inner = dict(scope)
            self._bind(first.target, item, inner)
            if all(self.true(self.value(condition, inner)) for condition in first.ifs):
                yield from self._rows(rest, inner)

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, scope: dict[str, Any]) -> list[Any]:
        return [self.value(node.elt, row) for row in self._rows(node.generators, scope)]

    _generatorexp = _listcomp

    def _setcomp(self, node: ast.SetComp, scope: dict[str, Any]) -> Any:
        return pure.ON_ITEMS["set"](self._listcomp(node, scope))

    def _dictcomp(self, node: ast.DictComp, scope: dict[str, Any]) -> Any:
        rows = self._rows(node.generators, scope)
        return pure.ON_ITEMS["dict"]([(self.value(node.key, row), self.value(node.value, row)) for row in rows])

    def _joinedstr(self, node: ast.JoinedStr, scope: dict[str, Any]) -> str:
        return "".join(str(self.value(part, scope)) for part in node.values)

    def _formattedvalue(self, node: ast.FormattedValue, scope: dict[str, Any]) -> Any:
        name = "repr" if node.conversion == ord("r") else "str"
        return self.builtin(name, [self.value(node.value, scope)], {})


def _is_math(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "math"
