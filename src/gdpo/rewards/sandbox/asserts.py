"""Tests written as asserts: read, and checked for what the trusted parent cannot evaluate.

That is decided by a test's form alone, never by what a program returns, so that no program can have itself left out.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from gdpo.rewards.sandbox import pure

_EXPRESSIONS = (
    ast.Constant, ast.Name, ast.Call, ast.Attribute, ast.Subscript, ast.Slice, ast.BinOp, ast.UnaryOp, ast.BoolOp,
    ast.Compare, ast.IfExp, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp,
    ast.GeneratorExp, ast.Lambda, ast.Starred, ast.JoinedStr, ast.FormattedValue,
)  # fmt: skip
_STATEMENTS = (ast.Module, ast.Assert, ast.Expr, ast.Assign, ast.For, ast.If, ast.Pass, ast.Import, ast.ImportFrom)
_PARTS = (
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context, ast.comprehension, ast.keyword, ast.arguments,
    ast.arg, ast.alias,
)  # fmt: skip
_OTHERS_MODULES = (sys.stdlib_module_names - {"math"}) | {"np", "numpy", "pd", "pandas", "torch", "scipy", "sympy"}
_OWN = (
    {"isinstance", "type", "sorted", "min", "max", "map", "filter", "next", "iter", "callable", "hasattr", "issubclass"}
    | {"print", "isclose"} | pure.ON_ITEMS.keys() | pure.ON_VALUES.keys() | pure.TYPES.keys()
)  # fmt: skip
_LONGEST = 200_000


class BadTest(Exception):
    """The test's form is one that cannot be evaluated; the text says what."""


def parse(text: object) -> ast.Module:
    """The tree of a test.

    Raises:
        BadTest: it is no Python, asserts nothing, or uses what cannot be evaluated here.
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise BadTest("it is no text" if not isinstance(text, str) else "it is too long")
    try:
        tree = ast.parse(text.strip())
        nodes = list(ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadTest(f"it is no Python ({error})") from None
    if not any(isinstance(node, ast.Assert) for node in nodes):
        raise BadTest("it asserts nothing")
    bound = set(bound_names(tree))
    for node in nodes:
        _check(node)
        _check_binding(node, bound)
    return tree


def own_names(trees: list[ast.Module]) -> frozenset[str]:
    """Names of builtins that stand for functions of the program in these tests.

    A program may have to define ``sum``. Where the tests of a row call nothing but builtins, the innermost are meant.

    Raises:
        BadTest: a test that uses no name of the program, so that any program would pass it.
    """
    used = [_program_names(tree) for tree in trees]
    if any(used):
        if not all(used):
            raise BadTest("one of its tests calls nothing of the program")
        return frozenset()
    innermost = [{name for name in (_called(node) for node in ast.walk(tree)) if name is not None} for tree in trees]
    if not all(innermost):
        raise BadTest("one of its tests calls nothing of the program")
    return frozenset().union(*innermost)


def _called(node: ast.AST) -> str | None:
    """The name of a call that holds no further call."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    inner = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    return node.func.id if len(inner) == 1 else None


def _program_names(tree: ast.Module) -> set[str]:
    stored = set(bound_names(tree))
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id not in stored and node.id not in _OWN and node.id != "math"
    }


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Names that a test binds itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _check(node: ast.AST) -> None:
    """Raise ``BadTest`` for what is not evaluated here, before anything of the program is seen."""
    if not isinstance(node, _EXPRESSIONS + _STATEMENTS + _PARTS):
        raise BadTest(f"it uses {type(node).__name__}")
    if isinstance(node, ast.Attribute):
        root = node.value
        if node.attr.startswith("_"):
            raise BadTest(f"it uses .{node.attr}")
        if isinstance(root, ast.Name) and root.id in _OTHERS_MODULES:
            raise BadTest(f"it uses {root.id}.{node.attr}, which the program could replace")
        if isinstance(root, ast.Name) and root.id == "math" and node.attr not in pure.MATH:
            raise BadTest(f"it uses math.{node.attr}")
    if isinstance(node, ast.Import) and any(alias.name != "math" or alias.asname for alias in node.names):
        raise BadTest("it imports more than math")
    if isinstance(node, ast.ImportFrom) and (
        node.module != "math" or any(alias.name not in pure.MATH or alias.asname for alias in node.names)
    ):
        raise BadTest(f"it imports from {node.module}")
    if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant) != isinstance(node.right, ast.Constant):
        other = node.right if isinstance(node.left, ast.Constant) else node.left
        if isinstance(other, ast.Call) and isinstance(other.func, ast.Name) and other.func.id[:1].isupper():
            raise BadTest(f"it computes with an object of {other.func.id} and a plain value")
    if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
        raise BadTest("it formats a value")
    if isinstance(node, ast.comprehension) and node.is_async:
        raise BadTest("it is asynchronous")
    if isinstance(node, ast.Constant) and node.value is ...:
        raise BadTest("it uses ...")


def _check_binding(node: ast.AST, bound: set[str]) -> None:
    """Names are bound by plain targets; a lambda, which may be passed to the program as its text, uses none of them."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.For | ast.comprehension) else targets
    for target in targets:
        if any(not isinstance(part, ast.Name | ast.Tuple | ast.List | ast.expr_context) for part in ast.walk(target)):
            raise BadTest("it assigns to more than names")
    if isinstance(node, ast.Lambda):
        parameters = node.args
        if parameters.defaults or parameters.vararg or parameters.kwarg or parameters.kwonlyargs:
            raise BadTest("it uses a lambda with more than plain parameters")
        free = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} & (bound - set(bound_names(node)))
        if free:
            raise BadTest(f"it uses a lambda that uses {sorted(free)[0]}")
