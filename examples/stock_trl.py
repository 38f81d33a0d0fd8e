"""A stock TRL script with two rewards. One import is changed; everything else is as it was.

    python examples/stock_trl.py

It trains the small model that ships with gdpo for twenty steps on two CPU cores. On a GPU, put any model and data in.
"""

import argparse
import re

import torch
from datasets import Dataset

# was: from trl import GRPOConfig, GRPOTrainer
from gdpo.adapters.trl import GRPOConfig, GRPOTrainer
from gdpo.training.models import resolve


def right(completions, answer, **kwargs):
    found = [re.findall(r"<answer>(-?\d+)</answer>", completion[0]["content"]) for completion in completions]
    return [float(bool(numbers) and numbers[-1] == gold) for numbers, gold in zip(found, answer, strict=True)]


def well_formed(completions, **kwargs):
    pattern = r"<think>[^<>]+</think>\n<answer>[^<>]+</answer>"
    return [float(re.fullmatch(pattern, completion[0]["content"]) is not None) for completion in completions]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=resolve("nano"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--output", default="runs/stock-trl")
    args = parser.parse_args()

    question = "State the final answer to the following arithmetic problem: {} + {} ="
    pairs = [(a, b) for a in range(10, 60, 3) for b in range(10, 60, 7)]
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": question.format(a, b)}], "answer": str(a + b)} for a, b in pairs]
    )
    trainer = GRPOTrainer(
        model=args.model,
        reward_funcs=[right, well_formed],
        args=GRPOConfig(
            output_dir=args.output,
            reward_weights=[1.0, 0.5],
            num_generations=8,
            per_device_train_batch_size=64,
            max_completion_length=48,
            learning_rate=1e-4,
            max_steps=args.steps,
            logging_steps=1,
            save_strategy="no",
            use_cpu=not torch.cuda.is_available(),
            gradient_checkpointing=False,
        ),
        train_dataset=dataset,
    )
    trainer.train()
    for line in trainer.state.log_history[:-1]:
        shown = {key: round(line[key], 3) for key in ("rewards/right/mean", "rewards/well_formed/contribution_share")}
        print(line["step"], shown)


if __name__ == "__main__":
    main()
