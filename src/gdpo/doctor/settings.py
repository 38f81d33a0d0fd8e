"""A framework's settings as nested mappings, whatever the file holds: what cannot be read is one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gdpo.core.errors import Error

_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")


def read_text(path: Path) -> str:
    """A config's text.

    Raises:
        Error: it cannot be read, or is no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Error(f"the config {path} is no text (UTF-8), but YAML or a launch script was expected") from None
    except OSError as error:
        raise Error(f"the config {path} cannot be read: {error.strerror or error}") from None


def parse(text: str, path: Path) -> Any:
    """YAML as plain Python.

    Raises:
        Error: no YAML; or it is empty.
    """
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise Error(f"the config {path} is no YAML: {said}") from None
    if found is None:
        raise Error(f"the config {path} is empty")
    return found


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping.

    Raises:
        Error: it does not.
    """
    return mapping(parse(read_text(path), path), path)


def mapping(found: Any, path: Path) -> dict[str, Any]:
    """``found`` if it is a mapping, its keys as text; else an ``Error``."""
    if not isinstance(found, Mapping):
        raise Error(f"the config {path} holds {type(found).__name__}, but a mapping was expected")
    return {str(key): value for key, value in found.items()}


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with ``${a.b}`` replaced by what stands there; what only the run can know stays as text.

    Raises:
        Error: the config holds itself.
    """
    done: dict[int, Any] = {}  # each object once: aliases would multiply without end

    def copy(value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return _followed(config, value, depth)
        if not isinstance(value, dict | list):
            return value
        if id(value) not in done:
            if depth > 60:
                raise Error("the config nests more than 60 levels deep, or holds itself")
            if isinstance(value, dict):
                done[id(value)] = {str(key): copy(entry, depth + 1) for key, entry in value.items()}
            else:
                done[id(value)] = [copy(entry, depth + 1) for entry in value]
        return done[id(value)]

    result: dict[str, Any] = copy(dict(config), 0)
    return result


def _followed(config: Mapping[str, Any], text: str, depth: int) -> Any:
    matched = _REFERENCE.fullmatch(text.strip())
    for _ in range(8):
        if matched is None:
            return text
        found: Any = config
        for key in matched[1].split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
        if found is None or isinstance(found, dict | list):
            return text
        if not isinstance(found, str):
            return found
        text, matched = found, _REFERENCE.fullmatch(found.strip())
    return text


def at(config: Mapping[str, Any], path: str) -> Any:
    """What stands at a dotted path; None where nothing does.

    Raises:
        Error: something on the way is no mapping.
    """
    found: Any = config
    keys = path.split(".")
    for place, key in enumerate(keys):
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise Error(f"{'.'.join(keys[:place])} is {found!r}, but a mapping was expected")
        found = found.get(key)
    return found


def unknown(value: Any) -> bool:
    """Whether only the run can know a value: it holds ``${...}`` or ``$NAME``."""
    return "$" in str(value)


def whole(config: Mapping[str, Any], path: str) -> int | None:
    """A whole number at a dotted path; None where there is none, or only the run can know it.

    Raises:
        Error: another value.
    """
    value = at(config, path)
    if value is None or unknown(value):
        return None
    try:
        if isinstance(value, bool) or int(value) != float(value):
            raise ValueError
    except (TypeError, ValueError):
        raise Error(f"{path} is {value!r}, but a whole number was expected") from None
    return int(value)


def interpolated(config: Mapping[str, Any], *paths: str) -> Iterator[str]:
    """Those of ``paths`` whose value only the run can know, as ``path=value``."""
    for path in paths:
        value = at(config, path)
        if value is not None and unknown(value):
            yield f"{path}={value}"
