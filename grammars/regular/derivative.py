"""Brzozowski derivatives of regular languages.

The derivative of a language by a character is what may follow that character (J. A. Brzozowski, 1964;
S. Owens et al., Regular-expression derivatives re-examined, 2009). Expressions in normal form have
finitely many, so they are the states of an automaton that is built only as far as it is walked.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from functools import lru_cache

from grammars.regular.ast import (
    ANY_CHAR,
    EMPTY,
    NOTHING,
    Alt,
    And,
    Chars,
    Concat,
    Not,
    Range,
    Regex,
    Repeat,
    alt,
    complement,
    concat,
    intersect,
    repeat,
)

MOST_NODES = 20_000
"""No language gets larger that was not from the start: a character would take many milliseconds."""
MOST_TIMES = 3
"""What may follow a character of one that was is not so many times as large."""


class TooManyStatesError(Exception):
    """A question needs more of an automaton than is worth building."""


@lru_cache(maxsize=1 << 15)
def derive(regex: Regex, code_point: int) -> Regex:
    """What may follow `code_point` at the start of a text of the language.

    Raises:
        TooManyStatesError: it grows beyond use.
    """
    after = _derive(regex, code_point)
    if after.size > MOST_NODES and (regex.size <= MOST_NODES or after.size > MOST_TIMES * regex.size):
        raise TooManyStatesError
    return after


def _derive(regex: Regex, code_point: int) -> Regex:
    match regex:
        case Chars():
            return EMPTY if code_point in regex else NOTHING
        case Concat(parts=parts):
            options = []
            for index, part in enumerate(parts):
                options.append(concat((derive(part, code_point), *parts[index + 1 :])))
                if not part.nullable:
                    break
            return alt(options)
        case Alt(parts=parts):
            return alt(derive(part, code_point) for part in parts)
        case And(parts=parts):
            return intersect(derive(part, code_point) for part in parts)
        case Not(inner=inner):
            return complement(derive(inner, code_point))
        case Repeat(inner=inner, low=low, high=high):
            # A nullable part may stand for the missing ones, so counting down is right for it too.
            rest = repeat(inner, max(low - 1, 0), None if high is None else high - 1)
            return concat((derive(inner, code_point), rest))
    raise TypeError(regex)


def derive_text(regex: Regex, text: str) -> Regex:
    """What may follow `text` (TooManyStatesError as for `derive`)."""
    for char in text:
        if regex == NOTHING:
            break
        regex = derive(regex, ord(char))
    return regex


@lru_cache(maxsize=8192)
def matches(regex: Regex, text: str) -> bool:
    """Whether `text` belongs to the language."""
    return derive_text(regex, text).nullable


def _first_sets(regex: Regex, sets: dict[Chars, None]) -> None:
    """Collect the sets of characters on which the derivative of `regex` depends."""
    match regex:
        case Chars():
            sets[regex] = None
        case Concat(parts=parts):
            for part in parts:
                _first_sets(part, sets)
                if not part.nullable:
                    break
        case Alt(parts=parts) | And(parts=parts):
            for part in parts:
                _first_sets(part, sets)
        case Not(inner=inner) | Repeat(inner=inner):
            _first_sets(inner, sets)


def classes(regex: Regex) -> tuple[tuple[Range, ...], ...]:
    """Sets of code points that together cover all; within one, every derivative is the same."""
    sets: dict[Chars, None] = {ANY_CHAR: None}
    _first_sets(regex, sets)
    return _partition(tuple(sets))


@lru_cache(maxsize=1024)
def _partition(sets: tuple[Chars, ...]) -> tuple[tuple[Range, ...], ...]:
    """The characters by which of the sets they are in."""
    events: dict[int, int] = defaultdict(int)
    for index, chars in enumerate(sets):
        for low, high in chars.ranges:
            events[low] ^= 1 << index
            events[high + 1] ^= 1 << index
    groups: dict[int, list[Range]] = defaultdict(list)
    inside = 0
    for start, end in itertools.pairwise(sorted(events)):
        inside ^= events[start]
        if inside & 1:  # the first set is that of all characters
            groups[inside].append((start, end - 1))
    return tuple(map(tuple, groups.values()))
