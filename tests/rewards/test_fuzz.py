"""Twenty thousand texts through every reward: generated ones, and completions with pieces cut, doubled and mixed."""

from __future__ import annotations

import json
import random
import time
import warnings

import pytest
from hostile import PIECES
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gdpo import rewards

REAL = [
    "<think>3 + 4 = 7</think>\n<answer>7</answer>", r"We get $\frac{63}{400}$, so \boxed{\frac{63}{400}}.", "2 + 40 = 42\n#### 42",
    '<think>t</think>\n<tool_call>\n{"name": "weather", "parameters": {"city": "Paris", "days": 3}}\n</tool_call>',
    "[weather(city='Paris', days=3)]", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": [1, {"b": null}]}}]',
    "```json\n{\"a\": [1, 2.5, \"x\"], \"b\": {\"c\": true}}\n```", "Dear Sir or Madam, your order 1234 left on 3 May. Kind regards.",
    r"\boxed{(-\infty, 3] \cup \{5\}}", "The answer is 1,234.50 dollars (about 25%).", "你好,世界。今天天气很好!", "Ответ: 12 км/ч",
]  # fmt: skip
COLUMNS = {
    "answer": "7", "calls": json.dumps([{"name": "weather", "parameters": {"city": "Paris", "days": 3}}]),
    "ground_truth": json.dumps([{"weather": {"city": ["Paris"], "days": [3, ""]}}]), "reference": REAL[7],
}  # fmt: skip
REWARDS = {
    "math_answer": lambda mode: rewards.math_answer(extraction=mode, seconds=30),
    "integer_answer": lambda mode: rewards.integer_answer(extraction=mode),
    "tool_correctness": lambda style: rewards.tool_correctness(style=style),
    "tool_format": lambda style: rewards.tool_format(style=style),
    "tool_exact": lambda style: rewards.tool_exact(style=style),
    "bfcl_match": lambda style: rewards.bfcl_match(style=style),
    "tags": lambda partial: rewards.tags("think", "answer", partial=partial),
    "json_schema": lambda form: rewards.json_schema({"type": "object", "required": ["a"]}, extraction=form),
    "matches": lambda pattern: rewards.matches(pattern),
    "language": lambda script: rewards.language(script),
    "length_at_most": lambda unit: rewards.length_at_most(50, unit=unit),
    "soft_overlong": lambda unit: rewards.soft_overlong(100, 50, unit=unit),
    "cosine_length": lambda unit: rewards.cosine_length(100, correctness="right", unit=unit),
    "target_length": lambda unit: rewards.target_length(50, 20, unit=unit),
    "repetition": lambda n: rewards.repetition(n),
    "distinct": lambda n: rewards.distinct(n),
    "similarity": lambda measure: rewards.similarity(measure=measure),
    "words": lambda partial: rewards.words(include=["order"], exclude=["madam"], partial=partial),
}  # fmt: skip
OPTIONS = {
    "math_answer": ["answer_tags", "boxed"], "integer_answer": ["last_number"], "tool_correctness": ["auto", "python"],
    "tool_format": ["toolrl"], "tool_exact": ["openai"], "bfcl_match": ["mistral"], "tags": [False, True],
    "json_schema": ["whole", "fence"], "matches": [r"order \d+"], "language": ["latin"], "length_at_most": ["tokens"],
    "soft_overlong": ["characters"], "cosine_length": ["tokens"], "target_length": ["characters"], "repetition": [3], "distinct": [2],
    "similarity": ["rougeL"], "words": [False],
}  # fmt: skip


def mutated(count: int, seed: int) -> list[str]:
    """Real completions with faults."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        text = rng.choice(REAL)
        for _ in range(rng.randint(1, 4)):
            start = rng.randrange(len(text) + 1)
            end = min(len(text), start + rng.randint(0, 12))
            kind = rng.randrange(5)
            if kind == 0:
                text = text[:start] + text[end:]
            elif kind == 1:
                text = text[:end] + text[start:end] * rng.randint(1, 5) + text[end:]
            elif kind == 2:
                text = text[:start] + rng.choice(PIECES) + text[start:]
            elif kind == 3:
                text = text[:start] + rng.choice(REAL) + text[end:]
            else:
                text = text[:start] + chr(rng.choice([rng.randrange(32, 127), rng.randrange(0x110000)])) + text[end:]
        texts.append(text)
    return texts


def generated(count: int) -> list[str]:
    """What Hypothesis makes of text and of the marks that rewards look for."""
    texts: list[str] = []
    pieces = st.lists(
        st.sampled_from([*PIECES, *REAL[:3], "\\boxed{", "\\frac", "^", "9" * 50, "####", "(", "f(a=1)"]), max_size=25
    )

    @settings(
        max_examples=2 * count,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(st.text(max_size=300) | pieces.map("".join))
    def collect(text):
        texts.append(text)

    collect()
    return texts[:count]


@pytest.fixture(scope="module")
def texts():
    found = [*mutated(15_000, seed=0), *generated(5_000)]
    return found + mutated(20_000 - len(found), seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option"), [(name, option) for name in REWARDS for option in OPTIONS[name]])
def test_twenty_thousand_texts(texts, name, option):
    assert len(texts) == 20_000
    score = REWARDS[name](option)
    columns = {key: [value] * 500 for key, value in COLUMNS.items()} | {"right": [1.0, 0.0] * 250}
    started = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for start in range(0, len(texts), 500):
            batch = texts[start : start + 500]
            found = score(batch, completion_ids=[text.encode("utf-8", "replace") for text in batch], **columns)
            assert len(found) == 500
            low, high = score.range
            assert all(value is None or low <= value <= high for value in found)
    assert time.monotonic() - started < 300
