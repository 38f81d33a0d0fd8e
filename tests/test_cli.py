"""The command line: what it prints, and one sentence with status 2 for every kind of bad input."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

from gdpo import cli
from gdpo.training import recipe


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    sys.argv = ["gdpo", *arguments]
    try:
        cli.main()
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_help_names_the_commands_and_never_imports_torch():
    code = (
        "import sys; sys.argv = ['gdpo', '--help']\nfrom gdpo.cli import main\ntry:\n    main()\nfinally:\n"
        "    heavy = [m for m in ('torch', 'transformers', 'trl', 'polars', 'pydantic') if m in sys.modules]\n"
        "    print('HEAVY', heavy)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in ("train", "compare", "list"))
    assert "HEAVY []" in done.stdout


def test_version(capsys):
    from gdpo import __version__

    assert run(capsys, "--version") == (0, f"gdpo {__version__}\n", "")


def test_list(capsys):
    status, out, _ = run(capsys, "list")
    assert status == 0
    assert all(name in out for name in ("math", "gdpo", "grpo_no_std", "math_answer", "tags"))
    assert "Traceback" not in out


def test_show_prints_a_recipe_that_reads_back_the_same(capsys, tmp_path):
    status, out, _ = run(
        capsys, "train", "math", "--show", "weights.format=0.5", "gates.integer=correct >= 1", "seed=3"
    )
    assert status == 0
    shown = yaml.safe_load(out)
    assert shown["objective"]["rewards"]["format"]["weight"] == 0.5
    assert shown["objective"]["rewards"]["integer"]["given"] == "correct >= 1"
    assert shown["seed"] == 3
    (tmp_path / "again.yaml").write_text(out)
    assert recipe.load(str(tmp_path / "again.yaml")).model_dump() == yaml_recipe(shown)


def yaml_recipe(tree):
    return recipe.Recipe.model_validate(tree).model_dump()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["steps=7"], ("steps", 7)),
        (["learning_rate=1e-5"], ("learning_rate", 1e-5)),
        (["lora=8"], ("lora", {"r": 8, "alpha": None, "dropout": 0.0, "target_modules": "all-linear"})),
        (["method=grpo"], ("objective.method", "grpo")),
        (["options.clip=3"], ("objective.options", {"clip": 3})),
        (["trainer.top_p=0.9"], ("trainer", {"top_p": 0.9})),
        (["report_to=[tensorboard]"], ("report_to", ["tensorboard"])),
        (["evaluation.prompts=8"], ("evaluation.prompts", 8)),
        (["model=smollm2-135m"], ("max_completion_length", 128)),
        (["model=smollm2-135m", "max_completion_length=64"], ("max_completion_length", 64)),
        (["model=Qwen/Qwen2.5-1.5B-Instruct"], ("num_generations", 16)),
        (["data=some.jsonl"], ("data.path", "some.jsonl")),
        (["data=org/name"], ("data.name", "org/name")),
    ],
)
def test_overrides(overrides, expected):
    tree = recipe.load("math", overrides).model_dump()
    key, value = expected
    for part in key.split("."):
        tree = tree[part]
    assert tree == value


def test_another_data_source_keeps_the_prompt():
    plain, other = recipe.load("math"), recipe.load("math", ["data=some.jsonl"])
    assert other.data.system == plain.data.system
    assert other.data.name is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "maths"], "recipe 'maths' is unknown; did you mean 'math'?"),
        (["train", "none.yaml"], "none.yaml cannot be read"),
        (["train", "math", "stesp=3"], "no key 'stesp'; did you mean 'steps'?"),
        (["train", "math", "evaluation.promts=3"], "no key 'evaluation.promts'; did you mean 'prompts'?"),
        (["train", "math", "steps"], "'steps' is not understood: key=value was expected"),
        (["train", "math", "steps=many"], "steps is 'many'"),
        (["train", "math", "steps=0"], "steps is 0"),
        (["train", "math", "method=gdpoo"], "did you mean 'gdpo'?"),
        (
            ["train", "math", "weights.formt=1"],
            "names reward 'formt', which the recipe does not have; did you mean 'format'?",
        ),
        (["train", "math", "weights.format=x"], "weight of 'format' is 'x'"),
        (["train", "math", "gates.format=corect >= 1"], "did you mean 'correct'?"),
        (["train", "math", "gates.format=correct"], "is not a comparison"),
        (["train", "math", "objective.rewards.format.reward=tag"], "reward 'tag' is unknown; did you mean 'tags'?"),
        (["train", "math", "objective.rewards.correct.extractoin=boxed"], "no option 'extractoin'; did you mean"),
        (["train", "math", "options.clp=3"], "did you mean 'clip'?"),
        (["train", "math", "name=a/b"], "name is 'a/b'"),
        (["train", "math", "data=../x/y/z"], "is no file, folder or name of a data set"),
        (["train", "math", "evaluation.all_of=[corect]"], "did you mean 'correct'?"),
        (["train", "math", "--resume", "name=none"], "is no run that could be resumed"),
        (["train", "math", "data.name=chain_sums"], "did you mean 'chain_sum'?"),
        (["train", "math", "data.parameters.min_term=1"], "'chain_sum' does not take"),
        (["train", "math", "data=none.jsonl"], "data file none.jsonl does not exist"),
        (["train", "math", "model=./none"], "model './none' is no folder"),
        (["train", "math", "model=namo"], "model 'namo' is no folder, and no name of a model"),
        (["train", "math", "trainer.steps_per_genration=2"], "did you mean 'steps_per_generation'?"),
        (["train", "math", "trainer.learning_rate=2"], "set learning_rate= instead"),
        (["train", "math", "num_generations=7"], "TRL refuses these settings"),
        (["compare", "math", "steps=3"], "at least one key with several values"),
        (["compare", "math", "method=grpo,gdop"], "did you mean 'gdpo'?"),
        (["compare", "math", "seed=3..1"], "runs backwards"),
        (["list", "recipe"], "did you mean 'recipes'?"),
        (["tran"], "tran"),
        (["train"], "RECIPE"),
    ],
)
def test_bad_input_is_one_sentence(capsys, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    status, _, error = run(capsys, *arguments)
    assert status == 2
    assert said.lower() in error.lower()
    assert error.count("\n") == 1
    assert "Traceback" not in error
    assert not list(tmp_path.rglob("recipe.yaml"))  # nothing is left that would block the corrected command


def test_no_train_extra(capsys, tmp_path, monkeypatch):
    import importlib.util

    monkeypatch.chdir(tmp_path)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "trl" else real(name, *a))
    status, _, error = run(capsys, "train", "math")
    assert status == 2
    assert 'trl is not installed, and training needs it: pip install "gdpo[train]"' in error
    assert not list(tmp_path.iterdir())


def test_several_processes_are_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    status, _, error = run(capsys, "train", "math")
    assert status == 2
    assert "accelerate launch" in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('x')", "reward 'mine' raised KeyError"),
        ("return [1.0]", "reward 'mine' returned 1 scores, but"),
        ("return ['a' for _ in completions]", "reward 'mine' returned 'a'"),
    ],
)
@pytest.mark.slow
def test_a_bad_reward_is_one_sentence(capsys, tmp_path, monkeypatch, body, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(f"def mine(completions, **columns):\n    {body}\n")
    (tmp_path / "mine.yaml").write_text(with_reward("mine.py:mine"))
    status, _, error = run(capsys, "train", "mine.yaml")
    assert status == 2
    assert said in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_a_setting_that_trl_checks_in_its_first_step(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["evaluation.prompts=2", "evaluation.samples=1", "per_device_train_batch_size=8", "steps=2"]
    status, _, error = run(capsys, "train", "math", *small, "trainer.loss_type=nonsense")
    assert status == 2
    assert "TRL refuses these settings: Unknown loss type: nonsense" in error


def with_reward(spec: str) -> str:
    tree = recipe.load("math").model_dump(mode="json")
    tree["objective"]["rewards"] = {"mine": {"reward": spec}}
    tree["evaluation"] = {"prompts": 4, "samples": 1}
    return json.dumps(tree)


def test_a_reward_file_is_found_beside_the_recipe(capsys, tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.py").write_text(
        "def mine(completions, **columns):\n    return [1.0 for _ in completions]\n"
    )
    (tmp_path / "sub" / "mine.yaml").write_text(with_reward("mine.py:mine"))
    monkeypatch.chdir(tmp_path)
    status, out, error = run(capsys, "train", "sub/mine.yaml", "--show")
    assert status == 0, error
    assert str(tmp_path / "sub" / "mine.py") in out or "sub/mine.py" in out


def test_a_folder_that_cannot_be_made_is_one_sentence(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    status, _, error = run(capsys, "train", "math", "output_dir=file/x")
    assert status == 2
    assert "cannot be written" in error
    assert error.count("\n") == 1


def test_the_words_of_an_exception_stay_on_one_line(capsys, monkeypatch):
    def broken(*args):
        raise cli.Error("two\nlines")

    monkeypatch.setattr("gdpo.training.recipe.load", broken)
    assert run(capsys, "train", "math", "--show")[2] == "gdpo: two lines\n"
