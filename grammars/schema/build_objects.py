"""From sets of objects to automata over properties.

Properties come in the order of their declaration, then those that are only required (a few of them in any
order), then all others; so each can be there once at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

from grammars.regular.ast import Regex, complement, intersect, literal
from grammars.regular.derivative import matches
from grammars.regular.questions import is_prolific, shortest
from grammars.schema.errors import UnenforceableError
from grammars.schema.finite import few_words
from grammars.schema.formula import FALSE, TRUE, Formula, conj
from grammars.schema.objects import Objects, Properties, Some
from grammars.schema.shapes import Element, Key, Rule, Sequence, State, Tail
from grammars.schema.strings import Strings

MAX_KEY_CLASSES = 32
MAX_LISTED_KEYS = 64
MAX_STATES = 5000
MAX_UNORDERED = 4
"""So many properties that are required, but not declared, may come in any order."""

MakeRule = Callable[[Formula], Rule]


def build_objects(objects: Objects, rule: MakeRule, *, open_objects: bool) -> Iterator[Sequence]:
    """Automata whose union is the set.

    Args:
        objects: the set.
        rule: gives the rule of a property's values.
        open_objects: properties that no schema says anything about are allowed.

    Raises:
        UnenforceableError: too many states, or constraints on single others together with counts.
    """
    is_open = open_objects or not any(said.named or said.patterns for said in objects.properties)
    few = [name for names, _ in _key_classes(objects, is_open=is_open) for name in _listed(names)]
    # Named, the keys of a class of few cannot come twice, nor is one missing in the end.
    objects = replace(objects, properties=(*objects.properties, Properties(tuple((n, TRUE) for n in few))))
    for case in _named_cases(objects):
        sequence = _Builder(case, rule, is_open=is_open).build()
        if sequence is not None:
            yield sequence


def _listed(names: Strings) -> list[str]:
    if names.words is None and is_prolific(names.regex):
        return []
    return few_words(names, MAX_LISTED_KEYS) or []


def _key_classes(objects: Objects, *, is_open: bool) -> Iterator[tuple[Strings, Formula]]:
    """Names without a declaration, by what their values must satisfy."""
    patterns = dict.fromkeys(regex for said in objects.properties for regex, _ in said.patterns)
    unmatched = dict.fromkeys(patterns, False)
    if not patterns and _class_value(objects, unmatched, is_open=is_open) == FALSE:
        return
    taken = dict.fromkeys((*_declared(objects), *objects.banned))
    names = Strings(regex=intersect(complement(literal(name)) for name in taken))
    for allowed in objects.names:
        names = names.meet(allowed)
    classes: list[tuple[Strings, dict[Regex, bool]]] = [(names, {})]
    for pattern in patterns:
        matching = Strings(regex=pattern)
        classes = [
            (part, {**matched, pattern: inside})
            for names, matched in classes
            for part, inside in ((names.meet(matching), True), (names.meet(matching.outside()), False))
            if not part.is_empty()
        ]
        if len(classes) > MAX_KEY_CLASSES:
            raise UnenforceableError("too many overlapping patterns", "patternProperties")
    for names, matched in classes:
        value = _class_value(objects, matched, is_open=is_open)
        if value != FALSE and not names.is_empty():
            yield names, value


def _class_value(objects: Objects, matched: dict[Regex, bool], *, is_open: bool) -> Formula:
    return conj(_said(said, matched, is_open=is_open) for said in objects.properties)


def _said(said: Properties, matched: dict[Regex, bool], *, is_open: bool) -> Formula:
    found = [formula for regex, formula in said.patterns if matched[regex]]
    if found:
        return conj(found)
    return FALSE if said.others is None and not is_open else said.rest


def _named_cases(objects: Objects) -> Iterator[Objects]:
    """The set with every `some` either met by one of the named properties, or by another property."""
    declared = _declared(objects)
    cases = [replace(objects, some=())]
    for some in objects.some:
        named = [name for name in declared if matches(some.names, name)]
        rest = intersect((some.names, *(complement(literal(name)) for name in declared)))
        options = [Objects((Properties(((name, some.value),)),), required=(name,)) for name in named] + [
            Objects(some=(Some(rest, some.value),))
        ]
        cases = [both for case in cases for option in options if (both := case.meet(option)) is not None]
    yield from cases


def _declared(objects: Objects) -> list[str]:
    names = [name for said in objects.properties for name, _ in said.named]
    return list(dict.fromkeys((*names, *objects.required)))


class _Builder:
    """A state is which named properties are behind it, and how many properties there were."""

    def __init__(self, objects: Objects, rule: MakeRule, *, is_open: bool) -> None:
        self._objects = objects
        self._rule = rule
        self._is_open = is_open
        self._states: dict[tuple[int, int], State] = {}
        self._orders: dict[tuple[frozenset[str], int], State] = {}
        self._ends: dict[tuple[frozenset[Some], int], State] = {}

    def build(self) -> Sequence | None:
        required = set(self._objects.required)
        values = {name: self._objects.value(name) for name in _declared(self._objects)}
        if any(values[name] == FALSE for name in required):
            return None
        unordered = required - {name for said in self._objects.properties for name, _ in said.named}
        if len(unordered) > MAX_UNORDERED:
            unordered = set()
        self._unordered = {
            name: Element(Key(name), self._rule(values.pop(name)))
            for name in self._objects.required
            if name in unordered
        }
        named = [(name, value) for name, value in values.items() if value != FALSE]
        self._needed = [name in required for name, _ in named]
        self._elements = [Element(Key(name), self._rule(value)) for name, value in named]
        self._classes = list(_key_classes(self._objects, is_open=self._is_open))
        self._others = [self._other(names.language, value) for names, value in self._classes]
        self._bounds()
        start = self._state(0, 0)
        states = (*self._states.values(), *self._orders.values(), *self._ends.values())
        return Sequence(True, start, list(states))

    def _other(self, names: Regex, value: Formula) -> Element:
        return Element(Key(None, names, shortest(names) or ""), self._rule(value))

    def _bounds(self) -> None:
        """The bounds on the count that still say something."""
        self._low, self._high = self._objects.low, self._objects.high
        if self._low <= sum(self._needed) + len(self._unordered):
            self._low = 0
        most = len(self._elements) + len(self._unordered)
        if self._high is not None and not self._others and self._high >= most:
            self._high = None
        # Beyond this many properties, one more makes no difference.
        self._enough = max(1, self._low) if self._high is None else max(1, self._high)

    def _state(self, index: int, count: int) -> State:
        """The state before the property at `index`, after `count` properties."""
        known = self._states.get((index, count))
        if known is not None:
            return known
        # Iterative: the chain is as long as there are properties.
        start = State(first=count == 0)
        self._states[index, count] = start
        pending = [(index, count)]
        while pending:
            index, count = pending.pop()
            state = self._states[index, count]
            if index == len(self._elements):
                self._in_any_order(state, frozenset(self._unordered), count)
                continue
            if len(self._states) > MAX_STATES:
                raise UnenforceableError("too many properties to count", "minProperties")
            if self._high is None or count < self._high:
                after = self._reach(index + 1, min(count + 1, self._enough), pending)
                state.edges.append((self._elements[index], after))
            if not self._needed[index]:
                state.skip = self._reach(index + 1, count, pending)
        return start

    def _reach(self, index: int, count: int, pending: list[tuple[int, int]]) -> State:
        state = self._states.get((index, count))
        if state is None:
            state = self._states[index, count] = State(first=count == 0)
            pending.append((index, count))
        return state

    def _in_any_order(self, state: State, missing: frozenset[str], count: int) -> None:
        """The properties that must come, but were not declared."""
        if not missing:
            self._end(state, count)
        elif self._high is None or count < self._high:
            for name, element in self._unordered.items():
                if name in missing:
                    after = self._order_state(missing - {name}, min(count + 1, self._enough))
                    state.edges.append((element, after))

    def _order_state(self, missing: frozenset[str], count: int) -> State:
        known = self._orders.get((missing, count))
        if known is None:
            known = self._orders[missing, count] = State(first=False)
            self._in_any_order(known, missing, count)
        return known

    def _end(self, state: State, count: int) -> None:
        """What may follow the named properties."""
        if self._objects.some:
            self._until_all(state, frozenset(self._objects.some), count)
        else:
            self._end_plain(state, count)

    def _end_plain(self, state: State, count: int) -> None:
        low = max(0, self._low - count)
        high = None if self._high is None else self._high - count
        if self._others and high != 0:
            state.tail = Tail(self._others, low, high)
        else:
            state.final = low == 0

    def _until_all(self, state: State, pending: frozenset[Some], count: int) -> None:
        """Other properties, until each of `pending` is satisfied by one of them."""
        if self._high is not None and count == self._high:
            return
        after = min(count + 1, self._enough)
        for (names, value), element in zip(self._classes, self._others, strict=True):
            target = self._end_state(pending, after)
            if target is state:
                state.loop.append(element)
            else:
                state.edges.append((element, target))
            for met in _subsets(pending):
                both = intersect((names.language, *(some.names for some in met)))
                if shortest(both) is not None:
                    hit = self._other(both, conj((value, *(some.value for some in met))))
                    state.edges.append((hit, self._end_state(pending - met, after)))

    def _end_state(self, pending: frozenset[Some], count: int) -> State:
        known = self._ends.get((pending, count))
        if known is None:
            known = self._ends[pending, count] = State(first=False)
            if pending:
                self._until_all(known, pending, count)
            else:
                self._end_plain(known, count)
        return known


def _subsets(some: frozenset[Some]) -> Iterator[frozenset[Some]]:
    for size in range(1, len(some) + 1):
        yield from map(frozenset, combinations(some, size))
