"""The map of prompts in which rewards pull apart: a row a prompt, a column a pair of rewards."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from gdpo.audit.kept import LONGEST, KeptGroup
from gdpo.audit.pulls import MOST_PROMPTS, Pull
from gdpo.audit.run import Audit
from gdpo.report.audit_cards import percent, reward_colours
from gdpo.report.text import plain_line, turns

_COLUMNS = 6
_ROWS = 12
_LONGEST = 100
_SHARED = 40
"""Characters from which on a common beginning is left out, ..."""
_KEPT = 20
"""... but for so many."""


@dataclass(frozen=True)
class ConflictRow:
    """One prompt."""

    prompt: str
    groups: str
    lost: str
    width: str
    cells: list[dict[str, Any]]
    """Text and strength of each pair shown; ``most``: the pair that takes most."""
    step: int | None
    """Where to look; None where no group of it was kept."""
    group: str


@dataclass(frozen=True)
class ConflictMap:
    """Prompts, the most conflicting first."""

    pairs: list[tuple[tuple[int, str], tuple[int, str]]]
    """((number of the reward's colour, name), the same of the other)."""
    whole_row: ConflictRow
    """All of them together."""
    rows: list[ConflictRow]
    what: str
    """What a row is: prompt or group."""
    count: int
    half: int
    """Rows of the dump that lose at least half their push."""
    not_shown: int
    """Pairs that are followed and have no column."""
    left_out: int
    cap: int = MOST_PROMPTS


def conflict_map(found: Audit) -> ConflictMap | None:
    """The map; None where no two rewards ever pull apart."""
    if found.evidence is None:
        return None
    kept = found.evidence.found.kept
    pulls, whole = kept.pulls, kept.pulls.whole()
    most = [pull for pull in pulls.most() if pull.lost > 0][:_ROWS]
    if not most or not whole.lost > 0:
        return None
    names, colours = found.summary.rewards, reward_colours(found)
    heavy = sorted(range(len(pulls.pairs)), key=lambda at: -whole.pairs[at])
    shown = sorted(at for at in heavy[:_COLUMNS] if whole.pairs[at] > 0)
    shown = shown if len(pulls.pairs) > 1 else []  # what the only pair takes is all that is lost
    pairs = [tuple((colours[k], names[k]) for k in pulls.pairs[at]) for at in shown]
    what = "prompt" if pulls.by_text else "group"
    groups = [kept.pulled.get(pull.at) for pull in most]
    asked = _beyond_what_all_say([_asked(group) for group in groups])
    rows = [_row(pull, shown, group, what, text) for pull, group, text in zip(most, groups, asked, strict=True)]
    total = _row(whole, shown, None, "prompt", f"all {what}s")
    left = sum(1 for at in heavy if shown and at not in shown and whole.pairs[at] > 0)
    return ConflictMap(pairs, total, rows, what, len(pulls.rows), pulls.losing(0.5), left, pulls.left_out)  # type: ignore[arg-type]


def _asked(group: KeptGroup | None) -> str:
    """The last turn of a prompt on one line: what comes before is often the same for all."""
    pairs = turns(group.prompt, LONGEST) if group is not None and group.prompt else []
    return plain_line(pairs[-1][1], LONGEST) if pairs else ""


def _beyond_what_all_say(texts: list[str]) -> list[str]:
    """Texts cut to a table's room; of a long beginning that all of them share only the last words stay."""
    first, last = min(texts), max(texts)  # what these two share all share
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
    start = first.rfind(" ", 0, shared - _KEPT) + 1 if shared > _SHARED and first != last else 0
    return [plain_line(("… " if start else "") + text[start:], _LONGEST) for text in texts]


def _row(pull: Pull, shown: list[int], group: KeptGroup | None, what: str, text: str) -> ConflictRow:
    shares = [pull.pairs[at] / pull.push if pull.push else 0.0 for at in shown]
    most = max(shares, default=0.0)
    cells = [
        {"text": percent(share), "size": f"{0.6 * min(share / 0.5, 1.0):.2f}", "most": share == most and share > 0}
        for share in shares
    ]
    lost = pull.lost / pull.push if pull.push else 0.0
    place = f"step {group.step}, group {group.group}" if group is not None else ""
    return ConflictRow(
        (text if what == "prompt" else place) or "(empty)", f"{pull.groups:,}", percent(lost), f"{100 * lost:.1f}%",
        cells, None if group is None else group.step, "" if group is None else str(group.group),
    )  # fmt: skip
