"""What verl loads: the entry point ``verl.plugins``, read by ``import verl`` in every process, Ray workers too.

Nothing is imported and nothing changes here but that gdpo's hooks are put in when verl's own modules come to be
imported. Each hook looks for ``algorithm.gdpo`` in the run's config first, and without it calls verl's code as it is.
verl swallows what a plug-in raises, so nothing is raised either: what went wrong stands in ``STATE``, and the run that
asks for gdpo stops with it (``verl_hooks``); ``gdpo doctor verl`` prints it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

HOOKS = {
    "verl.utils.config": "start",
    "verl.trainer.ppo.core_algos": "estimator",
    "verl.trainer.ppo.ray_trainer": "legacy",
    "verl.trainer.ppo.v1.trainer_base": "v1",
    "verl.experimental.agent_loop.agent_loop": "names",
}
"""verl's modules, and which of ``verl_hooks.PATCHES`` goes into each."""

STATE: dict[str, str] = {}
"""Module -> "" where its hook is in, else why it is not. A module that nobody imported is absent."""


def put_in(module: ModuleType) -> None:
    """Put the hook of a module in, whatever comes of it."""
    name = module.__name__
    if STATE.get(name) == "":
        return
    try:
        hooks: Any = importlib.import_module("gdpo.adapters.verl_hooks")
        hooks.PATCHES[HOOKS[name]](module)
        STATE[name] = ""
    except Exception as error:  # a run without gdpo's block must not notice
        STATE[name] = str(error) or type(error).__name__


class _Finder(importlib.abc.MetaPathFinder):
    """Finds verl's modules as Python does, and has the hook put in once one of them is loaded."""

    busy = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in HOOKS or self.busy:
            return None
        self.busy = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.busy = False
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            put_in(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Put the hooks in: at once where verl's modules are loaded already, else when they are. Once a process."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name in HOOKS:
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            put_in(module)


install()
