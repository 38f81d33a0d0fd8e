"""Training: recipes, models, tasks, runs and comparisons. Needs the ``train`` extra where a model is loaded."""
