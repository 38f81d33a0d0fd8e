"""README: its Python runs, its commands exist, its figures are those of the results files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.S)


@pytest.fixture
def names(tiny_model, tmp_path, monkeypatch):
    """What a reader has at hand where the snippets begin."""
    from datasets import Dataset
    from trl import GRPOConfig

    monkeypatch.chdir(tmp_path)

    def constant(name):
        def score(completions, **columns):
            return [float(len(text) % 2) for text in completions]

        score.__name__ = name
        return score

    config = GRPOConfig(str(tmp_path), use_cpu=True, num_generations=2, per_device_train_batch_size=2, report_to="none",
                        max_completion_length=4, gradient_checkpointing=False)  # fmt: skip
    return {
        "model": str(tiny_model), "config": config, "dataset": Dataset.from_dict({"prompt": ["a", "b"]}),
        "completions": [r"<think>a</think> <answer>\boxed{1}</answer>"] * 8, "answers": ["1"] * 8, "ids": [[1]] * 8,
        **{name: constant(name) for name in ("correct", "well_formed", "short")},
    }  # fmt: skip


def test_python_blocks_run(names):
    from gdpo.core.estimators import METHODS

    assert len(BLOCKS) == 6
    try:
        for block in BLOCKS:
            exec(block, names)
    finally:
        METHODS.pop("my_method", None)
    assert names["trainer"].objective.gates["short"].text == "correct >= 1"
    assert names["scores"].shape == (8, 3)
    assert names["estimate"].advantages.shape == (8,)


def test_the_claim_about_liveness():
    import gdpo

    rewards = {"correct": [1, 0, 0, 1, 0, 0, 0, 0], "format": [1, 1, 0, 0, 1, 1, 1, 1]}
    assert gdpo.estimate(rewards, groups=4).live.tolist() == [[True, True], [False, False]]


def test_figures_are_those_of_the_results():
    compare = json.loads((ROOT / "benchmarks" / "results" / "compare_math.json").read_text())
    ours = [run for run in compare["runs"] if run["method"] == "gdpo"]
    for run in ours:
        before, after = (round(100 * run[when]["correct and format"]) for when in ("before", "after"))
        assert re.search(rf"from\s+{before}\s+to\s+{after}", TEXT), (before, after)
    for method, name in (("grpo", "GRPO"), ("gdpo", "GDPO")):
        runs = [run for run in compare["runs"] if run["method"] == method]
        mean = 100 * sum(run["after"]["correct and format"] for run in runs) / len(runs)
        assert f"{mean:.1f} % ({name})" in TEXT
    overhead = json.loads((ROOT / "benchmarks" / "results" / "step_overhead.json").read_text())
    for arm in ("metrics", "table"):
        assert overhead[arm]["met"]
        assert f"{100 * overhead[arm]['share_of_a_step']:.1f} %" in TEXT


def recipe_results(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"recipes_{name}.json").read_text())


def test_figures_of_the_recipes():
    flat = " ".join(TEXT.split())
    mean = recipe_results("concise")["mean"]
    shown = {"right": "correct", "in form": "format", "right and short": "length given correct >= 1"}
    cells = [(name, mean[key]["before"], mean[key]["after"]) for name, key in shown.items()]
    mean = recipe_results("tools")["mean"]
    assert f"correctness {mean['correct']['before']:.2f} → {mean['correct']['after']:.2f}" in flat
    shown = {"in form": "format", "both at their best": "all_of"}
    cells += [(name, mean[key]["before"], mean[key]["after"]) for name, key in shown.items()]
    for recipe, names in (
        ("code", {"passed": "passed", "free of bugs": "runs", "all at once": "all at their best"}),
        ("dialogue", {name: name for name in ("relevance", "fluency", "safety", "resolution")}),
    ):
        gain = recipe_results(recipe)["summary"]["gdpo"]["gain"]
        cells += [(name, gain[key]["before"], gain[key]["after"]) for name, key in names.items()]
    for name, before, after in cells:
        assert f"{name} {100 * before:.0f} → {100 * after:.0f} %" in flat
    share = {
        method: found["contribution_share"]["step 1"]["resolution"]
        for method, found in recipe_results("dialogue")["summary"].items()
    }
    assert f"carries {100 * share['grpo']:.0f} % of the advantage under GRPO's plain sum" in flat
    assert f"and {100 * share['gdpo']:.0f} % under GDPO" in flat


def test_speed_is_that_of_the_results():
    results = json.loads((ROOT / "benchmarks" / "results" / "advantages.json").read_text())
    ratios, flat = results["ratios"], " ".join(TEXT.split())
    for expected in (
        f"{ratios['gdpo / TRL']:.2f} of the time of TRL's own code",
        f"{ratios['gdpo / plain copy']:.2f} of a plain copy",
        f"1/{ratios['verl / gdpo']:,.0f} of verl's",
        f"NumPy takes {ratios['NumPy / PyTorch']:.2f} of PyTorch's",
        f"missing rewards {ratios['missing / complete, PyTorch']:.2f} and ragged groups {ratios['ragged / dense, PyTorch']:.2f}",
    ):
        assert expected in flat
    largest = max(v for row in results["largest_error"] for k, v in row.items() if k.startswith("gdpo"))
    assert f"against 50 digits is {largest:.1e} at any offset" in flat
    assert f"where TRL's is {results['largest_error'][-1]['TRL, float32']:.2f}" in flat


def test_the_difference_it_prints(capsys):
    import gdpo

    missing = {"correct": [1, 1, 1, None, 0, 1, 0, 1], "format": [1, 1, 0, 0, 1, 1, 1, 1]}
    shown = TEXT.split('b="paper"))\n')[1].split("```")[0]
    assert str(gdpo.difference(missing, groups=4, a="nvlabs", b="paper")) == "\n".join(
        line.removeprefix("# ") for line in shown.strip().splitlines()
    )


def test_every_file_it_links_to_is_there():
    for target in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", TEXT):
        assert (ROOT / target).exists(), target


def test_the_block_for_verl_is_what_the_plug_in_reads():
    import yaml

    from gdpo.doctor.verl import check_config

    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.S)
    config = yaml.safe_load(block)
    states = [check.state for check in check_config(config, "v1")]
    assert "wrong" not in states
    assert "ok" in states
