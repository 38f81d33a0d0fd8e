"""What a reader kept out or read otherwise than written: counted, with the first places named."""

from __future__ import annotations

from dataclasses import dataclass, field

_NAMED = 20


@dataclass
class Account:
    """Kept while a dump is read, put into its summary at the end."""

    left: int = 0
    skipped: list[str] = field(default_factory=list)
    odd: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """(reward, what) -> the first places."""
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    texts: dict[str, tuple[int, str]] = field(default_factory=dict)
    """What was done to texts -> (lines, the first place)."""

    def skip(self, where: str, why: str) -> None:
        """A line or file that cannot be read."""
        if len(self.skipped) < _NAMED:
            self.skipped.append(f"{where}: {why}")
        else:
            self.left += 1

    def note(self, text: str) -> None:
        """Something a user should know, said once."""
        if text not in self.said:
            self.said.append(text)

    def text(self, what: str, where: str) -> None:
        """A line whose text was not read as it stands."""
        count, first = self.texts.get(what, (0, where))
        self.texts[what] = count + 1, first

    def value(self, reward: str, what: str, where: str, count: int = 1) -> None:
        """A value that was not read as it stands."""
        key = (reward, what)
        self.counts[key] = self.counts.get(key, 0) + count
        places = self.odd.setdefault(key, [])
        if len(places) < 5:
            places.append(where)

    def all_skipped(self) -> list[str]:
        """What was kept out, one entry each, and how many more."""
        more = [f"{self.left} more lines or files"] if self.left else []
        return self.skipped + more

    def all_notes(self) -> list[str]:
        """Notes, and one for each kind of odd value."""
        notes = list(self.said)
        for what, (count, first) in self.texts.items():
            notes.append(f"{what} in {count} {'line' if count == 1 else 'lines'}, first in {first}")
        for (reward, what), places in self.odd.items():
            count = self.counts[reward, what]
            more = f" and {count - len(places)} more" if count > len(places) else ""
            notes.append(f"{reward}: {count} {'value' if count == 1 else 'values'} {what} ({', '.join(places)}{more})")
        return notes
