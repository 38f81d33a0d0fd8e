"""Rewards on people's real trouble: answers, formats, hostile text, and TRL's calling convention."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
import time
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import shared_cases

import gdpo
from gdpo import rewards

TRL = {"trainer_state": None, "log_extra": None, "log_metric": None}


@pytest.mark.data
@pytest.mark.parametrize("case", shared_cases("answers.json"))
def test_answers(case):
    score = rewards.math_answer(extraction=case["extraction"])
    found = score([case["completion"]], answer=[case["gold"]], **TRL)
    assert found[0] in ((0, 1) if case["correct"] is None else (case["correct"],)), case["why"]


@pytest.mark.data
@pytest.mark.parametrize("case", shared_cases("formats.json"))
def test_formats(case):
    assert rewards.tags(*case["tags"])([case["completion"]], **TRL) == [case["format"]], case["why"]


def long_text(value):
    if isinstance(value, dict) and "repeat" in value:
        return value["text_before"] + value["repeat"] * value["times"] + value["text_after"]
    return value


def in_a_thread(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


async def _in_a_loop(call):
    return call()


PLACES = {
    "main thread": lambda call: call(),
    "worker thread": in_a_thread,
    "inside a running asyncio loop": lambda call: asyncio.run(_in_a_loop(call)),
}


def tools_report(given_, expect):
    assert rewards.tool_correctness()([given_["completion"]], calls=[given_["gold"]]) == [expect["reward"]]


def cosine_report(given_, expect):
    score = rewards.cosine_length(given_["maximum"], correct=given_["correct"])
    ids = [[0] * length for length in given_["lengths_in_tokens"]]
    found = score([""] * len(ids), completion_ids=ids, correctness=given_["correctness"])
    assert found == pytest.approx(expect["rewards"], abs=expect["tolerance"])


def repetition_report(given_, expect):
    found = rewards.repetition(3)(given_["completions"])
    assert found == pytest.approx(expect["repeated_share"], abs=expect["tolerance"])
    for n in (0, -1):
        with pytest.raises(gdpo.Error, match="n="):
            rewards.repetition(n)


def similarity_report(given_, expect):
    texts, golds = zip(*given_["pairs"], strict=True)
    score = rewards.similarity(gold="reference")
    assert score.range == (0, 1)
    assert score(list(texts), reference=list(golds)) == pytest.approx(expect["rewards"], abs=expect["tolerance"])


CALLS = {
    "tool_correctness": tools_report,
    "cosine_length": cosine_report,
    "repetition(3)": repetition_report,
    "similarity(gold='reference')": similarity_report,
}
ELSEWHERE = {
    "rollouts: one rollout in several segments": "tests/core/test_contract.py",
    "estimators: leave-one-out": "tests/core/test_contract.py",
    "processes: group across ranks": "tests/core/test_distributed.py",
    "logging: weighted metric": "tests/adapters/test_trl.py",
    "resume: schedule": "tests/test_objective.py, tests/training/test_end_to_end.py",
    "code: limits": "tests/rewards/test_code.py",
}


@pytest.mark.data
@pytest.mark.parametrize("case", shared_cases("reports.json"))
def test_reports(case):
    given_ = case["input"]
    call, expect = given_.get("call", ""), case["expect"]
    if call == "math_answer" and "completions" in given_:
        completions = [long_text(completion) for completion in given_["completions"]]
        gold = given_["gold"] if isinstance(given_["gold"], list) else [given_["gold"]] * len(completions)
        for place in given_.get("where", ["main thread"]):
            if place not in PLACES:
                continue  # a spawned process has a test of its own
            score = rewards.math_answer(extraction=given_["extraction"])
            started = time.monotonic()
            assert PLACES[place](lambda score=score: score(completions, answer=gold)) == expect["rewards"], place
            assert time.monotonic() - started < expect.get("seconds_for_the_batch_at_most", 60)
    elif call == "tags('think','answer')":
        rows = given_["rows"]
        found = rewards.tags("think", "answer")([r["completion"] for r in rows], prompts=[r["prompt"] for r in rows])
        assert found == expect["rewards"]
    elif call in CALLS:
        CALLS[call](given_, expect)
    elif case["area"] == "rewards: shape":
        for returned in given_["custom_reward_returns"]:
            objective = gdpo.Objective(custom=lambda completions, returned=returned, **columns: returned)
            with pytest.raises(gdpo.Error, match=f"'custom' returned {len(returned)} scores, but 3 were expected"):
                objective.score(["a", "b", "c"])
    elif case["area"] == "adapters: missing names":
        found = gdpo.export.rewards_of(given_["reward_extra_info_by_sample"], given_["wanted"])
        assert [[None if math.isnan(v) else v for v in row] for row in found.tolist()] == expect["rewards"]
    else:
        pytest.skip(f"{case['area']}: {ELSEWHERE[case['area']]}")


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("2125", "2,125", 1), ("2,125", "2125", 1), ("18", "$18", 1), ("18", "18 dollars", 1), ("18", "18.0", 1),
        ("18", "18.", 1), ("73", "**73**", 1), ("-5", "-5", 1), ("-5", "5", 0), ("2", "²", 0), ("72", "71", 0),
        ("0.5", "1/2", 1), ("1/2", "0.5", 1), ("1/2", r"\frac{1}{2}", 1), ("25%", r"25\%", 1), ("12:00", "1:00", 0),
        ("12:00", "12:00", 1), ("19, 46, 82", "21, 36, 82", 0), ("19, 46, 82", "19, 46, 82", 1), ("5", "5x", 0),
        ("3", "3 million", 0), ("3", "3 and 4", 0), ("1000000", "1,000,000", 1), ("1.5", "1.50", 1), ("7", "", 0),
        ("5", "5" * 5000, 0), ("0", "-0", 1), ("18", "18 dollars and 5 cents", 0), ("12", "1,2", 0),
    ],
)  # fmt: skip
def test_plain_answers(gold, answer, expected):
    score = rewards.math_answer()
    assert score([f"<think>x</think>\n<answer>{answer}</answer>"], answer=[gold]) == [expected]


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        (r"\frac{63}{400}", r"\frac{63}{400}", 1), (r"\frac{63}{400}", r"\frac{64}{400}", 0), ("x^2+1", "1+x^2", 1),
        (r"\sqrt{8}", r"2\sqrt{2}", 1), ("3*x-1*y+13=0", "3x + 4y + 14=0", 0), ("3*x-1*y+13=0", "6x - 2y + 26 = 0", 1),
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}", 0), (r"1 - \frac{1}{e}", r"1 + \frac{1}{e}", 0), (r"\pi", "3", 0),
    ],
)  # fmt: skip
def test_answers_that_need_mathematics(gold, answer, expected):
    assert rewards.math_answer(extraction="boxed")([rf"so \boxed{{{answer}}}."], answer=[gold]) == [expected]


@pytest.mark.parametrize(
    ("mode", "text", "expected"),
    [
        ("answer_tags", "<answer>71</answer> wait <answer>72</answer>", 1),
        ("answer_tags", "<answer>72</answer> no, <answer>71</answer>", 0),
        ("answer_tags", "<answer>72", 0),
        ("answer_tags", "The answer is 72", 0),
        ("boxed", r"\boxed{2} then \boxed{72}", 1),
        ("boxed", r"\boxed{\boxed{72}}", 1),
        ("boxed", r"\boxed{72", 0),
        ("hashes", "#### 71\nso #### 72", 1),
        ("hashes", "#### 72\n" + "This agrees with the sum. " * 40, 1),
        ("last_number", "36 + 36 = 72.", 1),
        ("last_number", "72 or 73", 0),
        ("last_number", "It costs $72!", 1),
        ("last_number", "none", 0),
    ],
)
def test_extraction_takes_the_last(mode, text, expected):
    assert rewards.math_answer(extraction=mode)([text], answer=["72"]) == [expected]


def test_gold_that_is_missing_does_not_apply_and_is_reported_once():
    score = rewards.math_answer(extraction="boxed")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            found = score([r"\boxed{3}"] * 4 + [r"\boxed{7}"], answer=["", None, math.nan, "7", "7"])
            assert found == [None, None, None, 0, 1]
    assert len([w for w in said if "3 completions have no 'answer'" in str(w.message)]) == 1


def test_gold_in_gsm8ks_form_as_numbers_and_as_choices():
    score = rewards.math_answer()
    golds = ["Half of 84 is 42.\n#### 42", 42, 42.0, ["41", "42"], r"\boxed{42}"]
    assert score(["<answer>42</answer>"] * 5, answer=golds) == [1] * 5


def test_only_what_the_model_wrote_last_is_read():
    call = {"role": "assistant", "content": None, "tool_calls": []}
    tool = {"role": "tool", "content": "391"}
    score = rewards.math_answer(extraction="last_number")
    chats = [[call, tool, {"role": "assistant", "content": "no idea"}], [call, tool],
             [call, tool, {"role": "assistant", "content": [{"type": "text", "text": "It is 391."}]}]]  # fmt: skip
    assert score(chats, answer=["391"] * 3) == [0, 0, 1]


def test_slow_answers_cost_their_own_score_only():
    """A power tower keeps math-verify's signal from being delivered; a million-term sum keeps its parser busy."""
    tower = r"\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}"
    score = rewards.math_answer(extraction="boxed", seconds=10)
    started = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = score([rf"\boxed{{{text}}}" for text in (tower, r"2+\sqrt{9}", "1+" * 50_000 + "1")], answer=["5"] * 3)
    assert found == [0, 1, 0]
    assert time.monotonic() - started < 20


