"""What is loaded where, as seen from inside: run as ``python -m gdpo.doctor.verl_probe [--worker]``, prints JSON.

A process of its own, because only a fresh one loads verl and its plug-ins as a run does.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import warnings
from typing import Any

MARK = "GDPO-PROBE "
PLUGIN = "gdpo.adapters.verl_plugin"
TRAINERS = {"v1": "verl.trainer.ppo.v1.trainer_base", "legacy": "verl.trainer.ppo.ray_trainer"}


def look(deep: bool) -> dict[str, Any]:
    """Versions, plug-ins, whether gdpo's is loaded; with ``deep`` what stands on each trainer's hooks."""
    found: dict[str, Any] = {"python": sys.version.split()[0], "loaded": False}
    try:
        verl = importlib.import_module("verl")
    except Exception as error:
        return found | {"error": f"{type(error).__name__}: {error}"}
    found["verl"] = str(getattr(verl, "__version__", "?"))
    found["loaded"] = PLUGIN in sys.modules
    found["plugins"] = {e.name: e.value for e in importlib.metadata.entry_points(group="verl.plugins")}
    found["policy"] = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto")
    try:
        found["gdpo"] = importlib.import_module("gdpo").__version__
        if not found["loaded"]:
            importlib.import_module(PLUGIN)
    except Exception as error:
        found["gdpo_error"] = f"{type(error).__name__}: {error}"
        return found
    if deep and found["loaded"]:
        found["trainers"] = {kind: _hooks(module) for kind, module in TRAINERS.items()}
    return found


def _hooks(module: str) -> dict[str, Any]:
    """ "error" where the hook is not in, else "taken": hook -> who else stands on it."""
    from gdpo.adapters import verl_hooks, verl_plugin

    try:
        importlib.import_module(module)
    except Exception as error:
        return {"error": f"{module} cannot be imported: {type(error).__name__}: {error}"}
    missing = verl_hooks.missing(module)
    if missing or verl_plugin.STATE.get(module) is None:
        return {"error": missing or f"{module} was loaded without gdpo's hook"}
    taken = {what: verl_hooks.other_owner(function) for what, function in verl_hooks.places(module)}
    return {"taken": {what: other for what, other in taken.items() if other}}


def in_worker() -> dict[str, Any]:
    """``look`` in a Ray worker: of the cluster in RAY_ADDRESS, else of one started here."""
    try:
        import ray
    except ImportError as error:
        return {"error": str(error), "loaded": False}
    own = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": 1, "include_dashboard": False}
    ray.init(log_to_driver=False, **own)

    def look_there() -> Any:
        import importlib

        importlib.import_module("verl")  # first, as in a run
        try:
            return importlib.import_module("gdpo.doctor.verl_probe").look(False)
        except ImportError as error:
            return {"error": str(error), "loaded": False}

    try:
        result: dict[str, Any] = ray.get(ray.remote(look_there).remote())
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}", "loaded": False}
    finally:
        ray.shutdown()
    return result


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(MARK + json.dumps(in_worker() if "--worker" in sys.argv else look(True)), flush=True)
