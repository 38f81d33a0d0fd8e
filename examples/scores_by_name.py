"""Rewards by name, for frameworks that want one function: verl's ``compute_score``, slime's and miles's ``custom_rm``.

Tried on its own: python examples/scores_by_name.py
"""

import re


def scores(text, gold):
    """Each reward of one completion; None where one does not apply."""
    found = re.fullmatch(r"\s*<think>(.+)</think>\s*<answer>([^<>]+)</answer>\s*", text, re.DOTALL)
    numbers = re.findall(r"-?\d+", found[2] if found else text)
    right = float(bool(numbers) and numbers[-1] == str(gold)) if gold is not None else None
    return {"correct": right, "format": float(found is not None), "concise": float(len(text.split()) <= 200)}


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """verl's: ``score`` is for its own logs; the other names go to ``algorithm.gdpo.rewards``."""
    named = scores(solution_str, ground_truth)
    return {"score": sum(value for value in named.values() if value is not None), **named}


async def custom_rm(args, sample, **kwargs):
    """slime's and miles's: the mapping becomes ``sample.reward``."""
    return scores(sample.response, sample.label)


if __name__ == "__main__":
    for text in ("<think>2 + 2 is 4</think><answer>4</answer>", "4", "<think>?</think><answer>5</answer>"):
        print(compute_score("demo", text, "4"), text)
