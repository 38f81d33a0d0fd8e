"""Models by name: ``nano`` and its kin from the package, ``smollm2-135m``, a local folder, or a hub id."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from gdpo.core.errors import Error
from gdpo.training.settings import LoraSettings

_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
"""For a tokenizer without a chat template: each message under its role, ended by the end token."""


def shipped() -> list[str]:
    """The models that ship with the package."""
    return sorted(entry.name for entry in (resources.files("gdpo.training") / "assets").iterdir() if entry.is_dir())


def resolve(name: str) -> str:
    """The folder or hub id that a model's name stands for; converts ``smollm2-135m`` where no hub answers.

    Raises:
        Error: a folder that does not exist or holds no model.
    """
    if name in shipped():
        return str(resources.files("gdpo.training") / "assets" / name)
    if name == "smollm2-135m":
        from gdpo.training import smollm2

        return smollm2.resolve()
    path = Path(name).expanduser()
    looks_local = name.startswith((".", "/", "~")) or name.count("/") != 1 or path.exists()
    if not looks_local:
        return name
    if not path.is_dir():
        raise Error(
            f"model {name!r} is no folder, and no name of a model "
            f"({', '.join(shipped())}, smollm2-135m, or a hub id like org/name)"
        )
    if not (path / "config.json").is_file():
        raise Error(f"model folder {path} has no config.json, so it holds no model")
    if not any(path.glob("*.safetensors")):
        raise Error(f"model folder {path} has no .safetensors weights; other formats are not read")
    if not any((path / file).is_file() for file in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise Error(
            f"model folder {path} has no tokenizer (tokenizer.json): save it there with tokenizer.save_pretrained"
        )
    return str(path)


def load(name: str, *, dtype: str = "float32") -> tuple[Any, Any]:
    """(model, tokenizer), ready for TRL: padding on the left, a pad token, a chat template.

    Args:
        name: ``nano``, ``smollm2-135m``, a local folder or a hub id.
        dtype: "float32", "bfloat16" or "auto" (as saved).

    Raises:
        Error: no such model, one without a tokenizer, or a hub that does not answer.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = resolve(name)
    wanted = dtype if dtype == "auto" else getattr(torch, dtype)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=wanted, use_safetensors=True)
    except Exception as error:  # transformers and the hub client raise many kinds
        reason = " ".join(str(error).split())[:200]
        raise Error(f"model {name!r} cannot be loaded: {reason}") from None
    if tokenizer.eos_token_id is None:
        raise Error(f"the tokenizer of model {name!r} has no end token, so no completion could end")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    if tokenizer.chat_template is None:
        tokenizer.chat_template = _TEMPLATE
    return model, tokenizer


def peft_config(settings: LoraSettings | None) -> Any:
    """peft's ``LoraConfig``, or None to train all weights."""
    if settings is None:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=settings.r, lora_alpha=settings.alpha or 2 * settings.r, lora_dropout=settings.dropout,
        target_modules=settings.target_modules, task_type="CAUSAL_LM",
    )  # fmt: skip
