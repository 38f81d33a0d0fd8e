"""What the builders of the small text models share: tokenizer, model, supervised training, measuring and saving."""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

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
Example = tuple[str, str]
"""A question and a completion."""


def arguments(description: str, output: str, steps: int, clean_share: float) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(output))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--clean-share", type=float, default=clean_share, help="share of steps without faults")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def make_tokenizer(phrases: Sequence[str]) -> PreTrainedTokenizerFast:
    """Bytes, so that any text can be written, and phrases as single tokens, the longest first."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<bos>", "<eos>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(phrase, normalized=False, special=False) for phrase in phrases])
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
    tokenizer: PreTrainedTokenizerFast, examples: Callable[[bool], Example], size: int, steps: int, clean_share: float
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Fresh examples: (token ids [size, length], labels with -100 where nothing is learnt)."""
    for step in range(steps):
        rows = []
        for _ in range(size):
            question, completion = examples(step >= clean_share * steps)
            prompt = tokenizer.encode(f"<bos>{question}\n", add_special_tokens=False)
            answer = [*tokenizer.encode(completion, add_special_tokens=False), tokenizer.eos_token_id]
            rows.append((prompt, answer))
        length = max(len(prompt) + len(answer) for prompt, answer in rows)
        ids = torch.full((size, length), tokenizer.pad_token_id)
        labels = torch.full((size, length), -100)
        for row, (prompt, answer) in enumerate(rows):
            ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
        yield ids, labels


def train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    examples: Callable[[bool], Example],
    args: argparse.Namespace,
) -> int:
    """Supervised training; returns the number of tokens seen."""
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98))
    tokens, started = 0, time.perf_counter()
    for step, (ids, labels) in enumerate(batches(tokenizer, examples, args.batch, args.steps, args.clean_share)):
        warm = min(1.0, (step + 1) / 50)
        rate = args.lr * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / args.steps)))
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
        if step % 50 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.3f} {time.perf_counter() - started:.0f} s", flush=True)
    return tokens


def sample(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, questions: Sequence[str], longest: int, seed: int
) -> tuple[list[str], list[list[int]]]:
    """Eight completions of each question at temperature 1: texts and token ids, a question's side by side."""
    tokenizer.padding_side = "left"
    torch.manual_seed(seed)
    model.eval()
    texts: list[str] = []
    ids: list[list[int]] = []
    for start in range(0, len(questions), 32):
        prompts = [f"<bos>{question}\n" for question in questions[start : start + 32] for _ in range(8)]
        batch = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.no_grad():
            output = model.generate(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], do_sample=True, top_k=0,
                max_new_tokens=longest,
            )[:, batch["input_ids"].shape[1] :]  # fmt: skip
        texts += tokenizer.batch_decode(output, skip_special_tokens=True)
        ids += [[token for token in row if token != tokenizer.pad_token_id] for row in output.tolist()]
    return texts, ids


def table(scored: dict[str, list[float | None]]) -> dict[str, float]:
    """Mean of each reward, and the share of groups of 8 in which it varies."""
    found = {}
    for name, values in scored.items():
        groups = torch.tensor([math.nan if value is None else value for value in values]).view(-1, 8)
        found[name] = round(groups.nanmean().item(), 3)
        found[f"{name}, groups varying"] = round((groups.amin(1) != groups.amax(1)).float().mean().item(), 3)
    return found


def save(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    card: str,
    figures: dict[str, float],
    args: argparse.Namespace,
    **values: Any,
) -> None:
    """Weights, tokenizer and card."""
    print(json.dumps(figures, indent=1), flush=True)
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    lines = ["| share | |", "|---|---|", *(f"| {name} | {value} |" for name, value in figures.items())]
    text = card.format(
        parameters=sum(p.numel() for p in model.parameters()), seed=args.seed, threads=args.threads,
        python=platform.python_version(), torch=torch.__version__, transformers=transformers.__version__,
        table="\n".join(lines), **values,
    )  # fmt: skip
    (args.output / "README.md").write_text(text, encoding="utf-8")
