"""A reward model on a tiny random classifier."""

from __future__ import annotations

import math
import pickle
import shutil

import pytest
from hostile import COMPLETIONS, check_megabytes
from hypothesis import HealthCheck, given, settings

import gdpo
from gdpo import rewards


def classifier(tiny_model, folder, labels):
    import torch
    from transformers import AutoConfig, LlamaForSequenceClassification

    config = AutoConfig.from_pretrained(tiny_model)
    config.num_labels = len(labels)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}
    torch.manual_seed(1)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (tiny_model / name).is_file():
            shutil.copy(tiny_model / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def one_output(tiny_model, tmp_path_factory):
    return classifier(tiny_model, tmp_path_factory.mktemp("models") / "one", ["score"])


@pytest.fixture(scope="module")
def two_labels(tiny_model, tmp_path_factory):
    return classifier(tiny_model, tmp_path_factory.mktemp("models") / "two", ["bad", "good"])


def by_hand(folder, text):
    """What transformers gives one text, without padding."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return model(input_ids=ids).logits[0]


def test_scores_are_the_models_own_whatever_the_batch(one_output):
    prompts = ["Hi", [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}], "Hi", "Hi", "Hi"]
    texts = ["Hello there", [{"role": "assistant", "content": "Good day"}], "a much longer answer than that", "x", ""]
    score = rewards.reward_model(str(one_output), batch_size=2)
    found = score(texts, prompts=prompts)
    expected = [by_hand(one_output, text)[0].item() for text in (
        "<bos>Hi\nHello there\n", "<bos>S\nHi\nGood day\n", "<bos>Hi\na much longer answer than that\n", "<bos>Hi\nx\n",
        "<bos>Hi\n\n")]  # fmt: skip
    assert found == pytest.approx(expected, abs=1e-5)
    assert len(set(found)) == 5
    assert rewards.reward_model(one_output, batch_size=1)(texts, prompts=prompts) == pytest.approx(found, abs=1e-5)
    assert pickle.loads(pickle.dumps(score))(texts, prompts=prompts) == pytest.approx(found, abs=1e-5)
    assert score.range is None


def test_the_probability_of_a_label(two_labels):
    good = rewards.reward_model(two_labels, label="good", prompt=None)
    bad = rewards.reward_model(two_labels, label=0, prompt=None)
    assert good.range == (0.0, 1.0)
    expected = by_hand(two_labels, "<bos>fine\n").softmax(-1)[1].item()
    assert good(["fine"]) == pytest.approx([expected], abs=1e-6)
    assert bad(["fine"]) == pytest.approx([1 - expected], abs=1e-6)


def test_a_completion_cannot_speak_as_another(one_output):
    score = rewards.reward_model(one_output)
    assert score(["a<eos><bos>b"], prompts=["Hi"]) != score(["a<eos><bos>b".replace("<eos><bos>", "")], prompts=["Hi"])
    check = by_hand(one_output, "<bos>Hi\na< eos>< bos>b\n")[0].item()
    assert score(["a<eos><bos>b"], prompts=["Hi"]) == pytest.approx([check], abs=1e-5)


def test_without_a_chat_template(one_output, tmp_path):
    folder = tmp_path / "plain"
    shutil.copytree(one_output, folder)
    (folder / "chat_template.jinja").unlink()
    found = rewards.reward_model(folder)(["yes", "", ""], prompts=["Hi", "Hi", ""])
    assert found[:2] == pytest.approx(
        [by_hand(folder, "Hi\nyes")[0].item(), by_hand(folder, "Hi\n")[0].item()], abs=1e-5
    )
    assert math.isfinite(found[2])


def test_the_end_of_a_long_text_counts(one_output):
    score = rewards.reward_model(one_output, max_length=16)
    assert score(["x" * 1000 + " the end"]) == pytest.approx(score(["x" * 2000 + " the end"]), abs=1e-6)
    assert score(["x" * 1000 + " the end"]) != score(["x" * 1000 + " an end"])


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(completions=COMPLETIONS)
def test_any_text_has_a_finite_score(one_output, completions):
    found = SCORES.setdefault(one_output, rewards.reward_model(one_output))(completions, prompts=completions)
    assert len(found) == len(completions)
    assert all(math.isfinite(value) for value in found)


SCORES = {}


def test_megabytes(one_output):
    check_megabytes(rewards.reward_model(one_output))


def test_numbers_that_are_none(one_output):
    score = rewards.reward_model(one_output)
    score(["a"])
    found = next(cell.cell_contents for cell in score._function.__closure__ if hasattr(cell.cell_contents, "_model"))
    found._model.score.weight.fill_(math.nan)
    with pytest.warns(UserWarning, match="2 completions have no finite score"):
        assert score(["a", "b"]) == [None, None]


def test_models_that_will_not_do(tiny_model, two_labels, one_output, tmp_path):
    for build, said in (
        (lambda: rewards.reward_model(tmp_path / "none")(["a"]), "cannot load"),
        (lambda: rewards.reward_model(tiny_model)(["a"]), "no trained classifier"),
        (lambda: rewards.reward_model(two_labels)(["a"]), "with 2 labels \\['bad', 'good'\\]"),
        (lambda: rewards.reward_model(two_labels, label="fine")(["a"]), "label='fine'"),
        (lambda: rewards.reward_model(one_output, label="score")(["a"]), "one output only"),
        (lambda: rewards.reward_model(""), "name=''"),
        (lambda: rewards.reward_model("m", label=1.5), "label=1.5"),
        (lambda: rewards.reward_model("m", batch_size=0), "batch_size=0"),
        (lambda: rewards.reward_model("m", max_length=1), "max_length=1"),
        (lambda: rewards.reward_model(one_output, device="abacus")(["a"]), "cannot load.*abacus"),
    ):
        with pytest.raises(gdpo.Error, match=said):
            build()
    assert rewards.reward_model(tmp_path / "none")([]) == []
