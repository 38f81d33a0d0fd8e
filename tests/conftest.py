"""What the tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A folder with a Llama of 80 thousand random parameters and a tokenizer of characters."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("models") / "tiny"
    characters = [chr(code) for code in range(32, 127)] + ["\n"]
    vocabulary = {token: k for k, token in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )
    fast.chat_template = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trainer(tiny_model, tmp_path_factory):
    import datasets
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(
        str(tmp_path_factory.mktemp("trl")), use_cpu=True, num_generations=4, per_device_train_batch_size=8,
        max_completion_length=4, report_to="none", gradient_checkpointing=False,
    )  # fmt: skip
    rewards = [lambda completions, **columns: [0.0] * len(completions)] * 2
    return GRPOTrainer(str(tiny_model), rewards, args, datasets.Dataset.from_dict({"prompt": ["a", "b"]}))
