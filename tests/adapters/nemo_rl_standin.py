"""NeMo-RL's contract in small, and the way to the real thing.

``standin()`` puts modules of NeMo-RL's names into ``sys.modules``: own code with the signatures that its callers use and
the arithmetic of 2026-08 that the tests show beside ours. ``real(path)`` imports those modules from a checkout instead;
what this environment lacks of their imports is stubbed and named.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
import typing
from types import SimpleNamespace

import torch
import typing_extensions

STUBS = ("ray", "wandb", "swanlab", "mlflow", "prometheus_client", "hydra", "nemo_rl.models.policy")
"""Stubbed where they are not installed. nemo_rl.models.policy always: it refuses transformers from 5.12 on, and only
the type of one annotation is used from it."""


LOOPS = ("torchdata", "nemo_rl.data.datasets", "nemo_rl.data_plane", "nemo_rl.environments", "nemo_rl.experience",
         "nemo_rl.models", "nemo_rl.weight_sync")  # fmt: skip
"""Stubbed too where its training loops are run: engines, environments and data sets."""


def real(path, loops=False):
    """(modules, stubbed): NeMo-RL's own code from a checkout, with ``loops`` so that its trainer can be imported."""
    sys.path.insert(0, str(path))
    stubs = STUBS + (LOOPS if loops else ())
    if sys.version_info < (3, 12):  # pydantic asks for this one; NeMo-RL itself runs on newer Python only
        typing.TypedDict = typing_extensions.TypedDict
    finder = _Finder([n for n in stubs if n.startswith("nemo_rl") or importlib.util.find_spec(n) is None])
    sys.meta_path.insert(0, finder)
    return _modules(), finder


def standin():
    """(modules, None): the stand-in; ``leave()`` takes it away again."""
    estimator = _module("nemo_rl.algorithms.advantage_estimator", GRPOAdvantageEstimator=GRPOAdvantageEstimator)
    estimator.GDPOAdvantageEstimator = type("GDPOAdvantageEstimator", (_BuiltIn,), {
        "__module__": estimator.__name__, "__init__": _in(estimator, _BuiltIn.__init__),
        "compute_advantage": _in(estimator, _BuiltIn.compute_advantage)})  # fmt: skip
    _module("nemo_rl.algorithms.utils", calculate_baseline_and_std_per_prompt=calculate_baseline_and_std_per_prompt)
    _module("nemo_rl.utils.logger", Logger=type("Logger", (Logger,), {}))
    _module("nemo_rl.utils.checkpoint", CheckpointManager=type("CheckpointManager", (CheckpointManager,), {}))
    # As NeMo-RL's trainer does: the class is imported by name before anything is installed.
    grpo = _module("nemo_rl.algorithms.grpo", GDPOAdvantageEstimator=estimator.GDPOAdvantageEstimator)
    grpo.create = lambda config: grpo.GDPOAdvantageEstimator(config, None)
    return _modules(), None


def leave(finder=None):
    """As it was before: no module of NeMo-RL's, and no stub."""
    if finder is not None:
        sys.meta_path.remove(finder)
    for name in [*sys.modules]:
        if name.split(".")[0] == "nemo_rl" or (finder is not None and name in finder.used):
            del sys.modules[name]


def _modules():
    names = {"estimator": "algorithms.advantage_estimator", "utils": "algorithms.utils", "logger": "utils.logger",
             "checkpoint": "utils.checkpoint"}  # fmt: skip
    return SimpleNamespace(**{key: importlib.import_module(f"nemo_rl.{name}") for key, name in names.items()})


def _module(name, **content):
    parts = name.split(".")
    for k in range(1, len(parts) + 1):
        part = ".".join(parts[:k])
        if part not in sys.modules:
            sys.modules[part] = types.ModuleType(part)
            sys.modules[part].__path__ = []
    module = sys.modules[name]
    vars(module).update(content)
    return module


def _in(module, function):
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    copy.__module__ = module.__name__
    return copy


def config(**settings):
    """``grpo.adv_estimator`` as NeMo-RL hands it over: an object with its defaults, further keys kept."""
    defaults = {"name": "gdpo", "normalize_rewards": True, "use_leave_one_out_baseline": True, "reward_weights": None,
                "minus_baseline": True}  # fmt: skip
    module = sys.modules.get("nemo_rl.algorithms.advantage_estimator")
    return getattr(module, "AdvEstimatorConfig", SimpleNamespace)(**{**defaults, **settings})


