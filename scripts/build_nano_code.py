"""Make `nano-code`, the small model of the recipe `code`: it half writes functions of one or two steps.

It is trained from scratch on the made task `programs` (family arithmetic, one or two steps), first on short right
programs, then on programs with faults mixed in on purpose, each independent of the others: a wrong step, a bug, and
needless comments and variables. Questions reserved for held-out evaluation are never used.

    python scripts/build_nano_code.py

The same seed, thread count and versions give the same weights.
"""

from __future__ import annotations

import random
import re
import time

import nano_text
import torch
import transformers

from gdpo import rewards
from gdpo.training.made import programs
from gdpo.training.tasks import is_reserved

WRONG, BUGGY, LONG = 0.35, 0.3, 0.55
LIMIT = 16
"""Tokens that count as short, as in the recipe."""
LONGEST = 56
PHRASES = [
    "Write ", ": ", ", then ", ", ", "\n    return ", "\n    result = ", "result", "):", "def ", " plus ", " minus ",
    " times ", " + ", " - ", " * ", "\n    # Take ", "\n    # Give it back", "retrun ", "\n    ", "total",
]  # fmt: skip
SIGNS = {"plus": "+", "minus": "-", "times": "*"}


def read(question: str) -> tuple[str, list[str], list[tuple[str, str]]]:
    """(name, arguments, steps) of a question."""
    name, arguments, words = re.fullmatch(r"Write (\w)\((.*?)\): \w (.*)\.", question).groups()
    return name, arguments.split(", "), [tuple(step.split(" ")) for step in words.split(", then ")]


def program(question: str, rng: random.Random) -> str:
    """A program with faults."""
    name, arguments, steps = read(question)
    if rng.random() < WRONG:
        steps = _wrong(steps, rng)
    head = f"def {name}({', '.join(arguments)}):"
    text = head + (_long if rng.random() < LONG else _short)(arguments[0], steps)
    return _buggy(text, arguments[0], rng) if rng.random() < BUGGY else text


def _wrong(steps: list[tuple[str, str]], rng: random.Random) -> list[tuple[str, str]]:
    """One step with another sign or number, or left out."""
    place, kind = rng.randrange(len(steps)), rng.randrange(3)
    word, operand = steps[place]
    if kind == 0:
        changed = [(rng.choice([other for other in SIGNS if other != word]), operand)]
    elif kind == 1:
        changed = [(word, rng.choice([n for n in "23456789" if n != operand]))]
    else:
        changed = []
    return steps[:place] + changed + steps[place + 1 :]


def _short(first: str, steps: list[tuple[str, str]]) -> str:
    expression, is_sum = first, False
    for word, operand in steps:
        bracketed = f"({expression})" if word == "times" and is_sum else expression
        expression, is_sum = f"{bracketed} {SIGNS[word]} {operand}", word != "times"
    return f"\n    return {expression}"


def _long(first: str, steps: list[tuple[str, str]]) -> str:
    lines, value = "", first
    for word, operand in steps:
        lines += f"\n    # Take {value} {word} {operand}\n    result = {value} {SIGNS[word]} {operand}"
        value = "result"
    return f"{lines}\n    # Give it back\n    return {value}"


def _buggy(text: str, first: str, rng: random.Random) -> str:
    """A name that is not there, or text that does not compile."""
    kind = rng.randrange(4)
    if kind == 0:
        return text.replace("):", ")", 1)
    if kind == 1:
        return text.replace("return ", "retrun ", 1)
    before, _, after = text.partition("):")
    if kind == 2:
        return f"{before}):{after.replace(f' {first} ', ' total ', 1)}" if f" {first} " in after else f"{text} +"
    return f"{text})"


class Examples:
    """Endless fresh examples from questions that are not reserved."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.waiting: list[dict[str, str]] = []

    def __call__(self, faults: bool) -> nano_text.Example:
        while not self.waiting:
            made = programs.rows(5_000, self.rng.randrange(1 << 30))
            self.waiting = [row for row in made if not is_reserved(row["question"])]
        row = self.waiting.pop()
        # A tenth stays clean in the second part, so that the careful way is not forgotten.
        faulty = faults and self.rng.random() < 0.9
        if faulty:
            return row["question"], program(row["question"], self.rng)
        if self.rng.random() < 0.3:  # the long way has to be right too where it is meant to be
            name, arguments, steps = read(row["question"])
            return row["question"], f"def {name}({', '.join(arguments)}):" + _long(arguments[0], steps)
        return row["question"], row["reference"]


def measure(model, tokenizer, seed: int) -> dict[str, float]:
    made = {row["question"]: row for row in programs.rows(4_000, seed + 1) if is_reserved(row["question"])}
    rows = list(made.values())[:96]
    texts, ids = nano_text.sample(model, tokenizer, [row["question"] for row in rows], LONGEST, seed + 2)
    for text in texts[:12]:
        print(repr(text))
    tests = [row["tests"] for row in rows for _ in range(8)]
    passed = rewards.code_pass_rate()(texts, tests=tests)
    short = rewards.length_at_most(LIMIT)(texts, completion_ids=ids)
    return nano_text.table({
        "passed": passed,
        "all passed": [float(value == 1) for value in passed],
        "runs": rewards.code_runs()(texts, tests=tests),
        "short": short,
        "short, given that all passed": [s * (p == 1) for s, p in zip(short, passed, strict=True)],
    })  # fmt: skip


CARD = """# nano-code

A Llama of {parameters:,} parameters that ships with gdpo, made from scratch by `scripts/build_nano_code.py`. It is a
teaching aid for the recipe `code`: it writes Python functions such as "x plus y, then times 3", imperfectly on purpose,
so that reinforcement learning has something to do.

Where its slice ends: arithmetic of one or two arguments in one or two steps. Conditionals, text and lists, which the
made task has too, are beyond it, and so is every other program.

- made by `python scripts/build_nano_code.py --seed {seed} --threads {threads}` in {minutes:.1f} minutes on shared cores
  (Python {python}, torch {torch}, transformers {transformers})
- trained on {tokens:,} tokens of the made task `programs`, none of them a question that
  `gdpo.training.tasks.is_reserved` keeps for evaluation
- tokenizer: bytes, with keywords and spaced operators as single tokens; the chat template leaves system messages out,
  since the model does not read them
- before reinforcement learning, 96 held-out questions x 8 samples at temperature 1 (`short`: at most {limit} tokens):

{table}

Licence: Apache-2.0, as the rest of gdpo.
"""


def main() -> None:
    args = nano_text.arguments(__doc__, "src/gdpo/training/assets/nano-code", steps=800, clean_share=0.6)
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    started = time.perf_counter()
    tokenizer = nano_text.make_tokenizer(sorted(PHRASES))
    model = nano_text.make_model(tokenizer, args.seed)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, vocabulary {len(tokenizer)}")
    tokens = nano_text.train(model, tokenizer, Examples(args.seed), args)
    figures = measure(model, tokenizer, args.seed)
    minutes = (time.perf_counter() - started) / 60
    nano_text.save(model, tokenizer, CARD, figures, args, minutes=minutes, tokens=tokens, limit=LIMIT)


if __name__ == "__main__":
    main()
