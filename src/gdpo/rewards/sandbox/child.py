"""Runs inside the sandbox: sets its own limits, runs one program, and calls its functions when the parent asks.

Standard library only, and little of it: this file is run by itself (it starts in milliseconds) and imported by the
parent for ``encode`` and ``decode`` alone. Nothing here is trusted once the program runs: the parent reads replies as
bytes that may be anything, and builds nothing but plain values from them.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False  # importing typing would take longer than all else here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST_DEPTH = 200
_COUNT = struct.Struct("<I")
_DOUBLE = struct.Struct("<d")


class Reference:
    """What is no plain value, by its name: ``name:f``, ``handle:3``, ``builtin:int``, ``operator:add``, ``source:1``."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def encode(value: object, refer: Callable[[Any], str]) -> bytes:
    """Bytes for a value.

    None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset and dict go as they are, subclasses as the
    plain type they extend; anything else as the text of ``refer(value)``.
    """
    out: list[bytes] = []
    _encode(value, refer, out, 0)
    return b"".join(out)


def _block(tag: bytes, data: bytes) -> bytes:
    return tag + _COUNT.pack(len(data)) + data


def _encode(value: Any, refer: Callable[[Any], str], out: list[bytes], depth: int) -> None:
    if depth > MOST_DEPTH:
        raise ValueError("the value is nested too deeply")
    if value is None or value is True or value is False:
        out.append(b"N" if value is None else b"T" if value else b"F")
    elif isinstance(value, int):
        out.append(_block(b"i", b"%x" % int.__index__(value)))
    elif isinstance(value, float):
        out.append(b"d" + _DOUBLE.pack(float.__float__(value)))
    elif isinstance(value, complex):
        out.append(b"c" + _DOUBLE.pack(value.real) + _DOUBLE.pack(value.imag))
    elif isinstance(value, str):
        out.append(_block(b"s", str.encode(value, "utf-8", "surrogatepass")))
    elif isinstance(value, (bytes, bytearray)):
        out.append(_block(b"b", bytes(value)))
    elif isinstance(value, dict):
        items = list(dict.items(value))
        out.append(b"m" + _COUNT.pack(len(items)))
        for key, entry in items:
            _encode(key, refer, out, depth + 1)
            _encode(entry, refer, out, depth + 1)
    else:
        for kind, tag in ((list, b"l"), (tuple, b"t"), (set, b"e"), (frozenset, b"z")):
            if isinstance(value, kind):
                entries = list(kind.__iter__(value))  # type: ignore[arg-type]
                out.append(tag + _COUNT.pack(len(entries)))
                for entry in entries:
                    _encode(entry, refer, out, depth + 1)
                return
        out.append(_block(b"r", refer(value).encode("utf-8", "surrogatepass")))


def decode(data: bytes, resolve: Callable[[str], Any], check: Callable[[list[Any]], None] | None = None) -> Any:
    """The value of bytes that ``encode`` could have made; of exact plain types, and what ``resolve(text)`` returns.

    Args:
        data: any bytes.
        resolve: gives the object of a reference's text.
        check: is shown the keys of every set and dict before it is built.

    Raises:
        ValueError: other bytes.
    """
    try:
        value, end = _decode(data, 0, resolve, check, 0)
    except (IndexError, struct.error, TypeError) as error:  # TypeError: a list as a key
        raise ValueError("malformed") from error
    if end != len(data):
        raise ValueError("malformed: more than one value")
    return value


def _decode(
    data: bytes, at: int, resolve: Callable[[str], Any], check: Callable[[list[Any]], None] | None, depth: int
) -> tuple[Any, int]:
    if depth > MOST_DEPTH:
        raise ValueError("the value is nested too deeply")
    tag = data[at : at + 1]
    at += 1
    if tag in b"NTF" and tag:
        return {b"N": None, b"T": True, b"F": False}[tag], at
    if tag == b"d":
        return _DOUBLE.unpack_from(data, at)[0], at + 8
    if tag == b"c":
        return complex(_DOUBLE.unpack_from(data, at)[0], _DOUBLE.unpack_from(data, at + 8)[0]), at + 16
    (count,) = _COUNT.unpack_from(data, at)
    at += 4
    if tag in b"isbr" and tag:
        block = data[at : at + count]
        if len(block) != count:
            raise ValueError("malformed: cut off")
        if tag == b"b":
            return block, at + count
        if tag == b"i":
            return int(block, 16), at + count
        text = block.decode("utf-8", "surrogatepass")
        return (text if tag == b"s" else resolve(text)), at + count
    if tag not in (b"l", b"t", b"e", b"z", b"m"):
        raise ValueError("malformed: unknown tag")
    entries = []
    for _ in range(count * 2 if tag == b"m" else count):
        entry, at = _decode(data, at, resolve, check, depth + 1)
        entries.append(entry)
    if tag == b"l":
        return entries, at
    if tag == b"t":
        return tuple(entries), at
    keys = entries[::2] if tag == b"m" else entries
    if check is not None:
        check(keys)
    if tag == b"m":
        return dict(zip(keys, entries[1::2], strict=False)), at
    return (set(keys) if tag == b"e" else frozenset(keys)), at


