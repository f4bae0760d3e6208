"""Arrays whose items have parts and must differ: whether an item in the making still can.

An item becomes a repetition with its last bracket, but what decides is often written long before. So of
each point it is asked whether some end of its array remains. Mostly that is quick to see: nothing that was
there starts like it, or it can go on in more ways than anybody would write.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from grammars.regular.ast import Regex
from grammars.regular.questions import TooManyStatesError, has_more_than
from grammars.schema.points import Identity, Item, Language, Level, Mode, Point, Position
from grammars.schema.reader import Reader
from grammars.schema.search import Search, TooManyStepsError
from grammars.schema.spread import Spread, is_its_identity
from grammars.schema.tables import Place, Tables, distinct_places

_QUICK = 24
"""Steps of a search that is not worth more."""
_MANY = 300
"""So many different values are more than any array has."""


class Distinct:
    """Answers for one grammar. Stateless but for caches; safe to share."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._search = Search(reader)
        self._many = ManyValues(reader.tables)
        self._spread = Spread(reader)
        self._starts = {
            start.place for rule in reader.tables.rules for start in rule.sequences if start.distinct
        }

    def is_dead(self, point: Point) -> bool:
        """Whether every end of an array of distinct items that `point` is in repeats an item."""
        return any(self._is_dead_in(point, outer) for outer in _compared(point))

    def _is_dead_in(self, point: Point, outer: Level) -> bool:
        is_alike = any(True for _ in self._pending_in(point, outer))
        if not is_alike or self._has_many_ways_in(point, outer):
            return False
        alike = sum(1 for _ in self._pending_in(point, outer))
        enough = self._leaves_enough(point, outer)
        if enough and self._spread.ways(point, outer) > alike:
            return False
        depth = _depth(outer)

        def is_through(after: Point) -> bool:
            return _depth(after.level) < depth or (enough and _is_further(after, outer, depth))

        try:
            return self._search.find(point, is_through) is None
        except TooManyStepsError:
            return False

    def new_item(self, point: Point) -> tuple[int, Point] | None:
        """Bytes of an end of the item at `point` that is none of those before, and the point there."""
        outer = _outermost(point)
        depth = _depth(outer)
        try:
            text = self._search.find(point, lambda after: _is_further(after, outer, depth), _QUICK)
        except TooManyStepsError:
            return None
        return None if text is None else (len(text), self._reader.advance(point, text))

    def longest_of_enough(self, number: int) -> float:
        """The bytes, with a comma, of the longest of as many items as a uniform array asks for.

        Infinite where so many are not found.
        """
        place = self._reader.tables.places[number]
        return self._search.longest(place.tail[0].rule, place.tail_low)

    def _leaves_enough(self, point: Point, outer: Level) -> bool:
        """Whether the array can end, or has enough other items left, once the one at `point` is a new one."""
        items = _items(point)
        if point.level is outer and point.mode == Mode.COMMA:
            items = tuple(
                Item(after, item.up) for item in items for _, after in self._reader.steps(item.position)
            )
        for level in reversed(_inside(point.level, outer)):
            items = tuple(level.back[item.up] for item in items)
        return all(
            self._reader.may_end(item.position) or self.is_uniform(item.position.place) for item in items
        )

    def is_uniform(self, number: int) -> bool:
        """Whether all items of an array are of one rule, which has as many values as it asks for items."""
        place = self._reader.tables.places[number]
        if number not in self._starts or place.edges or place.skip >= 0 or place.loop or len(place.tail) != 1:
            return False
        return self._spread.rule(place.tail[0].rule) >= place.tail_low

    def is_at_risk(self, point: Point) -> bool:
        """Whether a token at `point` may lead to a repetition, or to where one is certain."""
        return self.is_alike(point) or self.may_run_out(point)

    def may_run_out(self, point: Point) -> bool:
        """Whether the array may have all items there are once the one at `point` is whole."""
        return any(self._may_run_out_in(point, outer) for outer in _compared(point))

    def _may_run_out_in(self, point: Point, outer: Level) -> bool:
        level, items = point.level, _items(point)
        while level is not outer and level.parent is not None:
            items = tuple(level.back[item.up] for item in items)
            level = level.parent
        steps = (step for item in items for step in self._reader.steps(item.position))
        return any(not self._many.rule(part.rule) for part, _ in steps)

    def is_alike(self, point: Point) -> bool:
        """Whether an earlier item starts like the one that is being written at `point`."""
        return any(True for _ in self._pending(point))

    def risky_texts(self, point: Point) -> list[str]:
        """The strings that stand in earlier items where one is being written at `point`."""
        return [text[1:] for text in dict.fromkeys(self._pending(point)) if isinstance(text, str)]

    def has_many_ways(self, point: Point) -> bool:
        """Whether the item that `point` is in can still become very many values."""
        return all(self._has_many_ways_in(point, outer) for outer in _compared(point) or (point.level,))

    def _has_many_ways_in(self, point: Point, outer: Level) -> bool:
        if self._goes_on(point, within=point.level is not outer):
            return True
        return any(self._many.at(item.position) for level, items in _up(point, outer) for item in items)

    def is_open_ended(self, point: Point) -> bool:
        """Whether an array or object inside the item may go on as long as one likes, whatever comes next."""
        return all(self._is_open_ended_in(point, outer) for outer in _compared(point) or (point.level,))

    def _is_open_ended_in(self, point: Point, outer: Level) -> bool:
        if point.level is outer:
            return False
        levels = [_items(point), *(items for _, items in _up(point, outer))]
        return any(all(self._many.is_open_ended(item.position.place) for item in items) for items in levels)

    def _goes_on(self, point: Point, *, within: bool) -> bool:
        """Whether what is written at `point`, or comes next, can be very many values.

        `within`: so does what comes after that in the same array or object.
        """
        many = self._many
        match point.mode:
            case Mode.COLON | Mode.VALUE:
                ways = [(many.rule(value.rule), value.then) for value in point.values]
            case Mode.QUOTED | Mode.BARE:
                ways = [(is_many(language), item) for language, item in point.texts]
            case Mode.COMMA | Mode.KEY:
                ways = list(self._elements(point))
            case _:
                ways = [(False, item) for item in point.items]
        return any(now or (within and many.at(then.position)) for now, then in ways)

    def _elements(self, point: Point) -> Iterator[tuple[bool, Item]]:
        """Of each element that may come, whether it can be very many, and the item after it."""
        names = dict(point.names)
        for item in point.items:
            for part, after in self._reader.steps(item.position):
                if part.key is None or part.key.name is not None:
                    named = part.key is None or (part.key.name or "").startswith(point.text)
                    if named:
                        yield self._many.rule(part.rule), Item(after, item.up)
                elif point.mode == Mode.COMMA or part.key.language in names:
                    left = names.get(part.key.language, part.key.language)
                    yield is_many(left) or self._many.rule(part.rule), Item(after, item.up)

    def _pending(self, point: Point) -> Iterator[Identity]:
        """What stands where `point` is in the earlier items that start like the one in the making."""
        for outer in _compared(point):
            yield from self._pending_in(point, outer)

    def _pending_in(self, point: Point, outer: Level) -> Iterator[Identity]:
        start = _beginning(point)
        for other in outer.seen:
            here: Identity | None = other
            for level in _inside(point.level, outer):
                here = None if here is None else _next_part(here, level, point)
            if here is not None and (start is None or (isinstance(here, str) and here.startswith(start))):
                yield here