def calculate_baseline_and_std_per_prompt(prompts, rewards, valid_mask, leave_one_out_baseline=True):
    baseline, std = torch.zeros_like(rewards), torch.zeros_like(rewards)
    for prompt in torch.unique(prompts, dim=0):
        rows = (prompts == prompt).all(1).nonzero()[:, 0]
        values = rewards[rows]
        others = torch.ones(len(rows), len(rows))
        others = others - torch.eye(len(rows)) if leave_one_out_baseline else others
        count = len(rows) - int(leave_one_out_baseline)
        mean, square = others @ values / count, others @ values.square() / count
        baseline[rows] = mean
        std[rows] = ((square - mean.square()) * (count / (count - 1))).sqrt().nan_to_num(0)
    return baseline, std


class GRPOAdvantageEstimator:
    def __init__(self, estimator_config, loss_config):
        pass


class _BuiltIn:
    def __init__(self, estimator_config, loss_config):
        self.leave_one_out = estimator_config.use_leave_one_out_baseline
        self.weights = estimator_config.reward_weights

    def compute_advantage(self, prompt_ids, rewards, mask, repeated_batch, **kwargs):
        total = 0
        keys = sorted(key for key in repeated_batch if key.startswith("reward/"))
        if self.weights is not None and len(self.weights) != len(keys):
            raise ValueError(f"reward_weights has {len(self.weights)} entries, the batch {len(keys)} components")
        for key in keys:
            values = repeated_batch[key]
            mean, std = calculate_baseline_and_std_per_prompt(
                prompt_ids, values, torch.ones_like(values), self.leave_one_out
            )
            total = total + torch.where(std > 0, (values - mean) / (std + 1e-6), values - mean)
        return ((total - total.mean()) / total.std())[:, None].expand(mask.shape)


class Logger:
    def __init__(self, cfg):
        self.base_log_dir = cfg["log_dir"]
        os.makedirs(self.base_log_dir, exist_ok=True)
        self.loggers = []

    def log_metrics(self, metrics, step, prefix="", step_metric=None, step_finished=False):
        for logger in self.loggers:
            logger.log_metrics(metrics, step, prefix, step_metric, step_finished)

    def log_batched_dict_as_jsonl(self, to_log, filename):
        rows = len(next(iter(to_log.values())))
        with open(os.path.join(self.base_log_dir, filename), "w") as file:
            for row in range(rows):
                file.write(json.dumps({**{key: [to_log[key][row]] for key in to_log}, "idx": row}) + "\n")


class CheckpointManager:
    def __init__(self, config):
        self.folder = config["checkpoint_dir"]

    def init_tmp_checkpoint(self, step, training_info, run_config=None):
        path = os.path.join(self.folder, f"tmp_step_{step}")
        os.makedirs(path)
        with open(os.path.join(path, "training_info.json"), "w") as file:
            json.dump(dict(training_info), file)
        return path

    def finalize_checkpoint(self, checkpoint_path):
        os.rename(checkpoint_path, str(checkpoint_path).replace("tmp_step_", "step_"))

    def get_latest_checkpoint_path(self):
        found = [name for name in os.listdir(self.folder) if name.startswith("step_")]
        return os.path.join(self.folder, max(found, key=lambda name: int(name[5:]))) if found else None

    def load_training_info(self, checkpoint_path=None):
        if checkpoint_path is None:
            return None
        with open(os.path.join(checkpoint_path, "training_info.json")) as file:
            return json.load(file)


class _Anything:
    """Stands for whatever a stubbed module holds: a base class, a decorator, an annotation."""

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, key):
        return self

    def __or__(self, other):
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases):
        return ()

    def __get_pydantic_core_schema__(self, source, handler):
        from pydantic_core import core_schema

        return core_schema.any_schema()


class _Stub(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names):
        self.names, self.used = names, []

    def find_spec(self, name, path=None, target=None):
        if not any(name == stub or name.startswith(f"{stub}.") for stub in self.names):
            return None
        self.used.append(name)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = _Stub(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass
