"""`gdpo doctor verl` in set-ups that are broken on purpose; no verl is needed but where marked."""

from __future__ import annotations

import importlib.util
import json

import pytest
import yaml
from verl_world import World

import gdpo
from gdpo.doctor import FRAMEWORKS, run_doctor
from gdpo.doctor.verl import read_config, recognises

GOOD = {"algorithm": {"adv_estimator": "gdpo", "gdpo": {"rewards": ["correct", "format"], "weights": {"format": 0.5}}}}
real = pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed")


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "world")


def write(tmp_path, config, name="run.yaml"):
    path = tmp_path / name
    path.write_text(yaml.safe_dump(config))
    return str(path)


def test_a_set_up_that_works(world, tmp_path):
    status, said = world.gdpo().verl().doctor(write(tmp_path, GOOD), "--no-workers")
    assert status == 0, said
    assert "asks for 'gdpo' of the rewards {'correct': 1.0, 'format': 0.5} on the v1 trainer" in said
    assert f"driver: gdpo {gdpo.__version__} is loaded by verl 0.9.1" in said
    assert "v1 trainer: gdpo's hooks are in" in said
    assert "legacy trainer: gdpo's hooks are in" in said
    assert said.splitlines()[-1] == "nothing wrong"


def test_the_entry_point_is_missing(world, tmp_path):
    status, said = world.gdpo(entry=False).verl().doctor(write(tmp_path, GOOD), "--no-workers")
    assert status == 1
    assert "driver: gdpo is not loaded: its entry point in 'verl.plugins' is missing" in said
    assert "VERL_USE_EXTERNAL_MODULES=gdpo.adapters.verl_plugin" in said


def test_the_remedy_for_a_missing_entry_point_works(world):
    world.gdpo(entry=False).verl()
    (world.folder / "verl" / "__init__.py").write_text("__version__ = '0.9.1'\nimport gdpo.adapters.verl_plugin\n")
    status, said = world.doctor("--no-workers")
    assert status == 0, said


def test_plug_ins_are_switched_off(world):
    status, said = world.gdpo().verl().doctor("--no-workers", VERL_USE_EXTERNAL_PLUGINS="none")
    assert status == 1
    assert "gdpo is not loaded: VERL_USE_EXTERNAL_PLUGINS is 'none'" in said


def test_the_block_is_missing(world, tmp_path):
    config = {"algorithm": {"adv_estimator": "gdpo", "gdpo_reward_keys": ["a", "b"], "gdpo_reward_weights": [1, 0.5]}}
    status, said = world.gdpo().verl().doctor(write(tmp_path, config), "--no-workers")
    assert status == 1
    assert "stops on the v1 trainer with KeyError 'prompts'" in said
    assert "'+algorithm.gdpo.rewards=[a,b]' '+algorithm.gdpo.weights={a: 1, b: 0.5}'" in said
    legacy = {**config, "trainer": {"use_v1": False}}
    assert "ties, missing rewards and response length" in world.doctor(write(tmp_path, legacy), "--no-workers")[1]


def test_what_the_doctor_prints_can_be_set(world, tmp_path):
    """The lines of the remedy, put into the launch script, make the set-up right."""
    script = tmp_path / "run.sh"
    script.write_text(
        "#!/bin/bash\n# algorithm.adv_estimator=gae\npython3 -m verl.trainer.main_ppo \\\n"
        '    algorithm.adv_estimator=grpo \\\n    data.train_batch_size=1024 actor_rollout_ref.model.path="$MODEL" \\\n'
        "    trainer.use_v1=True $@\n"
    )
    status, said = world.gdpo().verl().doctor(str(script), "--no-workers")
    assert status == 0
    assert "adv_estimator is 'grpo' and there is no algorithm.gdpo" in said
    (line,) = [line.strip() for line in said.splitlines() if "+algorithm.gdpo" in line]
    script.write_text(script.read_text().replace("algorithm.adv_estimator=grpo", line.replace("NAMES", "acc,format")))
    status, said = world.doctor(str(script), "--no-workers")
    assert status == 0
    assert "asks for 'gdpo' of the rewards {'acc': 1.0, 'format': 1.0}" in said


def test_weights_name_an_unknown_reward(world, tmp_path):
    config = {"algorithm": {"adv_estimator": "gdpo", "gdpo": {"rewards": ["correct"], "weights": {"corect": 1}}}}
    status, said = world.gdpo().verl().doctor(write(tmp_path, config), "--no-workers")
    assert status == 1
    assert "algorithm.gdpo.weights names 'corect', which is no reward; did you mean 'correct'?" in said


