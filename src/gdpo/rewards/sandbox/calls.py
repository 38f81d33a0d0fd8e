"""Calls in a test: builtins are computed in the parent, the program's own functions in the sandbox."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from gdpo.rewards.sandbox import pure
from gdpo.rewards.sandbox.child import Reference
from gdpo.rewards.sandbox.pure import Failed, Handle

UNKNOWN = object()
"""Stands for a name of the program."""


class Function:
    """A lambda of a test: called here, or sent to the program as its text."""

    def __init__(
        self, value: Callable[[ast.expr, dict[str, Any]], Any], node: ast.Lambda, scope: dict[str, Any]
    ) -> None:
        self._value, self._node, self._scope = value, node, scope

    def __call__(self, *args: Any) -> Any:
        """Its value for positional arguments."""
        names = [argument.arg for argument in self._node.args.args]
        if len(args) != len(names):
            raise Failed
        return self._value(self._node.body, {**self._scope, **dict(zip(names, args, strict=True))})

    def text(self) -> str:
        """Its source."""
        return ast.unparse(self._node)


class Calls:
    """What calls in the tests of one program give.

    Args:
        ask: calls something in the sandbox: a reference, positional and keyword arguments.
        own: names of builtins that stand for the program's functions.
        check: raises when the time is over.
    """

    def __init__(
        self, ask: Callable[[Reference, list[Any], dict[str, Any]], Any], own: frozenset[str], check: Callable[[], None]
    ) -> None:
        self.ask, self._own, self.check = ask, own, check

    def known(self, name: str) -> Any:
        """A name that does not belong to the program."""
        if name in self._own:
            return UNKNOWN
        if name in pure.TYPES:
            return pure.TYPES[name]
        if name in pure.ON_ITEMS or name in pure.ON_VALUES or name in _SPECIAL:
            return Reference(f"builtin:{name}")
        return pure.MATH["isclose"] if name == "isclose" else UNKNOWN

    def apply(self, function: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        """Call a function: one of the program, a builtin, a lambda of the test."""
        if isinstance(function, Handle):
            return self.ask(Reference(function.text), args, keywords)
        if isinstance(function, type):
            function = Reference(f"builtin:{function.__name__}")
        if isinstance(function, Reference):
            return self.builtin(function.text.partition(":")[2], args, keywords)
        if isinstance(function, Function) or function in pure.MATH.values():
            return function(*args, **keywords)
        raise Failed

    def builtin(self, name: str, args: list[Any], keywords: dict[str, Any]) -> Any:
        """Call a builtin; of the program's own objects, the program says their length, text or items."""
        if name in pure.ON_ITEMS:
            items = [self.plain_items(arg) for arg in args]
            return self._truths(name, items) if name in ("all", "any") else pure.ON_ITEMS[name](*items, **keywords)
        if name in pure.ON_VALUES:
            if not args or not isinstance(args[0], Handle):
                return self.true(args[0]) if name == "bool" and args else pure.ON_VALUES[name](*args, **keywords)
            if len(args) > 1 and name in ("divmod", "pow"):
                raise Failed
            return self.ask(Reference(f"builtin:{name}"), args, keywords)
        special: Callable[..., Any] = getattr(self, _SPECIAL[name])
        return special(name, args, **keywords)

    def _truths(self, name: str, items: list[Any]) -> bool:
        return (all if name == "all" else any)(self.true(item) for item in items[0])

    def _ordered(
        self, name: str, args: list[Any], key: Any = None, reverse: Any = False, default: Any = UNKNOWN
    ) -> Any:
        """``sorted``, ``min`` and ``max``."""
        values = self.items(args[0]) if len(args) == 1 else args
        measure = None if key is None else lambda value: self.apply(key, [value], {})
        if name == "sorted":
            return sorted(values, key=measure, reverse=self.true(reverse))
        if not values and default is not UNKNOWN:
            return default
        return (min if name == "min" else max)(values, key=measure)

    def _mapped(self, name: str, args: list[Any]) -> list[Any]:
        """``map`` and ``filter``."""
        function, *lists = args
        rows = list(zip(*map(self.items, lists), strict=False))
        found = [row[0] if function is None else self.apply(function, list(row), {}) for row in rows]
        if name == "map":
            return found
        return [row[0] for row, kept in zip(rows, found, strict=True) if self.true(kept)]

    def _asked(self, name: str, args: list[Any]) -> Any:
        """``next``, ``iter``, ``callable``, ``hasattr``, ``issubclass``, ``print``: the program's to answer."""
        if name == "print":
            return None
        if name == "iter" and not isinstance(args[0], Handle):
            return self.items(args[0])
        if name == "next" and not isinstance(args[0], Handle):
            return self.items(args[0])[0]
        return self.ask(Reference(f"builtin:{name}"), args, {})

    def _kind(self, name: str, args: list[Any]) -> Any:
        """``isinstance`` and ``type``."""
        if name == "type" and not isinstance(args[0], Handle):
            return type(args[0])
        if name == "type":
            return self.ask(Reference("builtin:type"), args, {})
        kinds = args[1] if isinstance(args[1], tuple) else (args[1],)
        plain = tuple(kind for kind in kinds if isinstance(kind, type))
        if not isinstance(args[0], Handle) and plain and isinstance(args[0], plain):
            return True
        others = [kind for kind in kinds if isinstance(kind, Handle)]
        return any(self.true(self.ask(Reference("builtin:isinstance"), [args[0], kind], {})) for kind in others)

    def items(self, value: Any) -> list[Any]:
        """What iterating gives, as a list."""
        if isinstance(value, Handle):
            value = self.ask(Reference("builtin:list"), [value], {})
        if isinstance(value, str | bytes | list | tuple | dict | set | frozenset | range):
            return pure.take(value)
        raise Failed

    def plain_items(self, value: Any) -> Any:
        """The value, a list where it is an object of the program."""
        return self.items(value) if isinstance(value, Handle) else value

    def true(self, value: Any) -> bool:
        """Whether a value counts as true."""
        if isinstance(value, Handle):
            value = self.ask(Reference("builtin:bool"), [value], {})
        return bool(value)


_SPECIAL = {
    "sorted": "_ordered", "min": "_ordered", "max": "_ordered", "map": "_mapped", "filter": "_mapped",
    "isinstance": "_kind", "type": "_kind",
} | dict.fromkeys(("next", "iter", "callable", "hasattr", "issubclass", "print"), "_asked")  # fmt: skip
