"""From sets of arrays to automata over items."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from grammars.schema.arrays import Arrays
from grammars.schema.errors import UnenforceableError
from grammars.schema.formula import FALSE, Formula, conj, neg
from grammars.schema.shapes import Element, Rule, Sequence, State, Tail

MAX_STATES = 5000
MAX_LISTED = 60
MAX_COUNTED = 4096
MAX_SUBSETS_OF = 6

MakeRule = Callable[[Formula], Rule]
ListValues = Callable[[Formula, int], list[tuple[Any, Formula]] | None]


def build_arrays(arrays: Arrays, rule: MakeRule, values: ListValues) -> Iterator[Sequence]:
    """Automata whose union is the set.

    Args:
        arrays: the set.
        rule: gives the rule of an item.
        values: lists the values of a formula, each with a formula for it alone, if they are few.

    Raises:
        UnenforceableError: too many states.
    """
    for case in arrays.settled():
        unique = case.unique and (case.high is None or case.high > 1)
        if unique:
            yield _unique(case, rule, values)
        elif case.contains:
            yield _Counting(case, rule).build()
        else:
            yield _plain(case, rule)


def _prefix_length(arrays: Arrays) -> int:
    longest = max((len(items.prefix) for items in arrays.items), default=0)
    return longest if arrays.high is None else min(longest, arrays.high)


def _plain(arrays: Arrays, rule: MakeRule) -> Sequence:
    count = _prefix_length(arrays)
    states = [State(first=index == 0) for index in range(count + 1)]
    for index in range(count):
        states[index].final = index >= arrays.low
        if arrays.item(index) != FALSE:
            states[index].edges.append((Element(None, rule(arrays.item(index))), states[index + 1]))
    low = max(0, arrays.low - count)
    high = None if arrays.high is None else arrays.high - count
    rest = arrays.item(count)
    if rest == FALSE or high == 0:
        states[count].final = low == 0
    else:
        states[count].tail = Tail([Element(None, rule(rest))], low, high)
    return Sequence(False, states[0], states)


class _Counting:
    """Arrays with `contains`: a state is how many items there are, and how many satisfy what."""

    def __init__(self, arrays: Arrays, rule: MakeRule) -> None:
        self._arrays = arrays
        self._rule = rule
        self._contains = arrays.contains
        starts = [contains.start for contains in arrays.contains]
        longest = max((len(items.prefix) for items in arrays.items), default=0)
        # From this many items on, one is like the other.
        settled = max(longest, *starts, arrays.low, 1)
        self._enough = settled if arrays.high is None else max(settled, arrays.high)
        self._states: dict[tuple[int, ...], State] = {}

    def build(self) -> Sequence:
        start = (0,) * (1 + len(self._contains))
        self._states[start] = State(first=True)
        pending = [start]
        while pending:
            place = pending.pop()
            self._fill(place, pending)
            if len(self._states) > MAX_STATES:
                raise UnenforceableError("too many items to count", "contains")
        return Sequence(False, self._states[start], list(self._states.values()))

    def _fill(self, place: tuple[int, ...], pending: list[tuple[int, ...]]) -> None:
        index, *counts = place
        state = self._states[place]
        state.final = index >= self._arrays.low and all(
            count >= contains.low for count, contains in zip(counts, self._contains, strict=True)
        )
        if self._arrays.high is not None and index == self._arrays.high:
            return
        for hits in product((False, True), repeat=len(counts)):
            formula = self._item(index, counts, hits)
            if formula == FALSE:
                continue
            after = (min(index + 1, self._enough), *self._counted(counts, hits))
            element = Element(None, self._rule(formula))
            if after == place:
                state.loop.append(element)
                continue
            if after not in self._states:
                self._states[after] = State(first=False)
                pending.append(after)
            state.edges.append((element, self._states[after]))

    def _item(self, index: int, counts: list[int], hits: tuple[bool, ...]) -> Formula:
        """What an item satisfies that counts for exactly those with a hit."""
        parts = [self._arrays.item(index)]
        for count, hit, contains in zip(counts, hits, self._contains, strict=True):
            if index < contains.start or (contains.high is None and count >= contains.low):
                if hit:
                    return FALSE
            elif hit:
                if count == contains.high:
                    return FALSE
                parts.append(contains.item)
            elif contains.high is not None:
                parts.append(neg(contains.item))
        return conj(parts)

    def _counted(self, counts: list[int], hits: tuple[bool, ...]) -> tuple[int, ...]:
        return tuple(count + hit for count, hit in zip(counts, hits, strict=True))


def _unique(arrays: Arrays, rule: MakeRule, values: ListValues) -> Sequence:
    """Arrays without two equal items: by automaton where few values can come, else by comparing texts."""
    count = _prefix_length(arrays)
    formulas = [arrays.item(index) for index in range(count + 1)]
    places = [values(formula, MAX_LISTED) for formula in formulas]
    listed = [place for place in places if place is not None]
    if len(listed) == len(places) and not arrays.contains:
        if count == 0 and len(listed[0]) > MAX_SUBSETS_OF:
            elements = [Element(None, rule(formula)) for _, formula in listed[0]]
            start = State(first=True, tail=Tail(elements, arrays.low, arrays.high, unique=True))
            return Sequence(False, start, [start])
        return _Distinct(arrays, rule, listed).build()
    many = values(formulas[0], MAX_COUNTED) if count == 0 else None
    if many is not None and (arrays.high is None or arrays.high > len(many)):
        # After so many there is no other left.
        arrays = replace(arrays, high=len(many))
    if count:
        arrays = _with_room(arrays, formulas, places, values)
    if (arrays.high is not None and arrays.low > arrays.high) or _runs_out(arrays, formulas, values):
        nowhere = State(first=True)
        return Sequence(False, nowhere, [nowhere])
    sequence = _Counting(arrays, rule).build() if arrays.contains else _plain(arrays, rule)
    sequence.distinct = True
    return sequence


def _with_room(
    arrays: Arrays,
    formulas: list[Formula],
    places: list[list[tuple[Any, Formula]] | None],
    values: ListValues,
) -> Arrays:
    """The same arrays, no longer than there are items for; each place with few values keeps one for itself.

    Raises:
        UnenforceableError: other places may take all that a place has, and no automaton keeps track of it.
    """
    for index, place in enumerate(places):
        found = place if place is not None else values(formulas[index], MAX_COUNTED)
        if found is None:
            continue
        few = len(found)
        rivals = sum(values(conj((formulas[index], other)), MAX_COUNTED) != [] for other in formulas[:index])
        is_rest = index == len(places) - 1
        if (is_rest and rivals and few) or (not is_rest and few <= rivals):
            raise UnenforceableError("the few values of one item may all be taken by others", "uniqueItems")
        if is_rest:
            most = index + few
            arrays = replace(arrays, high=most if arrays.high is None else min(arrays.high, most))
    return arrays


def _runs_out(arrays: Arrays, formulas: list[Formula], values: ListValues) -> bool:
    """Whether more items are to satisfy a `contains` than there are different ones.

    Raises:
        UnenforceableError: of few values that several ask for, one may need what another has used.
    """
    few = False
    for contains in arrays.contains:
        if contains.low > 1 or len(arrays.contains) > 1 or len(formulas) > 1:
            found = values(conj((formulas[-1], contains.item)), MAX_COUNTED)
            few = few or found is not None
            if found is not None and len(formulas) == 1 and len(found) < contains.low:
                return True
    if few and (len(arrays.contains) > 1 or len(formulas) > 1):
        raise UnenforceableError("it may take the few values that contains asks for", "uniqueItems")
    return False


class _Distinct:
    """A state is how many items there are, and which values are taken."""

    def __init__(self, arrays: Arrays, rule: MakeRule, places: list[list[tuple[Any, Formula]]]) -> None:
        self._arrays = arrays
        self._rule = rule
        self._places = places
        self._states: dict[tuple[int, frozenset[Any]], State] = {}

    def build(self) -> Sequence:
        start: tuple[int, frozenset[Any]] = (0, frozenset())
        self._states[start] = State(first=True)
        pending = [start]
        while pending:
            index, taken = pending.pop()
            state = self._states[index, taken]
            state.final = index >= self._arrays.low
            if self._arrays.high is not None and index == self._arrays.high:
                continue
            for value, formula in self._places[min(index, len(self._places) - 1)]:
                # bool is not a number in JSON, though it is in Python.
                mark = (type(value) is bool, value)
                if mark in taken:
                    continue
                after = (index + 1, taken | {mark})
                if after not in self._states:
                    self._states[after] = State(first=False)
                    pending.append(after)
                    if len(self._states) > MAX_STATES:
                        raise UnenforceableError("too many combinations of items", "uniqueItems")
                state.edges.append((Element(None, self._rule(formula)), self._states[after]))
        return Sequence(False, self._states[start], list(self._states.values()))
