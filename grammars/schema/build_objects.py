"""From sets of objects to automata over properties.

Properties come in the order of their declaration, then those that are only required, then all others; so
each can be there once at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from grammars.regular.ast import Regex, complement, intersect, literal
from grammars.regular.derivative import matches, shortest
from grammars.schema.errors import UnenforceableError
from grammars.schema.finite import few_words
from grammars.schema.formula import FALSE, Formula, conj
from grammars.schema.objects import Objects, Properties, Some
from grammars.schema.shapes import Element, Key, Rule, Sequence, State, Tail
from grammars.schema.strings import Strings

MAX_KEY_CLASSES = 32
MAX_LISTED_KEYS = 64
MAX_STATES = 5000

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
    for case in _named_cases(objects):
        sequence = _Builder(case, rule, open_objects=open_objects).build()
        if sequence is not None:
            yield sequence


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
    def __init__(self, objects: Objects, rule: MakeRule, *, open_objects: bool) -> None:
        self._objects = objects
        self._rule = rule
        self._open = open_objects or not any(said.named or said.patterns for said in objects.properties)
        self._states: dict[tuple[int, int], State] = {}
        self._extra: list[State] = []

    def build(self) -> Sequence | None:
        required = set(self._objects.required)
        self._named = [
            (name, value)
            for name in _declared(self._objects)
            if (value := self._objects.value(name)) != FALSE or name in required
        ]
        if any(value == FALSE for _, value in self._named):
            return None
        self._others: list[Element] = []
        self._classes = list(self._key_classes())
        self._needed = [name in required for name, _ in self._named]
        self._list_finite_classes()
        self._elements = [Element(Key(name), self._rule(value)) for name, value in self._named]
        self._others = [
            Element(Key(None, names.language, shortest(names.language) or ""), self._rule(value))
            for names, value in self._classes
        ]
        self._bounds()
        start = self._state(0, 0)
        return Sequence(True, start, [*self._states.values(), *self._extra])

    def _key_classes(self) -> Iterator[tuple[Strings, Formula]]:
        """Names without a declaration, by what their values must satisfy."""
        objects = self._objects
        taken = dict.fromkeys((*_declared(objects), *objects.banned))
        names = Strings(regex=intersect(complement(literal(name)) for name in taken))
        for allowed in objects.names:
            names = names.meet(allowed)
        classes: list[tuple[Strings, dict[Regex, bool]]] = [(names, {})]
        for pattern in dict.fromkeys(regex for said in objects.properties for regex, _ in said.patterns):
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
            value = conj(self._value(said, matched) for said in objects.properties)
            if value != FALSE and not names.is_empty():
                yield names, value

    def _value(self, said: Properties, matched: dict[Regex, bool]) -> Formula:
        found = [formula for regex, formula in said.patterns if matched[regex]]
        if found:
            return conj(found)
        return FALSE if said.others is None and not self._open else said.rest

    def _list_finite_classes(self) -> None:
        """Name the keys of a class of few: then none can come twice, nor is one missing in the end."""
        kept = []
        for names, value in self._classes:
            listed = few_words(names, MAX_LISTED_KEYS)
            if listed is None:
                kept.append((names, value))
            else:
                self._named += [(name, value) for name in listed]
                self._needed += [False] * len(listed)
        self._classes = kept

    def _bounds(self) -> None:
        """The bounds on the count that still say something."""
        self._low, self._high = self._objects.low, self._objects.high
        if self._low <= sum(self._needed):
            self._low = 0
        if self._high is not None and not self._others and self._high >= len(self._named):
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
            if index == len(self._named):
                self._end(state, count)
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

    def _end(self, state: State, count: int) -> None:
        """What may follow the named properties."""
        low = max(0, self._low - count)
        high = None if self._high is None else self._high - count
        if self._objects.some:
            self._with_some(state, low, high)
        elif self._others and high != 0:
            state.tail = Tail(self._others, low, high)
        else:
            state.final = low == 0

    def _with_some(self, state: State, low: int, high: int | None) -> None:
        """Other properties among which one satisfies what `some` asks for."""
        if len(self._objects.some) > 1 or low > 1 or high is not None:
            raise UnenforceableError("cannot be combined with a count or with another of its kind", "not")
        (some,) = self._objects.some
        hits = []
        for names, value in self._classes:
            both = intersect((names.language, some.names))
            word = shortest(both)
            if word is not None:
                hits.append(Element(Key(None, both, word), self._rule(conj((value, some.value)))))
        done = State(first=False, tail=Tail(self._others, 0, None))
        self._extra.append(done)
        before = state
        if state.first:
            before = State(first=False)
            self._extra.append(before)
            state.edges += [(element, before) for element in self._others]
        before.loop = self._others
        for source in {id(state): state, id(before): before}.values():
            source.edges += [(hit, done) for hit in hits]
