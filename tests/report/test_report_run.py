from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from made_runs import REWARDS, write_run

from gdpo.core.errors import Error
from gdpo.report import write_run_report
from gdpo.report.example_group import find_example
from gdpo.report.run_data import read_run
from gdpo.report.run_page import run_page
from gdpo.report.samples import choose, histogram, read_rollouts


def test_page_holds_the_verdict_and_stays_small(run_folder: Path) -> None:
    path = write_run_report(run_folder)
    page = path.read_text(encoding="utf-8")
    assert path == run_folder / "report.html"
    assert len(page) < 2_000_000
    assert "Share of held-out answers on which correct and format both hold" in page
    assert "Content-Security-Policy" in page
    assert "default-src &#39;none&#39;" in page
    assert "<script>window.hacked" not in page
    assert "<img" not in page  # the hostile image stands there as text only
    assert not (run_folder / ".report.html.tmp").exists()
    # one JSON element, uPlot, charts, rollouts: nothing that a completion wrote became a script
    assert page.count("<script") == 4
    assert page.count("</script>") == 4


def _evaluation(mean: float, stderr: float, **rewards: float) -> dict[str, Any]:
    return {
        "step": 0, "prompts": 256, "samples": 1024, "temperature": 1.0,
        "rewards": {name: {"mean": value, "stderr": 0.01, "pass": value, "missing": 0} for name, value in rewards.items()},
        "all_of": {"names": ["correct", "format"], "mean": mean, "stderr": stderr},
    }  # fmt: skip


def _bare(folder: Path, before: dict[str, Any] | None, after: dict[str, Any] | None) -> Path:
    (folder / "evaluations").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"name": "bare", "method": "gdpo", "rewards": ["correct", "format"]}))
    for name, value in (("before", before), ("after", after)):
        if value is not None:
            (folder / "evaluations" / f"{name}.json").write_text(json.dumps(value))
    return folder


@pytest.mark.parametrize(
    ("before", "after", "kind", "sentence"),
    [
        (0.40, 0.70, "up", "Up 30.0 points, 95\u202f% interval +24.5 to +35.5."),
        (0.70, 0.40, "down", "Down 30.0 points, 95\u202f% interval −35.5 to −24.5."),
        (0.40, 0.42, "same", "No clear change: 2.0 points higher, 95\u202f% interval −3.5 to +7.5."),
    ],
)
def test_verdict(tmp_path: Path, before: float, after: float, kind: str, sentence: str) -> None:
    one, two = (_evaluation(mean, 0.02, correct=mean, format=0.5) for mean in (before, after))
    context, _ = run_page(_bare(tmp_path / "run", one, two))
    assert context["verdict"].kind == kind
    assert context["verdict"].sentence == sentence
    assert context["rows"][0].name == "all of correct and format"
    assert context["rows"][2].difference == "0.0"
    assert context["rows"][2].clear == "same"


def test_no_pass_at_all_is_no_certainty(tmp_path: Path) -> None:
    one = _evaluation(0.0, 0.0, correct=0.2, format=0.5)
    context, _ = run_page(_bare(tmp_path / "run", one, one))
    assert context["verdict"].sentence == "The same before and after."
    assert context["rows"][0].interval == ""


def test_reward_that_fell_is_told_first(tmp_path: Path) -> None:
    one, two = _evaluation(0.4, 0.01, correct=0.4, format=0.9), _evaluation(0.6, 0.01, correct=0.9, format=0.7)
    context, _ = run_page(_bare(tmp_path / "run", one, two))
    assert context["verdict"].kind == "up"
    assert "format fell on held-out prompts: −20.0 points (−22.8 to −17.2)." in context["notices"]


@pytest.mark.parametrize("which", ["nothing", "before", "after"])
def test_bare_folders_are_reported_too(tmp_path: Path, which: str) -> None:
    one = _evaluation(0.4, 0.01, correct=0.4)
    folder = _bare(tmp_path / "run", one if which == "before" else None, one if which == "after" else None)
    page = write_run_report(folder).read_text(encoding="utf-8")
    assert "No training step has been recorded." in page
    assert ("40.0\u202f%" in page) == (which != "nothing")


