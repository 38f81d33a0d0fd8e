"""Make `nano`, the small model that ships with gdpo: a Llama of 1.1 M parameters that half knows arithmetic.

It is trained from scratch on worked answers to reasoning-gym's `chain_sum`, first clean ones, then ones with faults
mixed in on purpose (sloppy working, broken tags, answers that are no integers), each independent of the others, so that
a run of `gdpo train math` has something to learn for every reward. Questions reserved for held-out evaluation
(`gdpo.training.tasks.is_reserved`) are never used.

    python scripts/build_nano.py --output src/gdpo/training/assets/nano

The same seed, thread count and versions give the same weights.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import re
import time
from pathlib import Path

import reasoning_gym
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from gdpo.training.tasks import is_reserved

QUESTION = "State the final answer to the following arithmetic problem:"
PHRASES = ["<think>", "</think>", "<answer>", "</answer>", QUESTION, " + ", " - ", " = ", " ="]
TASK = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '\\n' + message['content'] + eos_token }}"
    "{% elif message['role'] != 'system' %}{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\n' }}{% endif %}"
)
SLOPPY, SLOPPY_WRONG, CAREFUL_WRONG, NOT_INTEGER, BROKEN = 0.50, 0.65, 0.06, 0.25, 0.50
LONGEST = 72


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, so that any text can be written, and a few phrases as single tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<bos>", "<eos>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(phrase, normalized=False, special=False) for phrase in PHRASES])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side="left",
        model_max_length=1024, clean_up_tokenization_spaces=False,
    )  # fmt: skip
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=128, intermediate_size=384, num_hidden_layers=5,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=True,
            rope_theta=10000.0, pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )  # fmt: skip


def terms_of(question: str) -> list[int]:
    """The signed terms of `12 + 35 - 8 =`."""
    return [int(sign + digits) for sign, digits in re.findall(r"([+-]?) ?(\d+)", question.removeprefix(QUESTION))]


def careful(terms: list[int], rng: random.Random) -> tuple[str, int]:
    """Working in steps, nearly always right, and where it ends."""
    total, steps = terms[0], []
    for term in terms[1:]:
        before, total = total, total + term
        if rng.random() < CAREFUL_WRONG:
            total += rng.choice([-10, -1, 1, 10])
        steps.append(f"{before} {'+' if term >= 0 else '-'} {abs(term)} = {total}")
    return ", ".join(steps), total


def sloppy(terms: list[int], rng: random.Random) -> tuple[str, int]:
    """A result at a glance, mostly wrong."""
    total = sum(terms)
    if rng.random() < SLOPPY_WRONG:
        total += rng.choice([-20, -10, -3, -2, -1, 1, 2, 3, 10, 20])
    return f"about {total}", total


def completion(terms: list[int], rng: random.Random, faults: bool) -> str:
    working, result = (sloppy if faults and rng.random() < SLOPPY else careful)(terms, rng if faults else _Right())
    answer = f"{result}.0" if faults and rng.random() < NOT_INTEGER else str(result)
    if not faults or rng.random() >= BROKEN:
        return f"<think>{working}</think>\n<answer>{answer}</answer>"
    return rng.choice([
        f"<think>{working}</think>\n<answer>{answer}</answer>\nDone.",
        f"<think>{working}\n<answer>{answer}</answer>",
        f"{working}\n<answer>{answer}</answer>",
        f"<answer>{answer}</answer>\n<think>{working}</think>",
        f"<think>{working}</think>\n<answer>{answer}</answer>\n<answer>{answer}</answer>",
        f"<think>{working}</think>\n<answer>{answer}",
        f"<think>{working}</think>\n{answer}",
    ])  # fmt: skip


class _Right(random.Random):
    """Never makes a mistake."""

    def random(self) -> float:
        return 1.0


def batches(tokenizer: PreTrainedTokenizerFast, size: int, seed: int, clean_share: float, total: int):
    """Endless fresh examples: (token ids [size, length], labels with -100 where nothing is learnt)."""
    rng = random.Random(seed)
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    index, source = 0, None
    for step in range(total):
        faults = step >= clean_share * total
        rows = []
        while len(rows) < size:
            if source is None or index >= len(source):
                source = reasoning_gym.create_dataset("chain_sum", size=20_000, seed=rng.randrange(1 << 30), **TASK)
                index = 0
            question, index = source[index]["question"], index + 1
            if is_reserved(question):
                continue
            prompt = encode(f"<bos>{question}\n")
            # A tenth stays clean in the second part, so that the careful way is not forgotten.
            answer = completion(terms_of(question), rng, faults and rng.random() < 0.9)
            rows.append((prompt, [*encode(answer), tokenizer.eos_token_id]))
        length = max(len(p) + len(a) for p, a in rows)
        assert length <= LONGEST, length
        ids = torch.full((size, length), tokenizer.pad_token_id)
        labels = torch.full((size, length), -100)
        for row, (prompt, answer) in enumerate(rows):
            ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
        yield ids, labels


def train(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, args: argparse.Namespace) -> int:
    """Supervised training; returns the number of tokens seen."""
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98))
    tokens, started = 0, time.perf_counter()
    for step, (ids, labels) in enumerate(batches(tokenizer, args.batch, args.seed, args.clean_share, args.steps)):
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
        if step % 100 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.3f} {time.perf_counter() - started:.0f} s", flush=True)
    return tokens


def measure(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int) -> dict[str, float]:
    """Share right, well-formed, integer, and of groups of 8 in which each varies: held-out prompts, temperature 1."""
    from gdpo import rewards

    source = reasoning_gym.create_dataset("chain_sum", size=20_000, seed=seed + 1, **TASK)
    rows = [source[i] for i in range(len(source)) if is_reserved(source[i]["question"])]
    rows = list({row["question"]: row for row in rows}.values())[:256]
    tokenizer.padding_side = "left"
    texts, answers = [], []
    torch.manual_seed(seed + 2)
    model.eval()
    for start in range(0, len(rows), 32):
        chunk = rows[start : start + 32]
        prompts = [f"<bos>{row['question']}\n" for row in chunk for _ in range(8)]
        batch = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.no_grad():
            output = model.generate(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], do_sample=True, top_k=0,
                max_new_tokens=48,
            )  # fmt: skip
        texts += tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        answers += [row["answer"] for row in chunk for _ in range(8)]
    scored = {
        "correct": rewards.math_answer()(texts, answer=answers),
        "format": rewards.tags("think", "answer")(texts),
        "integer": rewards.integer_answer()(texts),
    }
    found = {}
    for name, values in scored.items():
        groups = torch.tensor(values).view(-1, 8)
        found[name] = round(groups.mean().item(), 3)
        found[f"{name}, groups varying"] = round((groups.amin(1) != groups.amax(1)).float().mean().item(), 3)
    both = torch.tensor(scored["correct"]) * torch.tensor(scored["format"])
    return {**found, "correct and format": round(both.mean().item(), 3)}


CARD = """# nano

