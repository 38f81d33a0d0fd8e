"""Programs of a model: right ones earn their share, hostile ones hurt only themselves, and no verdict can be faked."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import pytest
from support import SHARED, shared_cases

import gdpo
from gdpo import rewards
from gdpo.rewards.code import problems_of_tests
from gdpo.rewards.sandbox import backends
from gdpo.rewards.sandbox.backends import Limits

SECONDS = 4.0


def bubblewrap_starts() -> bool:
    return backends._probe(shutil.which("bwrap"))[0] is not None


sandboxed = pytest.mark.skipif(not bubblewrap_starts(), reason="bubblewrap does not start here")


@pytest.fixture
def weaker(monkeypatch):
    """The sandbox of a system without bubblewrap."""
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield {"allow_weaker": True}


def rate(program, tests, **options):
    options = {"extraction": "whole", "seconds": SECONDS, **options}
    return rewards.code_pass_rate(**options)([program], tests=[tests])[0]


def processes_that_mention(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line and int(path.parent.name) != os.getpid():
            found.append(line)
    return found


def gone(text: str) -> bool:
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline and processes_that_mention(text):
        time.sleep(0.05)
    return not processes_that_mention(text)


def memory_of_the_caller() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Listener:
    """A service on the loopback interface that counts its visitors."""

    def __enter__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.settimeout(0.2)
        self.port = self.socket.getsockname()[1]
        return self

    def __exit__(self, *error):
        self.socket.close()

    def was_called(self) -> bool:
        try:
            self.socket.accept()
        except TimeoutError:
            return False
        return True


def check_case(case, **options):
    """One case of code.json with what must hold afterwards."""
    program = case["program"].replace("time.sleep(60)", "time.sleep(60.25)")
    before, started = memory_of_the_caller(), time.monotonic()
    with Listener() as listener:
        tests = json.loads(json.dumps(case["tests"]).replace("{PORT}", str(listener.port)))
        score = rate(program, tests, **options)
        assert not listener.was_called()
    took = time.monotonic() - started
    expected = case["expect"] if isinstance(case["expect"], list) else [case["expect"]]
    assert score in [0.0 if value == "stopped" else value for value in expected], case["why"]
    assert took < SECONDS + 5, "the limit is the whole program's"
    assert memory_of_the_caller() - before < 100 << 20
    assert gone("time.sleep(60.25)")
    for place in (Path.cwd(), Path.cwd().parent, Path.home(), Path("/tmp")):
        assert not (place / "gdpo_escape.txt").exists()


@sandboxed
@pytest.mark.data
@pytest.mark.parametrize("case", shared_cases("code.json"))
def test_cases(case, monkeypatch):
    for name, value in case.get("setup", {}).get("environment", {}).items():
        monkeypatch.setenv(name, value)
    check_case(case)
    assert rate("def f(x): return x * x + 1", ["assert f(3) == 10"]) == 1.0, "the next program is not affected"


@pytest.mark.data
@pytest.mark.parametrize("case", shared_cases("code.json"))
def test_cases_in_the_weaker_sandbox(case, weaker, monkeypatch):
    for name, value in case.get("setup", {}).get("environment", {}).items():
        monkeypatch.setenv(name, value)
    check_case(case, **weaker)


ASSERTS = [
    ("def f(x): return x", ["assert f(3) == 3", "assert f(4) == 5"], 0.5),
    ("def f(x): return x", ['assert f(3) == 3, "three"'], 1),
    ("def f(x): return x", ["assert not f(0)", "assert f(1)", "assert f(f(2)) == 2", "assert f(x=3) != 4"], 1),
    ("def f(x): return x / 3", ["assert f(1) == 0.3333333", "assert f(1) == 0.33"], 0.5),
    ("def f(x): return float('nan')", ["assert f(1) == float('nan')"], 0),
    ("def f(x): return 10 ** 30 + x", ["assert f(1) == 10 ** 30 + 1", "assert f(2) == 10 ** 30 + 1"], 0.5),
    ("def f(x): return x + 0.4", ["assert f(10 ** 9) == 10 ** 9"], 0),  # an integer is compared exactly
    ("def f(x): return 2.0 * x", ["assert f(2) == 4", "assert f(2) in (3, 4)", "assert f(0.1) in [0.2000001]"], 1),
    ("def f(x): return 7 ** x", ["assert len(str(f(9000))) > 4300", "assert f(9000) == 7 ** 9000"], 1),
    ("def f(x): return [x, (x, {x: {x}})]", ["assert f(1) == [1, (1, {1: {1}})]", "assert f(1) == [1, [1, {1: {1}}]]"], 0.5),
    ("def f(x): return 1.0 if x else True", ["assert f(1) is True", "assert f(0) is True"], 0.5),
    ("def f(x): return x", ["assert abs(f(2) - 2) < 1e-9", "assert all(f(i) == i for i in range(3))"], 1),
    ("def f(x): return x", ["assert sorted(f([3, 1]), reverse=True) == [3, 1]", "assert set(f([1, 1])) == {1}"], 1),
    ("def f(x): return x", ["assert isinstance(f(3), int)", "assert isinstance(f('a'), (int, float))"], 0.5),
    ("def f(x): return x", ["import math\nassert math.isclose(f(0.1) + f(0.2), 0.3)", "assert f('ab').upper() == 'AB'"], 1),
    ("def f(x): return x", ["x = f(3)\nfor i in range(3):\n    assert x + i == 3 + i", "assert f(2)[0] == 1"], 0.5),
    ("def sum(a, b): return a * b", ["assert sum(2, 3) == 6", "assert sum(2, 5) == 10"], 1),
    ("def f(g, x): return g(g(x))", ["assert f(lambda x: x + 1, 3) == 5", "assert f(str, 3) == '3'"], 1),
    ("def f(n):\n    for i in range(n): yield i", ["assert list(f(3)) == [0, 1, 2]", "assert next(f(3)) == 0"], 1),
    ("class Solution:\n    def two_sum(self, a, t): return [0, 1]", ["assert Solution().two_sum([1, 2], 3) == [0, 1]"], 1),
    (
        "class V:\n    def __init__(s, x): s.x = x\n    def __add__(s, o): return V(s.x + o.x)\n    def __eq__(s, o): return s.x == o.x",
        ["assert V(1) + V(2) == V(3)", "v = V(5)\nassert v.x == 5", "assert V(1) != V(2)", "assert V(1) == 1"],
        0.75,
    ),
    ("X = {'a': 1}", ["assert X == {'a': 1}", "assert X['a'] == 1"], 1),
    ("from collections import Counter, defaultdict\ndef f(x): return Counter(x)", ["assert f('aab') == {'a': 2, 'b': 1}"], 1),
    ("import os\ndef f(x):\n    if x: os._exit(0)\n    return 1", ["assert f(1) == 1", "assert f(0) == 1"], 0.5),
    ("import sys\ndef f(x):\n    if x: sys.exit(0)\n    return 1", ["assert f(1) == 1", "assert f(0) == 1"], 0.5),
    ("def f(x): raise AssertionError", ["assert not f(1)"], 0),
    ("def f(x): return '\\ud800'", ["assert f(1) == '\\ud800'"], 1),
    ("", ["assert f(1)"], 0),
    ("a\0b", ["assert f(1)"], 0),
    ("(" * 1_000_000, ["assert f(1)"], 0),
]  # fmt: skip


@sandboxed
@pytest.mark.parametrize(("program", "tests", "expected"), ASSERTS)
def test_asserts(program, tests, expected):
    assert rate(program, tests) == expected


HOSTILE = [
    # an object that agrees with everything, and one that computes what is wanted
    ("class S:\n    def __eq__(s, o): return True\n    __lt__ = __gt__ = __contains__ = __eq__\n    def __sub__(s, o): return 0\n    def __abs__(s): return 0\n    def __getattr__(s, n): return s\n    def __call__(s, *a): return s\nf = lambda *a: S()",
     ["assert f(2) == 5", "assert 5 == f(2)", "assert abs(f(2) - 5) < 1e-9", "assert f(2) > 4", "assert 5 in f(2)", "assert [f(1)] == [5]", "assert f(2) in [5]"]),
    # subclasses of plain types
    ("class I(int):\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\nf = lambda x: I(7)", ["assert f(2) == 5", "assert f(1) in {5}"]),
    # what the tests call
    ("import builtins, math\nbuiltins.abs = builtins.len = lambda v: 0\nbuiltins.all = builtins.isinstance = lambda *v: True\nmath.isclose = lambda *a, **k: True\nf = lambda x: None",
     ["assert abs(f(2)) == 0", "assert all(f(i) == 1 for i in range(2))", "assert math.isclose(f(1), 2)", "assert isinstance(f(2), int)"]),
    # replies written to the pipe by the program itself
    ("import os\ndef f(x):\n    for d in range(3, 30):\n        try:\n            for reply in (b'\\1\\0\\0\\0T', b'\\x06\\0\\0\\0l\\1\\0\\0\\0T', b'\\x16\\0\\0\\0' + bytes(16) + b'l\\1\\0\\0\\0T') * 9: os.write(d, reply)\n        except OSError: pass\n    return 0", ["assert f(2) == 5", "assert f(3)"]),
    # the harness itself
    ("import sys\nm = sys.modules['__main__']\nfor n in list(vars(m)):\n    if not n.startswith('__'): setattr(m, n, lambda *a: b'')\nf = lambda x: 0", ["assert f(2) == 5"]),
    ("import gc\nfor o in gc.get_objects():\n    if isinstance(o, dict) and 'encode' in o: o.clear()\nf = lambda x: 0", ["assert f(2) == 5"]),
    # values that are large, deep, or collide
    ("f = lambda x: [1] * 10 ** 8", ["assert f(2) == 5"]),
    ("def f(x):\n    v = []\n    for _ in range(10 ** 5): v = [v]\n    return v", ["assert f(2) == [5]"]),
    ("f = lambda x: [k * (2 ** 61 - 1) for k in range(200000)]", ["assert set(f(2)) == {5}"]),
    ("f = lambda x: {k * (2 ** 61 - 1) for k in range(20000)}", ["assert f(2) == {5}"]),
    ("f = lambda x: 10 ** 6", ["assert 10 ** f(2) ** f(2) == 5", "assert 'a' * (f(1) ** 3) == 5", "assert list(range(f(1) ** 3)) == 5"]),
    ("f = lambda x: 1 << 30_000_000", ["assert f(2) * f(2) % 7 == 9", "assert str(f(1)) == 5"]),
    ("f = lambda x: '%0999999999d'", ["assert f(2) % 5 == 5"]),
]  # fmt: skip


@sandboxed
@pytest.mark.parametrize(("program", "tests"), HOSTILE)
def test_no_program_fakes_a_verdict_or_burdens_the_caller(program, tests):
    before, started = memory_of_the_caller(), time.monotonic()
    assert rate(program, tests) == 0
    assert time.monotonic() - started < SECONDS + 2
    assert memory_of_the_caller() - before < 300 << 20


STREAMS = [
    ("print(int(input()) * 2)", [{"stdin": "2", "stdout": "4\n"}, {"stdin": "3", "stdout": "7"}], 0.5),
    ("print('1  2 \\r\\n3\\n\\n')", [{"stdin": "", "stdout": "1 2\n3"}], 1),
    ("print(0.1 + 0.2)", [{"stdin": None, "stdout": "0.3"}], 1),
    ("print('2.0')", [{"stdin": "", "stdout": "2"}], 0),
    ("print('2')", [{"stdin": "", "stdout": "2.0"}], 1),
    ("print('1\\n2')", [{"stdin": "", "stdout": "1 2"}], 0),
    ("print(10 ** 20 + 1)", [{"stdin": "", "stdout": "100000000000000000000"}], 0),
    ("print(4)\nraise ValueError", [{"stdin": "", "stdout": "4"}], 0),
    ("print(4)\nimport sys\nsys.exit(0)", [{"stdin": "", "stdout": "4"}], 1),
    ("if __name__ == '__main__':\n    import threading\n    threading.Thread(target=lambda: print(4)).start()", [{"stdin": "", "stdout": "4"}], 1),
    ("import sys\nprint('x' * 1_000_000, file=sys.stderr)\nprint(4)", [{"stdin": "", "stdout": "4"}], 1),
    ("print(4)", [{"stdin": "x" * 1_000_000, "stdout": "4"}], 1),
    ("print(len(input()))", [{"stdin": "x" * 1_000_000, "stdout": "1000000"}], 1),
    ("print('x' * 900_000)", [{"stdin": "", "stdout": "x" * 900_000}], 1),
    ("while True: print('x' * 1000)", [{"stdin": "", "stdout": "x"}], 0),
    ("import os\nos.close(1)\nwhile True: pass", [{"stdin": "", "stdout": ""}], 0),
    ("import os\nos.write(1, b'\\xff\\xfe')", [{"stdin": "", "stdout": "a"}], 0),
    ("import sys\nsys.stdout.write('é')", [{"stdin": "", "stdout": "é"}], 1),
]  # fmt: skip


@sandboxed
@pytest.mark.parametrize(("program", "tests", "expected"), STREAMS)
def test_standard_input_and_output(program, tests, expected):
    started = time.monotonic()
    assert rate(program, tests) == expected
    assert time.monotonic() - started < SECONDS + 2


ESCAPES = """
import ctypes, os, socket, subprocess, sys, threading
def attempts():
    libc = ctypes.CDLL(None)
    yield os.fork
    yield lambda: subprocess.Popen(['/bin/sh'])
    yield lambda: socket.create_connection(('127.0.0.1', 22), 1)
    yield lambda: open('/proc/sys/kernel/core_pattern', 'w')
    yield lambda: open('/etc/passwd').read()
    yield lambda: os.listdir('/work')
    yield lambda: os.listdir('/home')
    yield lambda: open('/usr/lib/gdpo', 'w')
    yield lambda: open('/gdpo', 'w')
    yield lambda: open('big', 'wb').write(b'x' * (17 << 20))
    yield lambda: bytearray(2 << 30)
    yield lambda: [os.open('/dev/null', 0) for _ in range(100)]
    yield lambda: 1 / int(libc.unshare(0x10000000) == 0)
    yield lambda: 1 / int(libc.shmget(0, 4096, 0o1600) >= 0)
    yield lambda: os.environ['PATH']