def test_unfinished_and_damaged_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=5, after=False)
    with (folder / "metrics.jsonl").open("a") as out:
        out.write('{"step": 6, "loss": NaN, "rewards/correct/mean": Infinity}\n')
        out.write('[1, 2]\n{"step": 7, "lo')
    (folder / "rollouts" / "step-000006.parquet").write_bytes(b"PAR1 not really")
    (folder / "evaluations" / "after.json").write_text("{")
    run = read_run(folder)
    assert run.steps == [1, 2, 3, 4, 5, 6]
    assert run.series("rewards/correct/mean")[5] is None
    context, _ = run_page(folder)
    notices = " ".join(context["notices"])
    assert "2 lines of metrics.jsonl could not be read" in notices
    assert "evaluations/after.json could not be read." in notices
    assert "1 rollout file could not be read" in notices
    assert "at step 6 of 60" in notices
    write_run_report(folder)


def test_resumed_run_counts_each_step_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=3)
    with (folder / "metrics.jsonl").open("a") as out:
        out.write('{"step": 3, "loss": 7.0}\n{"step": 4, "loss": 8.0}\n')
    run = read_run(folder)
    assert run.steps == [1, 2, 3, 4]
    assert run.series("loss")[2:] == [7.0, 8.0]


def test_not_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"no readable run\.json"):
        write_run_report(tmp_path)
    with pytest.raises(Error, match="is not a folder"):
        write_run_report(tmp_path / "absent")