def test_no_process_outlives_its_parent(tmp_path):
    """The workers end with the process that owns them, here one that is killed."""
    code = (
        "from gdpo import rewards\nfrom gdpo.rewards.math_pool import shared_pool\n"
        "print(rewards.math_answer(extraction='boxed')([r'\\boxed{1+x}'], answer=['x+1']))\n"
        "print(*[w.process.pid for w in shared_pool()._workers], flush=True)\nimport time; time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().strip() == "[1.0]"
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert workers
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(running(pid) for pid in workers):
        time.sleep(0.05)
    assert not any(running(pid) for pid in workers)


def running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-5", 1),
        ("2,125", 1),
        ("+7", 1),
        ("18.0", 0),
        ("²", 0),
        ("٣", 0),
        ("1/2", 0),
        ("", 0),
        ("7 apples", 0),
        ("12,34", 0),
    ],
)
def test_integer_answer(text, expected):
    assert rewards.integer_answer()([f"<answer>{text}</answer>"]) == [expected]


GOOD = "<think>a</think>\n<answer>1</answer>"


@pytest.mark.parametrize(
    ("text", "lenient", "strict"),
    [
        (GOOD, 1, 1), (f" \n{GOOD}\n", 1, 0), (GOOD.replace("\n", ""), 1, 0), (GOOD.replace("\n", "\n\n"), 1, 0),
        (GOOD + " bye", 0, 0), ("sure: " + GOOD, 0, 0), (GOOD + "\n<answer>1</answer>", 0, 0), (GOOD.upper(), 0, 0),
        ("<answer>1</answer>\n<think>a</think>", 0, 0), ("<think>a\n<answer>1</answer>", 0, 0), ("", 0, 0),
        ("<think></think>\n<answer> </answer>", 0, 0), ("<think>see <answer></think>\n<answer>1</answer>", 0, 0),
    ],
)  # fmt: skip
def test_tags(text, lenient, strict):
    assert rewards.tags("think", "answer")([text]) == [lenient]
    assert rewards.tags("think", "answer", strict=True)([text]) == [strict]


