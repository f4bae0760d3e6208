"""Listing the values a formula allows, where they are few."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from grammars.regular.questions import TooManyStatesError, words
from grammars.schema.meaning import Meaning
from grammars.schema.strings import Strings


def few_values(meaning: Meaning, limit: int) -> list[Any] | None:
    """All values, as parsed JSON, when they are at most `limit` and none is an array or object; else None."""
    if meaning.arrays or meaning.objects:
        return None
    values: list[Any] = [None] if meaning.null else []
    values += sorted(meaning.booleans)
    numbers: dict[Fraction, None] = {}
    for one in meaning.numbers:
        if one.low is not None and one.low == one.high:
            numbers[one.low] = None
            continue
        first, last = one.integers()
        if one.whole is not True or first is None or last is None or last - first >= limit * 64:
            return None
        for number in map(Fraction, range(first, last + 1)):
            if number in one:
                numbers[number] = None
                if len(numbers) > limit:
                    return None
    values += [n.numerator if n.denominator == 1 else n for n in numbers]
    if len(values) > limit:
        return None
    strings = few_words(meaning.strings, limit - len(values))
    return None if strings is None else values + strings


def few_words(strings: Strings, limit: int) -> list[str] | None:
    """All strings, when they are at most `limit`; else None."""
    if strings.words is not None:
        return list(strings.words) if len(strings.words) <= limit else None
    try:
        return words(strings.regex, limit)
    except TooManyStatesError:
        return None
