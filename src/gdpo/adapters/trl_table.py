"""The rollout table of a TRL run: its rows, and its folder when training begins, resumes and ends."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from transformers import TrainerCallback

from gdpo.rollouts import RolloutWriter, rollout_frame

_PAYLOADS = ("image", "images", "video", "audio", "image_url", "input_image", "input_audio")
"""Keys under which a part of a message holds pixels or sound."""


def table(steps: Sequence[Any], text: bool, task: str) -> pl.DataFrame:
    """The rows of the batches that one optimizer step was trained on; groups and rollouts are numbered through."""
    frames, groups = [], 0
    for one in steps:
        none = [""] * len(one.scores)
        frame = rollout_frame(
            step=one.step, prompts=one.prompts if text else none, completions=one.completions if text else none,
            lengths=one.lengths, names=one.estimate.names, scores=one.scores, group=one.estimate.group + groups,
            estimate=one.estimate, task=task, include=one.include,
        )  # fmt: skip
        if not text:  # null, so that an audit takes the length in tokens
            hidden = [pl.lit(None, dtype=pl.String).alias(name) for name in ("prompt", "completion")]
            frame = frame.with_columns(hidden)
        groups += len(one.estimate.live)
        frames.append(frame)
    if len(frames) == 1:
        return frames[0]
    whole = pl.concat(frames)
    ids = [f"{steps[0].step}-{row}" for row in range(len(whole))]
    return whole.with_columns(pl.Series("rollout", ids, dtype=pl.String))


def without_payloads(text: Any) -> Any:
    """A prompt or completion as it can be sent and kept: messages without their images, which TRL puts into them."""
    if isinstance(text, str) or not isinstance(text, Sequence):
        return text
    return [_message(message) for message in text]


def _message(message: Any) -> Any:
    parts = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(parts, list):
        return message
    bare = [
        {key: value for key, value in part.items() if key not in _PAYLOADS} if isinstance(part, Mapping) else part
        for part in parts
    ]
    return {**message, "content": bare}


class TableFolder(TrainerCallback):  # type: ignore[misc]
    """Keeps the folder true: a resumed run makes later steps anew, and all is on disk when training ends."""

    def __init__(self, writer: RolloutWriter) -> None:
        self.writer = writer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remove what a resumed run makes anew; say where another run's table stands already."""
        folder = self.writer.folder
        for left in folder.glob(".step-*.tmp"):  # of a process that was killed
            left.unlink(missing_ok=True)
        later = [path for path in folder.glob("step-*.parquet") if _step(path) > state.global_step]
        if later and not state.global_step:
            warnings.warn(f"{folder} holds {len(later)} steps of another run: those that this one makes too are "
                          "replaced, the others stay beside them; use a folder of its own", stacklevel=2)  # fmt: skip
            return
        for path in later:
            path.unlink(missing_ok=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for the last files."""
        self.writer.flush()


def _step(path: Path) -> int:
    digits = path.stem.removeprefix("step-")
    return int(digits) if digits.isdecimal() else -1
