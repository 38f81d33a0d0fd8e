"""``gdpo list``: what ships with the package, as tables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def _recipes() -> Iterable[tuple[str, ...]]:
    from gdpo.training import recipe

    for name in recipe.names():
        found = recipe.load(name)
        yield name, found.model, ", ".join(found.objective.rewards), " ".join(found.description.split())


def _methods() -> Iterable[tuple[str, ...]]:
    from gdpo.core.estimators import ALIASES, METHODS

    for method in METHODS.values():
        formula = (
            method.formula if not method.batch_norm or method.formula.startswith("BN") else f"BN({method.formula})"
        )
        aliases = [alias for alias, name in ALIASES.items() if name == method.name]
        name = method.name + "".join(f" ({alias})" for alias in aliases)
        yield name, formula, method.source or method.origin, ", ".join(method.needs), method.when


def _rewards() -> Iterable[tuple[str, ...]]:
    from gdpo.rewards import REGISTRY

    for name, factory in sorted(REGISTRY.items()):
        summary = (inspect.getdoc(factory) or "").partition("\n")[0]
        yield name, ", ".join(map(_shown, inspect.signature(factory).parameters.values())), summary


def _shown(parameter: inspect.Parameter) -> str:
    """An option with its default, without its type."""
    star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
    return f"{star}{parameter.name}{default}"


LISTS: dict[str, tuple[Callable[[], Iterable[tuple[str, ...]]], tuple[str, ...]]] = {
    "recipes": (_recipes, ("recipe", "model", "rewards", "what it trains")),
    "methods": (_methods, ("method", "advantage", "source", "needs", "when to use it")),
    "rewards": (_rewards, ("reward", "options", "what it scores")),
}


def print_list(name: str) -> None:
    """Print one of ``LISTS``."""
    rows, header = LISTS[name]
    table = Table(box=box.SIMPLE_HEAD, title=name, title_justify="left", pad_edge=False)
    for index, column in enumerate(header):
        table.add_column(column, no_wrap=index == 0, overflow="fold")
    for row in rows():
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
