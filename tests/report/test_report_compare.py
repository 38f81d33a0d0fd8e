from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gdpo.core.errors import Error
from gdpo.report import write_compare_report
from gdpo.report.compare_data import mean_curve, paired, read_sweep
from gdpo.report.compare_page import compare_page
from gdpo.report.run_data import read_run


def _sweep(folder: Path, finals: dict[str, list[float]]) -> Path:
    runs = []
    for method, means in finals.items():
        for seed, mean in enumerate(means):
            name = f"method={method},seed={seed}"
            (folder / name / "evaluations").mkdir(parents=True)
            (folder / name / "run.json").write_text(
                json.dumps({"method": method, "seed": seed, "rewards": ["correct"]})
            )
            value = {"rewards": {"correct": {"mean": mean}}, "all_of": {"names": ["correct", "format"], "mean": mean}}
            (folder / name / "evaluations" / "after.json").write_text(json.dumps(value))
            runs.append({"folder": name, "values": {"method": method, "seed": seed}, "status": "done"})
    (folder / "compare.json").write_text(json.dumps({"schema": 1, "recipe": "math", "runs": runs}))
    return folder


@pytest.mark.parametrize(
    ("finals", "kind", "amount", "words"),
    [
        # differences 10, 12, 14 points: mean 12, half width 4.3027 * 2 / sqrt(3) = 4.97
        ({"grpo": [0.40, 0.50, 0.45], "gdpo": [0.50, 0.62, 0.59]}, "up", "+12.0 points", "higher (95\u202f% interval +7.0 to +17.0"),
        ({"grpo": [0.50, 0.62, 0.59], "gdpo": [0.40, 0.50, 0.45]}, "down", "−12.0 points", "lower (95\u202f% interval −17.0 to −7.0"),
        # differences 30, 0, 6 points
        ({"grpo": [0.40, 0.50, 0.45], "gdpo": [0.70, 0.50, 0.51]}, "same", "+12.0 points", "no clear difference"),
        ({"grpo": [0.40], "gdpo": [0.70]}, "unknown", "+30.0 points", "one seed on both sides: no interval"),
        ({"grpo": [0.5, 0.5], "gdpo": [0.75, 0.75]}, "unknown", "+25.0 points", "the same on all 2 seeds"),
        ({"grpo": [0.40], "gdpo": []}, None, "", ""),
    ],
)  # fmt: skip
def test_differences_are_paired_and_worded_honestly(
    tmp_path: Path, finals: dict[str, list[float]], kind: str | None, amount: str, words: str
) -> None:
    context, _ = compare_page(_sweep(tmp_path / "sweep", finals))
    headline = context["headline"]
    if kind is None:
        assert headline == []
        return
    assert headline[0].label == "gdpo compared with grpo"
    assert (headline[0].kind, headline[0].amount) == (kind, amount)
    assert words in headline[0].verdict


def test_only_seeds_that_both_arms_have_are_paired(tmp_path: Path) -> None:
    folder = _sweep(tmp_path / "sweep", {"grpo": [0.1, 0.2, 0.9], "gdpo": [0.2, 0.4]})
    pair = paired(read_sweep(folder), "")[0]
    assert pair.differences == {"0": pytest.approx(0.1), "1": pytest.approx(0.2)}
    assert pair.interval is not None
    assert pair.interval.count == 2


def test_partial_sweep(sweep_folder: Path) -> None:
    page = write_compare_report(sweep_folder).read_text(encoding="utf-8")
    assert "2 of 6 runs are not done" in page
    assert 'href="method%3Dgrpo%2Cseed%3D0/report.html"' in page
    assert "grpo%2Cseed%3D2/report.html" not in page
    sweep = read_sweep(sweep_folder)
    assert [member.status for member in sweep.members] == ["done", "done", "failed", "done", "done", "pending"]
    assert [len(arm.finals("")) for arm in sweep.arms] == [2, 2]


def test_mean_curve_stops_where_a_run_stops(tmp_path: Path) -> None:
    runs = []
    for name, values in (("a", [1.0, 2.0, 3.0]), ("b", [3.0, 4.0])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
        lines = [json.dumps({"step": step, "loss": value}) for step, value in enumerate(values, 1)]
        (tmp_path / name / "metrics.jsonl").write_text("\n".join(lines))
        runs.append(read_run(tmp_path / name))
    assert mean_curve(runs, "loss") == ([1, 2, 3], [2.0, 3.0, None], [[1.0, 2.0, 3.0], [3.0, 4.0, None]])


def test_folder_that_points_elsewhere_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text("{}")
    runs: list[Any] = [
        {"folder": "../other", "values": {"method": "x"}, "status": "done"},
        5,
        {"folder": "javascript:1"},
    ]
    (folder / "compare.json").write_text(json.dumps({"runs": runs}))
    sweep = read_sweep(folder)
    assert [member.run for member in sweep.members] == [None, None]
    assert len(sweep.notes) == 2
    assert (
        "javascript:"
        not in write_compare_report(folder).read_text().replace("javascript:1</td>", "").split("<script")[0]
    )


def test_not_a_compare_folder(tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"no readable compare\.json"):
        write_compare_report(tmp_path)
