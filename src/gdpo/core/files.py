"""Functions from users' Python files, written ``file.py:name``."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from gdpo.core.errors import Error


def absolute(spec: str, folder: Path | None = None) -> str:
    """``file.py:name`` with the whole path; relative to ``folder``, or to the working directory where None."""
    file, _, name = spec.rpartition(":")
    path = Path(file).expanduser()
    path = path if path.is_absolute() or folder is None else folder / path
    return f"{path.resolve()}:{name}"


def module_of(spec: str, what: str, folder: Path | None = None) -> ModuleType:
    """The module of ``file.py:name``; read once a process. It is the user's own code and runs as such.

    Raises:
        Error: no such file, or it raised when it was read.
    """
    path = Path(absolute(spec, folder).rpartition(":")[0])
    if not path.is_file():
        raise Error(f"{what} {spec!r}: the file {path} does not exist")
    mark = hashlib.sha256(str(path).encode(errors="surrogateescape")).hexdigest()[:8]
    name = f"gdpo_user_{path.stem}_{mark}"
    found = sys.modules.get(name)
    if found is not None and getattr(found, "_gdpo_read", None) == path.stat().st_mtime_ns:
        return found
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses and pickle look there
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise Error(f"{what} {spec!r}: {path} raised {type(error).__name__} when it was read: {error}") from error
    module._gdpo_read = path.stat().st_mtime_ns  # type: ignore[attr-defined]
    return module