def f():
    done = []
    for k, attempt in enumerate(attempts()):
        try:
            attempt()
            done.append(k)
        except (OSError, MemoryError, ZeroDivisionError, KeyError):
            pass
    return done
"""


@sandboxed
def test_what_a_program_cannot_do():
    assert rate(ESCAPES, ["assert f() == []"]) == 1.0


def test_a_weaker_sandbox_has_limits_too(weaker):
    tests = [
        "found = f()\nassert 0 not in found and 1 not in found and 2 not in found and 9 not in found and 10 not in found"
    ]
    assert rate(ESCAPES, tests, **weaker) == 1.0
    program = "import os\ndef f(): return os.path.expanduser('~'), sorted(os.environ), os.getcwd()"
    assert rate(
        program, [f"home, names, here = f()\nassert home == here and not {str(Path.cwd())!r} in here"], **weaker
    )


def test_the_weaker_sandbox_says_what_it_does_not_protect(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    backends._warn_of.cache_clear()
    with pytest.warns(UserWarning, match="WITHOUT a full sandbox.*can read every file that you can read"):
        rewards.code_pass_rate(allow_weaker=True)


def test_without_a_sandbox_one_error_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    for made in (rewards.code_pass_rate, rewards.code_runs, rewards.code_efficiency):
        with pytest.raises(gdpo.Error, match=r"bwrap\) is not installed; install bubblewrap .* allow_weaker=True"):
            made()
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: str(broken))
    with pytest.raises(gdpo.Error, match="does not start here .*No permissions to create new namespace"):
        rewards.code_pass_rate()


@sandboxed
def test_a_sandbox_that_stops_working_is_an_error_and_no_row_of_zeros(monkeypatch):
    score = rewards.code_pass_rate()
    monkeypatch.setattr(backends.Backend, "command", lambda *args: ["/bin/false"])
    with pytest.raises(gdpo.Error, match="does not start"):
        score(["def f(x): return x  # never seen before"], tests=[["assert f(1) == 1"]])


@sandboxed
@pytest.mark.parametrize("megabytes", [700, 400, 20])
def test_a_lower_limit_of_the_caller_holds(megabytes):
    """P20: a worker whose hard limit of address space lies below the sandbox's own."""
    code = f"""
    import resource, sys
    from gdpo import rewards
    score = rewards.code_pass_rate(extraction="whole")
    resource.setrlimit(resource.RLIMIT_AS, ({megabytes} << 20, {megabytes} << 20))
    try:
        found = score(["def f(x):\\n    return x + 1\\n", "def f(x):\\n    return len(bytes(800 << 20))"],
                      tests=[["assert f(1) == 2"], ["assert f(1) > 1"]])
        print(found)
    except BaseException as error:
        print(type(error).__name__)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=100)
    if megabytes == 20:  # nothing can start: the caller itself hardly can
        assert done.stdout.strip() in ("Error", "MemoryError", "RuntimeError", ""), done.stderr
    else:
        assert done.stdout.strip() == "[1.0, 0.0]", done.stderr


@sandboxed
def test_rows_without_tests_do_not_apply_and_are_named_once():
    score = rewards.code_pass_rate()
    tests = [[], None, "", float("nan"), ["assert f(1) == 1"], '["assert f(1) == 1"]']
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            assert score(["def f(x): return x"] * 6, tests=tests) == [None] * 4 + [1, 1]
    assert [str(w.message) for w in said] == [
        "code_pass_rate: row 0 has no 'tests' to judge by (there are none): no score (said once)"
    ]


BAD = [
    ["assert f(1) =="], ["f(1)"], ["assert True"], ["assert 1 + 1 == 2"], ["assert len([1]) == 1", "assert f(1)"],
    ["assert np.allclose(f(1), [1])"], ["assert f(1).__class__ == int"], ["import os\nassert f(1)"],
    ["assert (yield f(1))"], ["assert f'{f(1):>9}' == 1"], ["assert Vector(1) * 3 == Vector(3)"], [3], [{"stdin": ""}],
    ["assert f(1)", {"stdin": "", "stdout": ""}], {"a": [1]}, 7,
    ["assert random.choice(f(1)) == 2"], ["assert [f(lambda x: x + i) for i in range(3)] == 1"], ["assert f(1) == " + "(" * 9999],
]  # fmt: skip


@sandboxed
@pytest.mark.parametrize("tests", BAD)
def test_tests_that_cannot_be_evaluated_are_reported_whatever_the_program(tests):
    score = rewards.code_pass_rate()
    with pytest.warns(UserWarning, match="row 0 has no 'tests' to judge by"):
        assert score(["def f(x): return x"], tests=[tests]) == [None]
    assert score([""], tests=[tests]) == [None]
    assert [row for row, _ in problems_of_tests([["assert f(1) == 1"], tests])] == [1]


@sandboxed
def test_code_runs():
    programs = [
        "def f(x): return 9",
        "def f(x): return 1",
        "def f(x): return x.a",
        "def f(x):",
        "def g(x): return 1",
        "1 / 0",
    ]
    score = rewards.code_runs(extraction="whole")
    assert score(programs, tests=[["assert f(1) == 1"]] * 6) == [1, 1, 0, 0, 0, 0]
    assert rewards.code_runs(extraction="whole", seconds=0.5)(
        ["def f(x):\n    while 1: pass"], tests=[["assert f(1)"]]
    ) == [0]


@sandboxed
def test_two_rewards_on_a_batch_run_it_once(monkeypatch):
    from gdpo.rewards.sandbox import batch

    ran = []
    monkeypatch.setattr(batch, "run", lambda *args, run=batch.run: ran.append(args[1]) or run(*args))
    programs = ["```python\ndef f(x): return x + 77\n```"] * 3 + ["```\ndef f(x): return 77\n```"]
    tests = [["assert f(0) == 77", "assert f(1) == 78"]] * 4
    assert rewards.code_pass_rate()(programs, tests=tests) == [1, 1, 1, 0.5]
    assert rewards.code_runs()(programs, tests=tests) == [1] * 4
    assert len(ran) == 2


@pytest.mark.parametrize(
    ("text", "mode", "program"),
    [
        ("a = 1", "fence", "a = 1"),
        ("So:\n```python\na = 1\n```\nand\n```\n$ ls\n```\n", "fence", "a = 1\n"),
        ("```python\na = 1\n```\nbetter:\n```py\na = 2\n```", "fence", "a = 2\n"),
        ("```\na = 1\n```\n```\na = 2\n```", "fence", "a = 2\n"),
        ("  ```Python3\n  a = 1\n  ```", "fence", "  a = 1\n"),
        ("```python\na = 1", "fence", "a = 1"),
        ("```python\na = 1\n```", "whole", "```python\na = 1\n```"),
        ("<answer>```python\na = 1\n```</answer>", "answer_tags", "a = 1\n"),
        ("<answer>a = 1</answer>", "answer_tags", "a = 1"),
        ("a = 1", "answer_tags", ""),
    ],
)
def test_where_the_program_stands(text, mode, program):
    from gdpo.rewards.code_text import program_of

    assert program_of(text, mode).strip() == program.strip()


@sandboxed
def test_efficiency():
    loop = "def f(n):\n    total = 0\n    for i in range(n): total += i\n    return total"
    formula = "def f(n): return n * (n - 1) // 2"
    tests = [["assert f(2_000_000) == 1999999000000"]] * 5
    score = rewards.code_efficiency(extraction="whole")
    with pytest.warns(UserWarning, match="first of them 3, have no 'reference'"):
        found = score([formula, loop, "def f(n): return 0", formula, formula], tests=tests,
                      reference=[loop, formula, loop, "def f(n): return 1", None])  # fmt: skip
    assert found[0] == 1
    assert 0 < found[1] < 0.5
    assert found[2:] == [0, None, None]


def test_style():
    clean = '"""Doc."""\n\n\ndef f(x):\n    return x + 1\n'
    messy = "import os\ndef f(x):  # noqa\n    if x==None: return 1;\n    return not x == 2\n"
    score = rewards.code_style()
    found = score([clean, messy, "def f(:", "", "# nothing", "(" * 100_000, "\ud800 = '", f"```python\n{clean}```"])
    assert found[0] == found[7] == 1
    assert 0 < found[1] < 0.5
    assert found[2:7] == [0] * 5
    assert score([messy + "\n" * 500 + "# x\n" * 500]) == [pytest.approx(found[1], abs=0.1)]


def test_style_without_ruff(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(gdpo.Error, match="pip install ruff"):
        rewards.code_style()(["a = 1"])


def test_megabytes_take_no_time():
    score = rewards.code_style()
    for text in ("x=1;" * 250_000, "(" * 1_000_000, "a = [\n" * 160_000, "```python\n" * 100_000):
        started = time.monotonic()
        score([text])
        assert time.monotonic() - started < 2.5, text[:10]


@sandboxed
def test_megabytes_of_program_take_no_time():
    score = rewards.code_pass_rate(seconds=1.0)
    for text in ("x=1;" * 250_000, "(" * 1_000_000, "-" * 1_000_000, "```python\n" * 100_000, "f=" + "1+" * 500_000):
        started = time.monotonic()
        assert score([text], tests=[["assert f(1) == 1"]]) == [0]
        assert time.monotonic() - started < 3, text[:10]


@sandboxed
def test_from_a_thread_and_with_what_is_left_running():
    found = []
    program = "import threading\ndef f(x):\n    threading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()\n    return x"
    thread = threading.Thread(target=lambda: found.append(rate(program, ["assert f(1) == 1"])))
    thread.start()
    thread.join(SECONDS + 5)
    assert found == [1.0]
    assert gone("child.py")


@sandboxed
def test_an_interrupted_batch_leaves_nothing_running():
    code = """
    import signal, threading, time, os
    from gdpo import rewards
    score = rewards.code_pass_rate(extraction="whole", seconds=30)
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    try:
        score([f"while True: {k}" for k in range(20)], tests=[["assert f(1) == 1"]] * 20)
    except KeyboardInterrupt:
        print(time.monotonic() - started < 5)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "True", done.stderr
    assert gone("child.py")


