"""How long an end is at most, where items must differ and so a shortest one may be taken.

Of as many values as an array asks for, those that are not taken are enough for its end, and none of them is
longer than the longest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from grammars.schema.distinct import Distinct
from grammars.schema.points import Level, Mode, Point
from grammars.schema.tables import Part, Tables, needs_fresh


class Bounds:
    """Bounds for a grammar whose only array of distinct items is uniform and comes once. Safe to share."""

    def __init__(self, tables: Tables, distinct: Distinct) -> None:
        self._tables = tables
        self._distinct = distinct
        place = None if any(map(needs_fresh, tables.places)) else _only_once(tables)
        self._place = place if place is not None and distinct.is_uniform(place) else None
        self._longest: float | None = None

    def size(self, point: Point, size: Callable[[Point], float]) -> float:
        """At least the bytes of a shortest end; infinite where that is not quick to tell.

        Args:
            size: the same, were items free to repeat.
        """
        if self._place is None or point.mode == Mode.DONE:
            return math.inf if self._place is None else 0
        written = 0
        is_between = point.level.distinct and point.mode == Mode.BETWEEN
        if not is_between and self._distinct.is_alike(point):
            new = self._distinct.new_item(point)
            if new is None:
                return math.inf
            written, point = new
        return written + size(point) + self._rest(point, self._place)

    def _rest(self, point: Point, place: int) -> float:
        """At least what the items that are still asked for take beyond what shortest ones would."""
        low = self._tables.places[place].tail_low
        level: Level | None = point.level
        while level is not None and not level.distinct:
            level = level.parent
        if level is not None:
            low -= len(level.seen)
            if level is point.level and point.mode == Mode.COMMA and low <= 0:
                return math.inf
        return 0 if low <= 0 else low * self._longer(place)

    def _longer(self, place: int) -> float:
        """How much longer an item may be than a shortest."""
        if self._longest is None:
            self._longest = self._distinct.longest_of_enough(place)
        return self._longest - min(part.size for part in self._tables.places[place].tail)


def _only_once(tables: Tables) -> int | None:
    """Where the only array of distinct items starts: the whole value, or a property that comes once."""
    starts = {
        (number, start.place)
        for number, rule in enumerate(tables.rules)
        for start in rule.sequences
        if start.distinct
    }
    if len(starts) != 1:
        return None
    ((rule, place),) = starts
    users: dict[int, set[tuple[int, str | None]]] = {}
    for number in range(len(tables.rules)):
        for part, is_once in _parts(tables, number):
            name = part.key.name if part.key and is_once else None
            users.setdefault(part.rule, set()).add((number, name))
    passed = set()
    while rule not in passed:
        passed.add(rule)
        if rule not in users:
            return place
        ((rule, name),) = users[rule] if len(users[rule]) == 1 else ((rule, None),)
        if name is None:
            return None
    return None


def _parts(tables: Tables, number: int) -> Iterator[tuple[Part, bool]]:
    """The items and properties of the arrays and objects of a rule, and whether each comes once at most."""
    pending = [start.place for start in tables.rules[number].sequences]
    seen = set(pending)
    while pending:
        place = tables.places[pending.pop()]
        yield from ((part, True) for part, _ in place.edges)
        yield from ((part, False) for part in (*place.loop, *place.tail))
        for target in (*(target for _, target in place.edges), place.skip):
            if target >= 0 and target not in seen:
                seen.add(target)
                pending.append(target)