def _beginning(point: Point) -> str | None:
    """What the identity of what is being written at `point` begins with; None where that is not known."""
    if point.mode == Mode.QUOTED:
        return f'"{point.text}'
    # A number may be written in many ways.
    is_known = point.mode == Mode.BARE and (point.text.isalpha() or is_its_identity(point))
    return point.text if is_known else None


def _next_part(other: Identity, level: Level, point: Point) -> Identity | None:
    """The part of `other` that follows those of `level`; all of it between parts; None if they differ."""
    between = level is point.level and point.mode in (Mode.OPENED, Mode.BETWEEN, Mode.COMMA, Mode.KEY)
    if level.is_object:
        if not isinstance(other, frozenset) or not other.issuperset(level.parts):
            return None
        return other if between else dict(other).get(level.key)
    count = len(level.parts)
    if not isinstance(other, tuple) or other[:count] != level.parts:
        return None
    if between:
        return other
    return other[count] if count < len(other) else None


class ManyValues:
    """Which rules have, and after which positions come, so many values that some are always left."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._distinct = distinct_places(tables.rules, tables.places)
        self._rules = [False] * len(tables.rules)
        self._places = [False] * len(tables.places)
        self._open: dict[int, bool] = {}
        self._settle()

    def _settle(self) -> None:
        changed = True
        while changed:
            before = sum(self._rules) + sum(self._places)
            for number in reversed(range(len(self._places))):
                self._places[number] = self._places[number] or self._find_place(number)
            for number in range(len(self._rules)):
                self._rules[number] = self._rules[number] or self._find_rule(number)
            changed = sum(self._rules) + sum(self._places) > before

    def rule(self, number: int) -> bool:
        """Whether a rule has very many values."""
        return self._rules[number]

    def at(self, position: Position) -> bool:
        """Whether a sequence can go on from a position in very many ways."""
        if position.place < 0:
            return False
        place = self._tables.places[position.place]
        return (
            self._tail(place, position.passed, position.place)
            if position.passed
            else self._places[position.place]
        )

    def is_open_ended(self, number: int) -> bool:
        """Whether every end of the sequence from a place on lies behind elements without number."""
        known = self._open.get(number)
        if known is None:
            self._open[number] = False  # for loops, which do not end it either way
            known = self._open[number] = number >= 0 and self._ends_open(number)
        return known

    def _ends_open(self, number: int) -> bool:
        pending, seen = [number], {number}
        while pending:
            here = pending.pop()
            place = self._tables.places[here]
            endless = bool(place.tail) and place.tail_high is None and self._tail(place, 0, here)
            if place.final and not endless:
                return False
            if place.tail and not endless:
                return False
            for target in (*(target for _, target in place.edges), place.skip):
                if target >= 0 and target not in seen:
                    seen.add(target)
                    pending.append(target)
        return True

    def _find_rule(self, number: int) -> bool:
        rule = self._tables.rules[number]
        return (
            bool(rule.multiples)
            or any(self._places[start.place] for start in rule.sequences)
            or any(is_many(text.regex) for text in rule.texts)
        )

    def _find_place(self, number: int) -> bool:
        place = self._tables.places[number]
        return (
            (place.skip >= 0 and self._places[place.skip])
            or any(self._rules[part.rule] or self._places[target] for part, target in place.edges)
            or any(self._rules[part.rule] for part in place.loop)
            or (bool(place.loop) and number not in self._distinct)
            or any(part.key and part.key.regex and is_many(part.key.regex) for part, _ in place.edges)
            or (bool(place.tail) and self._tail(place, 0, number))
        )

    def _tail(self, place: Place, passed: int, number: int) -> bool:
        if place.tail_high is not None and passed >= place.tail_high:
            return False
        if any(self._rules[part.rule] for part in place.tail):
            return True
        if any(part.key and part.key.regex and is_many(part.key.regex) for part in place.tail):
            return True
        is_array = all(part.key is None for part in place.tail)
        return is_array and place.tail_high is None and not place.distinct and number not in self._distinct


@lru_cache(maxsize=1024)
def is_many(language: Language) -> bool:
    """Whether a language has more texts than any array has items, whatever was written of one."""
    if not isinstance(language, Regex):
        return True
    try:
        return has_more_than(language, _MANY)
    except TooManyStatesError:
        return True


def _compared(point: Point) -> list[Level]:
    """The arrays of distinct items, with something in them, that `point` is in, innermost first."""
    levels, level = [], point.level
    while level.parent is not None:
        if level.distinct and level.seen:
            levels.append(level)
        level = level.parent
    return levels


def _outermost(point: Point) -> Level:
    """The outermost array of distinct items, with something in it, that `point` is in; else its own level."""
    outer, level = point.level, point.level.parent
    while level is not None:
        if level.distinct and level.seen:
            outer = level
        level = level.parent
    return outer


def _up(point: Point, outer: Level) -> Iterator[tuple[Level, tuple[Item, ...]]]:
    """The levels between that of `point` and `outer`, and their items once what is inside is closed."""
    level, items = point.level, _items(point)
    while level is not outer and level.parent is not None and level.parent is not outer:
        items = tuple(level.back[item.up] for item in items)
        level = level.parent
        yield level, items


def _inside(level: Level, outer: Level) -> list[Level]:
    """The levels below `outer` to `level`, outermost first."""
    levels = []
    while level is not outer:
        levels.append(level)
        assert level.parent is not None
        level = level.parent
    levels.reverse()
    return levels


def _items(point: Point) -> tuple[Item, ...]:
    return point.items or tuple(then for _, then in (*point.values, *point.texts))


def _is_further(point: Point, outer: Level, depth: int) -> bool:
    """Whether an array, open at a depth, has got an item more than in `outer`."""
    return len(point.level.seen) > len(outer.seen) and _depth(point.level) == depth


def _depth(level: Level) -> int:
    depth = 0
    while level.parent is not None:
        level = level.parent
        depth += 1
    return depth
