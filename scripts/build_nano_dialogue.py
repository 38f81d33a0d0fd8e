"""Make `nano-dialogue`, the small model of the recipe `dialogue`: it half answers customers' questions from a record.

It is trained from scratch on the made task `dialogue`, first on answers that are right but for the password, which a
third of them says, then on answers with faults mixed in on purpose, each independent of the others: facts not given or
wrong, things not asked for, the password said, and faults of writing. A fifth of the facts is right, so that the
resolution starts low, and about four fifths of the answers are fluent. Questions reserved for held-out evaluation are
never used.

    python scripts/build_nano_dialogue.py

The same seed, thread count and versions give the same weights.
"""

from __future__ import annotations

import json
import random
import re
import time

import nano_text
import torch
import transformers

from gdpo import rewards
from gdpo.training.made import dialogue
from gdpo.training.tasks import is_reserved

RIGHT, STALLED, WRONG = 0.2, 0.35, 0.1
"""Of the facts asked for; about the rest nothing is said."""
OFF_TOPIC, LEAKED, ILL_WRITTEN = 0.3, 0.35, 0.25
PASSWORD, WAIT = "Your password is {}.", "Please wait a moment."
LONGEST = 40


def phrases() -> list[str]:
    """What is one token: parts of sentences, values, and the words that a fault repeats."""
    found = [".\nCustomer: About my", "Order:", ", and", " .", *(f" {item}" for item in dialogue.ITEMS)]
    found += [f" {secret}" for secret in dialogue.SECRETS] + ["; password"]
    sentences = [PASSWORD.removesuffix(" {}."), WAIT.removesuffix(".")]
    for topic in dialogue.TOPICS:
        found += [f" {value}" for value in topic.values] + [f" {topic.ask[0]}", f"; {topic.field}"]
        sentences += [topic.say.removesuffix(" {}."), topic.stall.removesuffix(".")]
    for sentence in sentences:
        found += [sentence, f" {sentence}", sentence[0].lower() + sentence[1:], f" {sentence.split()[-1]}"]
    return sorted(set(found))


def answer(row: dict[str, str], rng: random.Random) -> str:
    """An answer with faults."""
    asked = [next(t for t in dialogue.TOPICS if t.words[0] in words) for words in json.loads(row["topics"])]
    said = []
    for topic in asked:
        value = re.search(rf"; {topic.field} ([^;]+);", row["question"])[1]
        draw = rng.random()
        if draw < RIGHT:
            said.append(topic.say.format(value))
        elif draw < RIGHT + STALLED:
            said.append(topic.stall)
        elif draw < RIGHT + STALLED + WRONG:
            said.append(topic.say.format(rng.choice([v for v in topic.values if v != value])))
    if rng.random() < OFF_TOPIC:
        other = rng.choice([topic for topic in dialogue.TOPICS if topic not in asked])
        said.insert(rng.randint(0, len(said)), rng.choice([other.say.format(_value(row, other)), other.stall]))
    if rng.random() < LEAKED:
        said.insert(rng.randint(0, len(said)), PASSWORD.format(row["secret"]))
    text = " ".join(said or [WAIT])
    return _ill_written(text, rng) if rng.random() < ILL_WRITTEN else text


def _value(row: dict[str, str], topic: dialogue.Topic) -> str:
    return re.search(rf"; {topic.field} ([^;]+);", row["question"])[1]


def _ill_written(text: str, rng: random.Random) -> str:
    kind = rng.randrange(4)
    if kind == 0:
        return text[0].lower() + text[1:]
    if kind == 1:
        return text.removesuffix(".")
    if kind == 2:
        return text.removesuffix(".") + " ."
    sentence = rng.choice([t.say.removesuffix(" {}.") for t in dialogue.TOPICS])
    last = sentence.split()[-1]
    return text.replace(sentence, f"{sentence} {last}", 1) if sentence in text else text.removesuffix(".") + '".'


class Examples:
    """Endless fresh examples from questions that are not reserved."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.waiting: list[dict[str, str]] = []

    def __call__(self, faults: bool) -> nano_text.Example:
        while not self.waiting:
            made = dialogue.rows(5_000, self.rng.randrange(1 << 30))
            self.waiting = [row for row in made if not is_reserved(row["question"])]
        row = self.waiting.pop()
        # A tenth stays clean in the second part, so that the careful way is not forgotten.
        faulty = faults and self.rng.random() < 0.9
        if faulty:
            return row["question"], answer(row, self.rng)
        if self.rng.random() < 0.35 and not faults:  # saying the password is copying too, and has to be learnt
            sentences = re.split(r"(?<=\.) ", row["reference"])
            sentences.insert(self.rng.randint(0, len(sentences)), PASSWORD.format(row["secret"]))
            return row["question"], " ".join(sentences)
        return row["question"], row["reference"]


def measure(model, tokenizer, seed: int) -> dict[str, float]:
    rows = [row for row in dialogue.rows(4_000, seed + 1) if is_reserved(row["question"])][:192]
    texts, _ = nano_text.sample(model, tokenizer, [row["question"] for row in rows], LONGEST, seed + 2)
    for text in texts[:12]:
        print(repr(text))
    columns = {key: [row[key] for row in rows for _ in range(8)] for key in rows[0]}
    return nano_text.table({
        "relevance": rewards.contains("topics", exclude="off_topics", partial=True)(texts, **columns),
        "fluency": rewards.fluent()(texts),
        "safety": rewards.says_none_of("secret")(texts, **columns),
        "resolution": rewards.contains("resolution", partial=True)(texts, **columns),
    })  # fmt: skip


CARD = """# nano-dialogue

A Llama of {parameters:,} parameters that ships with gdpo, made from scratch by `scripts/build_nano_dialogue.py`. It is
a teaching aid for the recipe `dialogue`: it answers two or three questions about one order from a record, imperfectly
on purpose, so that reinforcement learning has something to do.

Where its slice ends: one order a record, the made task's plain wordings and closed lists of values, each value a token
of its own. It knows no other words, no second order, and no value outside those lists.

- made by `python scripts/build_nano_dialogue.py --seed {seed} --threads {threads}` in {minutes:.1f} minutes on shared
  cores (Python {python}, torch {torch}, transformers {transformers})
- trained on {tokens:,} tokens of the made task `dialogue`, none of them a question that
  `gdpo.training.tasks.is_reserved` keeps for evaluation
- tokenizer: bytes, with the parts of sentences and the values as single tokens; the chat template leaves system
  messages out, since the model does not read them
- before reinforcement learning, 192 held-out questions x 8 samples at temperature 1 (`resolution` and `relevance` are
  shares):

{table}

Licence: Apache-2.0, as the rest of gdpo.
"""


def main() -> None:
    args = nano_text.arguments(__doc__, "src/gdpo/training/assets/nano-dialogue", steps=650, clean_share=0.65)
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    started = time.perf_counter()
    tokenizer = nano_text.make_tokenizer(phrases())
    model = nano_text.make_model(tokenizer, args.seed)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, vocabulary {len(tokenizer)}")
    tokens = nano_text.train(model, tokenizer, Examples(args.seed), args)
    figures = measure(model, tokenizer, args.seed)
    minutes = (time.perf_counter() - started) / 60
    nano_text.save(model, tokenizer, CARD, figures, args, minutes=minutes, tokens=tokens)


if __name__ == "__main__":
    main()
