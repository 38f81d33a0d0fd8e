"""Which sandbox this system has, and the command line that starts it."""

from __future__ import annotations

import functools
import math
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from gdpo.core.errors import Error
from gdpo.rewards.sandbox.filters import call_filter

_CHILD = Path(__file__).with_name("child.py")
_HOME = "/tmp/home"
"""Of the sandbox, whose /tmp is its own."""
_PYTHON = ["-s", "-S", "-P", "-B", "-X", "utf8"]
_THREADS = 64


@dataclass(frozen=True)
class Limits:
    """What one program may take.

    Attributes:
        seconds: wall time of the whole program with all its tests, and its processor time.
        memory: bytes of address space.
        disk: bytes of all its files together (bubblewrap).
        file_size: bytes of one file.
        output: bytes of standard output in one test; twice the expected output where that is more.
    """

    seconds: float = 10.0
    memory: int = 1 << 30
    disk: int = 64 << 20
    file_size: int = 16 << 20
    output: int = 1 << 20

    def for_child(self, weaker: bool) -> dict[str, int]:
        """Resource limits by their names in ``resource``."""
        return {
            "RLIMIT_AS": self.memory,
            "RLIMIT_CPU": math.ceil(self.seconds) + 1,
            "RLIMIT_FSIZE": self.file_size,
            "RLIMIT_NOFILE": 64,
            "RLIMIT_CORE": 0,
            "RLIMIT_NPROC": _THREADS + (_threads_of_this_user() if weaker or not _counts_by_namespace() else 0),
        }


@dataclass(frozen=True)
class Backend:
    """A way to start a sandbox.

    Attributes:
        kind: "bubblewrap", or "subprocess": limits and an empty environment, but the caller's own file system.
        bwrap: where bubblewrap is.
    """

    kind: str
    bwrap: str = ""

    @property
    def weaker(self) -> bool:
        """Whether the caller's files can be read."""
        return self.kind != "bubblewrap"

    @property
    def calls(self) -> bytes:
        """The filter of system calls."""
        return call_filter(namespaces=not self.weaker)

    def command(self, control: int, limits: Limits, filter_descriptor: int | None) -> list[str]:
        """The command line.

        Args:
            control: the file descriptor over which the child is spoken to.
            limits: the size of the file system is set here, the rest by the child.
            filter_descriptor: where bubblewrap reads the filter.
        """
        if self.weaker:
            return [_interpreter(), *_PYTHON, str(_CHILD), str(control)]
        command = [self.bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
        for name, value in environment(_HOME).items():
            command += ["--setenv", name, value]
        command += _file_system(limits.disk)
        if filter_descriptor is not None:
            command += ["--seccomp", str(filter_descriptor)]
        return [*command, "--", _interpreter(), *_PYTHON, "/tmp/child.py", str(control)]


def environment(home: str) -> dict[str, str]:
    """All that a program sees of an environment. Sets have one order, so that a program has one result."""
    found = {"HOME": home, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "1"}
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and sys.platform.startswith("linux"):
        found["LD_LIBRARY_PATH"] = str(sysconfig.get_config_var("LIBDIR") or "")
    return found


def make_home() -> str:
    """A directory for a program without a file system of its own: ``home`` in a new temporary directory."""
    home = Path(tempfile.mkdtemp(prefix="gdpo-")) / "home"
    home.mkdir()
    return str(home)


def choose(allow_weaker: bool) -> Backend:
    """The best sandbox that starts here.

    Raises:
        Error: none does, or only the weaker one and it was not allowed.
    """
    if os.name != "posix":
        raise Error("programs cannot be run safely on this system: Linux with bubblewrap is needed")
    backend, reason = _probe(shutil.which("bwrap"))
    if backend is not None:
        return backend
    if not allow_weaker:
        raise Error(
            f"programs need a sandbox, but {reason}; install bubblewrap where user namespaces are allowed, or pass "
            "allow_weaker=True for a subprocess with limits that can still read your files"
        )
    weaker, lacking = _probe_weaker()
    if weaker is None:
        raise Error(f"programs need a sandbox, but {reason}, and {lacking}")
    _warn_of(lacking, reason)
    return weaker


@functools.cache
def _warn_of(lacking: str, reason: str) -> None:
    warnings.warn(
        f"programs of the model run WITHOUT a full sandbox, since {reason}. They have limits of memory, time and file "
        f"size and an empty environment, but {lacking}",
        stacklevel=5,
    )


@functools.cache
def _probe(bwrap: str | None) -> tuple[Backend | None, str]:
    """Bubblewrap if a program can be started in it, else why not."""
    from gdpo.rewards.sandbox.runner import starts

    if bwrap is None:
        return None, "bubblewrap (the command bwrap) is not installed"
    backend = Backend("bubblewrap", bwrap)
    found, said = starts(backend)
    if found is not None:
        return backend, ""
    return None, f"bubblewrap does not start here ({said or 'it says nothing'})"


@functools.cache
def _probe_weaker() -> tuple[Backend | None, str]:
    """The restricted subprocess, and what it does not protect."""
    from gdpo.rewards.sandbox.runner import starts

    backend = Backend("subprocess")
    filtered, said = starts(backend)
    if filtered is None:
        return None, f"a restricted subprocess does not start either ({said or 'it says nothing'})"
    lacking = "they can read every file that you can read, and write where you can write"
    if not filtered:
        lacking += ", use the network, signal your processes and leave processes behind"
    return backend, lacking


def _file_system(disk: int) -> list[str]:
    """Nothing but the interpreter and its libraries, read-only, and /tmp to write in.

    There is no /proc: its settings of the kernel can be written by a program whose caller is root, also without
    capabilities.
    """
    command: list[str] = []
    for path in _read_only():
        target = os.path.realpath(path)
        linked = os.path.islink(path) and target.startswith("/usr/")
        command += ["--symlink", target, path] if linked else ["--ro-bind", target, path]
    for device in ("null", "zero", "random", "urandom"):
        command += ["--dev-bind-try", f"/dev/{device}", f"/dev/{device}"]
    for folder in ("/dev/shm", "/tmp"):
        command += ["--size", str(disk), "--tmpfs", folder]
    command += ["--ro-bind", str(_CHILD), "/tmp/child.py", "--dir", _HOME, "--chdir", _HOME]
    return [*command, "--remount-ro", "/"]


@functools.cache
def _read_only() -> tuple[str, ...]:
    """Paths that Python needs, those above others first."""
    prefixes = [sys.base_prefix, sys.base_exec_prefix, os.path.realpath(sys.base_prefix)]
    wanted = {os.path.join(prefix, part) for prefix in prefixes for part in ("bin", "lib", "lib64")}
    wanted |= {"/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache"}
    wanted |= {sysconfig.get_path("stdlib"), os.path.dirname(_interpreter())}
    chosen: list[str] = []
    for path in sorted(wanted, key=lambda path: (path.count("/"), path)):
        if os.path.exists(path) and not any(path.startswith(above + "/") for above in chosen):
            chosen.append(path)
    return tuple(chosen)


@functools.cache
def _interpreter() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@functools.cache
def _counts_by_namespace() -> bool:
    """Whether the kernel counts a user's processes in each user namespace apart (5.14)."""
    release = platform.release().split(".")
    return sys.platform.startswith("linux") and [int(part) for part in release[:2] if part.isdigit()] >= [5, 14]


def _threads_of_this_user() -> int:
    """Threads that already count against this user's limit, roughly."""
    count = 0
    try:
        for entry in os.scandir("/proc"):
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{entry.name}/task"))
    except OSError:  # a process ended meanwhile, or there is no /proc
        count += 256
    return count
