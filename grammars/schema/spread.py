"""How many different values there are at least: of a rule, and from a point in an array of distinct items on.

What is counted is sure to differ, so it is less than there are where two ways may lead to one value.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from grammars.regular.ast import Regex, intersect
from grammars.regular.derivative import derive_text
from grammars.regular.patterns import full_language
from grammars.regular.questions import TooManyStatesError, count_texts
from grammars.schema.points import Item, Language, Level, Mode, Point, Position
from grammars.schema.reader import Reader
from grammars.schema.shapes import Text
from grammars.schema.tables import Part, Place, ValueRule, distinct_places

MOST = 1 << 10
"""More than this is not counted."""
_ROUNDS = 32
"""So often what is known of rules is carried to those that they are part of."""
_IDENTITY = full_language("-?[1-9][0-9]*|0|[a-z]+")
_ONE_SPELLING = full_language(r"-?[1-9][0-9]*|0|[a-z]+|-?(0|[1-9][0-9]{0,9})\.[0-9]{0,3}[1-9]")
"""Numbers and names that differ where their texts do, as doubles, too."""


class Spread:
    """Counts for one grammar. Immutable; safe to share."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._tables = reader.tables
        self._distinct = distinct_places(self._tables.rules, self._tables.places)
        self._texts = [
            sum(
                max((_text(text) for text in rule.texts if text.quoted == quoted), default=0)
                for quoted in (False, True)
            )
            for rule in self._tables.rules
        ]
        self._rules = [0] * len(self._tables.rules)
        self._places = [0] * len(self._tables.places)
        for _ in range(_ROUNDS):
            before = sum(self._rules), sum(self._places)
            self._settle()
            if (sum(self._rules), sum(self._places)) == before:
                break

    def rule(self, number: int) -> int:
        """Different values of a rule."""
        return self._rules[number]

    def ways(self, point: Point, outer: Level) -> int:
        """Different values that the item of `outer` which `point` is in, or before, can become."""
        ways = self._here(point, last=point.level is outer)
        level = point.level
        while level is not outer and level.parent is not None and level.parent is not outer:
            around: dict[Item, int] = {}
            for item, count in ways.items():
                after = level.back[item.up]
                around[after] = max(around.get(after, 0), count * self._at(after.position))
            ways, level = around, level.parent
        return min(MOST, max(ways.values(), default=0))

    def _here(self, point: Point, *, last: bool) -> dict[Item, int]:
        """By the item after what is being written or comes next; `last`: nothing after that matters."""
        found: dict[Item, int] = {}
        for item, ways in self._next(point):
            found[item] = max(found.get(item, 0), ways if last else ways * self._at(item.position))
        return found

    def _next(self, point: Point) -> Iterator[tuple[Item, int]]:
        """Ways to write what is being written or comes next, and the item then."""
        match point.mode:
            case Mode.COLON | Mode.VALUE:
                yield from ((value.then, self._rules[value.rule]) for value in point.values)
            case Mode.QUOTED:
                yield from ((item, count(language)) for language, item in point.texts)
            case Mode.BARE:
                going = derive_text(_ONE_SPELLING, point.text)
                for language, item in point.texts:
                    if isinstance(language, Regex):
                        yield item, count(intersect((language, going)))
            case Mode.COMMA | Mode.KEY:
                yield from self._elements(point)
            case _ if point.level.parent is not None and not point.level.distinct:
                yield from ((item, 1) for item in point.items)

    def _elements(self, point: Point) -> Iterator[tuple[Item, int]]:
        for item in point.items:
            for part, after in self._reader.steps(item.position):
                name = part.key.name if part.key else None
                if point.mode == Mode.COMMA or (name is not None and name.startswith(point.text)):
                    yield Item(after, item.up), self._part(part)

    def _settle(self) -> None:
        for number in reversed(range(len(self._places))):
            place = self._tables.places[number]
            on = [self._part(part) * self._places[target] for part, target in place.edges]
            if number not in self._distinct:
                on += [self._part(part) * self._places[number] for part in place.loop]
            on.append(self._tail(place, number, 0))
            ends = place.final or (bool(place.tail) and place.tail_low == 0)
            skipped = self._places[place.skip] if place.skip >= 0 else 0
            if number in self._distinct and place.edges:
                on = []  # what came before may be all there is
            self._places[number] = min(MOST, max(ends + max(on, default=0), skipped))
        for number, rule in enumerate(self._tables.rules):
            self._rules[number] = min(MOST, self._texts[number] + self._parted(rule))

    def _parted(self, rule: ValueRule) -> int:
        """Of a rule, its values with parts."""
        return sum(
            max((self._places[s.place] for s in rule.sequences if s.is_object == is_object), default=0)
            for is_object in (False, True)
        )

    def _part(self, part: Part) -> int:
        """Ways to write an item or property; names that may be there already do not count."""
        if part.key is not None and part.key.regex is not None and count(part.key.regex) < MOST:
            return 0
        return self._rules[part.rule]

    def _at(self, position: Position) -> int:
        """Ways for a sequence to go on from a position."""
        if position.place < 0:
            return 1
        if not position.passed:
            return self._places[position.place]
        place = self._tables.places[position.place]
        ends = position.passed >= place.tail_low
        return ends + self._tail(place, position.place, position.passed)

    def _tail(self, place: Place, number: int, passed: int) -> int:
        """Ways for the tail of a place to go on, one more at least, after so many."""
        each = max(map(self._part, place.tail), default=0)
        low = max(1, place.tail_low - passed)
        high = None if place.tail_high is None else place.tail_high - passed
        if not each or (high is not None and high < low):
            return 0
        if any(part.key is not None for part in place.tail):
            return each if low == 1 else 0
        if place.distinct or number in self._distinct:
            return 0 if passed or each < low else each
        if high is None:
            return MOST
        found = 0
        for length in range(low, min(high, low + MOST) + 1):
            found += int(each ** min(length, MOST.bit_length()))
        return min(MOST, found)


def is_its_identity(point: Point) -> bool:
    """Whether what is written at `point` becomes an integer or a name, as it is written where compared."""
    if not all(count(language) < MOST for language, _ in point.texts):
        return False
    going = derive_text(_IDENTITY, point.text)
    return all(
        isinstance(language, Regex) and count(language) == count(intersect((language, going)))
        for language, _ in point.texts
    )


@lru_cache(maxsize=4096)
def count(language: Language) -> int:
    """Texts of a language, up to `MOST`; none where they are not counted within the limits."""
    try:
        return min(MOST, count_texts(language, MOST)) if isinstance(language, Regex) else 0
    except TooManyStatesError:
        return 0


def _text(text: Text) -> int:
    return count(text.regex if text.quoted else intersect((text.regex, _ONE_SPELLING)))
