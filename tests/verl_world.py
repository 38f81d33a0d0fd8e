"""A made-up verl on disk: as much of its layout as gdpo's hooks touch, for tests without verl.

``World`` is a folder for PYTHONPATH with (or without) gdpo's entry point, other plug-ins and the made-up verl.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gdpo

INIT = """
__version__ = "{version}"
import os
from importlib.metadata import entry_points
policy = os.getenv("VERL_USE_EXTERNAL_PLUGINS", "auto")
for entry in entry_points(group="{group}"):
    if policy not in ("auto", entry.name):
        continue
    try:
        entry.load()
    except Exception:
        pass
"""
FILES = {
    "utils/config.py": "def validate_config(config, use_reference_policy=False, use_critic=False): pass\n",
    "trainer/ppo/core_algos.py": "def builtin(**given): return 'built in', 'built in'\nADV_ESTIMATOR_REGISTRY = {'gdpo': builtin}\n",
    "trainer/ppo/ray_trainer.py": """
class RayPPOTrainer:
    def __init__(self, config): self.config = config
    def _save_checkpoint(self): pass
    def _load_checkpoint(self): pass
    def _shutdown_dump_executor(self): pass
def compute_data_metrics(batch=None, use_critic=False): return {}
""",
    "trainer/ppo/v1/trainer_base.py": """
tq = None
def compute_advantage_for_multi_trajectories(data, batch_keys): return data
class PPOTrainer:
    def __init__(self, config): self.config = config
    def _compute_advantage(self, batch, metrics): return 'built in'
    def _save_checkpoint(self): pass
    def _load_checkpoint(self): pass
    def _shutdown_dump_executor(self): pass
""",
}


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def plug_in(self, name: str, module: str | None) -> None:
        """A distribution, with an entry point in verl.plugins or without."""
        info = self.folder / f"{name}-0.1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(f"[verl.plugins]\n{name} = {module}\n" if module else "")

    def gdpo(self, entry: bool = True) -> World:
        """gdpo as it is installed; what lies here comes before what is really installed."""
        self.plug_in("gdpo", "gdpo.adapters.verl_plugin" if entry else None)
        return self

    def verl(self, version: str = "0.9.1", *, group: str = "verl.plugins", without: str = "") -> World:
        """A verl; ``without`` is a name that this version lacks."""
        root = self.folder / "verl"
        for name, text in {"__init__.py": INIT.format(version=version, group=group), **FILES}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if without:
                text = text.replace(f"def {without}(", "def another_name(").replace(
                    f"class {without}:", "class Another:"
                )
            path.write_text(text)
        for path in list(root.rglob("*")):
            if path.is_dir():
                (path / "__init__.py").touch()
        return self

    def other(self, target: str = "trainer/ppo/v1/trainer_base.py") -> World:
        """Another plug-in that replaces the same method, as gdpo does but without a word."""
        module = "verl." + target.removesuffix(".py").replace("/", ".")
        (self.folder / "other_plugin.py").write_text(
            f"import {module} as m\noriginal = m.PPOTrainer._compute_advantage\n"
            "def _compute_advantage(self, batch, metrics): return original(self, batch, metrics)\n"
            "m.PPOTrainer._compute_advantage = _compute_advantage\n"
        )
        self.plug_in("other", "other_plugin")
        return self

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """``python ARGUMENTS`` in this world."""
        path = os.pathsep.join([str(self.folder), str(Path(gdpo.__file__).parents[1])])
        env = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", **environment}
        return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=env, check=False)

    def doctor(self, *arguments: str, **environment: str) -> tuple[int, str]:
        done = self.run("-m", "gdpo", "doctor", "verl", *arguments, **environment)
        return done.returncode, done.stdout + done.stderr
