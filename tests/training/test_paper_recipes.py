"""The paper's settings resolve, and build a trainer on a tiny model; nothing is trained."""

from __future__ import annotations

import json

import pytest

from gdpo.report.terminal import LiveView
from gdpo.training import online, recipe, tasks
from gdpo.training.run import RunFolder

GOLD = '<think> t </think>\n<tool_call>\n{"name": "f", "parameters": {"a": "1"}}\n</tool_call>'
DATA = {
    "math-paper": lambda k: {"question": f"{k} + 1?", "answer": f"working\n#### {k + 1}"},
    "concise-paper": lambda k: {"problem": f"{k} + 1?", "solution": "by counting", "answer": str(k + 1)},
    "tools-paper": lambda k: {"instruction": "tools", "input": f"call {k}", "output": GOLD},
    "code-paper": lambda k: {"prompt": [{"role": "user", "content": f"print {k}"}], "ability": "code",
                             "reward_model": {"ground_truth": json.dumps({"inputs": [""], "outputs": [str(k)]})}},
}  # fmt: skip
SETTINGS = {  # prompts of one batch, optimizer steps on it, steps, learning rate, KL: ESTIMATORS' source is the paper
    "math-paper": (32, 1, 233, 5e-6, 0.04, 1024), "concise-paper": (512, 1, 500, 1e-6, 0.0, 8000),
    "tools-paper": (512, 4, 400, 1e-6, 0.0, 1024), "code-paper": (512, 1, 400, 1e-6, 0.0, 8000),
}  # fmt: skip


def test_each_has_one():
    assert sorted(name for name in recipe.names() if name.endswith("-paper")) == sorted(DATA)


@pytest.mark.parametrize("name", DATA)
def test_dry_run(name, tiny_model, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps(DATA[name](k)) for k in range(40)))
    resolved = recipe.load(name, [f"model={tiny_model}", f"data={path}", f"output_dir={tmp_path / 'runs'}"])
    assert resolved.dtype == "bfloat16"
    objective = resolved.build_objective()
    task = tasks.load(resolved.data, held_out=resolved.evaluation.prompts)
    assert objective.unusable(task.train) == {}
    run = RunFolder.create(resolved, "test")
    trainer = online._trainer(resolved, run, objective, task, LiveView(1, [], ""))
    prompts, steps, total, rate, beta, longest = SETTINGS[name]
    args = trainer.args
    assert args.generation_batch_size == prompts * args.num_generations
    assert args.steps_per_generation // args.gradient_accumulation_steps == steps
    assert (args.max_steps, args.learning_rate, args.beta, args.max_completion_length) == (total, rate, beta, longest)
    assert trainer.objective.method == "gdpo"
