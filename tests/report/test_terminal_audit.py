"""``gdpo audit`` in the terminal and in a pipe: 80 columns, many rewards, long names, hostile ones."""

from __future__ import annotations

import io

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from gdpo.audit.run import audit
from gdpo.report.terminal_audit import middle_cut, print_audit
from gdpo.rollouts import Batch, Dump, Summary

THIRTY = [f"helpfulness_of_the_answer_as_judged_by_model_{k}" for k in range(30)]


def said(names, width=80, terminal=False, scores=None, **settings):
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(512, len(names))) if scores is None else scores
    rows = pl.DataFrame({"rollout": [f"1-{row}" for row in range(512)]})
    batch = Batch(1, scores, np.arange(64).repeat(8), rows)
    summary = Summary(
        format="trl", files=1, rollouts=512, groups=64, group_sizes={8: 64}, steps=[1], rewards=list(names)
    )
    found = audit(Dump(list(names), "trl", {}, summary, lambda: iter([batch])), **settings)
    out = io.StringIO()
    print_audit(found, "a/dump", Console(file=out, width=width, force_terminal=terminal, color_system=None))
    return out.getvalue().split("\n")


@pytest.mark.parametrize("terminal", [False, True])
def test_thirty_rewards_with_long_names_fit_into_80_columns(terminal):
    lines = said(THIRTY, terminal=terminal)
    assert max(map(len, lines)) <= 80
    rows = [line.split()[0] for line in lines if line.startswith("helpful") and "%" in line]
    assert len(set(rows)) == 30  # what is left of a name still tells it from the others
    assert any("all weights 1" in line for line in lines)
    head = next(line for line in lines if line.startswith("reward "))
    assert head.split() == ["reward", "mean", "spread", "dead", "share", "missing"]
    assert len(lines) < 55


@pytest.mark.parametrize("width", [64, 72, 80, 120])
def test_numbers_are_never_cut(width):
    scores = np.random.default_rng(0).normal(size=(512, 2)) * [1e-12, -1e12]
    scores[:256, 0] = np.nan
    lines = said(["a_very_long_name_" * 5, "b_very_long_name_" * 5], width, scores=scores)
    table = [line for line in lines if line.startswith(("a_very", "b_very")) and "e" in line and "%" in line]
    assert len(table) == 2
    assert all(line.count("%") == 3 and "…" not in line.split(maxsplit=1)[1] for line in table)
    assert max(map(len, lines)) <= width


def test_the_verdict_comes_first_and_no_line_ends_in_blanks():
    lines = said(["one", "two"], scores=np.random.default_rng(0).normal(size=(512, 2)) * [1, 100])
    assert "two" in lines[0]
    assert all(line == line.rstrip() for line in lines)


def test_weights_in_few_words():
    weights = {THIRTY[2]: 0.5, THIRTY[7]: 2.0}
    text = " ".join(said(THIRTY, weights=weights))
    assert f"weights {THIRTY[2]} 0.5, {THIRTY[7]} 2, 1 for the others" in text
    assert "weights one 1, two 0.5" in " ".join(said(["one", "two"], weights={"two": 0.5}))


def test_names_are_taken_as_they_are():
    lines = said(["[bold]x[/bold]", "\x1b[31mred\x07", "[/nope]"])
    text = "\n".join(lines)
    assert "[bold]x[/bold]" in text
    assert "[/nope]" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_a_name_is_cut_in_its_middle():
    assert middle_cut("short", 8) == "short"
    assert middle_cut("abcdefghijkl", 7) == "abc…jkl"
    assert all(len(middle_cut("x" * 50, room)) == room for room in range(5, 20))
