"""TRL's own advantages for given rewards.

Its formulas stand inside ``GRPOTrainer._generate_and_score_completions``. The real method is run: generation is replaced
by fixed tokens and ``_calculate_rewards`` by a given matrix; everything from there on is TRL's. The fixture ``trainer``
stands in conftest.py.
"""

import torch


def trl_advantages(trainer, monkeypatch, rewards, size, aggregation, scale="group", weights=None):
    """TRL's advantages for a matrix of rewards, from its real method."""
    matrix = torch.tensor(rewards, dtype=torch.float32)
    rows, count = matrix.shape
    monkeypatch.setattr(trainer, "multi_objective_aggregation", aggregation)
    monkeypatch.setattr(trainer, "scale_rewards", scale)
    monkeypatch.setattr(trainer, "num_generations", size)
    monkeypatch.setattr(trainer, "reward_weights", torch.ones(count) if weights is None else torch.tensor(weights))
    monkeypatch.setattr(trainer, "reward_funcs", [None] * count)
    monkeypatch.setattr(trainer, "reward_func_names", [f"r{k}" for k in range(count)])
    ids = [[5, 6]] * rows
    monkeypatch.setattr(trainer, "_generate", lambda prompts: (ids, ids, None, ["x"] * rows, None, {}, None, []))
    monkeypatch.setattr(trainer, "_calculate_rewards", lambda *args: matrix)
    trainer.model.train()
    return trainer._generate_and_score_completions([{"prompt": "a"}] * rows)["advantages"].numpy()
