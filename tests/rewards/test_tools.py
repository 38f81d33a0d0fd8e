"""Rewards for tool calls: forms, ToolRL's formula, BFCL's alternatives, hostile text."""

from __future__ import annotations

import itertools
import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SHARED, shared_cases

from gdpo import rewards
from gdpo.core.errors import Error
from gdpo.rewards.calls import Call, Malformed, read_calls
from gdpo.rewards.matching import best_total

WEATHER = [{"name": "weather", "parameters": {"city": "Paris", "days": 3}}]
TIME = {"name": "time", "parameters": {"zone": "CET"}}


def tagged(*calls):
    return "<think>t</think>\n<tool_call>\n" + "\n".join(json.dumps(call) for call in calls) + "\n</tool_call>"


@pytest.mark.data
@pytest.mark.parametrize("style", ["auto", "toolrl", "hermes"])
@pytest.mark.parametrize("case", shared_cases("tools.json"))
def test_cases(case, style):
    (score,) = rewards.tool_correctness(style=style)([case["completion"]], calls=[case["gold"]])
    assert score == (case["reward"] if case["reward"] is not None else -3.0)  # null: no exception, in time


@pytest.mark.parametrize(
    ("gold", "completion", "expected"),
    [
        (WEATHER, tagged(*WEATHER), 3.0),
        (WEATHER, "<think>t</think><response>It is sunny.</response>", -3.0),
        (WEATHER, tagged({"name": "weather", "parameters": {"city": "Rome", "days": 3}}), 1.5),
        (WEATHER, tagged({"name": "weather", "parameters": {"city": "Paris"}}), 0.75),
        (WEATHER, tagged({"name": "weather", "parameters": {"city": "Paris", "days": True}}), 1.5),
        (WEATHER, tagged({"name": "weather", "parameters": None}), -1.5),
        ([*WEATHER, TIME], tagged(TIME, *WEATHER), 3.0),
        (WEATHER, tagged(*WEATHER, {"name": "time", "parameters": {}}), 2.25),
        ([{"name": "now", "parameters": {}}], tagged({"name": "now", "parameters": {}}, TIME), 1.5),
        (WEATHER, tagged(*WEATHER).replace("3}", "NaN}"), -3.0),
        (WEATHER, "<tool_call>" + json.dumps(WEATHER[0]), -3.0),
    ],
)  # fmt: skip
def test_toolrl_formula(gold, completion, expected):
    for column in (gold, json.dumps(gold), tagged(*gold)):
        assert rewards.tool_correctness()([completion], calls=[column]) == [expected]


def test_a_closing_tag_inside_a_string_cuts_nothing():
    call = {"name": "shell", "parameters": {"cmd": "echo </tool_call> done", "note": 'a } and a ] in "quotes"'}}
    assert rewards.tool_correctness()([tagged(call)], calls=[[call]]) == [3.0]
    assert rewards.tool_format()([tagged(call)], calls=[[call]]) == [1.0]


def test_the_pairing_is_the_best_one():
    """Greedy in gold order takes the second prediction for the first gold call and loses what the other pairing gives."""
    gold = [{"name": "f", "parameters": {"a": 1, "b": 2}}, {"name": "f", "parameters": {"a": 1, "b": 3}}]
    made = [{"name": "f", "parameters": {"a": 1, "b": 3}}, {"name": "f", "parameters": {"a": 1, "b": 9}}]
    # names 1, keys 1 + 1, values 1 + 2 of 1 + 2 * 3
    assert rewards.tool_correctness()([tagged(*made)], calls=[gold]) == [pytest.approx(6 * 6 / 7 - 3)]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 4), st.integers(1, 5), st.randoms(use_true_random=False))
def test_best_total_is_that_of_trying_all(rows, columns, random):
    values = [[random.choice([0, 0.5, 1, 2, random.random()]) for _ in range(columns)] for _ in range(rows)]
    wide = np.array(values) if rows <= columns else np.array(values).T
    tried = max(
        sum(wide[row, column] for row, column in enumerate(order))
        for order in itertools.permutations(range(wide.shape[1]), wide.shape[0])
    )
    assert best_total(values) == pytest.approx(tried)


@pytest.mark.parametrize(
    ("completion", "style"),
    [
        (tagged(*WEATHER, TIME), "toolrl"),
        ("".join(f'<tool_call>\n{{"name": "{c["name"]}", "arguments": {json.dumps(c["parameters"])}}}\n</tool_call>\n'
                 for c in (*WEATHER, TIME)), "hermes"),
        ("<|python_tag|>" + "; ".join(json.dumps(c) for c in (*WEATHER, TIME)), "llama3"),
        ("[TOOL_CALLS] " + json.dumps([{"name": c["name"], "arguments": c["parameters"]} for c in (*WEATHER, TIME)]), "mistral"),
        ('[TOOL_CALLS]weather[ARGS]{"city": "Paris", "days": 3}[TOOL_CALLS]time[CALL_ID]a1[ARGS]{"zone": "CET"}</s>', "mistral"),
        (json.dumps({"tool_calls": [{"type": "function", "function": {"name": c["name"], "arguments": json.dumps(c["parameters"])}}
                                    for c in (*WEATHER, TIME)]}), "openai"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": c["name"], "arguments": json.dumps(c["parameters"])}}
            for c in (*WEATHER, TIME)]}], "openai"),
        ("[weather(city='Paris', days=3), time(zone='CET')]", "python"),
        ("```python\nweather(city='Paris', days=3), time(zone='CET')\n```", "python"),
    ],
)  # fmt: skip
def test_every_style(completion, style):
    expected = [Call("weather", {"city": "Paris", "days": 3}), Call("time", {"zone": "CET"})]
    assert read_calls(completion, style) == expected
    assert read_calls(completion) == expected
    if isinstance(completion, str):
        assert read_calls([{"role": "assistant", "content": completion}], style) == expected
        assert read_calls(f"<think>or f(x=1) or <tool_call></think>{completion}", style) == expected


