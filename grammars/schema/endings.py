"""Completing a string that is partly written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from grammars.regular.ast import Regex, complement, intersect, is_free, literal
from grammars.regular.derivative import classes, derive
from grammars.regular.questions import pick, shortest
from grammars.schema.partial import any_ending, endings, missing, write

_MAX_TRIES = 200

Taken = Callable[[str], bool]


class FreshWords:
    """The shortest texts of a language, one after another. What was taken once is not looked at again."""

    def __init__(self, regex: Regex) -> None:
        self._rest = regex
        self._tries = 0

    def next(self, taken: Taken) -> str | None:
        """A shortest text that is not `taken`; None when none is found."""
        word = shortest(self._rest)
        while word is not None and taken(word):
            if self._tries == _MAX_TRIES:
                return None
            self._tries += 1
            self._rest = intersect((self._rest, complement(literal(word))))
            word = shortest(self._rest)
        return word


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
