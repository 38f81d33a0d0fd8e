"""Vision-language inputs: a LLaVA of random weights, images in a column, and what is kept of them."""

from __future__ import annotations

import datasets
import numpy as np
import polars as pl
import pytest
import torch
import transformers
import trl
from test_trl import config

import gdpo
from gdpo import Objective, Reward
from gdpo.adapters.trl_table import without_payloads
from gdpo.trl import GDPOTrainer

PIL = pytest.importorskip("PIL.Image")
needs_vision = pytest.mark.skipif(
    "get_eval_dataloader" not in vars(trl.GRPOTrainer), reason="this TRL and its transformers make LLaVA otherwise"
)

TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}"
)


@pytest.fixture(scope="module")
def seeing(tiny_model):
    """(model, processor): four image tokens an image of 28 x 28."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.padding_side = "left"
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    processor = transformers.LlavaProcessor(
        images, tokenizer, patch_size=14, vision_feature_select_strategy="default", chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )  # fmt: skip
    token = tokenizer.convert_tokens_to_ids("<image>")
    text = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=28, patch_size=14,
        projection_dim=32,
    )  # fmt: skip
    torch.manual_seed(0)
    settings = transformers.LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=token, pad_token_id=0, eos_token_id=2
    )
    return transformers.LlavaForConditionalGeneration(settings), processor


def rows(column):
    """Four prompts, each with an image, in TRL's column ``image`` or ``images``."""
    pictures = [PIL.new("RGB", (28, 28), colour) for colour in ("red", "blue", "green", "white")]
    prompts = [[{"role": "user", "content": text}] for text in ("what colour", "which one", "is it", "a")]
    values = pictures if column == "image" else [[picture] for picture in pictures]
    return datasets.Dataset.from_list(
        [{"prompt": prompt, column: value} for prompt, value in zip(prompts, values, strict=True)]
    )


def long(completions, **columns):
    return [float(len(one[0]["content"])) for one in completions]


def seen(completions, **columns):
    """Gets the images, as a reward of TRL does."""
    (pictures,) = (columns[name] for name in ("image", "images") if name in columns)
    assert len(pictures) == len(completions)
    return [None if row % 5 == 0 else float(row % 3) for row in range(len(completions))]


@needs_vision
@pytest.mark.parametrize("column", ["image", "images"])
def test_images_in_a_column(seeing, tmp_path, column):
    model, processor = seeing
    objective = Objective(long=long, seen=Reward(seen, weight=0.5, given="long >= 3"))
    steps = []
    trainer = GDPOTrainer(
        model, args=config(tmp_path, num_generations=4, max_completion_length=6), train_dataset=rows(column),
        processing_class=processor, objective=objective, rollouts_folder=tmp_path / "rollouts", on_step=steps.append,
        exclude_truncated=True,
    )  # fmt: skip
    outputs, real = [], trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: outputs.append(real(inputs)) or outputs[-1]
    trainer.train()
    assert trainer.state.global_step == 2
    for step, output in zip(steps, outputs, strict=True):
        assert "pixel_values" in output  # the loss saw the images
        include = np.array(step.lengths) < 6
        again = objective.advantages(step.scores, 4, include=include).advantages
        np.testing.assert_allclose(output["advantages"], again, atol=1e-6)
        assert step.prompts[0][0]["content"] == [{"type": "image"}, {"type": "text", "text": step_text(step)}]
    frame = pl.read_parquet(tmp_path / "rollouts" / "step-000001.parquet")
    assert '[{"type": "image"}, {"type": "text"' in frame["prompt"][0]
    assert "PIL" not in frame["prompt"][0]
    assert gdpo.audit(tmp_path / "rollouts").summary.group_sizes == {4: 8}


def step_text(step):
    return step.prompts[0][0]["content"][1]["text"]


@needs_vision
def test_dynamic_sampling_of_images_is_refused_by_name(seeing, tmp_path):
    """Groups of images cannot be joined; it is said at the start, or before anything is trained on."""
    model, processor = seeing

    def rare(completions, **columns):
        return [1.0] * len(completions)

    arguments = (model, [rare], config(tmp_path, num_generations=4, max_completion_length=6))
    with pytest.raises(gdpo.Error, match="the training data has the column 'image': set resample=None"):
        GDPOTrainer(*arguments, rows("image"), processing_class=processor, resample="combined")
    # Images that stand in the messages show only once they are generated from.
    trainer = GDPOTrainer(*arguments, rows("image"), processing_class=processor)
    trainer._gdpo_resample = "combined"
    with pytest.raises(gdpo.Error, match="images are not supported"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_payloads_leave_and_the_rest_stays():
    picture = object()
    message = {"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": "a"}]}
    assert without_payloads([message]) == [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "a"}]}
    ]
    assert message["content"][0]["image"] is picture
    for same in ("text", None, [{"role": "user", "content": "text"}], [{"role": "assistant", "tool_calls": []}]):
        assert without_payloads(same) == same
