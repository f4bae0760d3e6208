"""The rules of a schema as plain tables, numbered through: what a reader of the output needs of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from grammars.schema.shapes import Element, Key, Multiples, Rule, State, Text


@dataclass(frozen=True, slots=True)
class Part:
    """An item or a property; `rule` is a number."""

    key: Key | None
    rule: int
    size: int


@dataclass(frozen=True, slots=True)
class Place:
    """A state of `shapes`; `edges` and `skip` lead to numbers of places (-1: nowhere)."""

    edges: tuple[tuple[Part, int], ...]
    skip: int
    final: bool
    loop: tuple[Part, ...]
    tail: tuple[Part, ...]
    tail_low: int
    tail_high: int | None
    distinct: bool
    size: int
    """Bytes of a shortest way to the end, commas included, without the closing bracket."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Every element that may come next."""
        return (*(part for part, _ in self.edges), *self.loop, *self.tail)


@dataclass(frozen=True, slots=True)
class Start:
    """An array or an object; `distinct`: no two items are equal."""

    is_object: bool
    place: int
    distinct: bool


@dataclass(frozen=True, slots=True)
class ValueRule:
    """The values of one place in the schema."""

    texts: tuple[Text, ...]
    multiples: tuple[Multiples, ...]
    sequences: tuple[Start, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Tables:
    """A schema's grammar; rule 0 is the root.

    Attributes:
        rules, places: by number.
        has_names: some object may have properties that are not named, so a name might come twice.
        has_distinct: some array must not have an item twice.
        has_compared: items with parts are among those that must not come twice.
        fresh_needed: somewhere properties or items must come that differ from the ones before, so a
            shortest close may be longer than the sizes say.
    """

    rules: tuple[ValueRule, ...]
    places: tuple[Place, ...]
    has_names: bool
    has_distinct: bool
    has_compared: bool
    fresh_needed: bool


def freeze(root: Rule) -> Tables:
    """The tables of rules whose sizes are settled."""
    rules = list(_breadth_first(root))
    numbers = {id(rule): number for number, rule in enumerate(rules)}
    states = [state for rule in rules for sequence in rule.sequences for state in sequence.states]
    places = {id(state): number for number, state in enumerate(states)}

    def part(element: Element) -> Part:
        return Part(element.key, numbers[id(element.value)], int(element.size))

    def place(state: State) -> Place:
        tail = state.tail
        return Place(
            tuple((part(element), places[id(after)]) for element, after in state.edges),
            -1 if state.skip is None else places[id(state.skip)],
            state.final,
            tuple(map(part, state.loop)),
            tuple(map(part, tail.elements)) if tail else (),
            tail.low if tail else 0,
            tail.high if tail else 0,
            bool(tail and tail.unique),
            int(state.size),
        )

    values = tuple(
        ValueRule(
            tuple(rule.texts),
            tuple(rule.multiples),
            tuple(Start(s.is_object, places[id(s.start)], s.distinct) for s in rule.sequences),
            int(rule.size),
        )
        for rule in rules
    )
    table = tuple(map(place, states))
    has_distinct = any(start.distinct for rule in values for start in rule.sequences)
    return Tables(
        values,
        table,
        any(p.key is not None and p.key.name is None for one in table for p in one.parts),
        has_distinct,
        has_distinct and any(rule.sequences for rule in _compared(values, table)),
        any(needs_fresh(one) for one in table) or has_distinct,
    )


def _compared(values: tuple[ValueRule, ...], table: tuple[Place, ...]) -> Iterator[ValueRule]:
    """The rules of items that must not come twice."""
    for number in distinct_places(values, table):
        yield from (values[part.rule] for part in table[number].parts)


def distinct_places(values: tuple[ValueRule, ...], table: tuple[Place, ...]) -> set[int]:
    """The numbers of the places of arrays of distinct items."""
    pending = [start.place for rule in values for start in rule.sequences if start.distinct]
    found = set(pending)
    while pending:
        place = table[pending.pop()]
        for target in (*(target for _, target in place.edges), place.skip):
            if target >= 0 and target not in found:
                found.add(target)
                pending.append(target)
    return found


def needs_fresh(place: Place) -> bool:
    """Whether a property must come next that has no name of its own."""
    parts = [part for part, _ in place.edges] + list(place.tail if place.tail_low else ())
    return any(part.key is not None and part.key.name is None for part in parts)


def _breadth_first(root: Rule) -> Iterator[Rule]:
    seen = {id(root)}
    queue = [root]
    for rule in queue:
        yield rule
        for sequence in rule.sequences:
            for state in sequence.states:
                tail = state.tail.elements if state.tail else []
                for element in (*(edge[0] for edge in state.edges), *state.loop, *tail):
                    if id(element.value) not in seen:
                        seen.add(id(element.value))
                        queue.append(element.value)
