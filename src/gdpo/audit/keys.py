"""``key=value`` on the command line of ``audit``, ``replay`` and ``explain``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from gdpo.audit.setting import Setting
from gdpo.core.compute import COMMON
from gdpo.core.errors import Error
from gdpo.core.estimators import METHODS, method_of
from gdpo.core.inputs import nearest

_GROUPS = ("weights", "gates", "bounds", "thresholds")
_OF_A_BATCH = ("names", "bounds", "include", "batch_ids", "lengths", "rollouts", "running")


@dataclass(frozen=True)
class Changes:
    """What was said; None or empty where nothing was."""

    method: str | None = None
    primary: str | None = None
    steps: tuple[int, int] | None = None
    weights: dict[str, float] = field(default_factory=dict)
    gates: dict[str, str] = field(default_factory=dict)
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    said: str = ""
    """As it was written."""

    def on(self, setting: Setting) -> Setting:
        """The setting with these changes. Weights that are said count at every step; ``gates.NAME=`` takes one off."""
        gates = {name: text for name, text in {**setting.gates, **self.gates}.items() if text}
        return replace(
            setting, method=method_of(self.method).name if self.method else setting.method,
            weights={**setting.weights, **self.weights}, gates=gates, bounds={**setting.bounds, **self.bounds},
            options={**setting.options, **self.options}, moving=setting.moving and not self.weights,
        )  # fmt: skip


def parse(words: Sequence[str]) -> Changes:
    """One value a key.

    Raises:
        Error: no ``key=value``, an unknown key, or a value of another kind.
    """
    found: dict[str, Any] = {group: {} for group in (*_GROUPS, "options")}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise Error(f"{word!r} is no key=value; keys are {_known()}")
        group, dot, name = key.partition(".")
        if dot and group in _GROUPS:
            found[group][name] = _value(group, key, value)
        elif key in ("method", "primary"):
            found[key] = value
        elif key == "steps":
            found[key] = _range(key, value)
        elif key in _options():
            found["options"][key] = _plain(key, value)
        else:
            raise Error(f"key {key!r} is unknown{nearest(key, ['method', 'primary', 'steps', *_options()])}; "
                        "rewards are named as in weights.NAME=, gates.NAME=, bounds.NAME=")  # fmt: skip
    if found.get("method"):
        method_of(found["method"])
    return Changes(**found, said=" ".join(words))


def sweep(words: Sequence[str]) -> list[Changes]:
    """Every combination where values hold commas: ``method=gdpo,dvao weights.format=0.1,0.3`` are four."""
    choices = []
    for word in words:
        key, _, value = word.partition("=")
        whole = key.startswith(("gates.", "bounds.")) or key == "steps"
        choices.append([word] if whole else [f"{key}={one}" for one in value.split(",")] if "=" in word else [word])
    return [parse(combination) for combination in itertools.product(*choices)]


def _options() -> list[str]:
    common = [name for name in COMMON if name not in _OF_A_BATCH]
    return sorted({*common, *(name for method in METHODS.values() for name in method.options)})


def _known() -> str:
    return "method, primary, steps, weights.NAME, gates.NAME, bounds.NAME, thresholds.NAME and the method's options"


def _value(group: str, key: str, value: str) -> Any:
    if group == "gates":
        return value
    if group == "bounds":
        return _range(key, value, float)
    return _number(key, value)


def _number(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise Error(f"{key} is {value!r}, but a number was expected") from None


def _range(key: str, value: str, kind: Any = int) -> Any:
    first, _, last = value.replace(",", "..").partition("..")
    try:
        return kind(first), kind(last or first)
    except ValueError:
        raise Error(f"{key} is {value!r}, but a range such as 1..4 was expected") from None


def _plain(key: str, value: str) -> Any:
    try:
        return int(value) if value.lstrip("-").isdigit() else float(value)  # YAML takes 1e-6 for text
    except ValueError:
        pass
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError:
        raise Error(f"{key} is {value!r}, which cannot be read") from None
