"""The shortest way to end a value from a point in its output.

Shortest in bytes of compact JSON. Each place in the tables knows how far its end is, so of several readings
the one is taken whose sum over the open arrays and objects is least. Where names or items must differ from
those before, ones are found that do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from grammars.regular.ast import NOTHING, Regex
from grammars.regular.questions import TooManyStatesError
from grammars.schema.endings import FreshWords, end_text, fresh_word
from grammars.schema.partial import write
from grammars.schema.points import (
    Item,
    Language,
    Level,
    Mode,
    OffGrammarError,
    Point,
    Position,
    RepeatedError,
    Value,
)
from grammars.schema.reader import Reader, identity
from grammars.schema.search import Search, TooManyStepsError
from grammars.schema.shapes import Key, Text
from grammars.schema.steps_left import complete_multiple, whole_multiples
from grammars.schema.tables import Part

MAX_BYTES = 1 << 14
_MAX_CHAR = 6
"""Bytes of a character: \\u and four digits."""

Taken = Callable[[str], bool]
_Fresh = dict[tuple[Regex, str], FreshWords]
"""Of the languages of one sequence, in quotes or not."""


class NoCloseError(Exception):
    """There is no way to the end, or none is found within the limits."""


@dataclass(frozen=True, slots=True)
class _Way:
    """One way on: how many bytes to the end it takes about, what comes first, and the item after that."""

    size: int
    head: Callable[[], tuple[bytes, Level]]
    item: Item


class Closer:
    """Finds shortest ends. Stateless but for a cache; safe to share.

    Args:
        cost: of a value without parts as it is written; a cheapest is taken instead of a shortest.
        others: of a value without parts, texts as they are written that may be cheaper than the shortest.
    """

    def __init__(
        self,
        reader: Reader,
        cost: Callable[[str], int] | None = None,
        others: Callable[[Text], list[str]] = lambda text: [],
    ) -> None:
        self._reader = reader
        self._cost = cost
        self._others = others
        self._tables = reader.tables
        self._search = Search(reader)
        self._values: dict[int, str] = {}

    def close(self, point: Point) -> bytes:
        """Bytes that end the value.

        Raises:
            NoCloseError: see there.
        """
        if point.mode == Mode.DONE:
            return b""
        if self._tables.has_compared:
            return self._close_compared(point)
        return self._close_shortest(point)

    def _close_compared(self, point: Point) -> bytes:
        """The same where items with parts must differ: what is shortest may be a repetition."""
        try:
            text = self._close_shortest(point)
            self._reader.advance(point, text)
        except (NoCloseError, RepeatedError, OffGrammarError):
            try:
                found = self._search.find(point, lambda after: after.mode == Mode.DONE)
            except TooManyStepsError:
                found = None
            if found is None:
                raise NoCloseError from None
            return found
        return text

    def _close_shortest(self, point: Point) -> bytes:
        try:
            best = min(self._ways(point), key=lambda way: way.size, default=None)
            if best is None or best.size > MAX_BYTES:
                raise NoCloseError
            head, level = best.head()
            return head + self._finish(level, best.item, first=point.mode == Mode.OPENED).encode()
        except (RecursionError, TooManyStatesError) as error:
            raise NoCloseError from error

    def size(self, point: Point) -> float:
        """At least the bytes to the end, quickly; more only where the tables say that it may be more."""
        match point.mode:
            case Mode.DONE:
                return 0
            case Mode.QUOTED:
                return min(_most(language) + self._size(point.level, item) for language, item in point.texts)
            case _:
                try:
                    return min((way.size for way in self._ways(point)), default=math.inf)
                except TooManyStatesError:
                    return math.inf

    def _ways(self, point: Point) -> Iterator[_Way]:
        match point.mode:
            case Mode.OPENED | Mode.BETWEEN:
                for item in point.items:
                    yield _Way(self._size(point.level, item), lambda: (b"", point.level), item)
            case Mode.COMMA:
                yield from self._elements(point)
            case Mode.KEY:
                yield from self._keys(point)
            case Mode.COLON | Mode.VALUE:
                colon = ":" if point.mode == Mode.COLON else ""
                for value in point.values:
                    yield self._value(point.level, value, colon.encode())
            case Mode.QUOTED | Mode.BARE:
                yield from self._texts(point)

    def _elements(self, point: Point) -> Iterator[_Way]:
        for item in point.items:
            for part, after in self._reader.steps(item.position):
                then = Item(after, item.up)
                size = part.size + self._size(point.level, then)
                if part.key is not None and part.key.name is None:
                    size += self._longer_name(point.level, part.key)
                yield _Way(size, partial(self._head, point.level, part), then)

    def _longer_name(self, level: Level, key: Key) -> int:
        """How much longer a name gets that is not in the object yet."""
        name = fresh_word(key.language, level.seen.__contains__)
        return MAX_BYTES if name is None else len(write(name).encode()) + 3 - key.size

    def _head(self, level: Level, part: Part) -> tuple[bytes, Level]:
        text, level = self._element(level, part, {})
        return text.encode(), level

    def _keys(self, point: Point) -> Iterator[_Way]:
        """Every way to go on with a name."""
        written = write(point.text).encode() + point.rest
        for item in point.items:
            for part, after in self._reader.steps(item.position):
                ending = self._end_key(point, part, written)
                if ending is None:
                    continue
                name = point.text + ending[1]
                value = Value(part.rule, Item(after, item.up))
                level = replace(point.level, seen=point.level.seen | {name})
                yield self._value(level, value, ending[0] + b'":')

    def _end_key(self, point: Point, part: Part, written: bytes) -> tuple[bytes, str] | None:
        """The bytes that complete a name, and the characters they are; None if it cannot be this part's."""
        key = part.key
        if key is None:
            return None
        if key.name is not None:
            whole = write(key.name).encode()
            if not whole.startswith(written) or key.name in point.level.seen:
                return None
            return whole[len(written) :], key.name[len(point.text) :]
        left = dict(point.names).get(key.language, NOTHING)
        return end_text(left, point.rest, lambda word: point.text + word in point.level.seen)

    def _value(self, level: Level, value: Value, before: bytes) -> _Way:
        size = len(before) + self._tables.rules[value.rule].size + self._size(level, value.then)
        return _Way(size, partial(self._value_head, level, value.rule, before), value.then)

    def _value_head(self, level: Level, rule: int, before: bytes) -> tuple[bytes, Level]:
        text, level = self._item(level, rule, {})
        return before + text.encode(), level

    def _texts(self, point: Point) -> Iterator[_Way]:
        level, quote = point.level, '"' if point.mode == Mode.QUOTED else ""

        def taken(word: str) -> bool:
            return level.distinct and identity(quote + point.text + word) in level.seen

        for language, item in point.texts:
            ending = self._end(language, point, taken)
            if ending is not None:
                head = ending[0] + quote.encode()
                after = _noting(level, quote + point.text + ending[1])
                yield _Way(len(head) + self._size(level, item), partial(_given, head, after), item)

    def _end(self, language: Language, point: Point, taken: Taken) -> tuple[bytes, str] | None:
        if not isinstance(language, Regex):
            ending = complete_multiple(language, point.text, taken)
            return None if ending is None else (ending.encode(), ending)
        if point.mode == Mode.QUOTED:
            return end_text(language, point.rest, taken)
        word = fresh_word(language, taken)
        return None if word is None else (word.encode(), word)

    def _size(self, level: Level, item: Item) -> int:
        """Bytes to the end once an item is reached."""
        total = 0
        while level.parent is not None:
            total += self._rest_size(item.position) + 1
            level, item = level.parent, level.back[item.up]
        return total

    def _rest_size(self, position: Position) -> int:
        place = self._tables.places[position.place]
        if not position.passed:
            return place.size
        sizes = sorted(p.size + 1 for bit, p in enumerate(place.tail) if not position.taken >> bit & 1)
        needed = max(0, place.tail_low - position.passed)
        return sum(sizes[:needed]) if place.distinct else needed * sizes[0]

    def _finish(self, level: Level, item: Item, *, first: bool) -> str:
        """The text to the end once an item is reached; `first`: no element stands before it."""
        texts = []
        while level.parent is not None:
            texts.append(self._rest(level, item.position, first=first))
            texts.append("}" if level.is_object else "]")
            level, item, first = level.parent, level.back[item.up], False
        return "".join(texts)

    def _rest(self, level: Level, position: Position, *, first: bool) -> str:
        """The elements to the end of a sequence."""
        texts = []
        fresh: _Fresh = {}
        while not self._reader.may_end(position):
            steps = self._reader.steps(position)
            part, position = min(steps, key=lambda step: step[0].size + self._rest_size(step[1]))
            text, level = self._element(level, part, fresh)
            texts.append(text if first else "," + text)
            first = False
        return "".join(texts)

    def _element(self, level: Level, part: Part, fresh: _Fresh) -> tuple[str, Level]:
        """A shortest item or property, and the level after it; `fresh` goes on from one to the next."""
        if part.key is None:
            return self._item(level, part.rule, fresh)
        name = part.key.name
        if name is None:
            assert part.key.regex is not None
            words = fresh.setdefault((part.key.regex, '"'), FreshWords(part.key.regex))
            name = words.next(level.seen.__contains__)
        if name is None:
            raise NoCloseError
        return f'"{write(name)}":{self._shortest(part.rule)}', replace(level, seen=level.seen | {name})

    def _item(self, level: Level, rule: int, fresh: _Fresh) -> tuple[str, Level]:
        """A shortest value; in an array of distinct items, one that is not there yet."""
        if not level.distinct or level.is_object:
            return self._shortest(rule), level
        for text in sorted(self._tables.rules[rule].texts, key=lambda text: text.size):
            quote = '"' if text.quoted else ""
            words = fresh.setdefault((text.regex, quote), FreshWords(text.regex))
            word = words.next(lambda word, quote=quote: identity(quote + word) in level.seen)  # type: ignore[misc]
            if word is not None:
                written = f'"{write(word)}"' if text.quoted else word
                return written, _noting(level, quote + word)
        for multiples in self._tables.rules[rule].multiples:
            numbers = islice(whole_multiples(multiples), len(level.seen) + 1)
            word = next((word for word in numbers if identity(word) not in level.seen), None)
            if word is not None:
                return word, _noting(level, word)
        raise NoCloseError

    def _shortest(self, number: int) -> str:
        """A shortest value of a rule."""
        known = self._values.get(number)
        if known is None:
            known = self._find_shortest(number)
            if self._cost is not None:
                texts = self._tables.rules[number].texts
                known = min([known, *(word for text in texts for word in self._others(text))], key=self._cost)
            self._values[number] = known
        return known

    def _find_shortest(self, number: int) -> str:
        rule = self._tables.rules[number]
        if rule.size > MAX_BYTES:
            raise NoCloseError
        for text in rule.texts:
            if text.size == rule.size:
                return f'"{write(text.shortest)}"' if text.quoted else text.shortest
        for multiples in rule.multiples:
            if len(multiples.shortest) == rule.size:
                return multiples.shortest
        start = min(rule.sequences, key=lambda start: self._tables.places[start.place].size)
        level = Level(Level(None, ()), (), start.is_object, start.distinct)
        inside = self._rest(level, Position(start.place), first=True)
        return f"{{{inside}}}" if start.is_object else f"[{inside}]"


def _most(language: Language) -> float:
    """At least the bytes of a shortest ending of a string, its quote and a half written character too."""
    if not isinstance(language, Regex) or not language.pure:
        return math.inf
    return (language.floor + 1) * _MAX_CHAR + 1


def _noting(level: Level, written: str) -> Level:
    return replace(level, seen=level.seen | {identity(written)}) if level.distinct else level


def _given(head: bytes, level: Level) -> tuple[bytes, Level]:
    return head, level
