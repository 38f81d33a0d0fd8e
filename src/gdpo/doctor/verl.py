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

from gdpo.adapters.verl_config import Settings, get
from gdpo.core.errors import Error
from gdpo.doctor.base import Check, State, read_text
from gdpo.doctor.verl_probe import MARK, PLUGIN
from gdpo.weights import Progress

WHAT = "verl 0.9: plug-in loaded in the driver and in a Ray worker, hooks of both trainers, algorithm.gdpo in CONFIG"
SUPPORTED = "verl>=0.9.1,<0.10"
INSTALL = "install gdpo in this environment (pip install gdpo), or set VERL_USE_EXTERNAL_MODULES=" + PLUGIN


def recognises(text: str) -> bool:
    """Whether a config is verl's: YAML with its sections, or a script that launches it."""
    return "verl.trainer" in text or bool(re.search(r"actor_rollout_ref|algorithm[.:]\s*(adv_estimator|gdpo)", text))


def check(path: Path | None, workers: bool) -> Iterator[Check]:
    """The config, then the environment: what a run in it would load."""
    config = None if path is None else read_config(path)
    kind = "v1" if get(get(config, "trainer"), "use_v1", True) else "legacy"
    if config is not None:
        yield from check_config(config, kind)
    driver = _probe()
    yield from check_driver(driver, kind if config is not None else None)
    if workers and "error" not in driver:
        yield from check_worker(_probe("--worker"), driver)


def check_config(config: Mapping[str, Any], kind: str) -> Iterator[Check]:
    """What the config asks for, and what has to change in it."""
    algorithm = get(config, "algorithm", {})
    try:
        settings = Settings.from_config(config)
    except Error as error:
        yield Check("wrong", f"config: {error}")
        return
    if settings is None:
        yield _without_block(algorithm, kind)
        return
    weights = {name: round(schedule.value(Progress()), 6) for name, schedule in settings.objective.weights.items()}
    yield Check("ok", f"config: algorithm.gdpo asks for {settings.objective.method!r} of the rewards {weights} on the "
                f"{kind} trainer")  # fmt: skip
    if settings.kl != "off":
        says = "enters as the reward 'kl'" if settings.kl == "reward" else "is left out of the advantages"
        yield Check("note", f"config: use_kl_in_reward: the penalty {says} (algorithm.gdpo.kl)")
    if get(get(algorithm, "filter_groups"), "enable", False):
        if kind == "legacy":
            yield Check("note", "config: filter_groups is not used by the legacy trainer")
        else:
            kept = "the combined advantage" if settings.filter == "combined" else repr(settings.filter)
            yield Check("ok", f"config: filter_groups keeps groups in which {kept} varies (algorithm.gdpo.filter)")
    if settings.rollouts_folder is not None:
        yield Check("ok", f"config: the rollout table goes to {settings.rollouts_folder}")


def _without_block(algorithm: Any, kind: str) -> Check:
    chosen = get(algorithm, "adv_estimator", "gae")
    known = get(algorithm, "gdpo_reward_keys")
    names = ",".join(map(str, known)) if known else "NAMES"
    lines = f"algorithm.adv_estimator=gdpo '+algorithm.gdpo.rewards=[{names}]'"
    given = get(algorithm, "gdpo_reward_weights")
    if known and given:
        pairs = ", ".join(f"{name}: {weight}" for name, weight in zip(known, given, strict=False))
        lines += f" '+algorithm.gdpo.weights={{{pairs}}}'"
    lines += "\n(NAMES as compute_score returns them)" if not known else "\nand remove algorithm.gdpo_reward_*"
    if chosen != "gdpo":
        said = f"config: adv_estimator is {chosen!r} and there is no algorithm.gdpo: this run does not ask for gdpo."
        return Check("note", f"{said} To change over (only the advantages change):", lines)
    said = "config: adv_estimator is 'gdpo' without algorithm.gdpo: that is verl's own gdpo"
    if kind == "v1":
        return Check("wrong", f"{said}, which stops on the v1 trainer with KeyError 'prompts'; set", lines)
    return Check("wrong", f"{said}, whose advantages ties, missing rewards and response length change; set", lines)


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
        try:
            found = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise Error(f"the config {path} cannot be read: {error}") from None
        if isinstance(found, Mapping):
            return dict(found)
        overrides = [str(entry) for entry in found] if isinstance(found, list) else []
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
    """The words of a shell script, comments out, line ends joined."""
    joined = text.replace("\\\n", " ")
    words: list[str] = []
    for line in joined.splitlines():
        try:
            words += shlex.split(line, comments=True)
        except ValueError:  # a quote over several lines
            words += line.split()
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