def test_hostile_names(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    name = '<img src=x onerror="1">\u202e\ud800'
    _bare(folder, _evaluation(0.4, 0.1, **{name: 0.5}), None)
    info = {"name": name, "rewards": [name], "method": name, "model": name, "seed": name, "command": name}
    (folder / "run.json").write_text(json.dumps(info))
    page = write_run_report(folder).read_text(encoding="utf-8")
    assert "<img" not in page
    assert "&lt;img src=x" in page


def test_rewards_beyond_shares_are_not_written_as_per_cent(tmp_path: Path) -> None:
    one, two = _evaluation(0.4, 0.1, correct=-1.5, format=0.5), _evaluation(0.5, 0.1, correct=2.5, format=0.6)
    context, _ = run_page(_bare(tmp_path / "run", one, two))
    row = context["rows"][1]
    assert (row.before, row.after, row.difference, row.unit) == ("−1.50", "2.50", "+4.00", "")
    assert (row.picture.left, row.picture.right) != ("0", "100\u202f%")


def test_chosen_rollouts_cover_the_run(run_folder: Path) -> None:
    rollouts = read_rollouts(read_run(run_folder))
    assert rollouts.table.height == 3840
    rows = choose(rollouts, 400, also=[17])
    assert len(rows) == len(set(rows)) == 400
    assert 17 in rows
    assert rows == choose(rollouts, 400, also=[17])
    steps = rollouts.column("step")[rows]
    assert all(np.sum((steps > first) & (steps <= first + 6)) >= 35 for first in range(0, 60, 6))
    advantage = rollouts.column("advantage")
    assert int(np.argmax(advantage)) in rows
    assert int(np.argmin(advantage)) in rows
    assert choose(rollouts, 5000, also=[]) == list(range(3840))


def test_histogram_counts_ends_and_leaves_out_nan() -> None:
    edges = np.array([-1.5, -0.5, 0.5, 1.5])
    assert histogram(np.array([-9.0, 0.0, 0.1, np.nan, 1.0]), edges) == [25.0, 50.0, 25.0]
    assert histogram(np.array([np.nan]), edges) == [0.0, 0.0, 0.0]


def _one_group(folder: Path, scores: list[list[float]], advantages: list[float]) -> Path:
    folder.mkdir(parents=True)
    (folder / "rollouts").mkdir()
    (folder / "run.json").write_text(json.dumps({"method": "gdpo", "rewards": ["a", "b"]}))
    table = {
        "step": [1] * len(scores), "group": [0] * len(scores), "rollout": [str(row) for row in range(len(scores))],
        "prompt": ["p"] * len(scores), "completion": ["c"] * len(scores), "advantage": advantages,
        "reward/a": [row[0] for row in scores], "reward/b": [row[1] for row in scores],
    }  # fmt: skip
    pl.DataFrame(table).write_parquet(folder / "rollouts" / "step-000001.parquet")
    return folder


def test_example_shows_what_grpo_merges(tmp_path: Path) -> None:
    # (1, 0) and (0, 1) have the same sum, so GRPO cannot tell them apart; sums 2, 1, 1, 0 have mean 1, std 0.8165.
    folder = _one_group(tmp_path / "run", [[1, 1], [1, 0], [0, 1], [0, 0], [0, 0]], [1.7, 0.6, 0.2, -1.2, -1.2])
    run = read_run(folder)
    example = find_example(read_rollouts(run), "gdpo")
    assert example is not None
    assert [pattern.scores for pattern in example.patterns] == [[1, 1], [1, 0], [0, 1], [0, 0]]
    assert [pattern.merged for pattern in example.patterns] == [None, 0, 0, None]
    assert [pattern.count for pattern in example.patterns] == [1, 1, 1, 2]
    assert (example.own_distinct, example.other_distinct) == (4, 3)
    # sums 2, 1, 1, 0, 0: mean 0.8, sample standard deviation 0.83666
    assert [pattern.other for pattern in example.patterns] == pytest.approx([1.434, 0.239, 0.239, -0.956], abs=1e-3)


def test_no_example_where_nothing_is_merged(tmp_path: Path) -> None:
    folder = _one_group(tmp_path / "run", [[1, 0.5], [0, 0.5], [1, 0.25], [0, 0.25]], [1.0, -0.5, 0.5, -1.0])
    assert find_example(read_rollouts(read_run(folder)), "gdpo") is None


def test_collapse_sums_over_steps(tmp_path: Path) -> None:
    folder = _bare(tmp_path / "run", None, None)
    rows = [
        {"step": 1, "distinct_reward_vectors": 10, "distinct_advantages": 9, "distinct_advantages_grpo": 4, "live_groups": 12},
        {"step": 2, "distinct_reward_vectors": 30, "distinct_advantages": 30, "distinct_advantages_grpo": 16, "live_groups": 31},
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    context, _ = run_page(folder)
    collapse = context["collapse"]
    assert (collapse.situations, collapse.own, collapse.grpo, collapse.groups) == (40, 39, 20, 43)
    assert [bar.percent for bar in collapse.bars] == [100.0, 97.5, 50.0]


def test_texts_are_cut_until_the_page_is_small(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=7, hostile=False)
    for path in (folder / "rollouts").glob("*.parquet"):
        table = pl.read_parquet(path).with_columns(completion=pl.lit("漢字" * 20_000), prompt=pl.lit("é" * 50_000))
        table.write_parquet(path)
    assert write_run_report(folder).stat().st_size < 2_000_000


def test_report_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "run", steps=2)
    path = write_run_report(folder)
    first = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(Error, match="No space left on device"):
        write_run_report(folder)
    assert path.read_bytes() == first
    assert sorted(entry.name for entry in folder.iterdir() if entry.name.startswith(".")) == []


def test_one_reward_and_missing_columns(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=3)
    for path in (folder / "rollouts").glob("*.parquet"):
        keep = ["step", "group", "completion", "reward/correct"]
        pl.read_parquet(path).select(keep).write_parquet(path)
    context, data = run_page(folder)
    assert context["example"] is None
    assert context["sections"]["advantages"] == []
    item = data["rollouts"]["items"][0]
    assert item["k"] == [None] * len(REWARDS)
    assert item["v"][1:] == [None, None]
    write_run_report(folder)
    shutil.rmtree(folder / "rollouts")
    write_run_report(folder)