def _read(descriptor: int, count: int, read: Callable[[int, int], bytes]) -> bytes:
    parts = []
    while count:
        part = read(descriptor, min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _receive(descriptor: int, read: Callable[[int, int], bytes]) -> bytes:
    (count,) = _COUNT.unpack(_read(descriptor, 4, read))
    return _read(descriptor, count, read)


def _send(descriptor: int, data: bytes, write: Callable[[int, bytes], int]) -> None:
    data = _COUNT.pack(len(data)) + data
    while data:
        data = data[write(descriptor, data) :]


def _limit(limits: dict[str, int]) -> None:
    """Lower this process's limits; where the caller's own are lower still, those hold."""
    import resource

    for name, amount in limits.items():
        kind = getattr(resource, name, None)
        if kind is None:
            continue
        bounds = [amount] + [limit for limit in resource.getrlimit(kind) if limit != resource.RLIM_INFINITY]
        try:
            resource.setrlimit(kind, (min(bounds), min(bounds)))
        except (ValueError, OSError):
            if name != "RLIMIT_AS":  # macOS does not have it work; the parent was told that limits may be missing
                raise


def _filter(instructions: bytes) -> bool:
    """Install a filter of system calls in this process; whether it holds."""
    import ctypes

    class Program(ctypes.Structure):
        _fields_ = [("count", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]

    try:
        libc = ctypes.CDLL(None, use_errno=True)
        buffer = ctypes.create_string_buffer(instructions, len(instructions))
        program = Program(len(instructions) // 8, ctypes.addressof(buffer))
        libc.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL: ends with the parent
        if libc.prctl(38, 1, 0, 0, 0):  # PR_SET_NO_NEW_PRIVS
            return False
        return bool(libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    except (OSError, AttributeError):
        return False


def _load(source: str, name: str) -> dict[str, Any]:
    """Run the program in a module of its own; its names."""
    import sys

    module = type(sys)(name)
    sys.modules[name] = module
    module.__dict__["__builtins__"] = __builtins__
    exec(compile(source, "<program>", "exec", dont_inherit=True), module.__dict__)
    found: dict[str, Any] = module.__dict__
    return found


class _Server:
    """Answers the parent's calls. What the program does to Python's modules does not reach the names bound here."""

    def __init__(self, names: dict[str, Any]) -> None:
        import _operator
        import builtins
        import math

        self.names = names
        self.handles: list[Any] = []
        self.builtins, self.operators = dict(vars(builtins)), dict(vars(_operator))
        self.eval, self.math = eval, math

    def refer(self, value: object) -> str:
        self.handles.append(value)
        return f"handle:{len(self.handles) - 1}"

    def resolve(self, text: str) -> Any:
        kind, _, rest = text.partition(":")
        if kind == "handle":
            return self.handles[int(rest)]
        if kind == "builtin":
            return self.builtins[rest]
        if kind == "operator":
            return self.operators[rest]
        if kind == "source":
            return self.eval(rest, self.names)
        if kind == "get":
            return lambda: self.resolve("name:" + rest)
        if kind == "math":
            return getattr(self.math, rest)
        # A name is looked up when it is used, so that a missing one is the program's fault in that call.
        if rest in self.names:
            return self.names[rest]
        return self.builtins[rest]

    def answer(self, request: bytes) -> bytes:
        """The reply to an encoded request ``[function, arguments, keywords]``; ``[]`` where the program raised."""
        try:
            function, arguments, keywords = decode(request, self.resolve)
            return encode([function(*arguments, **keywords)], self.refer)
        except BaseException:  # also SystemExit: leaving is a failed call, and the parent goes on
            return encode([], self.refer)


def main() -> None:
    """Limits, then the program, then calls until the parent closes the pipe."""
    import os
    import sys

    read, write, leave = os.read, os.write, os._exit
    control = int(sys.argv[1])
    limits, instructions = decode(_receive(control, read), str)
    _limit(limits)
    filtered = bool(instructions) and _filter(instructions)
    _send(control, encode([filtered], str), write)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # until here, what went wrong could be said
    mode, source = decode(_receive(control, read), str)
    sys.argv[:] = ["program.py"]
    if mode == "stream":
        os.close(control)
        _load(source, "__main__")
        return
    try:
        names = _load(source, "program")
    except BaseException:
        _send(control, encode([], str), write)
        leave(0)
    server = _Server(names)
    send, receive, answer = _send, _receive, server.answer
    _send(control, encode([True], str), write)
    while True:
        try:
            request = receive(control, read)
        except (EOFError, OSError):
            leave(0)
        send(control, request[:16] + answer(request[16:]), write)


if __name__ == "__main__":
    main()
