"""A filter of system calls (seccomp) for x86-64 and 64-bit ARM under Linux.

Programs may start threads but no processes, so that the memory limit of one process is the limit of the program, a fork
storm ends at its first fork and nothing is left running. Kernel interfaces whose memory no limit covers, or that reach
into other processes, are refused too, and sockets of every kind (some, such as a virtual machine's to its host, know no
namespace). Numbers: the kernel's ``asm/unistd.h``.
"""

from __future__ import annotations

import errno
import platform
import struct
import sys

_CALLS = {
    "x86_64": {
        "arch": 0xC000003E, "clone": 56, "clone3": 435, "fork": 57, "vfork": 58, "ptrace": 101, "shmget": 29,
        "semget": 64, "msgget": 68, "mq_open": 240, "unshare": 272, "setns": 308, "mount": 165, "add_key": 248,
        "request_key": 249, "keyctl": 250, "perf_event_open": 298, "process_vm_readv": 310, "process_vm_writev": 311,
        "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425, "socket": 41, "kill": 62, "tkill": 200, "tgkill": 234,
        "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "pidfd_send_signal": 424, "prlimit64": 302,
    },
    "aarch64": {
        "arch": 0xC00000B7, "clone": 220, "clone3": 435, "ptrace": 117, "shmget": 194, "semget": 190, "msgget": 186,
        "mq_open": 180, "unshare": 97, "setns": 268, "mount": 40, "add_key": 217, "request_key": 218, "keyctl": 219,
        "perf_event_open": 241, "process_vm_readv": 270, "process_vm_writev": 271, "bpf": 280, "userfaultfd": 282,
        "io_uring_setup": 425, "socket": 198, "kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138,
        "rt_tgsigqueueinfo": 240, "pidfd_send_signal": 424, "prlimit64": 261,
    },
}  # fmt: skip
_WITHOUT_NAMESPACES = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal")
"""Refused only where no namespace keeps other processes away."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
_CLONE_THREAD = 0x10000
_X32 = 0x40000000  # the second set of call numbers of x86-64


def call_filter(namespaces: bool) -> bytes:
    """Instructions for the kernel; empty where the system has no such filter or its numbers are not known.

    Args:
        namespaces: whether the process has a process namespace of its own.
    """
    calls = _CALLS.get(platform.machine())
    if calls is None or not sys.platform.startswith("linux") or struct.calcsize("P") != 8:
        return b""
    refuse = _instruction(_RETURN, _ERRNO | errno.EPERM)
    program = [
        _instruction(_LOAD, _ARCH),
        _instruction(_EQUAL, calls["arch"], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
        _instruction(_AT_LEAST, _X32, 0, 1),
        refuse,
    ]
    for name, number in calls.items():
        if name in ("arch", "clone", "clone3", "prlimit64") or (namespaces and name in _WITHOUT_NAMESPACES):
            continue
        program += [_instruction(_EQUAL, number, 0, 1), refuse]
    # The flags of clone3 lie in memory, where a filter cannot look; without it the C library takes clone.
    program += [_instruction(_EQUAL, calls["clone3"], 0, 1), _instruction(_RETURN, _ERRNO | errno.ENOSYS)]
    if not namespaces:  # limits of other processes; 0 is the process itself
        program += [
            _instruction(_EQUAL, calls["prlimit64"], 0, 4),
            _instruction(_LOAD, _FIRST_ARGUMENT),
            _instruction(_EQUAL, 0, 1, 0),
            refuse,
            _instruction(_RETURN, _ALLOW),
        ]
    program += [
        _instruction(_EQUAL, calls["clone"], 0, 3),
        _instruction(_LOAD, _FIRST_ARGUMENT),
        _instruction(_ANY_BIT, _CLONE_THREAD, 1, 0),
        refuse,
        _instruction(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
