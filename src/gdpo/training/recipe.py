"""A recipe: one YAML that says everything about a run, checked before anything is loaded."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.objective import Objective
from gdpo.training.settings import DataSettings, LoraSettings


class ObjectiveSettings(BaseModel):
    """The objective as a recipe writes it; ``Objective.from_config`` checks the rest."""

    model_config = ConfigDict(extra="forbid")
    method: str = "gdpo"
    options: dict[str, Any] = Field(default_factory=dict)
    levels: dict[str, Any] = Field(default_factory=dict)
    rewards: dict[str, dict[str, Any]]


class EvaluationSettings(BaseModel):
    """The held-out evaluation before and after training."""

    model_config = ConfigDict(extra="forbid")
    prompts: int = Field(256, ge=1, description="held-out prompts, never trained on")
    samples: int = Field(4, ge=1, description="completions sampled for each prompt")
    batch_size: int = Field(64, ge=1, description="completions generated at once")
    temperature: float = Field(1.0, gt=0, description="sampling temperature")
    all_of: list[str] = Field(default_factory=list, description="rewards that must all be at their best at once")


class Recipe(BaseModel):
    """A run. Fields that mean the same as TRL's ``GRPOConfig`` have its names; ``trainer`` takes any other of them."""

    model_config = ConfigDict(extra="forbid")
    recipe: str = Field(description="name of the recipe")
    description: str = ""
    model: str = Field(description="nano, smollm2-135m, a local folder or a hub id")
    lora: LoraSettings | None = Field(None, description="train low-rank adapters only: a rank, or a mapping")
    dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    data: DataSettings
    objective: ObjectiveSettings
    evaluation: EvaluationSettings = Field(default_factory=lambda: EvaluationSettings())
    seed: int = Field(0, ge=0)
    steps: int = Field(ge=1, description="optimizer steps (max_steps)")
    num_generations: int = Field(ge=2, description="rollouts of one prompt: the group")
    per_device_train_batch_size: int = Field(ge=1, description="rollouts in one backward pass")
    gradient_accumulation_steps: int = Field(1, ge=1)
    max_completion_length: int = Field(ge=1, description="tokens")
    temperature: float = Field(1.0, gt=0)
    learning_rate: float = Field(gt=0)
    lr_scheduler_type: str = "constant"
    warmup_steps: float = Field(0, ge=0)
    beta: float = Field(0.0, ge=0, description="weight of the KL term")
    max_grad_norm: float = Field(1.0, gt=0)
    save_steps: int = Field(25, ge=1, description="steps between checkpoints")
    report_to: str | list[str] = Field("none", description="tensorboard, trackio, wandb: passed to TRL")
    output_dir: str = Field("runs", description="folder that holds the run folders")
    name: str | None = Field(
        None, description="folder of this run; made from recipe, model, method and seed by default"
    )
    trainer: dict[str, Any] = Field(default_factory=dict, description="anything else of TRL's GRPOConfig")

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str | None) -> str | None:
        if name is not None and (not name.strip() or name in (".", "..") or re.search(r'[\x00-\x1f<>:"|?*\\/]', name)):
            raise ValueError("a folder name without separators was expected; output_dir says where it goes")
        return name

    @property
    def folder(self) -> Path:
        """Where the run goes."""
        model = Path(self.model).name or self.model
        method = self.objective.method.rpartition(":")[2]  # of file.py:name
        name = self.name or f"{self.recipe}-{model}-{method}-seed{self.seed}"
        return Path(self.output_dir) / name

    def build_objective(self) -> Objective:
        """The objective; raises ``Error`` on an unknown reward, method or option."""
        objective = Objective.from_config(self.objective.model_dump())
        for name in self.evaluation.all_of:
            if name not in objective.rewards:
                raise Error(f"evaluation.all_of names {name!r}, which is no reward{nearest(name, objective.names)}")
        return objective

    def to_yaml(self) -> str:
        """The resolved recipe, every field."""
        return str(yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=100))


def names() -> list[str]:
    """The recipes that ship with the package."""
    folder = resources.files("gdpo.training") / "recipes"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load(source: str, overrides: Sequence[str] | Mapping[str, Any] = ()) -> Recipe:
    """A recipe by name or from a YAML file, with ``key=value`` overrides.

    Keys are the recipe's own, dotted inside a section (``objective.rewards.format.weight=0.3``); short forms are
    ``method=``, ``weights.NAME=``, ``gates.NAME=``, ``data=PATH`` and ``lora=RANK``. Values are read as YAML.

    Raises:
        Error: an unknown recipe, key or value; the message names the nearest known one.
    """
    tree = _read(source)
    changes = dict(overrides) if isinstance(overrides, Mapping) else dict(parse_override(text) for text in overrides)
    changes = {_long_key(key): value for key, value in changes.items()}
    for_model = tree.pop("for_model", None) or {}
    model = str(changes.get("model", tree.get("model", "")))
    for key, value in _flatten(for_model.get(model, for_model.get("other", {}) if model != tree.get("model") else {})):
        _set(tree, key, value)
    for key, value in changes.items():
        _set(tree, key, value)
    recipe = _checked(tree)
    recipe.build_objective()
    return recipe


