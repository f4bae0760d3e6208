"""Few tokens that make a whole sentence of a grammar: the fewest, or not many more if those are not found."""

from __future__ import annotations

import math
from functools import lru_cache

from llguidance import LLMatcher

from grammars.fewest import Work, fewest_tokens
from grammars.llg import tracker_of
from grammars.lower import Sentences
from grammars.regular.ast import Alt, Chars, Concat, Regex, is_free
from grammars.regular.questions import TooManyStatesError, words
from grammars.schema.closing import Closer, NoCloseError
from grammars.schema.partial import write
from grammars.schema.points import Point
from grammars.schema.reader import Reader
from grammars.schema.shapes import Text
from grammars.schema.tables import Tables, ValueRule
from grammars.tracking import JsonTracker
from grammars.vocab import Vocabulary
from grammars.ways import dictated

_MOST_WORK = 6_000
_MOST_WORK_A_TEXT = 24_000
_MOST_S, _MOST_S_A_TEXT = 0.012, 0.05
_LONG = 16
"""Where so many tokens are known, the search hardly ever ends within its limits."""
_WORTH_A_SEARCH = 8
"""Of a text that takes fewer tokens at its shortest, others could not save much."""
_FEW = 64


def few_tokens(sentences: Sentences | None, engine: LLMatcher, vocabulary: Vocabulary) -> list[int]:
    """Tokens of a whole sentence; nothing where no better ones are known than those of a shortest.

    They are the fewest if the search for them ends within its limits. If not, of JSON each value without
    parts that comes at its shortest is one of the fewest tokens.

    Args:
        engine: at the start; it is used up.
    """
    tracker = tracker_of(sentences, vocabulary)
    if tracker is None:
        return []
    few: list[int] = []
    if isinstance(sentences, Tables):
        few = _json(sentences, vocabulary)
    elif isinstance(sentences, Regex):
        listed = _listed(sentences) if _has_few(sentences) else []
        few = min((_spelled(word, vocabulary) for word in listed), key=len, default=[])
    few = dictated(few, engine.deep_copy(), vocabulary) or []
    if len(few) > _LONG:
        return few
    below = len(few) if few else math.inf
    return fewest_tokens(tracker, engine, vocabulary, Work(_MOST_WORK, _MOST_S), below=below) or few


def _spelled(text: str, vocabulary: Vocabulary) -> list[int]:
    """The fewest tokens that make a text; nothing if none do."""
    return vocabulary.spellings.fewest(text.encode()) or []


def _json(tables: Tables, vocabulary: Vocabulary) -> list[int]:
    """A value that, but for its parts, is of the shortest there are."""
    reader = Reader(tables)
    others = _Others(vocabulary)
    closer = Closer(reader, lambda text: len(_spelled(text, vocabulary)) or len(text.encode()), others.of)
    try:
        return _spelled(closer.close(reader.start).decode(), vocabulary)
    except NoCloseError:
        return []


class _Others:
    """Values without parts that take few tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._work = _MOST_WORK_A_TEXT

    def of(self, text: Text) -> list[str]:
        """Values as they are written: one of the fewest tokens, or all where they are few."""
        if _has_few(text.regex):
            return [self._written(word, text) for word in _listed(text.regex)]
        if is_free(text.regex):
            return [self._written(self._long(int(text.regex.floor)), text)]
        shortest = self._written(text.shortest, text)
        if self._work < 0 or len(_spelled(shortest, self._vocabulary)) < _WORTH_A_SEARCH:
            return []
        written, work = _fewest(text, self._vocabulary)
        self._work -= work
        return [] if written is None else [written]

    @staticmethod
    def _written(word: str, text: Text) -> str:
        return f'"{write(word)}"' if text.quoted else word

    def _long(self, length: int) -> str:
        """A text of so many characters, of the longest tokens there are."""
        table = self._vocabulary.table
        pieces: list[str] = []
        while length:
            token_id = table.longest_ordinary(length)
            if token_id is None:
                return "".join(pieces) + "a" * length
            pieces.append(self._vocabulary.token_bytes[token_id].decode())
            length -= len(pieces[-1])
        return "".join(pieces)


class _Compact(JsonTracker):
    """Follows JSON without blanks, of a string from behind its quotation mark on."""

    def __init__(self, tables: Tables, vocabulary: Vocabulary) -> None:
        super().__init__(tables, vocabulary)
        if tables.rules[0].texts[0].quoted:
            self.start = self.advance(self.start, b'"')

    def order(self, point: Point) -> tuple[Point, int] | None:
        return None if point.blanks else super().order(point)


@lru_cache(maxsize=256)
def _fewest(text: Text, vocabulary: Vocabulary) -> tuple[str | None, int]:
    """A value as it is written that is of the fewest tokens, if it is found; and the work that it took."""
    start = ValueRule((text,), (), (), text.size)
    tracker = _Compact(Tables((start,), (), False, False, False, False), vocabulary)
    work = Work(_MOST_WORK_A_TEXT, _MOST_S_A_TEXT)
    tokens = fewest_tokens(tracker, None, vocabulary, work)
    written = None
    if tokens is not None:
        written = '"' * text.quoted + b"".join(vocabulary.token_bytes[token] for token in tokens).decode()
    return written, _MOST_WORK_A_TEXT - work.left


def _has_few(language: Regex) -> bool:
    """Whether a language is plainly one of a few texts."""
    match language:
        case Chars(ranges=ranges):
            return sum(high - low + 1 for low, high in ranges) <= 2
        case Concat(parts=parts) | Alt(parts=parts):
            return all(map(_has_few, parts))
    return False


def _listed(language: Regex) -> list[str]:
    """The texts of a language, where they are few."""
    try:
        return words(language, _FEW) or []
    except TooManyStatesError:
        return []
