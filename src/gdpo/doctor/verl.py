"""``gdpo doctor verl [CONFIG]``: is gdpo loaded, in the driver and in a Ray worker, and does the config ask for it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gdpo.adapters.verl_config import Settings
from gdpo.core.errors import Error
from gdpo.doctor.advice import what_stays
from gdpo.doctor.base import Check, State, not_installed
from gdpo.doctor.settings import at, interpolated, mapping, parse, read_text, resolve, unknown, whole
from gdpo.doctor.verl_probe import MARK, PLUGIN
from gdpo.weights import Progress

WHAT = "verl 0.9: plug-in loaded in the driver and in a Ray worker, hooks of both trainers, algorithm.gdpo in CONFIG"
SUPPORTED = "verl>=0.9.1,<0.10"
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::?-([^{}]*))?\}|\$([A-Za-z_]\w*)")
INSTALL = "install gdpo in this environment (pip install gdpo), or set VERL_USE_EXTERNAL_MODULES=" + PLUGIN


def recognises(text: str) -> bool:
    """Whether a config is verl's: YAML with its sections, or a script that launches it."""
    return "verl.trainer" in text or bool(re.search(r"actor_rollout_ref|algorithm[.:][\s{]*(adv_estimator|gdpo)", text))


def check(path: Path | None, workers: bool, strict: bool = True) -> Iterator[Check]:
    """The config, then the environment: what a run in it would load."""
    config = None if path is None else resolve(read_config(path))
    kind = "v1" if config is None or at(config, "trainer.use_v1") in (None, True) else "legacy"
    if config is not None:
        yield from check_config(config, kind)
    note = None if strict else not_installed("verl", "verl")
    if note is not None:
        yield note
        return
    driver = _probe()
    yield from check_driver(driver, kind if config is not None else None)
    if workers and "error" not in driver:
        yield from check_worker(_probe("--worker"), driver)


def check_config(config: Mapping[str, Any], kind: str) -> Iterator[Check]:
    """What the config asks for, and what has to change in it."""
    for section in ("algorithm", "trainer", "data", "actor_rollout_ref.rollout", "algorithm.filter_groups"):
        at(config, f"{section}.any")  # a section that is no mapping is an error
    size = whole(config, "actor_rollout_ref.rollout.n")
    if at(config, "algorithm.gdpo") is None:
        yield from _without_block(config, kind, size)
    else:
        yield from _with_block(config, kind)
    yield from _around(config, size)


def _with_block(config: Mapping[str, Any], kind: str) -> Iterator[Check]:
    try:
        settings = Settings.from_config(config)
    except Error as error:
        if unknown(at(config, "algorithm.gdpo")):
            yield Check("note", "config: algorithm.gdpo holds values known to the run only, so it was not checked")
        else:
            yield Check("wrong", f"config: {error}")
        return
    assert settings is not None
    weights = {name: round(schedule.value(Progress()), 6) for name, schedule in settings.objective.weights.items()}
    yield Check("ok", f"config: algorithm.gdpo asks for {settings.objective.method!r} of the rewards {weights} on the "
                f"{kind} trainer")  # fmt: skip
    if settings.kl != "off":
        says = "enters as the reward 'kl'" if settings.kl == "reward" else "is left out of the advantages"
        yield Check("note", f"config: use_kl_in_reward: the penalty {says} (algorithm.gdpo.kl)")
    if at(config, "algorithm.filter_groups.enable"):
        if kind == "legacy":
            yield Check("note", "config: filter_groups is not used by the legacy trainer")
        else:
            kept = "the combined advantage" if settings.filter == "combined" else repr(settings.filter)
            yield Check("ok", f"config: filter_groups keeps groups in which {kept} varies (algorithm.gdpo.filter)")
    if settings.rollouts_folder is not None:
        yield Check("ok", f"config: the rollout table goes to {settings.rollouts_folder}")


