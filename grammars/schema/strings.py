"""Sets of strings: a few words, or a regular language."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from grammars.regular.ast import ANYTHING, Regex, alt, complement, intersect
from grammars.regular.derivative import matches
from grammars.regular.questions import is_empty
from grammars.regular.texts import one_of


@dataclass(frozen=True, slots=True)
class Strings:
    """Strings by what they mean, not by how JSON escapes them.

    Attributes:
        words: all of them in order, where they were listed; else None.
        regex: the language, where they were not listed.
        wider: a language around them, where they are only a part of what was asked for (a format):
            the complement leaves out all of it. None: they are the same.
    """

    words: tuple[str, ...] | None = None
    regex: Regex = ANYTHING
    wider: Regex | None = None

    @property
    def language(self) -> Regex:
        """The set as a regular language."""
        return self.regex if self.words is None else _listed(self.words)

    @property
    def outer(self) -> Regex:
        """All that may belong to what was asked for."""
        return self.language if self.wider is None else self.wider

    def __contains__(self, text: str) -> bool:
        return matches(self.regex, text) if self.words is None else text in self.words

    def meet(self, other: Strings) -> Strings:
        """The strings in both."""
        if other == ALL:
            return self
        if self.words is None and other.words is not None:
            return other.meet(self)
        wider = None if self.wider is other.wider is None else intersect((self.outer, other.outer))
        if self.words is None:
            return Strings(None, intersect((self.regex, other.regex)), wider)
        words = tuple(word for word in self.words if word in other)
        if wider is not None and self.wider is None:
            outer = tuple(word for word in self.words if matches(wider, word))
            wider = None if outer == words else _listed(outer)
        return Strings(words, wider=wider)

    def join(self, other: Strings) -> Strings:
        """The strings in either."""
        wider = None if self.wider is other.wider is None else alt((self.outer, other.outer))
        if self.words is not None and other.words is not None:
            return Strings(tuple(dict.fromkeys(self.words + other.words)), wider=wider)
        return Strings(None, alt((self.language, other.language)), wider)

    def outside(self) -> Strings:
        """All other strings."""
        return Strings(
            None, complement(self.outer), None if self.wider is None else complement(self.language)
        )

    def is_empty(self) -> bool:
        """Whether there are none (TooManyStatesError when that is not decided within the limits)."""
        return not self.words if self.words is not None else is_empty(self.regex)


@lru_cache(maxsize=256)
def _listed(words: tuple[str, ...]) -> Regex:
    # A long list is often referred to from many places.
    return one_of(words)


ALL = Strings()
NONE = Strings(())