def from_run(folder: Path) -> Recipe:
    """The resolved recipe of a run folder."""
    return _checked(_mapping(folder / "recipe.yaml"))


def parse_override(text: str) -> tuple[str, Any]:
    """``key=value`` with the value read as YAML.

    Raises:
        Error: no ``=`` in it, or a value that is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise Error(f"{text!r} is not understood: key=value was expected, such as steps=20")
    try:
        parsed = yaml.safe_load(value) if value.strip() else ""
    except yaml.YAMLError:
        parsed = value
    # YAML 1.1 reads 1e-5 as text; whoever writes it means the number.
    if isinstance(parsed, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", parsed.strip()):
        parsed = float(parsed)
    return key.strip(), parsed


def _read(source: str) -> dict[str, Any]:
    if source in names():
        text = (resources.files("gdpo.training") / "recipes" / f"{source}.yaml").read_text(encoding="utf-8")
        tree = yaml.safe_load(text)
        assert isinstance(tree, dict)
        return tree
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        tree = _mapping(path)
        _beside(tree, path.parent)
        return tree
    raise Error(f"recipe {source!r} is unknown{nearest(source, names())}; a file ends in .yaml")


def _beside(tree: dict[str, Any], folder: Path) -> None:
    """A reward given as ``file.py:function`` is looked for beside the recipe that names it."""
    objective = tree.get("objective")
    rewards = objective.get("rewards") if isinstance(objective, dict) else None
    for entry in (rewards if isinstance(rewards, dict) else {}).values():
        spec = entry.get("reward") if isinstance(entry, dict) else None
        if isinstance(spec, str) and ".py:" in spec and not Path(spec).is_absolute():
            entry["reward"] = str(folder / spec)


def _mapping(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Error(f"recipe {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise Error(f"recipe {path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise Error(f"recipe {path} holds {type(tree).__name__}, but a mapping of keys was expected")
    return tree


def _long_key(key: str) -> str:
    """The full key of a short form."""
    head, _, rest = key.partition(".")
    short = {"method": "objective.method", "options": "objective.options"}
    if head in short:
        return short[head] + (f".{rest}" if rest else "")
    if head in ("weights", "gates") and rest:
        return f"objective.rewards.{rest}.{'weight' if head == 'weights' else 'given'}"
    return key


def _set(tree: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    node = tree
    for depth, parent in enumerate(parents):
        if parents[:2] == ["objective", "rewards"] and depth == 2 and parent not in node:
            raise Error(f"{key!r} names reward {parent!r}, which the recipe does not have{nearest(parent, node)}")
        if node.get(parent) is None:
            node[parent] = {}
        child = node[parent]
        if not isinstance(child, dict):
            raise Error(f"{key!r} goes into {parent!r}, which is {child!r} and has no keys")
        node = child
    if key == "data" and isinstance(value, str):
        # Another source keeps what the recipe says about prompts; only where the questions come from changes.
        old = tree.get("data")
        kept = {
            k: v for k, v in (old if isinstance(old, dict) else {}).items() if k in ("system", "template", "held_out")
        }
        value = {**kept, **DataSettings.from_text(value)}
    node[last] = copy.deepcopy(value)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat += _flatten(value, f"{prefix}{key}.")
        else:
            flat.append((f"{prefix}{key}", value))
    return flat


def _checked(tree: Mapping[str, Any]) -> Recipe:
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        raise Error(_explain(error)) from None


def _explain(error: ValidationError) -> str:
    """The first problem as one sentence; an unknown key with the nearest known one."""
    problems = error.errors(include_url=False)
    first = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    path = [str(part) for part in first["loc"]]
    where = ".".join(path)
    if first["type"] == "extra_forbidden":
        model: Any = Recipe
        for part in path[:-1]:
            model = _submodel(model, part)
        known = list(model.model_fields) if model else []
        extra = "; TRL's other settings go under trainer.KEY=" if model is Recipe else ""
        return f"the recipe has no key {where!r}{nearest(path[-1], known)}{extra}"
    if first["type"] == "missing":
        return f"the recipe lacks {where!r}"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return f"{where} is {first['input']!r}, but {message} was expected"


def _submodel(model: Any, part: str) -> Any:
    """The settings class behind a field, looked up through unions; None where there is none."""
    if model is None or part not in getattr(model, "model_fields", {}):
        return None
    annotation = model.model_fields[part].annotation
    candidates = [annotation, *getattr(annotation, "__args__", ())]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