def _without_block(config: Mapping[str, Any], kind: str, size: int | None) -> Iterator[Check]:
    chosen = at(config, "algorithm.adv_estimator") or "gae"
    known, given = at(config, "algorithm.gdpo_reward_keys"), at(config, "algorithm.gdpo_reward_weights")
    listed = isinstance(known, list) and bool(known)
    names = ",".join(map(str, known)) if listed else "NAMES"
    lines = f"algorithm.adv_estimator=gdpo '+algorithm.gdpo.rewards=[{names}]'"
    if listed and isinstance(given, list):
        if len(given) != len(known):
            yield Check("wrong", f"config: {len(given)} gdpo_reward_weights for {len(known)} gdpo_reward_keys: verl "
                        "0.9 stops with an IndexError where there are too few and drops the last without a word where "
                        "there are too many (verl-project/verl pull request 7965)")  # fmt: skip
        pairs = ", ".join(f"{name}: {weight}" for name, weight in zip(known, given, strict=False))
        lines += f" '+algorithm.gdpo.weights={{{pairs}}}'"
    lines += "\n(NAMES as compute_score returns them)" if not listed else "\nand remove algorithm.gdpo_reward_*"
    if chosen != "gdpo":
        said = f"config: adv_estimator is {chosen!r} and there is no algorithm.gdpo: this run does not ask for gdpo."
        yield Check("note", f"{said} To change over (only the advantages change):", lines)
    else:
        said = "config: adv_estimator is 'gdpo' without algorithm.gdpo: that is verl's own gdpo"
        wrong = ", whose advantages ties, missing rewards and response length change; set"
        if kind == "v1":
            wrong = (", which stops on the v1 trainer with KeyError 'prompts' (verl's own page, docs/algo/gdpo.md, "
                     "names RayPPOTrainer, trainer.use_v1=False, as its supported path); set")  # fmt: skip
        yield Check("wrong", said + wrong, lines)
    if at(config, "algorithm.norm_adv_by_std_in_grpo") is False:
        yield Check("note", "config: norm_adv_by_std_in_grpo=False (Dr. GRPO) is not read by gdpo: it is a method",
                    "+algorithm.gdpo.method=grpo_no_std  # or the default, gdpo")  # fmt: skip
    prompts = whole(config, "data.train_batch_size")
    yield what_stays(prompts, size)


def _around(config: Mapping[str, Any], size: int | None) -> Iterator[Check]:
    """Settings outside the block that it depends on."""
    if size is not None and size < 2:
        yield Check("wrong", f"config: actor_rollout_ref.rollout.n is {size}: a group of one has advantage 0 (verl's "
                    "own estimators let its raw reward through)", "actor_rollout_ref.rollout.n=8")  # fmt: skip
    elif at(config, "actor_rollout_ref") is not None and at(config, "actor_rollout_ref.rollout.n") is None:
        yield Check("note", "config: actor_rollout_ref.rollout.n is not set here; verl's default is 1, a group of one, "
                    "which has advantage 0", "actor_rollout_ref.rollout.n=8")  # fmt: skip
    parents = config.get("defaults")
    if parents:
        listed = [str(p) for p in parents if p != "_self_"] if isinstance(parents, list) else [str(parents)]
        there = "pkg://verl.trainer.config" in str(at(config, "hydra.searchpath"))
        yield Check(
            "note", f"config: what it inherits from {', '.join(listed)} is not read here",
            "" if there else "hydra: {searchpath: [pkg://verl.trainer.config]}  # where Hydra looks for verl's own, "
            "outside verl's folder",
        )  # fmt: skip
    for entry in interpolated(
        config, "algorithm.adv_estimator", "actor_rollout_ref.rollout.n", "data.train_batch_size"
    ):
        yield Check("note", f"config: {entry} is known to the run only, so it was not checked")


def check_driver(found: Mapping[str, Any], kind: str | None) -> Iterator[Check]:
    """What ``import verl`` loads here; a hook of the trainer that the config does not use is a note."""
    if "error" in found:
        yield Check("wrong", f"verl cannot be imported: {found['error']}", f"pip install '{SUPPORTED}'")
        return
    verl, gdpo = found["verl"], found.get("gdpo", "?")
    if not re.match(r"0\.9(\.|$)", verl):
        said = f"verl is {verl}, but gdpo's hooks were written for {SUPPORTED}"
        yield Check("wrong" if _older(verl) else "note", said, f"pip install '{SUPPORTED}'")
    if not found["loaded"]:
        yield _not_loaded(found, "driver")
        return
    yield Check("ok", f"driver: gdpo {gdpo} is loaded by verl {verl} (Python {found['python']})")
    for trainer, hooks in found["trainers"].items():
        serious: State = "wrong" if kind in (None, trainer) else "note"
        if hooks.get("error"):
            yield Check(serious, f"{trainer} trainer: {hooks['error']}", f"pip install '{SUPPORTED}'")
        for what, other in hooks.get("taken", {}).items():
            yield Check(serious, f"{trainer} trainer: {what} is taken by another plug-in, {other!r}",
                        "remove it, or set VERL_USE_EXTERNAL_PLUGINS=gdpo")  # fmt: skip
        if not hooks.get("error") and not hooks.get("taken"):
            yield Check("ok", f"{trainer} trainer: gdpo's hooks are in")


