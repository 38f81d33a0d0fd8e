"""Numbers as people write answers, read exactly: the fast path beside math-verify."""

from __future__ import annotations

import re
from fractions import Fraction

_LONGEST = 200
_PLAIN = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|[-+]?\.[0-9]+")
_INTEGER = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)")
_RATIO = re.compile(r"([-+]?[0-9]+)\s*/\s*([0-9]+)")
_MIXED = re.compile(r"([-+]?)([0-9]+)\s+([0-9]+)/([0-9]+)")
_FRAC = re.compile(r"([-+]?)\\[dt]?frac\{([0-9]+)\}\{([0-9]+)\}")
_UNIT = re.compile(r"(.*[0-9.])\s+([A-Za-z]{2,}(?:[ -][A-Za-z]{2,})*)\.?")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}")
_WORDS = re.compile(r"[a-z]{4,}|[a-z]{2,}(?: [a-z]{2,})+")
_NOT_UNITS = {
    "pi", "and", "or", "plus", "minus", "times", "over", "divided", "by", "to", "choose", "mod", "factorial", "squared",
    "cubed", "hundred", "thousand", "million", "billion", "trillion", "lakh", "crore", "dozen", "half",
    "halve", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "hundredth",
    "thousandth", "percent", "am", "pm", "not",
}  # fmt: skip
"""Words after a number that make it another number, in the singular."""
_HALF = r"\s*[ap]\.?m\.?"
CLOCK = re.compile(rf"[0-9]{{1,2}}(?::[0-9]{{2}}(?::[0-9]{{2}})?(?:{_HALF})?|{_HALF})", re.IGNORECASE)


def clean(text: str) -> str:
    """Without what people and models put around an answer: bold, dollar signs, a final full stop, outer white space."""
    text = text.strip()
    for mark in ("**", "*", "__", "$$", "$", r"\(", r"\)", r"\[", r"\]", "`"):
        text = text.strip() if mark not in text else _strip_mark(text.strip(), mark)
    text = text.removesuffix(".").strip() if not text.endswith("..") else text
    text = text.removeprefix("=").strip() if not text.startswith("==") else text
    return text.replace(r"\$", "").replace(r"\!", "").replace("\u2212", "-").replace(r"\,", "").strip()


def _strip_mark(text: str, mark: str) -> str:
    return text.removeprefix(mark).removesuffix(mark).strip()


def exact(text: str, units: bool = True) -> Fraction | None:
    """The number that a cleaned text is, None where it is more than one number.

    Thousands separators, a currency sign before and a unit in words after are read over: ``$2,125``, ``18 dollars``.
    ASCII digits only: a superscript two is not the number 2.
    """
    if len(text) > _LONGEST:
        return None
    text = _TEXT.sub(r" \1", text).strip()
    if units and (match := _UNIT.fullmatch(text)):
        words = match[2].lower().replace("-", " ").split()
        if not any(word in _NOT_UNITS or word.removesuffix("s") in _NOT_UNITS for word in words):
            text = match[1]
    sign = re.match(r"([-+]?)\s*[$€£]\s*", text)
    if sign:
        text = sign[1] + text[sign.end() :]
    if _PLAIN.fullmatch(text):
        return Fraction(text.replace(",", "").removesuffix("."))
    if (match := _RATIO.fullmatch(text)) and int(match[2]):
        return Fraction(int(match[1]), int(match[2]))
    if (match := _MIXED.fullmatch(text)) and int(match[3]) < int(match[4]):
        value = int(match[2]) + Fraction(int(match[3]), int(match[4]))
        return -value if match[1] == "-" else value
    if (match := _FRAC.fullmatch(text)) and int(match[3]):
        return Fraction(int(match[1] + match[2]), int(match[3]))
    return None


def words(text: str) -> str:
    """A text without the macro for text, in one case and spacing."""
    return " ".join(_TEXT.sub(r" \1 ", text).casefold().split())


def is_words(text: str) -> bool:
    """Whether a cleaned text is words: one of four letters or more, or several; ``xyz`` may be a product."""
    return len(text) <= _LONGEST and bool(_WORDS.fullmatch(words(text)))


def clock(text: str) -> str:
    """A time of day in one spelling: ``3 p.m.`` and ``03:00 PM`` are ``3:00pm``."""
    text = re.sub(r"[\s.]", "", text.lower())
    return re.sub(r"^0?([0-9]{1,2})([ap]m)$", r"\1:00\2", text).removeprefix("0")


def is_integer(text: str) -> bool:
    """Whether a text is an integer as written: a sign, digits, thousands separators."""
    return bool(_INTEGER.fullmatch(text.strip()))


def is_decimal(text: str) -> bool:
    """Whether a cleaned text is digits with or without a point, so that two unequal ones are certainly different."""
    return bool(_PLAIN.fullmatch(text))
