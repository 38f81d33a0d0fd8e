"""Rewards from a user's own file."""

from __future__ import annotations

import textwrap

import pytest

import gdpo
from gdpo import rewards


def written(tmp_path, code, name="mine.py"):
    path = tmp_path / name
    path.write_text(textwrap.dedent(code))
    return path


def test_a_function_and_a_factory_with_options(tmp_path):
    path = written(
        tmp_path,
        """
        from __future__ import annotations
        from dataclasses import dataclass
        import gdpo

        @dataclass
        class Setting:
            words: int = 2

        @gdpo.reward(range=(0, 1))
        def short(completions, **columns):
            return [float(len(text.split()) <= Setting().words) for text in completions]

        def at_most(words):
            return lambda completions, **columns: [float(len(text.split()) <= words) for text in completions]
        """,
    )
    short = rewards.build(f"{path}:short")
    assert (short.__name__, short.range, short(["a b", "a b c"])) == ("short", (0.0, 1.0), [1, 0])
    assert rewards.build("mine.py:at_most", folder=tmp_path, words=1)(["a b", "a"]) == [0, 1]


def test_two_files_of_one_name_are_two(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = written(tmp_path / "a", "def score(completions, **c):\n    return [1.0]\n")
    two = written(tmp_path / "b", "def score(completions, **c):\n    return [2.0]\n")
    first, second = rewards.build(f"{one}:score"), rewards.build(f"{two}:score")
    assert first.__module__ != second.__module__
    assert (first(["x"]), second(["x"])) == ([1.0], [2.0])


@pytest.mark.parametrize(
    ("code", "function", "options", "said"),
    [
        ("def correct(completions, **c): ...", "corect", {}, "did you mean 'correct'"),
        ("correct = 3", "correct", {}, "has no function 'correct'"),
        ("1 / 0", "f", {}, "raised ZeroDivisionError when it was read"),
        ("def f(:", "f", {}, "raised SyntaxError when it was read"),
        ("def f(words):\n    raise ValueError('words is 0')", "f", {"words": 0}, "raised ValueError: words is 0"),
        ("def f(words): ...", "f", {"word": 1}, "no option 'word'; did you mean 'words'"),
        ("def f(words):\n    return 3", "f", {"words": 1}, "returned 3, but a function"),
    ],
)
def test_errors_name_the_file_and_the_function(tmp_path, code, function, options, said):
    path = written(tmp_path, code)
    with pytest.raises(gdpo.Error, match=said):
        rewards.build(f"{path}:{function}", **options)


@pytest.mark.parametrize(("column", "said"), [(None, "NoneType"), ("abc", "str"), (7, "int"), (["1"], "1 values")])
def test_a_column_of_another_shape_is_named(column, said):
    with pytest.raises(gdpo.Error, match=f"got {said} in column 'answer', but 2 were expected"):
        rewards.math_answer()(["a", "b"], answer=column)
