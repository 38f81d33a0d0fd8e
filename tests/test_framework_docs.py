"""The pages on frameworks: their Python runs, their YAML is what the adapters read, before and after are short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gdpo.adapters.block import Settings
from gdpo.adapters.nemo_rl_config import read_settings
from gdpo.core.errors import Error
from gdpo.doctor import nemo_rl

ROOT = Path(__file__).resolve().parents[1]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.S)


def test_trl(tiny_model, tmp_path, monkeypatch):
    from datasets import Dataset
    from trl import GRPOConfig

    from gdpo.trl import GDPOMixin, GDPOTrainer

    monkeypatch.chdir(tmp_path)

    def scored(name):
        def score(completions, **columns):
            return [float(len(text) % 2) for text in completions]

        score.__name__ = name
        return score

    names = {
        "model": str(tiny_model), "dataset": Dataset.from_dict({"prompt": ["a", "b"]}),
        "config": GRPOConfig(str(tmp_path), use_cpu=True, num_generations=2, per_device_train_batch_size=4, max_steps=1,
                             max_completion_length=4, report_to="none", gradient_checkpointing=False),
        **{name: scored(name) for name in ("correct", "well_formed", "short")},
    }  # fmt: skip
    found = blocks("trl.md", "python")
    assert len(found) == 5
    assert all(len(block.splitlines()) < 10 for block in found[:2])
    kinds = []
    for block in found:
        exec(block, names)
        kinds.append(type(names["trainer"]))
    assert issubclass(kinds[1], GDPOTrainer)
    assert issubclass(kinds[3], GDPOMixin)
    assert isinstance(names["trainer"].callback_handler.callbacks[-1], names["AuditCallback"])
    names["trainer"].train()


def test_nemo_rl():
    before, after, whole = (yaml.safe_load(block)["grpo"]["adv_estimator"] for block in blocks("nemo_rl.md", "yaml"))
    with pytest.raises(Error, match="alphabetical"):
        read_settings(before)
    assert list(read_settings(after).objective.names) == ["correctness", "format"]
    assert read_settings(whole).objective.gates["format"].text == "correctness >= 1"
    assert all(len(block.splitlines()) < 10 for block in blocks("nemo_rl.md", "yaml")[:2])


def test_slime():
    [block] = blocks("frameworks.md", "yaml")
    assert Settings.from_block(yaml.safe_load(block)["gdpo"], "gdpo").objective.names == ["correct", "format"]


def test_the_example_for_nemo_rl():
    config = nemo_rl.read_config(ROOT / "examples" / "nemo_rl_gdpo.yaml")
    assert [check.state for check in nemo_rl.check_config(config, "nemo_rl_gdpo.yaml")] == ["ok"]
