"""What a matcher knows of its output beyond what the engine tells: its shortest end, and repetitions."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from grammars.alike import JsonOrder, loosened
from grammars.base import MaskRow
from grammars.regular.ast import ANYTHING, NOTHING, Regex, Repeat, is_free
from grammars.regular.derivative import derive_text
from grammars.regular.questions import TooManyStatesError, shortest
from grammars.repeats import Repeats
from grammars.schema.closing import Closer, NoCloseError
from grammars.schema.points import Language, Mode, OffGrammarError, Point, RepeatedError
from grammars.schema.reader import Reader
from grammars.schema.tables import Tables
from grammars.vocab import Vocabulary

P = TypeVar("P")

__all__ = ["JsonTracker", "NoCloseError", "OffGrammarError", "RegexTracker", "RepeatedError", "Tracker"]


class Tracker(Protocol[P]):
    """Follows output along a grammar, by immutable points. Shared by the sequences of the grammar.

    Equal points are followed by the same texts, whatever came before them.
    """

    start: P

    def advance(self, point: P, data: bytes, *, ends: bool = False) -> P:
        """The point after `data` (RepeatedError: it repeats what must not come twice).

        Args:
            ends: `data` begins an end that `close` gave, so no repetition is certain behind it.
        """
        ...

    def size(self, point: P) -> float:
        """Bytes of a shortest end; infinite when that must be looked for (`close`)."""
        ...

    def close(self, point: P) -> bytes:
        """A shortest end (NoCloseError: there is none, or none was found)."""
        ...

    def forbid(self, row: MaskRow, point: P) -> None:
        """Clear the bits of tokens that the grammar allows, but not after what came before."""
        ...

    def most_counted(self, point: P) -> int:
        """Where of plain text nothing but its length matters: up to how many characters it does; else 0.

        Tokens of so many characters or more lead to the same point, and are allowed or not together; as are
        those of one length (`Vocabulary.plain_lengths`).
        """
        ...

    def may_end(self, point: P) -> bool:
        """Whether the text may be whole here."""
        ...

    def order(self, point: P) -> tuple[Hashable, int] | None:
        """The same for points that go on alike, and a number: the least of those has every end of the others.

        None where the text is not followed any longer.
        """
        ...

    def languages(self, point: P) -> tuple[Regex, ...]:
        """Regular languages of which the text at a point is, up to a quotation mark; nothing if unknown."""
        ...


class JsonTracker:
    """Follows the JSON of a schema."""

    def __init__(self, tables: Tables, vocabulary: Vocabulary) -> None:
        self._reader = Reader(tables)
        self._closer = Closer(self._reader)
        self._repeats = Repeats(self._reader, vocabulary)
        self._order = JsonOrder(self._reader)
        self._sizes_hold = not tables.fresh_needed
        self._may_repeat = tables.has_names or tables.has_distinct
        # Where items are compared, so may be any text in them.
        self._compares = tables.has_distinct
        self._ends_are_tried = tables.has_compared
        self._plain = vocabulary.plain
        self.start: Point = self._reader.start

    def advance(self, point: Point, data: bytes, *, ends: bool = False) -> Point:
        if not self._compares and data in self._plain and _takes_any_text(point):
            return point
        after = self._reader.advance(point, data)
        if self._may_repeat and not (ends and self._ends_are_tried) and self._repeats.is_dead(after):
            raise RepeatedError
        return after if self._compares else without_text(after)

    def size(self, point: Point) -> float:
        return self._closer.size(point) if self._sizes_hold else self._repeats.size(point, self._closer.size)

    def close(self, point: Point) -> bytes:
        return self._closer.close(point)

    def forbid(self, row: MaskRow, point: Point) -> None:
        if self._may_repeat:
            self._repeats.forbid(row, point)

    def most_counted(self, point: Point) -> int:
        if point.mode != Mode.QUOTED or point.rest or self._compares:
            return 0
        counted = [_most_counted(language) for language, _ in point.texts]
        return max(counted) if all(counted) else 0

    def may_end(self, point: Point) -> bool:
        if point.mode == Mode.BARE and point.level.parent is None:
            return bool(self._reader.complete(point))
        return point.mode == Mode.DONE

    def order(self, point: Point) -> tuple[Point, int] | None:
        return self._order.of(point)

    def languages(self, point: Point) -> tuple[Regex, ...]:
        return self._order.languages(point)


def without_text(point: Point) -> Point:
    """The same, without the text of a string, which matters only where values are compared."""
    return replace(point, text="") if point.mode == Mode.QUOTED and point.text else point


def _takes_any_text(point: Point) -> bool:
    """Whether it is in a string of which only the end matters."""
    return (
        point.mode == Mode.QUOTED
        and not point.rest
        and all(language == ANYTHING for language, _ in point.texts)
    )


class TextPoint(NamedTuple):
    """What may follow, and the bytes of a character that is not complete."""

    left: Regex
    rest: bytes


class RegexTracker:
    """Follows plain text of a regular language."""

    def __init__(self, language: Regex) -> None:
        self.start = TextPoint(language, b"")

    def advance(self, point: TextPoint, data: bytes, *, ends: bool = False) -> TextPoint:
        raw = point.rest + data
        text = raw.decode(errors="ignore")
        left = derive_text(point.left, text)
        if left == NOTHING:
            raise OffGrammarError
        return TextPoint(left, raw[len(text.encode()) :])

    def size(self, point: TextPoint) -> float:
        # At most four bytes a character, and one more for a character that is not complete.
        return (point.left.floor + 1) * 4 if point.left.pure else math.inf

    def close(self, point: TextPoint) -> bytes:
        if point.rest:
            raise NoCloseError
        try:
            word = shortest(point.left)
        except TooManyStatesError as error:
            raise NoCloseError from error
        if word is None:
            raise NoCloseError
        return word.encode()

    def forbid(self, row: MaskRow, point: TextPoint) -> None:
        pass

    def most_counted(self, point: TextPoint) -> int:
        return 0 if point.rest else _most_counted(point.left)

    def may_end(self, point: TextPoint) -> bool:
        return not point.rest and point.left.nullable

    def order(self, point: TextPoint) -> tuple[TextPoint, int]:
        left, least = loosened(point.left)
        return TextPoint(left, point.rest), least

    def languages(self, point: TextPoint) -> tuple[Regex, ...]:
        return (point.left,)


def _most_counted(language: Language) -> int:
    """As `Tracker.most_counted`, of text that is of one language."""
    if not isinstance(language, Repeat) or not is_free(language):
        return 0
    return max(1, language.low) if language.high is None else language.high + 1