A Llama of {parameters:,} parameters that ships with gdpo, made from scratch by `scripts/build_nano.py`. It is a
teaching aid: it writes `<think>working</think>` and `<answer>number</answer>` for two- and three-term sums of numbers
below 100, imperfectly on purpose, so that reinforcement learning has something to do. It knows nothing else.

- made by `python scripts/build_nano.py --seed {seed}` in {minutes:.1f} minutes on {threads} threads
  (Python {python}, torch {torch}, transformers {transformers})
- trained on {tokens:,} tokens of reasoning-gym `chain_sum` questions (Apache-2.0), none of them a question that
  `gdpo.training.tasks.is_reserved` keeps for evaluation
- tokenizer: bytes, with the four tags, the question's phrase and spaced operators as single tokens; the chat template
  leaves system messages out, since the model does not read them
- before reinforcement learning, 256 held-out questions x 8 samples at temperature 1:

{table}

Licence: Apache-2.0, as the rest of gdpo.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("src/gdpo/training/assets/nano"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--clean-share", type=float, default=0.7)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    started = time.perf_counter()
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, args.seed)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, vocabulary {len(tokenizer)}")
    tokens = train(model, tokenizer, args)
    model.generation_config = GenerationConfig(
        pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        do_sample=True, temperature=1.0, top_k=0,
    )  # fmt: skip
    figures = measure(model, tokenizer, args.seed)
    print(json.dumps(figures, indent=1))
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    table = "\n".join(["| share | |", "|---|---|", *(f"| {name} | {value} |" for name, value in figures.items())])
    card = CARD.format(
        parameters=parameters, seed=args.seed, minutes=(time.perf_counter() - started) / 60, threads=args.threads,
        python=platform.python_version(), torch=torch.__version__, transformers=transformers.__version__, tokens=tokens,
        table=table,
    )  # fmt: skip
    (args.output / "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
