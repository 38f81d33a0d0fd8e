"""A process that checks texts against a regular expression or a JSON schema, and ends on one that takes too long.

It is run as a file, not imported, so that it starts without gdpo. The first line of its input says what to check, every
further line is one text as JSON; its output is ``r`` when ready and then ``1`` or ``0`` a text. The time limit is the
processor's time, so that a busy machine costs no text its score: past it, the system ends the process.
"""

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

MEMORY = 1 << 30
DEEPEST = 100
"""A JSON text that is nested deeper is refused: how deep Python can go would else depend on who calls."""
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|[\[{]|[\]}]', re.DOTALL)


def nesting(text: str) -> int:
    """How deep the brackets of a JSON text go, those in strings apart."""
    depth = deepest = 0
    for match in _NESTING.finditer(text):
        mark = match[0]
        depth += mark in "[{"
        depth -= mark in "]}"
        deepest = max(deepest, depth)
    return deepest


def refuse(name: str) -> None:
    """NaN and infinities, which Python's parser takes, are no JSON."""
    raise ValueError(name)


def unique(instance: list[Any]) -> bool:
    """uniqueItems in linear time; jsonschema compares objects pair by pair. 1 and 1.0 are equal, 1 and true are not."""
    seen = {json.dumps(plain(item), sort_keys=True) for item in instance}
    return len(seen) == len(instance)


def plain(value: Any) -> Any:
    """A copy in which equal numbers are written alike."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def by_schema(schema: Any) -> Callable[[str], bool]:
    """Whether a text is JSON that the schema allows."""
    import jsonschema
    import referencing

    def unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Any:
        if wanted and validator.is_type(instance, "array") and not unique(instance):
            yield jsonschema.ValidationError("not unique")

    base = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind = jsonschema.validators.extend(base, {"uniqueItems": unique_items})
    validator = kind(schema, registry=referencing.Registry())  # nothing is fetched

    def check(text: str) -> bool:
        if nesting(text) > DEEPEST:
            return False
        return bool(validator.is_valid(json.loads(text, parse_constant=refuse)))

    return check


def by_pattern(pattern: str, flags: int, full: bool) -> Callable[[str], bool]:
    """Whether the expression matches the whole text, or anywhere in it."""
    compiled = re.compile(pattern, flags)
    match = compiled.fullmatch if full else compiled.search
    return lambda text: match(text) is not None


def main() -> None:
    """Serve until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer; this process ends with its input
    out = os.dup(sys.stdout.fileno())
    sys.stdout = sys.stderr  # what a library prints is no reply
    setup = json.loads(sys.stdin.readline())
    check = by_schema(setup["schema"]) if "schema" in setup else by_pattern(**setup["pattern"])
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    timed = hasattr(signal, "setitimer")
    if timed:
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)  # ends the process, also within one long match
    os.write(out, b"r")
    for line in sys.stdin:
        if timed:
            signal.setitimer(signal.ITIMER_VIRTUAL, setup["seconds"])
        try:
            found = check(json.loads(line))
        except Exception:  # no JSON, or nested or long beyond what a library can take
            found = False
        os.write(out, b"1" if found else b"0")


if __name__ == "__main__":
    main()
