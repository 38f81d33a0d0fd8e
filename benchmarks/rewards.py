"""How many completions a second each reward scores, and whether memory stays flat.

    python benchmarks/rewards.py            # writes benchmarks/results/rewards.json

Completions are made: GSM8K's form (an integer in tags), MATH's form (LaTeX that math-verify has to decide, every pair
different), tool calls in ToolRL's tags, short programs. Each reward is called with batches of 512 (programs: 64).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gdpo import rewards

RESULTS = Path(__file__).parent / "results" / "rewards.json"
TARGETS = {"math, GSM8K's form": 2000, "math, MATH's form": 250, "tool_correctness": 5000, "tool_format": 5000,
           "tags": 50_000, "matches": 50_000, "json_schema": 50_000, "language": 50_000, "length_at_most": 50_000,
           "soft_overlong": 50_000, "cosine_length": 50_000, "code_pass_rate": 20}  # fmt: skip
WORDS = ["the", "sum", "of", "both", "numbers", "is", "taken", "once", "more", "and", "checked", "against", "question"]


def gsm8k(rng: random.Random) -> tuple[str, dict[str, Any]]:
    answer = rng.randrange(100_000)
    said = answer if rng.random() < 0.5 else answer + 1
    return f"<think>{' '.join(rng.choices(WORDS, k=60))}</think>\n<answer>{said:,}</answer>", {"answer": str(answer)}


def latex(rng: random.Random) -> tuple[str, dict[str, Any]]:
    a, b, c = (rng.randrange(2, 400) for _ in range(3))
    forms = [
        (rf"\frac{{{a}}}{{{b}}} + \sqrt{{{c}}}", rf"\sqrt{{{c}}} + \frac{{{2 * a}}}{{{2 * b}}}"),
        (rf"x^{{{a}}} + {b}x", rf"{b}x + x^{{{a}}}"),
        (rf"\left({a}, {b}\right]", rf"({a}, {b}]"),
        (rf"{a}\pi", rf"\pi \cdot {a}"),
        (rf"\begin{{pmatrix}} {a} \\ {b} \end{{pmatrix}}", rf"\begin{{pmatrix}} {a} \\ {b + c % 2} \end{{pmatrix}}"),
    ]  # fmt: skip
    gold, said = rng.choice(forms)
    return rf"{' '.join(rng.choices(WORDS, k=60))} so \boxed{{{said}}}.", {"answer": gold}


def tools(rng: random.Random) -> tuple[str, dict[str, Any]]:
    def call() -> dict[str, Any]:
        parameters = {key: rng.randrange(9) for key in "abc"[: rng.randrange(1, 4)]}
        return {"name": rng.choice(["weather", "time"]), "parameters": parameters}

    calls = [call() for _ in range(rng.randrange(1, 4))]
    said = [dict(call) for call in calls]
    if rng.random() < 0.5:
        said[0] = {**said[0], "parameters": {**said[0]["parameters"], "a": 10}}
        rng.shuffle(said)
    lines = "\n".join(json.dumps(call) for call in said)
    text = f"<think>{' '.join(rng.choices(WORDS, k=40))}</think>\n<tool_call>\n{lines}\n</tool_call>"
    return text, {"calls": json.dumps(calls)}


def program(rng: random.Random) -> tuple[str, dict[str, Any]]:
    a, b = rng.randrange(10**6), rng.randrange(2)
    tests = [f"assert f({x}) == {x * x + a}" for x in (0, 3, -2)]
    return f"```python\ndef f(x):\n    return x * x + {a + b}\n```", {"tests": json.dumps(tests)}


def structured(rng: random.Random) -> tuple[str, dict[str, Any]]:
    return json.dumps({"name": rng.choice(WORDS), "age": rng.randrange(99)}), {}


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}
CASES: dict[str, tuple[Callable[[], Any], Callable[[random.Random], Any], int, int]] = {
    "math, GSM8K's form": (lambda: rewards.math_answer(), gsm8k, 20_000, 512),
    "math, MATH's form": (lambda: rewards.math_answer(extraction="boxed", seconds=60), latex, 4_096, 512),
    "tool_correctness": (lambda: rewards.tool_correctness(), tools, 20_000, 512),
    "tool_format": (lambda: rewards.tool_format(), tools, 20_000, 512),
    "tags": (lambda: rewards.tags("think", "answer"), gsm8k, 100_000, 512),
    "matches": (lambda: rewards.matches(r"<think>.*</think>\s*<answer>[\d,]+</answer>"), gsm8k, 100_000, 512),
    "json_schema": (lambda: rewards.json_schema(SCHEMA), structured, 100_000, 512),
    "language": (lambda: rewards.language("latin"), gsm8k, 100_000, 512),
    "length_at_most": (lambda: rewards.length_at_most(256), gsm8k, 100_000, 512),
    "soft_overlong": (lambda: rewards.soft_overlong(256, 64), gsm8k, 100_000, 512),
    "cosine_length": (lambda: rewards.cosine_length(256, correctness="right"), gsm8k, 100_000, 512),
    "repetition": (lambda: rewards.repetition(3), gsm8k, 20_000, 512),
    "similarity": (lambda: rewards.similarity(gold="answer"), gsm8k, 5_000, 512),
    "code_pass_rate": (lambda: rewards.code_pass_rate(), program, 512, 64),
}
"""Reward, completion, how many, batch size."""


def speed(name: str) -> dict[str, Any]:
    """Completions a second, after one batch to start worker processes."""
    make, completion, count, size = CASES[name]
    rng = random.Random(0)
    made = [completion(rng) for _ in range(count + size)]
    score = make()

    def batch(start: int) -> None:
        chunk = made[start : start + size]
        columns = {key: [row[key] for _, row in chunk] for key in chunk[0][1]}
        texts = [text for text, _ in chunk]
        score(texts, completion_ids=texts, right=[1.0] * len(texts), **columns)

    batch(0)
    started = time.perf_counter()
    for start in range(size, count + size, size):
        batch(start)
    seconds = time.perf_counter() - started
    return {
        "completions": count,
        "seconds": round(seconds, 3),
        "a second": round(count / seconds),
        "target": TARGETS.get(name),
    }


def memory() -> dict[str, Any]:
    """Peak resident memory after 20,000 and after 100,000 completions through the rewards that run in this process."""
    names = ["math, GSM8K's form", "tool_correctness", "tags", "matches", "language", "length_at_most", "repetition"]
    scores = {name: CASES[name][0]() for name in names}
    rng, peaks = random.Random(1), {}
    for done in range(0, 100_000, 500):
        for name, score in scores.items():
            made = [CASES[name][1](rng) for _ in range(500)]
            columns = {key: [row[key] for _, row in made] for key in made[0][1]}
            texts = [text for text, _ in made]
            score(texts, completion_ids=texts, **columns)
        if done + 500 in (20_000, 100_000):
            peaks[str(done + 500)] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    return {"rewards": names, "peak MiB after completions": peaks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CASES), help="one reward, printed and not kept")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.only:
        print(args.only, speed(args.only))
        return
    found = {}
    for name in CASES:
        found[name] = speed(name)
        print(name, found[name], flush=True)
    results = {
        "command": "python benchmarks/rewards.py",
        "versions": {
            "python": platform.python_version(),
            **{p: version(p) for p in ("gdpo", "math-verify", "jsonschema")},
        },
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count()},
        "speed": found,
        "memory": memory(),
    }
    print(results["memory"])
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