def check_worker(found: Mapping[str, Any], driver: Mapping[str, Any]) -> Iterator[Check]:
    """The same in a Ray worker, where the trainer itself runs."""
    if "error" in found:
        yield Check("wrong", f"Ray worker: {found['error']}", "install verl and gdpo on every node of the cluster")
    elif not found["loaded"]:
        yield _not_loaded(found, "Ray worker")
    elif (found["verl"], found.get("gdpo")) != (driver["verl"], driver.get("gdpo")):
        yield Check("wrong", f"Ray worker: gdpo {found.get('gdpo')} and verl {found['verl']}, other than in the driver",
                    "install the same versions on every node")  # fmt: skip
    else:
        yield Check("ok", f"Ray worker: gdpo {found['gdpo']} is loaded by verl {found['verl']}")


def _not_loaded(found: Mapping[str, Any], where: str) -> Check:
    listed = PLUGIN in found.get("plugins", {}).values()
    policy = found.get("policy", "auto")
    if "gdpo_error" in found:
        return Check("wrong", f"{where}: gdpo is not loaded: {found['gdpo_error']}", INSTALL)
    if not listed:
        return Check("wrong", f"{where}: gdpo is not loaded: its entry point in 'verl.plugins' is missing", INSTALL)
    if policy != "auto":
        return Check("wrong", f"{where}: gdpo is not loaded: VERL_USE_EXTERNAL_PLUGINS is {policy!r}",
                     "unset it, or add gdpo to it")  # fmt: skip
    return Check("wrong", f"{where}: gdpo is not loaded: verl {found.get('verl')} does not read 'verl.plugins'",
                 f"pip install '{SUPPORTED}', or set VERL_USE_EXTERNAL_MODULES={PLUGIN}")  # fmt: skip


def _older(version: str) -> bool:
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    return numbers < [0, 9]


def _probe(*flags: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "gdpo.doctor.verl_probe", *flags]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return {"error": "no answer within 300 s", "loaded": False}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(MARK):
            found: dict[str, Any] = json.loads(line.removeprefix(MARK))
            return found
    last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    return {"error": f"the process ended with status {done.returncode}: {last}", "loaded": False}


def read_config(path: Path) -> dict[str, Any]:
    """verl's settings as nested mappings: from YAML, or from the overrides in a launch script.

    Raises:
        Error: the file cannot be read, or holds neither.
    """
    text = read_text(path)
    if path.suffix in (".yaml", ".yml", ".json"):
        found = parse(text, path)
        if not isinstance(found, list):
            return mapping(found, path)
        overrides = [str(entry) for entry in found]
    else:
        overrides = _words(text)
    config: dict[str, Any] = {}
    for entry in overrides:
        matched = re.match(r"[+~]*([A-Za-z_]\w*(?:\.\w+)+)=(.*)$", entry, re.DOTALL)
        if matched:
            _set(config, matched[1].split("."), matched[2])
    if not config:
        raise Error(f"{path} holds neither YAML settings nor overrides such as algorithm.adv_estimator=gdpo")
    return config


def _words(text: str) -> list[str]:
    """The words of a shell script, comments out, line ends joined, variables that it sets itself filled in."""
    joined = text.replace("\\\n", " ")
    words: list[str] = []
    variables: dict[str, str] = {}
    for line in joined.splitlines():
        try:
            split = shlex.split(line, comments=True)
        except ValueError:  # a quote over several lines
            split = line.split()
        for word in split:
            filled = _VARIABLE.sub(lambda m: variables.get(m[1] or m[3], m[2] or m[0]), word)
            words.append(filled)
            matched = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", filled, re.DOTALL)
            if matched:
                variables[matched[1]] = matched[2]
    return words


def _set(config: dict[str, Any], keys: list[str], text: str) -> None:
    node = config
    for key in keys[:-1]:
        if not isinstance(node.get(key), dict):
            node[key] = {}
        node = node[key]
    try:
        node[keys[-1]] = yaml.safe_load(re.sub(r"(?<=[\w'\"]):(?=[^\s/])", ": ", text) if "{" in text else text)
    except yaml.YAMLError:
        node[keys[-1]] = text