@pytest.mark.parametrize(
    ("completion", "style"),
    [
        ("f(1)", "python"), ("f(a=g())", "python"), ("f(a=x)", "python"), ("f(**{'a': 1})", "python"), ("f(a=1) + 2", "python"),
        ("f(a=__import__('os').system('true'))", "python"), ("f(a=" + "[" * 5000 + "]" * 5000 + ")", "python"),
        ("[TOOL_CALLS]weather{}", "mistral"), ('{"name": "f", "parameters": [1]}', "llama3"), ('{"name": ""}', "llama3"),
        ('{"name": "f"} and more', "llama3"), ('<tool_call>{"name": "f", "arguments": "{"}</tool_call>', "hermes"),
        ("<tool_call>" + '{"a":' * 100_000 + "</tool_call>", "toolrl"), ('<tool_call>' + '{"name":"f"}' * 600 + "</tool_call>", "toolrl"),
        ('<tool_call>{"name": "f", "parameters": {"a": ' + "9" * 5000 + "}}</tool_call>", "toolrl"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(completion, style):
    with pytest.raises(Malformed):
        read_calls(completion, style)
    assert rewards.tool_correctness(style=style)([completion], calls=[WEATHER]) == [-3.0]
    assert rewards.tool_exact(style=style)([completion], calls=[WEATHER]) == [0.0]


def test_coercions_are_options():
    as_text = tagged({"name": "weather", "parameters": {"city": "Paris", "days": "3"}})
    as_float = tagged({"name": "weather", "parameters": {"city": "Paris", "days": 3.0}})
    assert rewards.tool_exact()([as_text, as_float], calls=[WEATHER] * 2) == [0.0, 1.0]
    assert rewards.tool_exact(int_float=False, text_number=True)([as_text, as_float], calls=[WEATHER] * 2) == [1.0, 0.0]


def test_no_gold_call_and_no_gold_value():
    with pytest.warns(UserWarning, match="2 rows have no 'calls'"):
        assert rewards.tool_correctness()(["x"] * 3, calls=["[]", "nonsense", None]) == [None] * 3
    assert rewards.tool_exact()(["x", tagged(TIME)], calls=["[]", "[]"]) == [1.0, 0.0]
    with pytest.raises(Error, match="needs the column 'calls'"):
        rewards.tool_correctness()(["x"])
    with pytest.raises(Error, match=r"style is 'tooIrl'.*'toolrl'"):
        rewards.tool_correctness(style="tooIrl")


@pytest.mark.parametrize(
    ("gold", "completion", "expected"),
    [
        (WEATHER, tagged(*WEATHER), 1), (WEATHER, "<think>t</think><response>r</response>", 0), ([], "<think>t</think> <response>r</response>", 1),
        (WEATHER, tagged(*WEATHER) + "\n<response>r</response>", 0), ("<think>a</think><tool_call>{\"name\": \"f\"}</tool_call><response>b</response>",
         tagged(*WEATHER) + "\n<response>r</response>", 1), (WEATHER, "<tool_call>{}</tool_call><think>t</think>", 0),
        (WEATHER, "<think>use <tool_call></think><tool_call>no JSON</tool_call>", 1), (WEATHER, tagged(*WEATHER) + "bye", 0),
        (WEATHER, "<think>a<think>b</think></think>" + tagged(*WEATHER), 0), (WEATHER, "<think> </think><tool_call>x</tool_call>", 0),
        (WEATHER, "<think>t</think><tool_call></tool_call>", 0), ([], "<think>t</think><response>a <tool_call> b</response>", 0),
    ],
)  # fmt: skip
def test_format(gold, completion, expected):
    assert rewards.tool_format()([completion], calls=[gold]) == [expected]


def test_format_of_other_styles():
    score = rewards.tool_format(style="python")
    assert score(["f(a=1)", "f(1)", "Nothing to call."], calls=[WEATHER] * 3) == [1.0, 0.0, 0.0]
    assert score(["f(a=1)", "Nothing to call."], calls=["[]"] * 2) == [0.0, 1.0]
    assert rewards.tool_format(gold=None)([tagged(TIME), "<think>t</think><response>r</response>", "r"]) == [1, 1, 0]


def test_bfcl_alternatives():
    gold = [
        {
            "triangle_area": {
                "base": [10],
                "height": [5.0],
                "unit": ["units", ""],
                "where": [{"city": ["Paris", "paris, FR"]}],
            }
        }
    ]
    score = rewards.bfcl_match()

    def made(**parameters):
        return json.dumps({"name": "triangle_area", "parameters": parameters})

    where = {"city": "PARIS-FR"}
    texts = [
        made(base=10, height=5, unit="Units", where=where), made(base=10, height=5.0, where=where),
        made(base=10.0, height=5, where=where), made(base=10, height=5, unit="cm", where=where), made(base=10, height=5),
        made(base=10, height=5, where=where, extra=1), made(base=True, height=5, where=where), made(base=10, height=5, where={}),
        "no call", made(base=10, height=5, where=where) * 2,
    ]  # fmt: skip
    assert score(texts, ground_truth=[json.dumps(gold)] * len(texts)) == [1, 1, 0, 0, 0, 0, 0, 0, 0, 0]


DAMAGE = {
    "another value": lambda calls: [{**calls[0], "parameters": {**calls[0]["parameters"], "added": 1}}, *calls[1:]],
    "another name": lambda calls: [{**calls[0], "name": calls[0]["name"] + "_"}, *calls[1:]],
    "a call less": lambda calls: calls[1:],
    "a call more": lambda calls: [*calls, {"name": "another", "parameters": {}}],
}


@pytest.mark.data
@pytest.mark.skipif(
    not (SHARED / "data" / "toolrl").is_dir(), reason="ToolRL's data lies beside a developer's checkout only"
)
def test_toolrl_gold_responses():
    import polars as pl

    rows = json.loads((SHARED / "data" / "toolrl" / "rlla_sft.json").read_text(encoding="utf-8"))
    gold = [row["output"] for row in rows]
    table = pl.read_parquet(SHARED / "data" / "toolrl" / "rlla_test.parquet")
    gold += [row["ground_truth"] for row in table["reward_model"].to_list()]
    correct, form = rewards.tool_correctness(gold="gold"), rewards.tool_format(gold="gold")
    assert len(gold) == 480
    assert set(form(gold, gold=gold)) == {1.0}
    with_calls = [text for text in gold if "</tool_call>" in text]
    assert len(with_calls) == 417
    assert set(correct(with_calls, gold=with_calls)) == {3.0}
    rest = [text for text in gold if "</tool_call>" not in text]
    assert set(correct(rest, gold=rest)) == {None}
    for damage in DAMAGE.values():
        damaged = []
        for text in with_calls:
            calls = [{"name": c.name, "parameters": dict(c.parameters)} for c in read_calls(text)]
            damaged.append(tagged(*damage(calls)))
        assert max(correct(damaged, gold=with_calls)) < 3.0
    cut = [text[: text.rindex("}")] for text in with_calls]
    assert max(correct(cut, gold=with_calls)) < 3.0
    assert set(form([text + "\nDone." for text in gold], gold=gold)) == {0.0}
    assert set(form([text.replace("</think>", "", 1) for text in gold], gold=gold)) == {0.0}


PIECES = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", "<response>", "</response>", "{", "}", "[", "]", '"name"', ": ", '"f"', ",", "\n",
     '"parameters"', "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "f(a=1)", "```", "NaN", "1e999", "\\", "\u202e", "\x00", "𝟙", "a"]
)  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=200))
def test_any_text_earns_a_score(text):
    for style in ("auto", "toolrl", "llama3", "mistral", "openai", "python"):
        (score,) = rewards.tool_correctness(style=style)([text], calls=[WEATHER])
        assert -3 <= score <= 3
        assert rewards.tool_format(style=style)([text], calls=[WEATHER])[0] in (0, 1)
        assert rewards.bfcl_match(style=style)([text], ground_truth=[[{"f": {"a": [1]}}]])[0] in (0, 1)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000, "<tool_call>" * 90_000, '<tool_call>{"name":"f"}</tool_call>' * 28_000, "[" * 1_000_000, "f(a=" * 250_000,
        "<tool_call>" + "[" * 190_000, '{"name":"f","parameters":{}}' * 7_000, "</think>" * 120_000, "<think>" * 140_000,
        "f(a=" + "-" * 190_000 + "1)", "[TOOL_CALLS]" + "a[ARGS]{}" * 20_000, '<tool_call>' + '{"name":"weather"}' * 511 + "</tool_call>",
        "f(a=" + "'x'" * 60_000 + ")", "f(a=" + "1+" * 90_000 + "1j)",
    ],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_long_texts_are_quick(text):
    gold = WEATHER * 6
    for style in ("auto", "toolrl", "llama3", "mistral", "openai", "python"):
        for score in (
            rewards.tool_correctness(style=style),
            rewards.tool_format(style=style),
            rewards.tool_exact(style=style),
        ):
            started = time.monotonic()
            score([text], calls=[gold])
            assert time.monotonic() - started < 2