@sandboxed
def test_a_forked_process_scores_too():
    code = """
    import os
    from gdpo import rewards
    score = rewards.code_pass_rate(extraction="whole")
    assert score(["def f(x): return x"], tests=[["assert f(1) == 1"]]) == [1]
    child = os.fork()
    if child == 0:
        os._exit(0 if score(["def f(x): return x", "f = 1"], tests=[["assert f(1) == 1"]] * 2) == [1, 0] else 1)
    assert os.waitpid(child, 0)[1] == 0
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], check=True, timeout=60)


@sandboxed
@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: rewards.code_pass_rate(extraction="fences"), "did you mean 'fence'"),
        (lambda: rewards.code_pass_rate(seconds=0), "seconds=0"),
        (lambda: rewards.code_pass_rate(memory=5), "memory=5"),
        (lambda: rewards.code_pass_rate(tests=3), "tests=3"),
        (lambda: rewards.code_style(extraction="x"), "extraction is 'x'"),
        (lambda: rewards.code_pass_rate()(["x"]), "needs the column 'tests'"),
        (lambda: rewards.code_efficiency()(["x"], tests=[["assert f(1)"]]), "needs the column 'reference'"),
    ],
)
def test_errors(build, said):
    with pytest.raises(gdpo.Error, match=said):
        build()


@sandboxed
@pytest.mark.slow
def test_hostile_programs_beside_right_ones():
    """200 right programs score 1 while hostile ones run beside them, and the host is as before."""
    path = SHARED / "cases" / "code.json"
    hostile = [case for case in json.loads(path.read_text()) if "K05" <= case["id"] <= "K18"] if path.is_file() else []
    extra = ["import os\nwhile True: os.fork()", "while True: open(str(id(object())), 'wb').write(b'x' * 10 ** 6)"]
    cases = [(c["program"], c["tests"]) for c in hostile if c["id"] not in ("K15", "K16")]
    cases += [(program, ["assert f(0) == 1"]) for program in extra]
    cases += [
        (
            f"import threading, time\nthreading.stack_size(32768)\nwhile True: threading.Thread(target=time.sleep, args=({k},)).start()",
            ["assert f(0) == 1"],
        )
        for k in (99, 98)
    ]
    right = [(f"def f(x):\n    return x * {k}", [f"assert f(3) == {3 * k}", f"assert f(1) == {k}"]) for k in range(200)]
    jobs = [
        job
        for k, job in enumerate(right)
        for job in ([cases[k // 10]] if k % 10 == 5 and k // 10 < len(cases) else []) + [job]
    ]
    before = memory_of_the_caller()
    found = rewards.code_pass_rate(extraction="whole", seconds=5)([j[0] for j in jobs], tests=[j[1] for j in jobs])
    scores = dict(zip([job[0] for job in jobs], found, strict=True))
    assert [scores[program] for program, _ in right] == [1.0] * 200
    allowed = {case["program"]: case["expect"] for case in hostile}
    assert all(scores[p] == 0 for p, _ in cases if allowed.get(p, 0) in (0, "stopped"))
    assert memory_of_the_caller() - before < 100 << 20
    assert gone("child.py")


@sandboxed
@pytest.mark.slow
def test_speed():
    """20 short programs a second on two cores."""
    programs = [f"def f(x):\n    return x + {k}" for k in range(100)]
    started = time.monotonic()
    assert (
        rewards.code_pass_rate(extraction="whole")(programs, tests=[[f"assert f(1) == {k + 1}"] for k in range(100)])
        == [1] * 100
    )
    assert time.monotonic() - started < 5


def test_limits_of_a_child_are_known():
    assert Limits(seconds=3).for_child(weaker=False)["RLIMIT_CPU"] == 4
