"""A process that compares answers with math-verify, one JSON line in, one out. Killed from outside when it hangs.

It is run as a file, not imported, so that it starts without gdpo: ``{"id": 1, "gold": "...", "answer": "..."}`` gives
``{"id": 1, "score": 0 | 1 | null}``; null means that the gold answer itself cannot be read.
"""

import contextlib
import json
import logging
import os
import re
import signal
import sys
import time
from typing import Any

ARITHMETIC = re.compile(r"[0-9\s+\-*/^().,%]+")
MEMORY = 1 << 30
CPU_SECONDS = 10


def limit() -> None:
    """Bound what the next answer can take, also should the parent be gone: the system ends the process then."""
    try:
        import resource
    except ImportError:  # Windows
        return
    used = int(time.process_time())
    for kind, amount in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, used + CPU_SECONDS)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (amount, resource.getrlimit(kind)[1]))


def tiny_but_different(gold: Any, answer: Any) -> bool:
    """Whether two numbers only look equal because math-verify rounds to six decimals (2^-98 and 2^-99)."""
    try:
        left, right = complex(gold), complex(answer)
        largest = max(abs(left), abs(right))
        return 0 < largest < 1e-3 and abs(left - right) > 1e-6 * largest
    except (TypeError, ValueError, OverflowError):
        return False  # not numbers


def main() -> None:
    """Serve until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer; this process ends with its input
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout = sys.stderr  # what a library prints is no reply
    logging.disable(logging.CRITICAL)
    try:
        from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
    except ImportError:
        print(json.dumps({"missing": True}), file=out, flush=True)
        return
    print(json.dumps({"ready": True}), file=out, flush=True)
    configs = [LatexExtractionConfig(), ExprExtractionConfig()]

    def read(text: str) -> Any:
        # As LaTeX: as plain text the parser takes any two equations for equal, and a list by its first element.
        found = parse(f"${text}$", extraction_config=configs[:1], parsing_timeout=None)
        if not found and ARITHMETIC.fullmatch(text):
            # The plain parser evaluates its text: nothing but digits and operators may reach it.
            found = parse(text, extraction_config=configs, parsing_timeout=None)
        return found

    for line in sys.stdin:
        task = json.loads(line)
        limit()
        gold, score = [], None
        with contextlib.suppress(Exception):  # a gold answer that cannot be read: the reward does not apply
            gold = read(task["gold"])
            gold = [] if all(isinstance(part, str) for part in gold) else gold  # its text alone was not understood
        try:
            if gold:
                answer = read(task["answer"])
                same = bool(answer) and bool(verify(gold, answer, timeout_seconds=None, raise_on_error=False))
                score = int(same and not tiny_but_different(gold[0], answer[0]))
        except Exception:  # whatever a parser does with hostile text, it is no right answer
            score = 0
        print(json.dumps({"id": task["id"], "score": score}), file=out, flush=True)


if __name__ == "__main__":
    main()
