from __future__ import annotations

import math

import pytest

from gdpo.report.formats import change, fixed, significant, t_interval, t_quantile
from gdpo.report.html import embedded
from gdpo.report.text import plain_block, plain_line, shorten, turns, visible


def test_visible_shows_what_would_act() -> None:
    assert visible("a\x1b[31mb\x00\x7f") == "a␛[31mb␀␡"
    assert visible("one\r\ntwo\tthree\n") == "one\ntwo\tthree\n"
    assert visible("\u202eevil\u2028x\x9b") == "⟨U+202E⟩evil⟨U+2028⟩x⟨U+009B⟩"
    assert visible("lone \ud800.").encode() == "lone \ufffd.".encode()


def test_plain_line_has_no_escape_sequences() -> None:
    assert plain_line("\x1b]0;title\x07red \x1b[31mtext\x1b[0m\n next\tline", 80) == "red text next line"
    assert plain_line("x" * 1_000_000, 10) == "xxxxxxxxx…"
    assert plain_block("one\n\n\n" + "y" * 25 + "\n\x1b[2Jthree", 10, 3) == "one\nyyyyyyyyyy\nyyyyyyyyy…"


def test_shorten_says_how_much_is_left_out() -> None:
    assert shorten("short", 10) == "short"
    assert shorten("a" * 1000 + "b" * 1000, 300) == ("a" * 200 + "\n[… 1,700 characters left out …]\n" + "b" * 100)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, []),
        ("", [["", ""]]),
        ('[{"role": "user", "content": "2+2?"}]', [["user", "2+2?"]]),
        ('[{"role": "a", "content": null, "tool_calls": [1]}]', [["a", '\n{"tool_calls": [1]}']]),
        ("[1, 2]", [["", "[1, 2]"]]),
        ('[{"role": "a"', [["", '[{"role": "a"']]),
        ('[{"role": "a", "content": "\\ud800"}]', [["a", "\ufffd"]]),
        ("[" * 20_000 + "]", None),
    ],
)
def test_turns(text: str | None, expected: list[list[str]] | None) -> None:
    found = turns(text, 4000)
    if expected is None:
        assert found[0][1].startswith("[[[")
        assert len(found[0][1]) < 4100
    else:
        assert found == expected


def test_embedded_data_cannot_leave_its_element() -> None:
    text = str(embedded({"text": "</script><!-- & \u2028"}))
    assert text == '{"text":"\\u003c/script\\u003e\\u003c!-- \\u0026 \\u2028"}'
    with pytest.raises(ValueError, match="Out of range"):
        embedded({"bad": math.nan})


def test_numbers_as_a_reader_wants_them() -> None:
    assert fixed(-0.04) == "0.0"
    assert fixed(-3.25, 1) == "−3.2"
    assert fixed(12.0, 1, sign=True) == "+12.0"
    assert fixed(None) == "–"
    assert fixed(math.nan) == "–"
    assert significant(0.0123456) == "0.0123"
    assert significant(1234.5) == "1,234"
    assert significant(2.5e-7) == "2.5e−07" or significant(2.5e-7) == "2.50e−07"


def test_t_interval_of_three_known_values() -> None:
    # mean 2, standard deviation 1, t(2) = 4.3027: half width 4.3027 / sqrt(3) = 2.4842
    interval = t_interval([1.0, 2.0, 3.0])
    assert interval is not None
    assert interval.low is not None
    assert interval.high is not None
    assert interval.low == pytest.approx(-0.4842, abs=1e-3)
    assert interval.high == pytest.approx(4.4842, abs=1e-3)
    assert not interval.clear
    assert t_interval([]) is None
    single = t_interval([5.0])
    assert single is not None
    assert single.low is None
    assert not single.clear
    same = t_interval([0.1, 0.1])
    assert same is not None
    assert (same.mean, same.low, same.count) == (0.1, None, 2)
    # Tabulated: t(40) = 2.0211, t(120) = 1.9799
    assert t_quantile(40) == pytest.approx(2.0211, abs=2e-4)
    assert t_quantile(120) == pytest.approx(1.9799, abs=2e-4)


def test_change_adds_variances() -> None:
    interval = change(0.4, 0.7, 0.03, 0.04)
    assert interval is not None
    assert interval.low is not None
    assert interval.mean == pytest.approx(0.3)
    assert interval.low == pytest.approx(0.202, abs=1e-4)
    assert interval.clear
    unknown = change(0.4, 0.7, 0.03, None)
    assert unknown is not None
    assert unknown.low is None
    nothing = change(0.0, 0.0, 0.0, 0.0)
    assert nothing is not None
    assert nothing.low is None
    assert change(None, 0.7, 0.1, 0.1) is None