def test_tags_that_the_template_opens():
    rest = "a</think>\n<answer>1</answer>"
    prompts = ["Q\n<think>\n", "Q", [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "<think>"}]]
    assert rewards.tags("think", "answer")([rest] * 3, prompts=prompts) == [1, 0, 1]
    assert rewards.tags("think", "answer", opened=True)([rest, GOOD]) == [1, 0]


def test_length():
    assert rewards.length_at_most(2)(["a", "b"], completion_ids=[[1, 2], [1, 2, 3]]) == [1, 0]
    assert rewards.length_at_most(2, unit="characters")(["ab", "abc"]) == [1, 0]
    assert rewards.length_at_most(2).__name__ == "at_most_2_tokens"
    with pytest.raises(gdpo.Error, match="no completion_ids"):
        rewards.length_at_most(2)(["a"])


ANY = [rewards.integer_answer(m) for m in ("answer_tags", "boxed", "hashes", "last_number")] + [
    rewards.tags("think", "answer"), rewards.tags("a", strict=True), rewards.length_at_most(5, unit="characters"),
]  # fmt: skip
messages = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "content", "x"]), st.one_of(st.text(max_size=5), st.none(), st.integers())
    ),
    max_size=3,
)
pieces = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "<answer>",
            "</answer>",
            "\\boxed{",
            "{",
            "}",
            "####",
            "\n",
            "7",
            "$",
            "\x00",
            "\ud800",
            "1,0",
        ]
    ),
    max_size=12,
).map("".join)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.one_of(st.text(), pieces, messages, st.none(), st.integers(), st.binary()), max_size=4))
def test_no_text_makes_a_reward_raise(completions):
    for score in ANY:
        found = score(
            completions, prompts=completions, completion_ids=[[]] * len(completions), answer=["1"] * len(completions)
        )
        assert len(found) == len(completions)
        assert all(value in (0.0, 1.0) for value in found)


