"""Scripts of letters, and words in scripts that write no spaces, by Unicode's names."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

SCRIPTS: dict[str, tuple[str, ...]] = {
    "han": ("CJK", "KANGXI", "IDEOGRAPHIC"),
    "kana": ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"),
    **{
        name: (name.upper(),)
        for name in (
            "arabic", "armenian", "bengali", "cherokee", "cyrillic", "devanagari", "ethiopic", "georgian", "greek",
            "gujarati", "gurmukhi", "hangul", "hebrew", "kannada", "khmer", "lao", "latin", "malayalam", "mongolian",
            "myanmar", "oriya", "sinhala", "tamil", "telugu", "thai", "tibetan",
        )
    },
}  # fmt: skip
"""Names of scripts and the first words of their letters' names in Unicode."""
_COMMON = {"MATHEMATICAL", "MODIFIER", "FEMININE", "MASCULINE", "MICRO", "DOUBLE-STRUCK", "BLACK-LETTER", "SCRIPT"}
_WIDTHS = {"FULLWIDTH", "HALFWIDTH"}

WITHOUT_SPACES = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3031-\u3035\u303b\u3040-\u30ff"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff"
)
"""Inside of a character class: Han, kana, Thai, Lao, Tibetan, Burmese and Khmer, which write no spaces."""
_TOKEN = re.compile(rf"[{WITHOUT_SPACES}]|[^\s{WITHOUT_SPACES}]+")


def script_share(text: str, scripts: Sequence[str]) -> float:
    """The share of the text's letters that are of one of the scripts; 0 without letters."""
    wanted = {word for name in scripts for word in SCRIPTS[name]}
    letters = right = 0
    for character, count in Counter(text).items():
        word = _first_word(character)
        if word is not None:
            letters += count
            right += count * (word in wanted)
    return right / letters if letters else 0.0


def tokens(text: str) -> list[str]:
    """Words as split by white space; where a script writes no spaces, its characters."""
    return _TOKEN.findall(text)


@functools.lru_cache(maxsize=1 << 16)
def _first_word(character: str) -> str | None:
    """What a letter's name begins with; None for what is no letter, or one of no script."""
    if not unicodedata.category(character).startswith("L"):
        return None
    words = unicodedata.name(character, "UNNAMED").split()
    word = words[1] if words[0] in _WIDTHS and len(words) > 1 else words[0]
    return None if word in _COMMON else word
