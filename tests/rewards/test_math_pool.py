"""The processes around math-verify: what hostile answers, interrupts, forks and broken installations do to them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import gdpo
from gdpo import rewards
from gdpo.rewards import math_pool
from gdpo.rewards.math_pool import MathPool

TOWER = r"\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}"
"""Holds the interpreter inside one operation on integers, where no signal handler and no thread of it runs."""


@pytest.fixture
def pool():
    made = MathPool(workers=1)
    yield made
    made.close()


def worker_file(tmp_path, monkeypatch, code):
    path = tmp_path / "worker.py"
    path.write_text(textwrap.dedent(code))
    monkeypatch.setattr(math_pool, "_WORKER", path)


def test_a_reply_that_comes_after_an_interrupt_is_not_taken_for_the_next_batchs(pool, monkeypatch):
    assert pool.compare([("x+1", "1+x")], 20) == ([1], 0)

    def interrupted(deadline):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pool, "_listen", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.compare([("x+1", "1+x")], 20)
    time.sleep(0.3)
    assert pool.compare([("x+1", "x+2")], 20) == ([0], 0)


def test_ctrl_c_in_the_terminal_leaves_the_workers_to_the_trainer(pool):
    """A terminal sends SIGINT to every process of the group; the trainer still finishes its step."""
    pool.compare([("x+1", "1+x")], 20)
    process = pool._workers[0].process
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    assert pool.compare([("x+1", "1+x")], 20) == ([1], 0)


def test_ordinary_answers_come_before_those_that_may_take_long():
    pool = MathPool(workers=1, each=2.0)
    try:
        verdicts, late = pool.compare([("5", TOWER)] * 4 + [("5", r"2+\sqrt{9}")], 3)
    finally:
        pool.close()
    assert (verdicts, late) == ([0, 0, 0, 0, 1], 4)


def test_a_worker_that_dies_on_an_answer_costs_that_answer_only(pool, tmp_path, monkeypatch):
    worker_file(
        tmp_path, monkeypatch,
        """
        import json, os
        print(json.dumps({"ready": True}), flush=True)
        while True:
            task = json.loads(input())
            if task["answer"] == "die":
                os.abort()
            print(json.dumps({"id": task["id"], "score": 1}), flush=True)
        """,
    )  # fmt: skip
    assert pool.compare([("a", "b"), ("a", "die"), ("a", "c")], 20) == ([1, 0, 1], 0)


def test_workers_that_do_not_start_are_an_error_and_no_storm_of_processes(pool, tmp_path, monkeypatch):
    worker_file(tmp_path, monkeypatch, "raise SystemExit(1)")
    started = time.monotonic()
    with pytest.raises(gdpo.Error, match="do not start"):
        pool.compare([("x+1", "1+x")], 20)
    assert time.monotonic() - started < 20


def test_without_math_verify_numbers_work_and_the_rest_says_what_to_install(tmp_path, monkeypatch):
    pool = MathPool(workers=1)
    monkeypatch.setattr(math_pool, "_shared", pool)
    worker_file(tmp_path, monkeypatch, "print('{\"missing\": true}', flush=True)")
    score = rewards.math_answer()
    try:
        assert score(["<answer>42</answer>", "<answer>1,000</answer>"], answer=["42", "1001"]) == [1, 0]
        with pytest.raises(gdpo.Error, match=r'pip install "gdpo\[train\]"'):
            score(["<answer>x+1</answer>"], answer=["1+x"])
    finally:
        pool.close()


def test_a_forked_process_has_processes_of_its_own_even_if_another_thread_was_comparing():
    code = """
    import os, signal
    from gdpo.rewards.math_pool import MathPool
    pool = MathPool(workers=1)
    assert pool.compare([("x+1", "1+x")], 20) == ([1], 0)
    parents = pool._workers[0].process.pid
    pool._lock.acquire()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        verdicts = pool.compare([("x+1", "1+x"), ("x+1", "x+2")], 20)
        other = pool._workers[0].process.pid != parents
        pool.close()
        os._exit(0 if verdicts == ([1, 0], 0) and other else 1)
    assert os.waitpid(child, 0)[1] == 0
    pool._lock.release()
    assert pool.compare([("x+1", "1+x")], 20) == ([1], 0)
    assert pool._workers[0].process.pid == parents
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120)


def test_a_spawned_process_gets_the_reward_and_gives_the_same_scores():
    score = rewards.math_answer(extraction="boxed")
    completions = [r"\boxed{\frac{63}{400}}", r"\boxed{\frac{64}{400}}", r"\boxed{0.1575}", r"\boxed{63/400 + 0}"]
    with multiprocessing.get_context("spawn").Pool(1) as processes:
        task = processes.apply_async(score, (completions,), {"answer": [r"\frac{63}{400}"] * 4})
        found = task.get(timeout=120)
    assert found == score(completions, answer=[r"\frac{63}{400}"] * 4) == [1, 0, 1, 1]


def test_rewards_go_to_other_processes_with_their_options():
    for made in (
        rewards.tags("plan", "code", strict=True), rewards.length_at_most(3), rewards.integer_answer("hashes"),
        rewards.math_answer(extraction="hashes", gold="solution"),
    ):  # fmt: skip
        again = pickle.loads(pickle.dumps(made))
        assert (again.__name__, again.range, repr(again)) == (made.__name__, made.range, repr(made))
    again = pickle.loads(pickle.dumps(rewards.tags("plan", "code", strict=True)))
    assert again(["<plan>a</plan>\n<code>b</code>", "<plan>a</plan> <code>b</code>"]) == [1, 0]
    assert repr(again) == "tags('plan', 'code', strict=True)"


def test_an_unreadable_gold_answer_does_not_apply():
    """Half of a surrogate pair as the right answer, met by an answer that needs mathematics."""
    with pytest.warns(UserWarning, match="1 completions have no 'answer'"):
        assert rewards.math_answer()(["<answer>x+1</answer>"], answer=["\\frac{\ud800"]) == [None]


@pytest.mark.slow
def test_the_memory_of_an_answer_is_bounded(pool):
    assert pool.compare([("5", "10^{10^{9}}"), ("5", "9**9**9**9"), ("5", r"2+\sqrt{9}")], 15)[0] == [0, 0, 1]


@pytest.mark.slow
def test_a_ray_worker_gives_the_same_scores():
    """A Ray worker runs its task outside of the main thread, where math-verify's own time limit raises."""
    ray = pytest.importorskip("ray")
    gold, texts = [r"\frac{63}{400}"] * 3, [rf"\boxed{{\frac{{{n}}}{{400}}}}" for n in (63, 64)] + [r"\boxed{(10^9)!}"]
    expected = rewards.math_answer(extraction="boxed")(texts, answer=gold)
    assert expected == [1.0, 0.0, 0.0]
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        task = ray.remote(lambda: rewards.math_answer(extraction="boxed")(texts, answer=gold))
        assert ray.get(task.remote(), timeout=120) == expected
    finally:
        ray.shutdown()
