"""Settings of data and adapters, as a recipe writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gdpo.core.errors import Error

_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv", ".gz", ".zst", ".ndjson")


class DataSettings(BaseModel):
    """Where questions come from, and how one becomes a prompt."""

    model_config = ConfigDict(extra="forbid")
    source: Literal["reasoning_gym", "made", "file", "hub"] = "reasoning_gym"
    name: str | None = Field(
        None, description="the reasoning-gym task, the task made on the spot, or the hub's data set"
    )
    parameters: dict[str, Any] = Field(default_factory=dict, description="of the task")
    size: int = Field(5000, ge=2, description="questions made")
    path: str | None = Field(None, description="a JSONL, JSON, Parquet or CSV file")
    subset: str | None = Field(None, description="configuration of the hub's data set")
    split: str = Field("train", description="split of the hub's data set")
    held_out_path: str | None = Field(None, description="a file to evaluate on, instead of a part of the data")
    question_field: str | None = Field(None, description="column with the question; recognised where not given")
    answer_field: str | None = Field(None, description="column with the answer; recognised where not given")
    system: str | None = Field(None, description="system message before every question")
    template: str = Field("{question}", description="the user message; {question} stands for the question")
    label: str = Field("", description="task label in the rollout table")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return cls.from_text(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _complete(self) -> DataSettings:
        if self.source == "file" and not self.path:
            raise ValueError("a path (data.path) beside source: file")
        if self.source != "file" and not self.name:
            raise ValueError(f"a name (data.name) beside source: {self.source}")
        if "{question}" not in self.template:
            raise ValueError("{question} somewhere in template")
        return self

    @staticmethod
    def from_text(text: str) -> dict[str, Any]:
        """``data=PATH`` or ``data=NAME``: a file, or a data set of the hub (or a folder laid out like one)."""
        path = Path(text)
        if path.suffix.lower() in _SUFFIXES or path.is_file():
            return {"source": "file", "path": text, "label": path.name.partition(".")[0]}
        if path.is_dir() or (text.count("/") <= 1 and not text.startswith((".", "/", "~"))):
            return {"source": "hub", "name": text, "label": path.name}
        raise Error(f"data={text!r} is no file, folder or name of a data set")


class LoraSettings(BaseModel):
    """Low-rank adapters (peft)."""

    model_config = ConfigDict(extra="forbid")
    r: int = Field(16, ge=1)
    alpha: float | None = Field(None, gt=0, description="twice r where not given")
    dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: str | list[str] = "all-linear"

    @model_validator(mode="before")
    @classmethod
    def _from_rank(cls, value: Any) -> Any:
        return {"r": value} if isinstance(value, int) and not isinstance(value, bool) else value
