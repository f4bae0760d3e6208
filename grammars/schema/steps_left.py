"""Completing a number that must be a multiple of another."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from grammars.schema.shapes import Multiples
from grammars.schema.steps import lcm_step

_MAX_DIGITS = 24


_BEGUN = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)?")


def may_be_multiple(text: str) -> bool:
    """Whether a text is the beginning of a plain numeral."""
    return _BEGUN.fullmatch(text) is not None


def is_multiple(multiples: Multiples, text: str) -> bool:
    """Whether a numeral spells one of the numbers."""
    try:
        value = Fraction(text)
    except ValueError:
        return False
    return value in multiples.numbers


def complete_multiple(multiples: Multiples, text: str) -> str | None:
    """The fewest characters that make the beginning of a numeral one of the numbers; None if none do."""
    if is_multiple(multiples, text):
        return ""
    sign = -1 if text.startswith("-") else 1
    digits = text.removeprefix("-")
    for point in [""] if "." in digits else ["", "."]:
        for count in range(1, _MAX_DIGITS):
            ending = _ending(multiples, sign, digits + point, count)
            if ending is not None:
                return point + ending
    return None


def _ending(multiples: Multiples, sign: int, digits: str, count: int) -> str | None:
    """`count` more digits that make `digits` one of the numbers."""
    whole, _, fraction = digits.partition(".")
    if len(whole) > 1 and whole.startswith("0"):
        return None
    unit = Fraction(1, 10 ** (len(fraction) + count)) if "." in digits else Fraction(1)
    base = int((whole or "0") + fraction) * 10**count
    low = max(base * unit, Fraction(0))
    high = (base + 10**count - 1) * unit
    step = lcm_step([multiples.step, unit])
    index = math.ceil(low / step)
    for multiple in (step * index, step * (index + 1)):
        value = sign * multiple
        if multiple <= high and value in multiples.numbers:
            ending = f"{int(multiple / unit) - base:0{count}d}"
            if whole or not ending.startswith("0") or ending == "0":
                return ending
    return None
