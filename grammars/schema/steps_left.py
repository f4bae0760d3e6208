"""Completing an integer that must be a multiple of another."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import islice

from grammars.schema.shapes import Multiples

_MAX_DIGITS = 24
_MAX_TRIES = 2000

_BEGUN = re.compile(r"-?(?:0|[1-9][0-9]*)?")


def may_be_multiple(text: str) -> bool:
    """Whether a text is the beginning of an integer."""
    return _BEGUN.fullmatch(text) is not None


def is_multiple(multiples: Multiples, text: str) -> bool:
    """Whether digits, maybe with a sign, spell one of the numbers; the engine writes no -0."""
    return text not in ("", "-", "-0") and Fraction(text) in multiples.numbers


def complete_multiple(
    multiples: Multiples, text: str, taken: Callable[[str], bool] = lambda ending: False
) -> str | None:
    """The fewest digits that make the beginning of an integer one of the numbers; None if none do.

    Args:
        taken: digits that are none of them.
    """
    if is_multiple(multiples, text) and not taken(""):
        return ""
    sign = -1 if text.startswith("-") else 1
    counts = range(1, _MAX_DIGITS)
    endings = (e for count in counts for e in _endings(multiples, sign, text.removeprefix("-"), count))
    return next((ending for ending in islice(endings, _MAX_TRIES) if not taken(ending)), None)


def fresh_multiple(multiples: Multiples, taken: Callable[[str], bool]) -> str | None:
    """A short one of the numbers that is not taken; None when none is found."""
    if not taken(multiples.shortest):
        return multiples.shortest
    found = (sign + ending for sign in ("", "-") if (ending := _after(multiples, sign, taken)) is not None)
    return min(found, key=len, default=None)


def _after(multiples: Multiples, sign: str, taken: Callable[[str], bool]) -> str | None:
    return complete_multiple(multiples, sign, lambda ending: taken(sign + ending))


def _endings(multiples: Multiples, sign: int, digits: str, count: int) -> Iterator[str]:
    """`count` more digits, each time, that make `digits` one of the numbers."""
    if digits == "0":
        return
    base = int(digits or "0") * 10**count
    first = math.ceil(base / multiples.step)
    for index in range(first, math.ceil((base + 10**count) / multiples.step)):
        multiple = multiples.step * index
        if sign < 0 and not multiple:
            continue
        if sign * multiple not in multiples.numbers:
            if index > first + 1:
                return
            continue
        ending = f"{int(multiple) - base:0{count}d}"
        if digits or not ending.startswith("0") or ending == "0":
            yield ending
