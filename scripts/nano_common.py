"""What the scripts that make the small models share: tokenizer, model, supervised training, measures and card.

`build_nano.py` stands alone, so that the first model stays as it is, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '\\n' + message['content'] + eos_token }}"
    "{% elif message['role'] != 'system' %}{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\n' }}{% endif %}"
)
Examples = Callable[[random.Random, float], Iterator[tuple[str, str]]]
"""Endless (question, completion) from a source of chance and the share of the training that is done."""


def make_tokenizer(phrases: Sequence[str]) -> PreTrainedTokenizerFast:
    """Bytes, so that any text can be written, and phrases as single tokens (the longest at a place counts)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<bos>", "<eos>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    distinct = dict.fromkeys(phrase for phrase in phrases if len(phrase) > 1)
    tokenizer.add_tokens([AddedToken(phrase, normalized=False, special=False) for phrase in distinct])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side="left",
        model_max_length=1024, clean_up_tokenization_spaces=False,
    )  # fmt: skip
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=128, intermediate_size=384, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=True,
            rope_theta=10000.0, pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )  # fmt: skip
    model.generation_config = GenerationConfig(
        pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        do_sample=True, temperature=1.0, top_k=0,
    )  # fmt: skip
    return model


def batches(
    tokenizer: PreTrainedTokenizerFast, examples: Examples, args: argparse.Namespace
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Fresh examples: (token ids [batch, length], labels with -100 where nothing is learnt)."""
    rng = random.Random(args.seed)
    for step in range(args.steps):
        source = examples(rng, step / args.steps)
        rows = []
        for _ in range(args.batch):
            question, completion = next(source)
            prompt = tokenizer.encode(f"<bos>{question}\n", add_special_tokens=False)
            answer = tokenizer.encode(completion, add_special_tokens=False)
            rows.append((prompt, [*answer, tokenizer.eos_token_id]))
        length = max(len(p) + len(a) for p, a in rows)
        ids = torch.full((len(rows), length), tokenizer.pad_token_id)
        labels = torch.full((len(rows), length), -100)
        for row, (prompt, answer) in enumerate(rows):
            ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
        yield ids, labels


def train(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, examples: Examples, args: argparse.Namespace
) -> int:
    """Supervised training with a cosine decay; returns the number of tokens seen."""
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98))
    tokens, started = 0, time.perf_counter()
    for step, (ids, labels) in enumerate(batches(tokenizer, examples, args)):
        rate = args.lr * min(1.0, (step + 1) / 50) * (0.02 + 0.49 * (1 + math.cos(math.pi * step / args.steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        logits = model(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long()).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        tokens += int((ids != tokenizer.pad_token_id).sum())
        if step % 100 == 0 or step == args.steps - 1:
            seconds = time.perf_counter() - started
            print(f"step {step} loss {loss.item():.3f} {tokens} tokens {seconds:.0f} s", flush=True)
    return tokens


def measure(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, recipe: str, changes: dict[str, object] | None = None
) -> dict[str, float]:
    """The recipe's rewards on 256 held-out questions x 8 samples: means, and shares of groups in which each varies.

    Args:
        model, tokenizer: what is measured.
        recipe: whose data and rewards.
        changes: overrides of the recipe.
    """
    from gdpo.training import recipe as recipes
    from gdpo.training import tasks
    from gdpo.training.evaluate import sample

    settings = recipes.load(recipe, {"evaluation.samples": 8, **(changes or {})})
    objective = settings.build_objective()
    rows = tasks.load(settings.data, held_out=256).held_out
    drawn = sample(model, tokenizer, rows, settings)
    scores = torch.tensor(
        objective.score(drawn.completions, prompts=drawn.prompts, completion_ids=drawn.ids, **drawn.columns)
    )
    found: dict[str, float] = {}
    for column, name in enumerate(objective.names):
        grouped = scores[:, column].view(-1, 8)
        found[name] = round(grouped.mean().item(), 3)
        found[f"{name}, groups varying"] = round((grouped.amin(1) != grouped.amax(1)).float().mean().item(), 3)
    best = torch.stack([
        scores[:, objective.names.index(name)] >= (objective.bounds()[objective.names.index(name)] or (0, 1))[1]
        for name in settings.evaluation.all_of
    ]).all(0)  # fmt: skip
    found[" and ".join(settings.evaluation.all_of) + " at their best"] = round(best.float().mean().item(), 3)
    lengths = torch.tensor([float(len(ids)) for ids in drawn.ids])
    found["tokens, mean"] = round(lengths.mean().item(), 1)
    for share in (0.1, 0.5, 0.9):
        found[f"tokens, {share:.0%} quantile"] = round(lengths.quantile(share).item(), 1)
    return found


def arguments(description: str | None, output: str, steps: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("src/gdpo/training/assets") / output)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


CARD = """# {name}

{about}

- a Llama of {parameters:,} parameters, made by `python scripts/{script} --seed {seed} --steps {steps} --threads
  {threads}` in {minutes:.1f} minutes (Python {python}, torch {torch}, transformers {transformers})
- trained on {tokens:,} tokens of questions made by `gdpo.training.made.{task}`, none of them a question that
  `gdpo.training.tasks.is_reserved` keeps for evaluation
- tokenizer: bytes, with the task's words and phrases as single tokens; the chat template leaves system messages out,
  since the model does not read them
- before reinforcement learning, on the recipe's held-out questions, 256 x 8 samples at temperature 1:

{table}

Licence: Apache-2.0, as the rest of gdpo.
"""


def build(
    args: argparse.Namespace, phrases: Sequence[str], examples: Examples, recipe: str, task: str, script: str,
    about: str, more: dict[str, dict[str, object]] | None = None,
) -> None:  # fmt: skip
    """Make a model, measure it, and write it with its card.

    Args:
        args: of the command line.
        phrases: single tokens.
        examples: what it learns from.
        recipe, task, script, about: names and text for the card.
        more: further measures: changes of the recipe by what they show.
    """
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    started = time.perf_counter()
    tokenizer = make_tokenizer(phrases)
    model = make_model(tokenizer, args.seed)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, vocabulary {len(tokenizer)}", flush=True)
    tokens = train(model, tokenizer, examples, args)
    minutes = (time.perf_counter() - started) / 60
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    figures = measure(model, tokenizer, recipe)
    for what, changes in (more or {}).items():
        figures |= {f"{what}: {key}": value for key, value in measure(model, tokenizer, recipe, changes).items()
                    if "groups" not in key and "tokens" not in key}  # fmt: skip
    print(json.dumps(figures, indent=1))
    table = "\n".join(["| measure | |", "|---|---|", *(f"| {name} | {value} |" for name, value in figures.items())])
    card = CARD.format(
        name=args.output.name, about=about.strip(), parameters=parameters, script=script, seed=args.seed,
        steps=args.steps, minutes=minutes, threads=args.threads, python=platform.python_version(),
        torch=torch.__version__, transformers=transformers.__version__, tokens=tokens, table=table, task=task,
    )  # fmt: skip
    (args.output / "README.md").write_text(card, encoding="utf-8")
