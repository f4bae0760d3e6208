"""Completing an integer that must be a multiple of another."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from grammars.schema.shapes import Multiples

_MAX_DIGITS = 24

_BEGUN = re.compile(r"-?(?:0|[1-9][0-9]*)?")


def may_be_multiple(text: str) -> bool:
    """Whether a text is the beginning of an integer."""
    return _BEGUN.fullmatch(text) is not None


def is_multiple(multiples: Multiples, text: str) -> bool:
    """Whether digits, maybe with a sign, spell one of the numbers; the engine writes no -0."""
    return text not in ("", "-", "-0") and Fraction(text) in multiples.numbers


def complete_multiple(multiples: Multiples, text: str) -> str | None:
    """The fewest digits that make the beginning of an integer one of the numbers; None if none do."""
    if is_multiple(multiples, text):
        return ""
    sign = -1 if text.startswith("-") else 1
    endings = (_ending(multiples, sign, text.removeprefix("-"), count) for count in range(1, _MAX_DIGITS))
    return next((ending for ending in endings if ending is not None), None)


def _ending(multiples: Multiples, sign: int, digits: str, count: int) -> str | None:
    """`count` more digits that make `digits` one of the numbers."""
    if digits == "0":
        return None
    base = int(digits or "0") * 10**count
    index = math.ceil(base / multiples.step)
    for multiple in (multiples.step * index, multiples.step * (index + 1)):
        if sign < 0 and not multiple:
            continue
        if multiple < base + 10**count and sign * multiple in multiples.numbers:
            ending = f"{int(multiple) - base:0{count}d}"
            if digits or not ending.startswith("0") or ending == "0":
                return ending
    return None
