"""The rollouts of an audit's page: those that findings show, whole groups that pull apart, whole groups at random."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gdpo.audit.examples import LONGEST
from gdpo.audit.kept import KeptGroup, KeptRollout
from gdpo.audit.run import Audit
from gdpo.report.charts import rounded
from gdpo.report.text import turns

TEXT_LIMITS = (2000, 1000, 500, 250, 120)
"""Characters of a text, tried in turn until all texts fit."""
TEXT_BUDGET = 1_100_000
"""Bytes of text on one page."""
_NUMBERS = 25_000
"""Rollouts times rewards on one page."""


@dataclass(eq=False)
class _Chosen:
    """Rollouts by id, each with why it is here."""

    names: list[str]
    weights: list[float]
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    why: dict[str, list[str]] = field(default_factory=dict)

    def group(self, group: KeptGroup, why: str, most: int) -> None:
        """All rollouts of a group, where there is room for them."""
        if len(self.found) + len(group.rollouts) > most:
            return
        for one in group.rollouts:
            self.found.setdefault(one.name, _of_group(group, one))
            self.because(one.name, why)

    def because(self, name: str, why: str) -> None:
        """One more reason."""
        known = self.why.setdefault(name, [])
        if why not in known:
            known.append(why)


def rollout_items(found: Audit) -> dict[str, Any]:
    """What the page's list takes: ``prompts``, ``items`` that refer to them, and ``reasons`` to choose from."""
    names = found.summary.rewards
    chosen = _Chosen(names, [found.weights.get(name, 1.0) for name in names])
    most = max(60, _NUMBERS // max(len(names), 1))
    for one in found.findings:
        for rollout in one.rollouts:
            chosen.because(rollout, one.id)
    for rollout, entry in found.examples.items():
        chosen.found[rollout] = _of_example(entry, chosen)
    if found.evidence is not None:
        kept = found.evidence.found.kept
        for pull in kept.pulls.most():
            if pull.at in kept.pulled:
                chosen.group(kept.pulled[pull.at], "pulled apart", most)
        for *_, group in kept.telling:
            chosen.group(group, "told apart", most)
        for group in kept.chosen():
            chosen.group(group, "at random", most)
    reasons = list(dict.fromkeys(why for known in chosen.why.values() for why in known))
    return {**_fitted(chosen), "reasons": reasons}


def _fitted(chosen: _Chosen) -> dict[str, Any]:
    """Texts cut shorter until all of them fit."""
    made: dict[str, Any] = {}
    for limit in TEXT_LIMITS:
        made = _items(chosen, limit)
        pairs = [pair for one in [*made["prompts"], *(item["c"] for item in made["items"])] for pair in one]
        if sum(len(part.encode("utf-8", "replace")) for pair in pairs for part in pair) <= TEXT_BUDGET:
            break
    return made


def _items(chosen: _Chosen, limit: int) -> dict[str, Any]:
    prompts: list[Any] = []
    places: dict[str, int] = {}
    items = []
    for name, entry in chosen.found.items():
        prompt = entry["prompt"] or ""
        if prompt not in places:
            places[prompt] = len(prompts)
            prompts.append(turns(prompt, limit) if prompt else [])
        why = chosen.why.get(name, [])
        items.append({
            **entry["numbers"], "r": name[:80], "p": places[prompt], "c": turns(entry["completion"], limit),
            "m": why, "t": _shows([one for one in why if one not in ("at random", "told apart")]),
        })  # fmt: skip
    return {"prompts": prompts, "items": items}


def _shows(why: list[str]) -> str:
    return f"shows {', '.join(why)}"[:80] if why else ""


def _of_group(group: KeptGroup, one: KeptRollout) -> dict[str, Any]:
    return {
        "prompt": group.prompt, "completion": one.completion,
        "numbers": _numbers(group.step, group.group, one.length, one.advantage, one.values, one.normalized,
                            one.weights, one.contributions),
    }  # fmt: skip


def _of_example(entry: dict[str, Any], chosen: _Chosen) -> dict[str, Any]:
    parts = [entry["rewards"][name] for name in chosen.names]
    columns = ([part[key] for part in parts] for key in ("value", "normalized", "contribution"))
    values, normalized, contributions = columns
    return {
        "prompt": _marked(entry.get("prompt")), "completion": _marked(entry.get("completion")),
        "numbers": _numbers(entry["step"], entry["group"], None, entry["advantage"], values, normalized,
                            chosen.weights, contributions),
    }  # fmt: skip


def _marked(text: str | None) -> str | None:
    """A text that was cut says so."""
    return f"{text}\n[… cut here …]" if text is not None and len(text) >= LONGEST else text


def _numbers(
    step: int, group: int, length: float | None, advantage: float, values: list[float | None],
    normalized: list[float], weights: list[float], contributions: list[float],
) -> dict[str, Any]:  # fmt: skip
    return {
        "s": step, "g": str(group), "l": length, "a": rounded(advantage), "v": [rounded(value) for value in values],
        "n": [rounded(value) for value in normalized], "w": [rounded(value) for value in weights],
        "k": [rounded(value) for value in contributions],
    }  # fmt: skip
