"""The audit's page as text: verdict first, hostile text escaped, a failed write keeps the old page."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser

import numpy as np
import polars as pl
import pytest

import gdpo
from gdpo.audit.run import audit
from gdpo.report import audit_rollouts, html
from gdpo.rollouts import Dump, Summary, open_dump


class Attributes(HTMLParser):
    """Every tag and attribute that a browser would see."""

    def __init__(self):
        super().__init__()
        self.names, self.tags = set(), set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.names |= {f"{tag} {name}" for name, _ in attrs}


def test_the_page(audited):
    text = audited.read_text(encoding="utf-8")
    assert text.index("<h1>") < text.index("saved") < text.index("Findings, the costliest first")
    assert "default-src &#39;none&#39;" in text
    found = Attributes()
    found.feed(re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.S))
    assert len(found.names) > 50
    assert not [name for name in found.names if name.split()[1] == "style" or name.split()[1].startswith("on")]
    assert not found.tags & {"img", "iframe", "script"}
    assert "&lt;b&gt;again&lt;/b&gt;" in text
    assert "<b>again" not in text
    assert "<script>window.hacked" not in text
    assert len(text) < 3_000_000


def test_a_failed_write_keeps_the_old_page(audited, tmp_path, monkeypatch):
    target = tmp_path / "audit.html"
    target.write_text("old")
    monkeypatch.setattr(
        html.os, "replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(gdpo.Error, match="No space left"):
        html._write(tmp_path, "audit.html.j2", *context(), html._RUN_SCRIPTS, "audit.html")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def context():
    from gdpo.report.audit_page import audit_page

    empty = Dump([], "trl", {}, Summary(format="trl"), lambda: iter(()))
    return audit_page(audit(empty), "nowhere")


def test_nothing_to_show_is_a_page_too(tmp_path):
    path = html._write(tmp_path, "audit.html.j2", *context(), html._RUN_SCRIPTS, "audit.html")
    assert "Not enough to say" in path.read_text()


KILLED = """
import os, pathlib, signal, sys
whole = pathlib.Path.write_bytes
def half(path, data):
    whole(path, data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path.write_bytes = half
from gdpo.cli import main
sys.argv = ["gdpo", "audit", sys.argv[1], "--html", sys.argv[2]]
main()
"""


def small_dump(folder, steps=4, **columns):
    """Files as TRL writes them; each column is made by a function of (generator, rows)."""
    generator = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    columns = columns or {"correct": lambda g, n: (g.random(n) < 0.5) * 1.0, "short": lambda g, n: g.normal(size=n)}
    for step in range(1, steps + 1):
        rows = {name: make(generator, 128) for name, make in columns.items()}
        text = {"prompt": [f"question {row // 8}" for row in range(128)], "completion": ["an answer"] * 128}
        pl.DataFrame({"step": [step] * 128} | text | rows).write_parquet(folder / f"completions_{step:05d}.parquet")
    return folder


def written(folder, target):
    dump = open_dump(folder)
    return write_page(audit(dump), dump, folder, target)


def write_page(found, dump, folder, target):
    return html.write_audit_report(found, dump, str(folder), target).read_text(encoding="utf-8")


def embedded(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


def test_killed_in_the_middle_of_the_write_leaves_the_old_page(tmp_path):
    dump, target = small_dump(tmp_path / "dump"), tmp_path / "audit.html"
    target.write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED, dump, target], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert target.read_text() == "old"
    half = [path for path in tmp_path.iterdir() if path not in (dump, target)]
    assert len(half) == 1  # the kill did come in the middle of a write
    assert "</html>" not in half[0].read_text(encoding="utf-8", errors="replace")
    assert "</html>" in written(dump, target)
    assert sorted(tmp_path.iterdir()) == sorted([dump, target])  # the next page takes the place of the half one


@pytest.mark.slow
def test_killed_at_any_time_there_is_the_old_page_or_the_new_one(tmp_path):
    dump, target = small_dump(tmp_path / "dump", steps=8), tmp_path / "audit.html"
    command = [sys.executable, "-m", "gdpo", "audit", str(dump), "--html", str(target)]
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    whole = time.perf_counter() - began
    for share in np.linspace(0.3, 1.05, 8):
        target.write_text("old")
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(whole * share)
        process.kill()
        process.wait()
        text = target.read_text(encoding="utf-8")
        assert text == "old" or text.rstrip().endswith("</html>")


def test_the_new_page_comes_by_renaming_a_whole_file(tmp_path, monkeypatch):
    seen = []
    real = os.replace
    monkeypatch.setattr(html.os, "replace", lambda a, b: (seen.append(a.read_text(encoding="utf-8")), real(a, b)))
    text = written(small_dump(tmp_path / "dump"), tmp_path / "audit.html")
    assert seen == [text]


def test_one_reward_has_nothing_to_compare(tmp_path):
    text = written(small_dump(tmp_path / "dump", correct=lambda g, n: (g.random(n) < 0.5) * 1.0), tmp_path / "a.html")
    assert 'id="each"' in text
    assert 'id="together"' not in text
    assert 'id="conflicts"' not in text


def test_one_step_has_no_curves(tmp_path):
    text = written(small_dump(tmp_path / "dump", steps=1), tmp_path / "a.html")
    assert 'id="curves"' not in text
    assert 'id="conflicts"' in text
    assert "Part in the advantage" in text


def test_many_rewards_stay_on_a_small_page(tmp_path):
    names = [f"a_reward_with_a_rather_long_name_{k}" for k in range(30)]
    columns = {name: lambda g, n: g.normal(size=n) for name in names}
    text = written(small_dump(tmp_path / "dump", **columns), tmp_path / "a.html")
    assert len(text.encode()) < 3_000_000
    assert len(re.findall(r'data-series="[0-7]" aria-pressed="true"', text)) == 8
    assert sorted(embedded(text)["colours"]) == list(range(30))
    assert text.count('<details class="card"') == 30


def test_texts_are_cut_until_they_fit(tmp_path):
    folder = small_dump(tmp_path / "dump")
    for file in folder.iterdir():
        frame = pl.read_parquet(file)
        frame.with_columns(completion=pl.lit("\u4e2d" * 5000)).write_parquet(file)
    text = written(folder, tmp_path / "a.html")
    assert (
        audit_rollouts.TEXT_BUDGET < len(text.encode()) < 3_000_000 or len(text.encode()) < audit_rollouts.TEXT_BUDGET
    )
    items = embedded(text)["rollouts"]["items"]
    size = sum(len(part.encode()) for item in items for pair in item["c"] for part in pair)
    assert 0 < size <= audit_rollouts.TEXT_BUDGET
    assert all(re.search("left out|cut here", item["c"][0][1]) for item in items)


def test_every_part_of_a_rollout_is_beside_its_text(tmp_path):
    folder = small_dump(tmp_path / "dump")
    dump = open_dump(folder)
    found = audit(dump, method="gdpo", weights={"short": 0.5})
    items = embedded(write_page(found, dump, folder, tmp_path / "a.html"))["rollouts"]["items"]
    assert len(items) > 100
    for item in items:
        assert sum(item["k"]) == pytest.approx(item["a"], abs=1e-3)
        assert item["w"] == [1.0, 0.5]
        assert len(item["v"]) == len(item["n"]) == 2
        assert item["c"] == [["", "an answer"]]
        assert item["m"]
    rows = pl.concat([pl.read_parquet(file) for file in sorted(folder.iterdir())])
    for item in items[:50]:
        group = rows.filter((pl.col("step") == item["s"]) & (pl.col("prompt") == f"question {item['g']}"))
        assert min(abs(group["short"] - item["v"][1])) < 1e-4


def test_a_dump_that_is_clean_says_so(tmp_path):
    text = written(
        small_dump(tmp_path / "dump", steps=8, one=lambda g, n: g.normal(size=n), two=lambda g, n: g.normal(size=n)),
        tmp_path / "a.html",
    )
    assert "<h1>Nothing wrong was found" in text
    assert "No measure reached its threshold." in text


def test_repeated_steps_are_drawn_as_parts_in_their_order(tmp_path):
    """Curves need a rising axis; a dump of two runs has step 1 twice."""
    folder = small_dump(tmp_path / "dump", steps=3)
    (tmp_path / "both").mkdir()
    for which in "ab":
        (tmp_path / "both" / which).mkdir()
        for file in folder.iterdir():
            noise = pl.col("short") + (which == "b")
            pl.read_parquet(file).with_columns(noise).write_parquet(tmp_path / "both" / which / file.name)
    dump = open_dump(tmp_path / "both")
    found = audit(dump)
    chart = embedded(write_page(found, dump, folder, tmp_path / "a.html"))["charts"]["audit/mean"]
    assert len(found.series["step"]) == 6
    assert chart["x"] == [1, 2, 3, 4, 5, 6]
    assert chart["x_label"] == "part"


def test_the_map_of_conflicts_shows_what_tells_prompts_apart(tmp_path):
    folder = small_dump(tmp_path / "dump")
    system = "Work out the answer step by step between tags, then give the final number after "
    for file in folder.iterdir():
        frame = pl.read_parquet(file)
        chat = [
            json.dumps([{"role": "system", "content": system}, {"role": "user", "content": f"{system * 2}{text}"}])
            for text in frame["prompt"]
        ]
        frame.with_columns(prompt=pl.Series(chat)).write_parquet(file)
    text = written(folder, tmp_path / "a.html")
    table = text[text.index('id="conflicts"') : text.index('id="rollouts"')]
    assert re.search(r'<th scope="row">… [a-z ]*question \d+ <button', table)
    assert "Work out" not in table