@settings(deadline=None, max_examples=60)
@given(st.lists(pieces, min_size=1, max_size=4))
def test_math_answer_survives_any_pieces(texts):
    for mode in ("answer_tags", "boxed", "hashes", "last_number"):
        found = rewards.math_answer(extraction=mode)(texts, answer=["7"] * len(texts))
        assert all(value in (0.0, 1.0) for value in found)


def test_megabytes_take_no_time():
    huge = ["<answer>" * 130_000, "\\boxed{" * 150_000, "9" * 1_000_000, "1," * 500_000, "<think>" + "a" * 1_000_000]
    started = time.monotonic()
    for score in ANY:
        score(huge)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: rewards.math_answer(extraction="box"), "did you mean 'boxed'"),
        (lambda: rewards.math_answer(seconds=0), "seconds=0"),
        (lambda: rewards.tags(), "at least one tag"),
        (lambda: rewards.tags("a", "a"), "'a'"),
        (lambda: rewards.tags("a b"), "'a b'"),
        (lambda: rewards.length_at_most(0), "n=0"),
        (lambda: rewards.length_at_most(3, unit="words"), "unit='words'"),
        (lambda: rewards.build("math_anser"), "did you mean 'math_answer'"),
        (lambda: rewards.build(3), "a reward is 3"),
        (lambda: rewards.build("length_at_most"), "missing"),
        (lambda: rewards.build("none.py:f"), "does not exist"),
        (lambda: rewards.math_answer()(["x"], solution=["1"]), "needs the column 'answer'"),
        (lambda: rewards.math_answer()(["x"], answer=["1", "2"]), "2 values in column 'answer', but 1"),
        (lambda: gdpo.reward(range=(1, 0)), "range is"),
    ],
)
def test_errors(build, said):
    with pytest.raises(gdpo.Error, match=said):
        build()


def test_every_reward_declares_its_range_and_takes_trls_arguments():
    for score in (rewards.math_answer(), *ANY):
        assert score.range == (0.0, 1.0)
        assert score(completions=[GOOD], prompts=["q"], completion_ids=[[1]], answer=["1"], **TRL)[0] in (0.0, 1.0)


def test_an_answer_is_never_run(tmp_path):
    """sympy's plain parser evaluates Python; only digits and operators may reach it."""
    target = tmp_path / "touched"
    attacks = [f"__import__('os').system('touch {target}')", f"open('{target}','w')", f"eval(\"open('{target}','w')\")"]
    texts = [f"<answer>{attack}</answer>" for attack in attacks] + [rf"<answer>\text{{{attacks[0]}}}</answer>"]
    assert rewards.math_answer()(texts, answer=["x+1"] * len(texts)) == [0.0] * len(texts)
    assert not target.exists()


def test_unusable_gold_values_are_known_before_training():
    score = rewards.math_answer()
    assert score.usable(answer=["42", r"\frac{1}{2}", "x+1", None, "", r"\frac{", "Paris", ["", "3"]]) == [
        True, True, True, False, False, False, True, True,
    ]  # fmt: skip
    objective = gdpo.Objective(correct=score, tools=rewards.tool_exact())
    rows = [{"answer": "1", "calls": "[]"}, {"answer": None, "calls": "nonsense"}, {"answer": "2", "calls": "{"}]
    assert objective.unusable(rows) == {"correct": [1], "tools": [1, 2]}
    with pytest.raises(gdpo.Error, match="'tools' needs the column 'calls'"):
        objective.unusable([{"answer": "1"}])
