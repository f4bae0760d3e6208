"""How often grammars dictate tokens, as their sequences tell."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from grammars.base import Grammar

_LATELY = 1 / 8
_ALL_ALONG = 1 / 32
"""Weights of the last token, of one sequence and of all sequences of a grammar."""


class Dictation:
    """How often, of late, a grammar dictated what comes after a sampled token of one sequence.

    Attributes:
        share: of its tokens (0 to 1). It begins with what it was in other sequences of the grammar, lately;
            with 1 where there are none.
    """

    __slots__ = ("_others", "share")

    def __init__(self, others: _Share) -> None:
        self._others = others
        self.share = others.share

    def note(self, *, is_dictated: bool) -> None:
        """Take in one more sampled token."""
        self.share += _LATELY * (is_dictated - self.share)
        self._others.share += _ALL_ALONG * (is_dictated - self._others.share)


class Dictations:
    """Remembers of each grammar, for as long as it is in use or kept, how much it dictates."""

    def __init__(self) -> None:
        self._shares: WeakKeyDictionary[Grammar, _Share] = WeakKeyDictionary()

    def of(self, grammar: Grammar) -> Dictation:
        """That of a new sequence under a grammar."""
        return Dictation(self._shares.setdefault(grammar, _Share()))


class _Share:
    """Of a grammar's tokens, in whatever sequence."""

    __slots__ = ("share",)

    def __init__(self) -> None:
        self.share = 1.0
