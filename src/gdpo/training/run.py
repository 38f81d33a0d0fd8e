"""The folder of a run: what is in it, how it is begun, and from where it can go on after a kill at any moment.

Every file is written under a temporary name and renamed, but for ``metrics.jsonl``, which grows a line a step and is
cut back to the last checkpoint when a run resumes. A checkpoint counts once ``gdpo_state.json`` stands in it, which is
written last.
"""

from __future__ import annotations

import datetime
import errno
import importlib.metadata
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gdpo.core.errors import Error
from gdpo.training import recipe as recipes
from gdpo.training.recipe import Recipe
from gdpo.version import __version__

STATE = "gdpo_state.json"
_PACKAGES = ("torch", "transformers", "trl", "datasets", "accelerate", "peft", "numpy", "polars", "math-verify")


class RunFolder:
    """A run's folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.rollouts = path / "rollouts"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.report = path / "report.html"

    @classmethod
    def create(cls, recipe: Recipe, command: str) -> RunFolder:
        """A new folder with the resolved recipe, versions and seed.

        Raises:
            Error: the folder exists with something in it, or cannot be made.
        """
        run = cls(recipe.folder)
        if run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
            raise Error(
                f"{run.path} exists already; --resume goes on with that run, name=NAME makes another beside it "
                "(nothing was changed)"
            )
        with writing(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
            write_text(run.path / "recipe.yaml", recipe.to_yaml())
            run.write_json("run.json", _record(recipe, command))
        return run

    @classmethod
    def resume(cls, path: Path, recipe: Recipe | None) -> RunFolder:
        """An existing run to go on with; ``recipe``, if given, must be the run's own.

        Raises:
            Error: no such run, or a recipe that differs; the message names the key.
        """
        run = cls(path)
        if not (path / "run.json").is_file() or not (path / "recipe.yaml").is_file():
            raise Error(f"{path} is no run that could be resumed (run.json or recipe.yaml is missing)")
        if recipe is not None:
            old, new = recipes.from_run(path).model_dump(mode="json"), recipe.model_dump(mode="json")
            for key in ("output_dir", "name"):  # where a folder lies is no part of what it does
                old.pop(key), new.pop(key)
            changed = _first_difference(old, new)
            if changed:
                key, before, after = changed
                raise Error(
                    f"{path} was run with {key}={before!r}, not {after!r}; resume it unchanged, or give a new name=NAME"
                )
        return run

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process.

        Raises:
            Error: another process is training it.
        """
        with (self.path / ".lock").open("w") as file:
            try:
                import fcntl
            except ImportError:  # no such lock on Windows
                yield
                return
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Error(f"{self.path} is being trained by another process") from None
            yield

    def discard_if_unused(self) -> None:
        """Remove a folder in which nothing has happened yet, so that a corrected command can use its name."""
        used = ("metrics.jsonl", "evaluations", "rollouts", "model", "report.html")
        if not any((self.path / name).exists() for name in used) and self.last_checkpoint() is None:
            shutil.rmtree(self.path, ignore_errors=True)

    def read_json(self, name: str) -> Any:
        """The content of a JSON file of the run, None where there is none."""
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file whole or not at all."""
        write_text(self.path / name, json.dumps(value, indent=1, ensure_ascii=False) + "\n")

    def update_record(self, **values: Any) -> None:
        """Add to ``run.json``."""
        self.write_json("run.json", {**(self.read_json("run.json") or {}), **values})

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """Add a step's metrics, in one write."""
        with writing(self.metrics), self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def last_checkpoint(self) -> Path | None:
        """The newest complete checkpoint."""
        found = [path for path in self.checkpoints.glob("checkpoint-*") if (path / STATE).is_file()]
        return max(found, key=checkpoint_step, default=None)

    def rewind(self) -> int:
        """Bring the folder back to its last complete checkpoint, and say at which step that was.

        Half-written checkpoints, and metrics and rollouts of later steps, which will be made again, are removed.
        """
        last = self.last_checkpoint()
        step = checkpoint_step(last) if last else 0
        for path in self.checkpoints.glob("checkpoint-*"):
            if not (path / STATE).is_file():
                shutil.rmtree(path)
        for path in self.rollouts.glob("step-*.parquet"):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()
        for path in [*self.path.glob(".*.tmp"), *self.rollouts.glob(".*.tmp"), *self.path.glob("evaluations/.*.tmp")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if self.metrics.is_file():
            kept = []
            for text in self.metrics.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    line = json.loads(text)
                except json.JSONDecodeError:
                    continue  # the half line of a kill
                if line["step"] <= step:
                    kept.append(text + "\n")
            write_text(self.metrics, "".join(kept))
        return step


def checkpoint_step(path: Path) -> int:
    """The step of ``checkpoint-N``."""
    number = path.name.removeprefix("checkpoint-")
    return int(number) if number.isdigit() else -1


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failed write to the disk into one sentence.

    Libraries report a full disk in their own words (an OSError, safetensors' error, a RuntimeError of torch.save).
    """
    try:
        yield
    except Error:
        raise
    except Exception as error:
        full = ("No space left", "os error 28", "PytorchStreamWriter", "inline_container")
        if isinstance(error, OSError) and error.errno != errno.ENOSPC and error.filename is not None:
            where = error.filename
            raise Error(f"{where} cannot be written: {error.strerror}; output_dir= says where runs go") from error
        if any(mark in str(error) for mark in full):
            raise Error(f"{path} cannot be written: no space left on the disk; make room, then --resume") from error
        raise


def _record(recipe: Recipe, command: str) -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "schema": 1,
        "gdpo": __version__,
        "recipe": recipe.recipe,
        "name": recipe.folder.name,
        "seed": recipe.seed,
        "method": recipe.objective.method.rpartition(":")[2],
        "model": recipe.model,
        "rewards": list(recipe.objective.rewards),
        "versions": versions,
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform(), "python": sys.implementation.name},
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _first_difference(old: Any, new: Any, prefix: str = "") -> tuple[str, Any, Any] | None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(k for k in new if k not in old)]:
            found = _first_difference(old.get(key), new.get(key), f"{prefix}{key}.")
            if found:
                return found
        return None
    return None if old == new else (prefix.rstrip("."), old, new)
