"""What a reward is, how one is found by name, and how the model's text is read from a completion."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from gdpo.core.errors import Error
from gdpo.core.files import absolute, module_of
from gdpo.core.inputs import nearest

RewardFunction = Callable[..., list[float | None]]
Function = TypeVar("Function", bound=Callable[..., Any])

REGISTRY: dict[str, Callable[..., RewardFunction]] = {}
"""Factories by the name that recipes use."""


def reward(*, range: tuple[float, float] | None = None, name: str | None = None) -> Callable[[Function], Function]:
    """Give a reward function its bounds, and a name other than its own.

    Example::

        @reward(range=(0, 1))
        def polite(completions, **columns):
            return [float("please" in model_text(completion)) for completion in completions]
    """
    if range is not None and not range[0] < range[1]:
        raise Error(f"range is {range!r}, but (low, high) with low < high was expected")

    def mark(function: Function) -> Function:
        if name is not None:
            function.__name__ = function.__qualname__ = name
        function.range = None if range is None else (float(range[0]), float(range[1]))  # type: ignore[attr-defined]
        return function

    return mark


def factory(name: str) -> Callable[[Function], Function]:
    """Register a factory under the name that recipes use."""

    def register(function: Function) -> Function:
        @functools.wraps(function)
        def made(*args: Any, **options: Any) -> RewardFunction:
            return Made(name, function(*args, **options), args, options)

        REGISTRY[name] = made
        return cast(Function, made)

    return register


class Made:
    """A reward from a registered factory. To another process it goes as the factory's name and options."""

    def __init__(self, factory: str, function: RewardFunction, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._function = function
        self._origin = factory, args, options
        self.__name__ = self.__qualname__ = function.__name__
        self.__doc__ = function.__doc__
        self.range: tuple[float, float] | None = getattr(function, "range", None)
        self.usable: Callable[..., list[bool]] | None = getattr(function, "usable", None)
        """From the gold columns of n rows to [n]: whether the reward can use the row's gold value."""

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """One score a completion."""
        return self._function(completions, **columns)

    def __repr__(self) -> str:
        factory, args, options = self._origin
        written = [repr(value) for value in args] + [f"{key}={value!r}" for key, value in options.items()]
        return f"{factory}({', '.join(written)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_again, self._origin


def _make_again(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> RewardFunction:
    return REGISTRY[name](*args, **options)


def build(spec: object, *args: Any, folder: Path | None = None, **options: Any) -> RewardFunction:
    """A reward function from a registered name, or from ``file.py:function``.

    Args:
        spec: the name, or path and function; with options the function in the file is called as a factory.
        args, options: what the factory takes.
        folder: what a relative path is relative to; the working directory where None.

    Raises:
        Error: an unknown name, option, file or function.
    """
    if not isinstance(spec, str) or not spec:
        raise Error(f"a reward is {spec!r}, but a name such as 'math_answer' or 'file.py:function' was expected")
    if ".py:" in spec:
        function = _from_file(spec, folder)
        return _configured(spec, function, args, options) if args or options else function
    if spec not in REGISTRY:
        raise Error(f"reward {spec!r} is unknown{nearest(spec, REGISTRY)}; your own is written file.py:function")
    return _configured(spec, REGISTRY[spec], args, options)


def model_text(completion: object) -> str:
    """What the model wrote last: the text itself, or the content of the last message of the assistant.

    Tool results and other roles are never read; content may be text, parts ``{"type": "text", "text": ...}`` or None.
    Anything else is the empty text.
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence) and not isinstance(completion, bytes | bytearray):
        for message in reversed(completion):
            if isinstance(message, dict) and message.get("role", "assistant") == "assistant":
                return _content(message.get("content"))
    return ""


def column_values(columns: dict[str, Any], name: str, count: int, asking: str) -> Sequence[Any]:
    """A column that a reward needs, one value a completion.

    Raises:
        Error: no such column, or one of another length.
    """
    if name not in columns:
        raise Error(f"{asking} needs the column {name!r}, but there are {sorted(columns)}; gold=COLUMN names another")
    values: Sequence[Any] = columns[name]
    if isinstance(values, str) or not hasattr(values, "__len__") or len(values) != count:
        listed = not isinstance(values, str) and hasattr(values, "__len__")
        found = f"{len(values)} values" if listed else type(values).__name__
        raise Error(f"{asking} got {found} in column {name!r}, but {count} were expected, one a completion")
    return values


def _content(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def _configured(
    spec: str, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]
) -> RewardFunction:
    known = inspect.signature(function).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        for key in options:
            if key not in known:
                raise Error(f"reward {spec!r} has no option {key!r}{nearest(key, known) if known else ''}")
    try:
        made: RewardFunction = function(*args, **options)
    except Error:
        raise
    except TypeError as error:
        raise Error(f"reward {spec!r}: {error}") from None
    except Exception as error:
        raise Error(f"reward {spec!r} raised {type(error).__name__}: {error}") from error
    if not callable(made):
        raise Error(f"reward {spec!r} returned {made!r}, but a function of completions was expected")
    return made


def _from_file(spec: str, folder: Path | None) -> Callable[..., Any]:
    path, _, name = absolute(spec, folder).rpartition(":")
    module = module_of(spec, "reward", folder)
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise Error(f"reward {spec!r}: {path} has no function {name!r}{nearest(name, known) if known else ''}")
    found: Callable[..., Any] = function
    return found
