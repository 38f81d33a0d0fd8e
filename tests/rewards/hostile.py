"""Texts that the tests of several rewards share."""

from __future__ import annotations

import time

from hypothesis import strategies as st

MEGABYTES = [
    "a" * 1_000_000, "a " * 500_000, "{" * 1_000_000, '{"a":' * 200_000, "[" * 1_000_000, '"\\"' * 333_000,
    "<think>" * 140_000, "```\n" * 250_000, "你" * 1_000_000, "\ud800" * 1_000_000, "a\u0301" * 500_000,
    " ".join(str(number) for number in range(150_000)),
]  # fmt: skip
"""A megabyte each."""

PIECES = [
    "<think>", "</think>", "<answer>", "</answer>", "{", "}", "[", "]", '"a":', "1", ",", "```json\n", "\n```", "\n", " ",
    "你好", "мир", "café", "the ", "\x00", "\ud800", "\u0301", "NaN", "1e999", "🙂",
]  # fmt: skip
MESSAGES = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "content", "x"]), st.one_of(st.text(max_size=5), st.none(), st.integers())
    ),
    max_size=3,
)
COMPLETIONS = st.lists(
    st.one_of(
        st.text(), st.lists(st.sampled_from(PIECES), max_size=15).map("".join), MESSAGES, st.none(), st.integers(),
        st.binary(),
    ),
    max_size=4,
)  # fmt: skip
"""Whatever may stand where a completion is expected."""


def check_megabytes(score, seconds: float = 2.0, **columns) -> None:
    """Each takes less than ``seconds`` and earns a score in range or None."""
    score(["warm"], **{name: values[:1] for name, values in columns.items()})
    for text in MEGABYTES:
        started = time.monotonic()
        (found,) = score([text], **{name: values[:1] for name, values in columns.items()})
        taken = time.monotonic() - started
        assert taken < seconds, (score, text[:10], taken)
        assert found is None or score.range is None or score.range[0] <= found <= score.range[1]
