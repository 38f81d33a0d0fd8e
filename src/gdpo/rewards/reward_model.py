"""A reward from a sequence classifier of transformers."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gdpo.core.errors import Error
from gdpo.rewards.base import RewardFunction, factory, model_text, reward
from gdpo.rewards.support import check_whole, prompt_text, rows_of

_CHARACTERS_A_TOKEN = 16
"""More characters than this a token are cut before the tokenizer sees them: a megabyte takes it seconds."""


@factory("reward_model")
def reward_model(
    name: str | Path,
    *,
    label: str | int | None = None,
    prompt: str | None = "prompts",
    batch_size: int = 8,
    max_length: int = 2048,
    device: str | None = None,
) -> RewardFunction:
    """What a sequence classifier gives prompt and completion; None where that is no finite number.

    The model is loaded on the first call. Prompt and completion go through the tokenizer's chat template where it has
    one, else they stand one after the other; special tokens that the completion spells out are broken up. Of a text
    that is too long, the end is kept.

    Args:
        name: a name on the hub, or a folder, for ``AutoModelForSequenceClassification``.
        label: None takes the one output of a reward model as it is; a label's name or number takes its probability,
            from 0 to 1 (softmax).
        prompt: the column with the prompts; None, or a column that is not there: the completion alone.
        batch_size: texts a forward pass.
        max_length: tokens a text at most.
        device: "cpu", "cuda:1" and so on; a GPU where there is one if None.

    Raises:
        Error: an option with a wrong value; when called: no transformers, a model that cannot be loaded or has no
            trained classifier, or a label it does not have.
    """
    if not isinstance(name, str | Path) or not str(name):
        raise Error(f"reward_model has name={name!r}, but a name on the hub or a folder was expected")
    if label is not None and (isinstance(label, bool) or not isinstance(label, str | int)):
        raise Error(f"reward_model has label={label!r}, but a label's name or number, or None was expected")
    check_whole("reward_model", "batch_size", batch_size)
    check_whole("reward_model", "max_length", max_length, least=8)
    classifier = _Classifier(str(name), label, batch_size, max_length, device)

    @reward(range=None if label is None else (0, 1), name="reward_model")
    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        prompts = rows_of(columns.get(prompt) if prompt else None, len(completions))
        return classifier.scores(prompts, completions)

    return score


class _Classifier:
    def __init__(self, name: str, label: str | int | None, batch_size: int, longest: int, device: str | None) -> None:
        self._name, self._label, self._batch_size, self._device = name, label, batch_size, device
        self._longest = longest
        self._lock = threading.Lock()
        self._model: Any = None
        self._tokenizer: Any = None
        self._index: int | None = None
        self._warned = False

    def scores(self, prompts: Sequence[Any], completions: Sequence[Any]) -> list[float | None]:
        """One number a completion."""
        if not len(completions):
            return []
        with self._lock:
            if self._model is None:
                self._load()
        rows = [self._ids(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))  # texts of like length: little padding
        scores: list[float | None] = [None] * len(rows)
        for start in range(0, len(order), self._batch_size):
            chosen = order[start : start + self._batch_size]
            for row, value in zip(chosen, self._forward([rows[row] for row in chosen]), strict=True):
                scores[row] = value if math.isfinite(value) else None
        failed = sum(score is None for score in scores)
        if failed and not self._warned:
            self._warned = True
            warnings.warn(f"{failed} completions have no finite score from {self._name} (said once)", stacklevel=4)
        return scores

    def _load(self) -> None:
        try:
            import torch
            from transformers import AutoModelForSequenceClassification, AutoTokenizer
        except ImportError as error:
            raise Error(f'reward_model needs torch and transformers ({error}): pip install "gdpo[train]"') from None
        try:
            tokenizer = AutoTokenizer.from_pretrained(self._name)
            model, loading = AutoModelForSequenceClassification.from_pretrained(self._name, output_loading_info=True)
            device = self._device or ("cuda" if torch.cuda.is_available() else "cpu")
            model = model.to(device).eval().requires_grad_(False)
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise Error(f"reward_model cannot load {self._name!r}: {type(error).__name__}: {reason}") from error
        if missing := sorted(loading.get("missing_keys", ())):
            raise Error(f"reward_model has {self._name!r}, which has no trained classifier: {missing[0]} is missing")
        self._index = _label_index(self._name, self._label, model.config)
        places = getattr(model.config, "max_position_embeddings", None)
        places = places - 2 if isinstance(places, int) and places > 2 else self._longest  # RoBERTa's begin at 2
        self._longest = min(self._longest, places, tokenizer.model_max_length)
        tokenizer.truncation_side = "left"
        self._tokenizer, self._model = tokenizer, model

    def _ids(self, prompt: Any, completion: Any) -> list[int]:
        """Tokens of prompt and completion, the end where they are too many, and never none."""
        said = _sendable(self._without_marks(model_text(completion)))[-self._longest * _CHARACTERS_A_TOKEN :]
        templated = self._templated(prompt, said) if self._tokenizer.chat_template else None
        if templated is not None:
            ids = self._tokenizer(templated, add_special_tokens=False, verbose=False)["input_ids"]
            kept = ids[:1] if ids[:1] == [self._tokenizer.bos_token_id] else []
            ids = ids if len(ids) <= self._longest else kept + ids[len(ids) - self._longest + len(kept) :]
        else:
            asked = _sendable(self._without_marks(prompt_text(prompt)))[-self._longest * _CHARACTERS_A_TOKEN :]
            text = f"{asked}\n{said}" if asked else said
            ids = self._tokenizer(text, truncation=True, max_length=self._longest)["input_ids"]
        return list(ids) or [self._padding()]

    def _templated(self, prompt: Any, said: str) -> str | None:
        messages = [{"role": "assistant", "content": said}]
        if isinstance(prompt, str):
            messages.insert(0, {"role": "user", "content": _sendable(prompt)})
        elif isinstance(prompt, Sequence):
            messages[:0] = [
                {**message, "content": _sendable(model_text([{"content": message.get("content")}]))}
                for message in prompt
                if isinstance(message, dict)
            ]
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False))
        except Exception:  # a template may refuse roles or their order; the plain text then does
            return None

    def _without_marks(self, text: str) -> str:
        """A completion that spells out special tokens would end its turn and speak as someone else."""
        for mark in self._tokenizer.all_special_tokens:
            if len(mark) > 1:
                text = text.replace(mark, f"{mark[0]} {mark[1:]}")
        return text

    def _padding(self) -> int:
        tokenizer, config = self._tokenizer, self._model.config
        known = (config.pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id)
        return next((token for token in known if isinstance(token, int) and token >= 0), 0)

    def _forward(self, rows: list[list[int]]) -> list[float]:
        import torch

        padding = self._padding()
        self._model.config.pad_token_id = padding  # by it, a decoder finds each text's last token
        width = max(len(row) for row in rows)
        ids = torch.tensor([row + [padding] * (width - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        with torch.inference_mode():
            device = self._model.device
            logits = self._model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits.float()
        if self._index is None:
            return [float(value) for value in logits[:, 0].tolist()]
        return [float(value) for value in logits.softmax(-1)[:, self._index].tolist()]


def _label_index(name: str, label: str | int | None, config: Any) -> int | None:
    count, names = config.num_labels, {index: str(text) for index, text in config.id2label.items()}
    if label is None:
        if count != 1:
            raise Error(
                f"reward_model has {name!r} with {count} labels {sorted(names.values())}; label=NAME chooses one"
            )
        return None
    if count == 1:
        raise Error(f"reward_model has label={label!r}, but {name!r} has one output only; label=None takes it")
    found = [index for index, text in names.items() if label in (index, text)]
    if not found:
        raise Error(f"reward_model has label={label!r}, but {name!r} has {sorted(names.values())}")
    return int(found[0])


def _sendable(text: str) -> str:
    """Half characters, which tokenizers refuse, as question marks."""
    return text.encode("utf-8", "replace").decode()
