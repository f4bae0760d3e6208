"""Named classes of characters."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from grammars.regular.ast import MAX_CODE_POINT, Chars, Range, invert

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

_ESCAPES = {"d": DIGITS, "w": WORD, "s": SPACE}
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


def class_escape(char: str) -> tuple[Range, ...] | None:
    r"""What `\d`, `\w`, `\s` and their capitals match in ECMA-262; None for another letter."""
    if char in _ESCAPES:
        return _ESCAPES[char]
    return inverted(_ESCAPES[char.lower()]) if char.lower() in _ESCAPES else None


def inverted(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """All other characters."""
    outside = invert(ranges)
    return outside.ranges if isinstance(outside, Chars) else ()


def property_class(name: str, *, negated: bool) -> tuple[Range, ...] | None:
    r"""What `\p{name}` matches: a general category, by its short or long name; None if it is not one."""
    name = name.removeprefix("General_Category=").removeprefix("gc=")
    ranges = _category(_NAMES.get(name, name))
    if not ranges:
        return None
    return inverted(ranges) if negated else ranges


@lru_cache(maxsize=64)
def _category(name: str) -> tuple[Range, ...]:
    """Characters whose category starts with `name`; a scan of all takes about 0.1 s."""
    if not 1 <= len(name) <= 2 or not name.isascii():
        return ()
    ranges: list[list[int]] = []
    for code in range(MAX_CODE_POINT + 1):
        if unicodedata.category(chr(code)).startswith(name):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return tuple((low, high) for low, high in ranges)
