"""Completing a string that is partly written."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterator
from itertools import product

from grammars.regular.ast import Regex, Repeat, complement, intersect, is_free, literal
from grammars.regular.derivative import classes, derive
from grammars.regular.questions import pick, shortest
from grammars.schema.partial import any_ending, endings, missing, write

_MAX_TRIES = 200
_MOST_ADDED = 3
_PLAIN = (string.ascii_letters + string.digits + string.punctuation).translate(str.maketrans("", "", '"\\'))

Taken = Callable[[str], bool]


class FreshWords:
    """The shortest texts of a language, one after another. What was taken once is not looked at again."""

    def __init__(self, regex: Regex) -> None:
        self._rest = regex
        self._tries = 0
        self._free = _free_words(regex) if is_free(regex) else None

    def next(self, taken: Taken) -> str | None:
        """A shortest text that is not `taken`; None when none is found."""
        if self._free is not None:
            word = next((word for word in self._free if not taken(word)), None)
            if word is not None:
                return word
            self._free = None
        word = shortest(self._rest)
        while word is not None and taken(word):
            if self._tries == _MAX_TRIES:
                return None
            self._tries += 1
            self._rest = intersect((self._rest, complement(literal(word))))
            word = shortest(self._rest)
        return word


def _free_words(regex: Repeat) -> Iterator[str]:
    """Texts of a language that only bounds their length, the shortest first, of plain characters."""
    high = regex.low + _MOST_ADDED if regex.high is None else min(regex.high, regex.low + _MOST_ADDED)
    for length in range(regex.low, high + 1):
        fixed = "a" * max(0, length - _MOST_ADDED)
        for varied in product(_PLAIN, repeat=min(length, _MOST_ADDED)):
            yield fixed + "".join(varied)


def fresh_word(regex: Regex, taken: Taken) -> str | None:
    """A shortest text of a language that is not `taken`; None when none is found."""
    return FreshWords(regex).next(taken)


def end_text(left: Regex, rest: bytes, taken: Taken) -> tuple[bytes, str] | None:
    """The fewest bytes that complete a string, without its quote, and the characters they make.

    Args:
        left: what may follow the characters that are complete.
        rest: bytes of one that is not.
        taken: characters with which it must not be completed.
    """
    if not rest:
        word = fresh_word(left, taken)
        return None if word is None else (write(word).encode(), word)
    if is_free(left):
        ending = any_ending(rest)
        after = derive(left, ord("a"))
        word = shortest(after)
        return None if word is None else (ending + word.encode(), "\0" + word)
    best: tuple[bytes, str] | None = None
    for char, ending, after in _characters(left, rest):
        word = fresh_word(after, lambda word, char=char: taken(char + word))  # type: ignore[misc]
        if word is not None:
            found = (ending + write(word).encode(), char + word)
            best = found if best is None or len(found[0]) < len(best[0]) else best
    return best


def _characters(left: Regex, rest: bytes) -> Iterator[tuple[str, bytes, Regex]]:
    """The characters that `rest` may begin, one of each class; their last bytes; what may follow."""
    for low, high, ending in endings(rest):
        for ranges in classes(left):
            inside = [(max(low, a), min(high, b)) for a, b in ranges if max(low, a) <= min(high, b)]
            if not inside:
                continue
            code_point = pick(*inside[0])
            after = derive(left, code_point)
            if after.floor < math.inf:
                yield chr(code_point), ending or missing(rest, code_point), after
