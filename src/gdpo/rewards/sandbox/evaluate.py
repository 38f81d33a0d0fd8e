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
from collections.abc import Callable, Iterator
from typing import Any

from gdpo.rewards.sandbox import pure
from gdpo.rewards.sandbox.child import Reference
from gdpo.rewards.sandbox.compare import same
from gdpo.rewards.sandbox.pure import Failed, Handle

_MOST_STEPS = 5_000_000
_ORDER = {"Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge}
_ORDER_NAMES = {"Lt": "lt", "LtE": "le", "Gt": "gt", "GtE": "ge"}
_UNARY = {"USub": "neg", "UAdd": "pos", "Invert": "invert"}
_UNKNOWN = object()


class Function:
    """A lambda of a test: called here, or sent to the program as its text."""

    def __init__(self, evaluator: Evaluator, node: ast.Lambda, scope: dict[str, Any]) -> None:
        self._evaluator, self._node, self._scope = evaluator, node, scope

    def __call__(self, *args: Any) -> Any:
        """Its value for positional arguments."""
        names = [argument.arg for argument in self._node.args.args]
        if len(args) != len(names):
            raise Failed
        return self._evaluator.value(self._node.body, {**self._scope, **dict(zip(names, args, strict=True))})

    def text(self) -> str:
        """Its source."""
        return ast.unparse(self._node)


class Evaluator:
    """Evaluates the tests of one program.

    Args:
        ask: calls something in the sandbox: a reference, positional and keyword arguments.
        own: names of builtins that stand for the program's functions.
        check: raises when the time is over.
    """

    def __init__(
        self, ask: Callable[[Reference, list[Any], dict[str, Any]], Any], own: frozenset[str], check: Callable[[], None]
    ) -> None:
        self._ask, self._own, self._check = ask, own, check
        self._steps = 0

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
                if not self._true(self.value(node.test, scope)):
                    raise Failed
            elif isinstance(node, ast.Expr):
                self.value(node.value, scope)
            elif isinstance(node, ast.Assign):
                found = self.value(node.value, scope)
                for target in node.targets:
                    self._bind(target, found, scope)
            elif isinstance(node, ast.For):
                for item in self._items(self.value(node.iter, scope)):
                    self._bind(node.target, item, scope)
                    self._block(node.body, scope)
                self._block(node.orelse, scope)
            elif isinstance(node, ast.If):
                self._block(node.body if self._true(self.value(node.test, scope)) else node.orelse, scope)
            elif isinstance(node, ast.ImportFrom):
                scope.update({alias.name: pure.MATH[alias.name] for alias in node.names})

    def _bind(self, target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            scope[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            values = self._items(value)
            if len(values) != len(target.elts):
                raise Failed
            for part, item in zip(target.elts, values, strict=True):
                self._bind(part, item, scope)

    def value(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        """The value of an expression."""
        self._steps += 1
        if self._steps % 256 == 0:
            self._check()
            if self._steps > _MOST_STEPS:
                raise Failed
        evaluate = getattr(self, f"_{type(node).__name__.lower()}")
        return evaluate(node, scope)

    def _constant(self, node: ast.Constant, scope: dict[str, Any]) -> Any:
        return node.value

    def _name(self, node: ast.Name, scope: dict[str, Any]) -> Any:
        if node.id in scope:
            return scope[node.id]
        found = self._known(node.id)
        if found is not _UNKNOWN:
            return found
        return self._ask(Reference(f"get:{node.id}"), [], {})

    def _known(self, name: str) -> Any:
        """A name that does not belong to the program."""
        if name in self._own:
            return _UNKNOWN
        if name in pure.TYPES:
            return pure.TYPES[name]
        if name in pure.ON_ITEMS or name in pure.ON_VALUES or name in _SPECIAL:
            return Reference(f"builtin:{name}")
        return pure.MATH["isclose"] if name == "isclose" else _UNKNOWN

    def _lambda(self, node: ast.Lambda, scope: dict[str, Any]) -> Any:
        return Function(self, node, scope)

    def _arguments(self, node: ast.Call, scope: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                args += self._items(self.value(argument.value, scope))
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
            known = self._known(function.id)
            if known is _UNKNOWN:
                return self._ask(Reference(f"name:{function.id}"), *self._arguments(node, scope))
            if isinstance(known, type):
                known = Reference(f"builtin:{function.id}")
            return self.apply(known, *self._arguments(node, scope))
        if isinstance(function, ast.Attribute) and not _is_math(function):
            return self._method(function, *self._arguments(node, scope), scope)
        return self.apply(self.value(function, scope), *self._arguments(node, scope))

    def _method(self, node: ast.Attribute, args: list[Any], keywords: dict[str, Any], scope: dict[str, Any]) -> Any:
        holder = self._holder(node.value, scope)
        if not isinstance(holder, Handle | Reference):
            return pure.method(holder, node.attr, [self._plain_items(arg) for arg in args], keywords)
        # The lookup and the call are two steps: the first always gives an object, a function of the program.
        bound = self._ask(Reference("builtin:getattr"), [holder, node.attr], {})
        return self.apply(bound, args, keywords)

    def _holder(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        """What an attribute is taken from; a name of the program stays a name, since it may be a module or a class."""
        if isinstance(node, ast.Name) and node.id not in scope and self._known(node.id) is _UNKNOWN:
            return Reference(f"name:{node.id}")
        return self.value(node, scope)

    def apply(self, function: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        """Call a function: one of the program, a builtin, a lambda of the test."""
        if isinstance(function, Handle):
            return self._ask(Reference(function.text), args, keywords)
        if isinstance(function, type):
            function = Reference(f"builtin:{function.__name__}")
        if isinstance(function, Reference):
            return self._builtin(function.text.partition(":")[2], args, keywords)
        if isinstance(function, Function) or function in pure.MATH.values():
            return function(*args, **keywords)
        raise Failed

    def _builtin(self, name: str, args: list[Any], keywords: dict[str, Any]) -> Any:
        if name in pure.ON_ITEMS:
            items = [self._plain_items(arg) for arg in args]
            return self._truths(name, items) if name in ("all", "any") else pure.ON_ITEMS[name](*items, **keywords)
        if name in pure.ON_VALUES:
            if not args or not isinstance(args[0], Handle):
                return self._true(args[0]) if name == "bool" and args else pure.ON_VALUES[name](*args, **keywords)
            if len(args) > 1 and name in ("divmod", "pow"):
                raise Failed
            return self._ask(Reference(f"builtin:{name}"), args, keywords)
        special: Callable[..., Any] = getattr(self, _SPECIAL[name])
        return special(name, args, **keywords)

    def _truths(self, name: str, items: list[Any]) -> bool:
        return (all if name == "all" else any)(self._true(item) for item in items[0])

    def _ordered(
        self, name: str, args: list[Any], key: Any = None, reverse: Any = False, default: Any = _UNKNOWN
    ) -> Any:
        """``sorted``, ``min`` and ``max``."""
        values = self._items(args[0]) if len(args) == 1 else args
        measure = None if key is None else lambda value: self.apply(key, [value], {})
        if name == "sorted":
            return sorted(values, key=measure, reverse=self._true(reverse))
        if not values and default is not _UNKNOWN:
            return default
        return (min if name == "min" else max)(values, key=measure)

    def _mapped(self, name: str, args: list[Any]) -> list[Any]:
        """``map`` and ``filter``."""
        function, *lists = args
        rows = list(zip(*map(self._items, lists), strict=False))
        found = [row[0] if function is None else self.apply(function, list(row), {}) for row in rows]
        if name == "map":
            return found
        return [row[0] for row, kept in zip(rows, found, strict=True) if self._true(kept)]

    def _asked(self, name: str, args: list[Any]) -> Any:
        """``next``, ``iter``, ``callable``, ``hasattr``, ``issubclass``, ``print``: the program's to answer."""
        if name == "print":
            return None
        if name == "iter" and not isinstance(args[0], Handle):
            return self._items(args[0])
        if name == "next" and not isinstance(args[0], Handle):
            return self._items(args[0])[0]
        return self._ask(Reference(f"builtin:{name}"), args, {})

    def _kind(self, name: str, args: list[Any]) -> Any:
        """``isinstance`` and ``type``."""
        if name == "type" and not isinstance(args[0], Handle):
            return type(args[0])
        if name == "type":
            return self._ask(Reference("builtin:type"), args, {})
        kinds = args[1] if isinstance(args[1], tuple) else (args[1],)
        plain = tuple(kind for kind in kinds if isinstance(kind, type))
        if not isinstance(args[0], Handle) and plain and isinstance(args[0], plain):
            return True
        others = [kind for kind in kinds if isinstance(kind, Handle)]
        return any(self._true(self._ask(Reference("builtin:isinstance"), [args[0], kind], {})) for kind in others)

    def _attribute(self, node: ast.Attribute, scope: dict[str, Any]) -> Any:
        if _is_math(node):
            return pure.MATH[node.attr]
        holder = self._holder(node.value, scope)
        if isinstance(holder, complex | float | int) and node.attr in ("real", "imag"):
            return getattr(holder, node.attr)
        if not isinstance(holder, Handle | Reference):
            raise Failed
        return self._ask(Reference("builtin:getattr"), [holder, node.attr], {})

    def _subscript(self, node: ast.Subscript, scope: dict[str, Any]) -> Any:
        holder = self.value(node.value, scope)
        if isinstance(node.slice, ast.Slice):
            parts = (node.slice.lower, node.slice.upper, node.slice.step)
            bounds = [None if part is None else self.value(part, scope) for part in parts]
            if isinstance(holder, Handle):
                holder = self._items(holder)
            return holder[slice(*bounds)]
        index = self.value(node.slice, scope)
        if isinstance(holder, Handle):
            return self._ask(Reference("operator:getitem"), [holder, index], {})
        return holder[index]

    def _binop(self, node: ast.BinOp, scope: dict[str, Any]) -> Any:
        left, right, name = self.value(node.left, scope), self.value(node.right, scope), type(node.op).__name__
        if isinstance(left, Handle) and isinstance(right, Handle):
            return self._ask(Reference(f"operator:{pure.BINARY_NAMES[name]}"), [left, right], {})
        if isinstance(left, Handle) or isinstance(right, Handle) or name not in pure.BINARY:
            raise Failed
        if any(isinstance(value, int) and value.bit_length() > 10_000 for value in (left, right)):
            self._check()  # such steps take their time
        return pure.BINARY[name](left, right)

    def _unaryop(self, node: ast.UnaryOp, scope: dict[str, Any]) -> Any:
        found = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            return not self._true(found)
        name = _UNARY[type(node.op).__name__]
        if isinstance(found, Handle):
            return self._ask(Reference(f"operator:{name}"), [found], {})
        return getattr(operator, name)(found)

    def _boolop(self, node: ast.BoolOp, scope: dict[str, Any]) -> Any:
        stop = isinstance(node.op, ast.Or)
        found: Any = None
        for part in node.values:
            found = self.value(part, scope)
            if self._true(found) == stop:
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
            return self._true(self._ask(Reference(f"operator:{_ORDER_NAMES[kind]}"), [left, right], {}))
        if isinstance(left, Handle) or isinstance(right, Handle):
            raise Failed
        return bool(_ORDER[kind](left, right))

    def _within(self, value: Any, holder: Any) -> bool:
        if isinstance(holder, str | bytes):
            return value in holder
        if isinstance(holder, dict | set | frozenset) and not isinstance(value, Handle | float):
            return value in holder
        return any(self._same(value, item) for item in self._items(holder))

    def _same(self, left: Any, right: Any) -> bool:
        def objects(one: Any, other: Any) -> bool:
            if isinstance(one, Handle) and isinstance(other, Handle):
                return self._true(self._ask(Reference("operator:eq"), [one, other], {}))
            return one is other

        return same(left, right, objects)

    def _ifexp(self, node: ast.IfExp, scope: dict[str, Any]) -> Any:
        return self.value(node.body if self._true(self.value(node.test, scope)) else node.orelse, scope)

    def _elements(self, nodes: list[ast.expr], scope: dict[str, Any]) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                found += self._items(self.value(node.value, scope))
            else:
                found.append(self.value(node, scope))
        return found

    def _list(self, node: ast.List, scope: dict[str, Any]) -> Any:
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
        for item in self._items(self.value(first.iter, scope)):
            inner = dict(scope)
            self._bind(first.target, item, inner)
            if all(self._true(self.value(condition, inner)) for condition in first.ifs):
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
        return self._builtin(name, [self.value(node.value, scope)], {})

    def _items(self, value: Any) -> list[Any]:
        """What iterating gives, as a list."""
        if isinstance(value, Handle):
            value = self._ask(Reference("builtin:list"), [value], {})
        if isinstance(value, str | bytes | list | tuple | dict | set | frozenset | range):
            return pure.take(value)
        raise Failed

    def _plain_items(self, value: Any) -> Any:
        return self._items(value) if isinstance(value, Handle) else value

    def _true(self, value: Any) -> bool:
        if isinstance(value, Handle):
            value = self._ask(Reference("builtin:bool"), [value], {})
        return bool(value)


_SPECIAL = {
    "sorted": "_ordered", "min": "_ordered", "max": "_ordered", "map": "_mapped", "filter": "_mapped",
    "isinstance": "_kind", "type": "_kind",
} | dict.fromkeys(("next", "iter", "callable", "hasattr", "issubclass", "print"), "_asked")  # fmt: skip


def _is_math(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "math"