@pytest.mark.parametrize(
    ("version", "options", "texts"),
    [
        ("0.4.1", {"group": "nothing"}, ["WRONG verl is 0.4.1", "does not read 'verl.plugins'"]),
        ("0.10.0", {"without": "_compute_advantage"},
         ["note  verl is 0.10.0", "WRONG v1 trainer: verl 0.10.0 has no '_compute_advantage'",
          "ok    legacy trainer: gdpo's hooks are in", "pip install 'verl>=0.9.1,<0.10'"]),
        ("0.10.0", {"without": "RayPPOTrainer"}, ["note  legacy trainer: verl 0.10.0 has no RayPPOTrainer"]),
    ],
)  # fmt: skip
def test_the_wrong_version(world, tmp_path, version, options, texts):
    status, said = world.gdpo().verl(version, **options).doctor(write(tmp_path, GOOD), "--no-workers")
    assert status == (options.get("without") != "RayPPOTrainer")
    for text in texts:
        assert text in said


def test_another_plug_in(world, tmp_path):
    status, said = world.gdpo().verl().other().doctor(write(tmp_path, GOOD), "--no-workers")
    assert status == 1
    assert "PPOTrainer._compute_advantage is taken by another plug-in, 'other_plugin'" in said
    assert "VERL_USE_EXTERNAL_PLUGINS=gdpo" in said
    assert world.doctor("--no-workers", VERL_USE_EXTERNAL_PLUGINS="gdpo")[0] == 0


def test_verl_is_not_there(world):
    (world.folder / "verl").mkdir(parents=True)
    (world.folder / "verl" / "__init__.py").write_text("raise ImportError('no verl')")
    status, said = world.gdpo().doctor("--no-workers")
    assert status == 1
    assert "verl cannot be imported: ImportError: no verl" in said


@real
@pytest.mark.slow
def test_the_real_verl_and_a_ray_worker(world, tmp_path):
    status, said = world.gdpo().doctor(write(tmp_path, GOOD))
    assert status == 0, said
    assert "Ray worker: gdpo" in said


@real
@pytest.mark.slow
def test_another_plug_in_on_the_real_verl(world, tmp_path):
    status, said = world.gdpo().other().doctor(write(tmp_path, GOOD), "--no-workers")
    assert status == 1
    assert "v1 trainer: PPOTrainer._compute_advantage is taken by another plug-in, 'other_plugin'" in said


def test_lists_and_finds_frameworks(tmp_path):
    said = []
    assert run_doctor(None, None, workers=False, say=said.append) == 0
    assert [line.split()[2] for line in said] == list(FRAMEWORKS)
    assert recognises(yaml.safe_dump(GOOD))
    assert not recognises("model_name_or_path: x\nloss_type: dapo\n")
    with pytest.raises(gdpo.Error, match="did you mean 'verl'"):
        run_doctor("verI", None, workers=False, say=said.append)
    with pytest.raises(gdpo.Error, match="cannot be read"):
        run_doctor("verl", str(tmp_path / "none.yaml"), workers=False, say=said.append)
    path = tmp_path / "x.yaml"
    path.write_text("a: 1")
    with pytest.raises(gdpo.Error, match="no config that `gdpo doctor` knows"):
        run_doctor(str(path), None, workers=False, say=said.append)


def test_overrides_are_read_as_hydra_reads_them(tmp_path):
    path = tmp_path / "overrides.yaml"
    path.write_text(json.dumps([
        "algorithm.adv_estimator=gdpo", "+algorithm.gdpo.rewards=[a,b]", "+algorithm.gdpo.weights={a:1.0,b:-0.5}",
        "++trainer.use_v1=False", "data.path=/a:b/c", "broken.value={a",
    ]))  # fmt: skip
    found = read_config(path)
    assert found["algorithm"]["gdpo"] == {"rewards": ["a", "b"], "weights": {"a": 1.0, "b": -0.5}}
    assert found["trainer"]["use_v1"] is False
    assert found["data"]["path"] == "/a:b/c"
    (tmp_path / "empty.sh").write_text("echo 'quote over\nlines'")
    with pytest.raises(gdpo.Error, match="holds neither"):
        read_config(tmp_path / "empty.sh")
