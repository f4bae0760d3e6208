"""Completing an integer that must be a multiple of another."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain, islice, zip_longest

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


def completions(multiples: Multiples, text: str) -> Iterator[str]:
    """The digits that make the beginning of an integer one of the numbers, few before many."""
    if is_multiple(multiples, text):
        yield ""
    sign = -1 if text.startswith("-") else 1
    for count in range(1, _MAX_DIGITS):
        yield from _endings(multiples, sign, text.removeprefix("-"), count)


def complete_multiple(
    multiples: Multiples, text: str, taken: Callable[[str], bool] = lambda ending: False
) -> str | None:
    """The fewest digits that make the beginning of an integer one of the numbers; None if none do.

    Args:
        taken: digits that are none of them.
    """
    endings = islice(completions(multiples, text), _MAX_TRIES)
    return next((ending for ending in endings if not taken(ending)), None)


def whole_multiples(multiples: Multiples) -> Iterator[str]:
    """The numbers as they are written, a shortest one first, then those below and above 0."""
    signed = [completions(multiples, ""), ("-" + digits for digits in completions(multiples, "-"))]
    others = chain.from_iterable(zip_longest(*signed))
    yield multiples.shortest
    yield from (text for text in others if text not in (None, multiples.shortest))


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
