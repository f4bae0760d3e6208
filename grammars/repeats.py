"""Names that must not come twice in an object, and items that must not in an array of distinct ones.

No context-free grammar can forbid a repetition, so these tokens are taken out of the mask of the grammar:
those that would complete a name or item that is already there, and those after which nothing else could
be completed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from grammars.base import MaskRow
from grammars.regular.ast import ANYTHING, NOTHING, Regex, literal
from grammars.regular.derivative import derive_text
from grammars.regular.questions import is_prolific
from grammars.schema.bounds import Bounds
from grammars.schema.distinct import Distinct
from grammars.schema.endings import fresh_word
from grammars.schema.partial import write
from grammars.schema.points import Level, Mode, OffGrammarError, Point, RepeatedError
from grammars.schema.reader import Reader, identity
from grammars.vocab import Vocabulary

_BARE_ENDS = (b",", b"]", b" ", b"\n")

Ids = npt.NDArray[np.int64]


class Repeats:
    """Takes repetitions out of masks. Stateless but for caches; shared by the sequences of a grammar."""

    def __init__(self, reader: Reader, vocabulary: Vocabulary) -> None:
        self._reader = reader
        self._token_bytes = vocabulary.token_bytes
        self._spellings = vocabulary.spellings
        tables = reader.tables
        distinct = Distinct(reader) if tables.has_distinct else None
        self._distinct = distinct if tables.has_compared else None
        self._bounds = None if distinct is None else Bounds(tables, distinct)

    def is_dead(self, point: Point) -> bool:
        """Whether the name or item at `point` can only become one that is already there."""
        return self._repeats_text(point) or (self._distinct is not None and self._distinct.is_dead(point))

    def size(self, point: Point, size: Callable[[Point], float]) -> float:
        """At least the bytes of a shortest end; infinite where that is not quick to tell.

        Args:
            size: the same, were it free to repeat what came before.
        """
        return math.inf if self._bounds is None else self._bounds.size(point, size)

    def _repeats_text(self, point: Point) -> bool:
        """Whether that is so of the name, or the item without parts, that is being written."""
        if not point.level.seen or not _is_compared(point):
            return False
        start = point.text if point.mode != Mode.QUOTED else f'"{point.text}'
        begun = any(isinstance(text, str) and text.startswith(start) for text in point.level.seen)
        return begun and self._may_die(point) and not self._can_be_fresh(point, point.text)

    def forbid(self, row: MaskRow, point: Point) -> None:
        """Clear the bits of all tokens that lead from `point` to a repetition, or to where one is certain."""
        if _anything_seen(point.level):
            may_die = self._may_die(point)
            for ids in self._direct(point, may_die=may_die):
                _clear(row, ids)
            doubtful = self._doubtful(row, point, may_die=may_die)
            if self._distinct is not None and self._distinct.is_at_risk(point):
                doubtful += self._risky(row, point, self._distinct)
        elif _is_in_distinct(point.level):
            # The first one may end and the second begin in one token.
            doubtful = _set_ones(row, [self._spellings.goes_on])
        elif len(self._spellings.two_elements):
            doubtful = _set_ones(row, [self._spellings.two_elements])
        else:
            return
        begins_string = self._spellings.begins_string.intersection(doubtful)
        if begins_string and self._begins_any_string(point):
            doubtful = list(set(doubtful) - begins_string)
        for token_id in set(doubtful):
            if self._kills(point, self._token_bytes[token_id]):
                _clear(row, np.array([token_id]))

    def _kills(self, point: Point, data: bytes) -> bool:
        """Whether `data` leads from `point` to a repetition, or to where one is certain."""
        try:
            return self.is_dead(self._reader.advance(point, data))
        except RepeatedError:
            return True
        except OffGrammarError:
            # What the token goes on with stands behind the JSON.
            return False

    def _begins_any_string(self, point: Point) -> bool:
        """Whether a string may begin at `point` and go on as one likes, so that it can become a new one."""
        if point.mode not in (Mode.OPENED, Mode.COMMA, Mode.VALUE):
            return False
        try:
            begun = self._reader.advance(point, b'"')
        except OffGrammarError:
            return False
        return begun.mode == Mode.QUOTED and any(language == ANYTHING for language, _ in begun.texts)

    def _direct(self, point: Point, *, may_die: bool) -> Iterator[Ids]:
        """Tokens that lead to a repetition, found by what they start with."""
        if not _is_compared(point):
            return
        if point.mode == Mode.BARE:
            if identity(point.text) in point.level.seen:
                yield from map(self._spellings.starting_with, _BARE_ENDS)
            return
        written = write(point.text).encode() + point.rest
        for text in _seen_strings(point):
            whole = write(text).encode()
            if whole.startswith(written):
                yield self._spellings.starting_with(whole[len(written) :] + b'"')
                dead = self._dead_end(point, text) if may_die else None
                if dead is not None:
                    yield self._spellings.starting_with(write(dead).encode()[len(written) :])

    def _doubtful(self, row: MaskRow, point: Point, *, may_die: bool) -> list[int]:
        """Allowed tokens that may complete more than what they start in."""
        spellings = self._spellings
        if point.mode in (Mode.KEY, Mode.QUOTED):
            sets = [spellings.two_quotes if may_die else spellings.three_quotes]
            if point.level.distinct:
                sets += [spellings.escaped_quote, spellings.goes_on]
        elif may_die and (point.level.distinct or point.mode in (Mode.OPENED, Mode.COMMA)):
            return self._all_set(row)
        else:
            # Elsewhere in an object, names come behind a comma.
            sets = [spellings.two_quotes, spellings.ends_bare, spellings.goes_on]
        return _set_ones(row, sets)

    def _risky(self, row: MaskRow, point: Point, distinct: Distinct) -> list[int]:
        """Allowed tokens that may make an item with parts a repetition."""
        spellings = self._spellings
        quoted = point.mode in (Mode.KEY, Mode.QUOTED)
        sets = [spellings.two_quotes]
        if distinct.is_open_ended(point):
            # Then only a bracket decides.
            sets.append(spellings.quote_and_bracket if quoted else spellings.brackets)
        elif point.mode == Mode.QUOTED and distinct.has_many_ways(point):
            written = len(write(point.text).encode() + point.rest)
            ends = [write(text).encode()[written:] + b'"' for text in distinct.risky_texts(point)]
            sets += [spellings.escaped_quote, *map(spellings.starting_with, ends)]
        elif point.level.distinct and distinct.has_many_ways(point):
            sets += [spellings.brackets, spellings.ends_bare]
        else:
            return self._all_set(row)
        return _set_ones(row, sets)

    def _all_set(self, row: MaskRow) -> list[int]:
        """Every allowed token that is in the vocabulary."""
        ids = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        found: list[int] = ids[ids < len(self._token_bytes)].tolist()
        return found

    def _may_die(self, point: Point) -> bool:
        """Whether a name or item to come can be one that cannot be made different from others any more."""
        languages = self._languages(point, named=False)
        return any(not is_prolific(language) for language in languages if language != NOTHING)

    def _dead_end(self, point: Point, text: str) -> str | None:
        """The shortest beginning of `text`, beyond what is written, that only taken texts begin with."""
        dead = None
        for end in range(len(text), len(point.text), -1):
            if self._can_be_fresh(point, text[:end]):
                break
            dead = text[:end]
        return dead

    def _can_be_fresh(self, point: Point, text: str) -> bool:
        """Whether `text`, which goes on from `point`, can become a name or item that is not there yet."""
        quote = "" if point.mode != Mode.QUOTED else '"'
        seen = point.level.seen

        def taken(word: str) -> bool:
            whole = text + word
            return (whole if point.mode == Mode.KEY else identity(quote + whole)) in seen

        added = text[len(point.text) :]
        languages = self._languages(point, named=True)
        return any(fresh_word(derive_text(left, added), taken) is not None for left in languages)

    def _languages(self, point: Point, *, named: bool) -> Iterator[Regex]:
        """What may follow in the name or item at `point`; elsewhere, what names and items may come next.

        `named`: properties with a name of their own, too; they come once anyway.
        """
        if point.mode in (Mode.QUOTED, Mode.BARE) and point.level.distinct:
            yield from (language for language, _ in point.texts if isinstance(language, Regex))
            return
        if point.mode == Mode.KEY:
            yield from (going for _, going in point.names)
            yield from self._named(point) if named else ()
            return
        items = point.items or tuple(then for _, then in (*point.values, *point.texts))
        for item in items if point.level.parent else ():
            for part, _ in self._reader.steps(item.position):
                if part.key is not None and part.key.regex is not None:
                    yield part.key.regex
                elif part.key is None and point.level.distinct:
                    yield from (text.regex for text in self._reader.tables.rules[part.rule].texts)

    def _named(self, point: Point) -> Iterator[Regex]:
        """What is left of the names that are properties of their own and start as the name at `point`."""
        for item in point.items:
            for part, _ in self._reader.steps(item.position):
                name = part.key.name if part.key else None
                if name is not None and name.startswith(point.text):
                    yield literal(name[len(point.text) :])


def _is_compared(point: Point) -> bool:
    """Whether what is being written is compared with what came before."""
    return point.mode == Mode.KEY or (point.mode in (Mode.QUOTED, Mode.BARE) and point.level.distinct)


def _seen_strings(point: Point) -> Iterator[str]:
    """The strings that must not be repeated where `point` is."""
    if point.mode == Mode.KEY:
        yield from (name for name in point.level.seen if isinstance(name, str))
    else:
        texts = (text for text in point.level.seen if isinstance(text, str))
        yield from (text[1:] for text in texts if text.startswith('"'))


def _is_in_distinct(level: Level | None) -> bool:
    """Whether a level, or one around it, is an array of distinct items."""
    while level is not None:
        if level.distinct:
            return True
        level = level.parent
    return False


def _anything_seen(level: Level | None) -> bool:
    while level is not None:
        if level.seen:
            return True
        level = level.parent
    return False


def _set_ones(row: MaskRow, sets: list[Ids]) -> list[int]:
    """The allowed tokens of some sets; one of several comes more than once."""
    ids = np.concatenate(sets)
    found: list[int] = ids[(row[ids >> 5] >> (ids & 31) & 1) == 1].tolist()
    return found


def _clear(row: MaskRow, ids: Ids) -> None:
    np.bitwise_and.at(row.view(np.uint32), ids >> 5, ~(np.uint32(1) << (ids & 31).astype(np.uint32)))
