"""gdpo: train language models on several rewards at once without letting the rewards blur into one.

The estimators work on NumPy and PyTorch alike and need neither PyTorch nor a GPU::

    import gdpo
    gdpo.advantages([[1, 0], [0, 0], [1, 1], [0, 1]], groups=4, method="gdpo", weights=[1.0, 0.5])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gdpo.core.compute import Estimate, advantages, estimate, validate
from gdpo.core.errors import Error
from gdpo.core.estimators import estimator
from gdpo.core.running import RunningNorm
from gdpo.version import __version__

if TYPE_CHECKING:
    from gdpo import audit, export, rewards, weights
    from gdpo.core import distributed
    from gdpo.core.presets import Preset, difference, preset
    from gdpo.objective import Objective, Progress, Reward
    from gdpo.rewards import reward

_LATER = {
    "Preset": "gdpo.core.presets",
    "difference": "gdpo.core.presets",
    "preset": "gdpo.core.presets",
    "Objective": "gdpo.objective",
    "Progress": "gdpo.objective",
    "Reward": "gdpo.objective",
    "reward": "gdpo.rewards",
}
_CORE = ("distributed",)
_ROOMS = (
    "adapters", "audit", "core", "doctor", "export", "lint", "report", "rewards", "rollouts", "training", "weights",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    # What is not the core is imported at first use, so that `import gdpo` stays fast.
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    if name in _CORE:
        return importlib.import_module(f"gdpo.core.{name}")
    if name in _ROOMS:
        return importlib.import_module(f"gdpo.{name}")
    raise AttributeError(f"module 'gdpo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATER, *_CORE, *_ROOMS])


__all__ = [
    "Error",
    "Estimate",
    "Objective",
    "Preset",
    "Progress",
    "Reward",
    "RunningNorm",
    "__version__",
    "advantages",
    "audit",
    "difference",
    "distributed",
    "estimate",
    "estimator",
    "export",
    "preset",
    "reward",
    "rewards",
    "validate",
    "weights",
]
