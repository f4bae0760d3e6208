"""Named classes of characters."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby
from typing import Final

from grammars.regular.ast import MAX_CODE_POINT, Chars, Range, chars, invert

DIGITS: tuple[Range, ...] = ((0x30, 0x39),)
WORD: tuple[Range, ...] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
LINE_ENDS: tuple[Range, ...] = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
SPACE: tuple[Range, ...] = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)

_NAMES = {
    "Letter": "L",
    "Lowercase_Letter": "Ll",
    "Uppercase_Letter": "Lu",
    "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Punctuation": "P",
    "punct": "P",
    "Symbol": "S",
    "Currency_Symbol": "Sc",
    "Math_Symbol": "Sm",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Control": "Cc",
    "cntrl": "Cc",
}


def inverted(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """All other characters."""
    outside = invert(ranges)
    return outside.ranges if isinstance(outside, Chars) else ()


def property_class(name: str, *, negated: bool) -> tuple[Range, ...] | None:
    r"""What `\p{name}` matches: a general category, by its short or long name; None if it is not one."""
    name = name.removeprefix("General_Category=").removeprefix("gc=")
    ranges = category(_NAMES.get(name, name))
    if not ranges:
        return None
    return inverted(ranges) if negated else ranges


@lru_cache(maxsize=64)
def category(name: str) -> tuple[Range, ...]:
    """Characters of a general category, or of all whose short names start with this letter."""
    if not name:
        return ()
    return _union(*(ranges for short, ranges in _categories().items() if short.startswith(name)))


@lru_cache(maxsize=1)
def _categories() -> dict[str, tuple[Range, ...]]:
    """Every general category; a scan of all characters, which takes about 0.2 s."""
    found: dict[str, list[Range]] = defaultdict(list)
    for short, group in groupby(range(MAX_CODE_POINT + 1), lambda code: unicodedata.category(chr(code))):
        codes = list(group)
        found[short].append((codes[0], codes[-1]))
    return {short: tuple(ranges) for short, ranges in found.items()}


def _union(*sets: tuple[Range, ...]) -> tuple[Range, ...]:
    joined = chars(chain.from_iterable(sets))
    return joined.ranges if isinstance(joined, Chars) else ()


@dataclass(frozen=True)
class Dialect:
    r"""What differs between kinds of regular expressions.

    Attributes:
        line_ends: what a dot does not match.
        escape: the characters of `\d`, `\w`, `\s` and their capitals; None for another letter.
        edges: letters whose escapes stand for the start (True) or the end (False) of the text.
    """

    line_ends: tuple[Range, ...]
    escape: Callable[[str], tuple[Range, ...] | None]
    edges: Mapping[str, bool]


def _ecma_escape(char: str) -> tuple[Range, ...] | None:
    sets = {"d": DIGITS, "w": WORD, "s": SPACE}
    ranges = sets.get(char.lower())
    return ranges if ranges is None or char.islower() else inverted(ranges)


@lru_cache(maxsize=8)
def _common_escape(char: str) -> tuple[Range, ...] | None:
    sets: dict[str, Callable[[], tuple[Range, ...]]] = {
        "d": lambda: DIGITS,
        "D": lambda: inverted(category("Nd")),
        "w": lambda: _union(category("L"), category("Nd"), ((0x5F, 0x5F),)),
        "W": lambda: inverted(_union(category("L"), category("M"), category("N"), category("Pc"))),
        "s": lambda: _union(SPACE[:-1], ((0x85, 0x85),)),
        "S": lambda: inverted(_union(SPACE, ((0x1C, 0x1F), (0x85, 0x85)))),
    }
    return sets[char]() if char in sets else None


ECMA: Final = Dialect(LINE_ENDS, _ecma_escape, {})
"""ECMA-262, which JSON Schema refers to."""
COMMON: Final = Dialect(((0x0A, 0x0A),), _common_escape, {"A": True, "Z": False, "z": False})
"""What is a match for Python's `re` and Rust's `regex` alike."""
