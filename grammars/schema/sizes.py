"""How short a value can be, and with that which places can be completed at all."""

from __future__ import annotations

import math
from collections.abc import Iterator

from grammars.schema.shapes import Element, Rule, Sequence, State, Tail


def settle(root: Rule) -> None:
    """Work out every size below `root`, and take out all that cannot be completed.

    The sizes are the least solution of their equations, found by relaxation from infinity (as Knuth's
    generalisation of Dijkstra's algorithm to grammars finds it, 1977).
    """
    rules = list(_reachable(root))
    changed = True
    while changed:
        changed = False
        for rule in rules:
            size = _rule_size(rule)
            changed |= size < rule.size
            rule.size = size
    for rule in rules:
        _prune(rule)


def _reachable(root: Rule) -> Iterator[Rule]:
    """Every rule, parts before what they are part of as far as there is no cycle."""
    seen = {id(root)}
    stack: list[tuple[Rule, Iterator[Rule]]] = [(root, _parts(root))]
    while stack:
        rule, parts = stack[-1]
        child = next((part for part in parts if id(part) not in seen), None)
        if child is None:
            stack.pop()
            yield rule
        else:
            seen.add(id(child))
            stack.append((child, _parts(child)))


def _parts(rule: Rule) -> Iterator[Rule]:
    for sequence in rule.sequences:
        for state in sequence.states:
            for element, _ in state.edges:
                yield element.value
            for element in (*state.loop, *(state.tail.elements if state.tail else ())):
                yield element.value


def _rule_size(rule: Rule) -> float:
    sizes: list[float] = [text.size for text in rule.texts]
    sizes += [len(multiples.shortest) for multiples in rule.multiples]
    sizes += [_sequence_size(sequence) + 2 for sequence in rule.sequences]
    return min(sizes, default=math.inf)


def _sequence_size(sequence: Sequence) -> float:
    """Relax the states until nothing gets shorter; backwards, since most edges lead to later states."""
    changed = True
    while changed:
        changed = False
        for state in reversed(sequence.states):
            size = _state_size(state)
            changed |= size < state.size
            state.size = size
    return sequence.start.size


def _state_size(state: State) -> float:
    comma = 0 if state.first else 1
    sizes = [0.0] if state.final else []
    sizes += [comma + element.size + after.size for element, after in state.edges]
    if state.skip is not None:
        sizes.append(state.skip.size)
    if state.tail is not None:
        sizes.append(tail_size(state.tail, state.tail.low, first=state.first))
    return min(sizes, default=math.inf)


def tail_size(tail: Tail, count: int, *, first: bool) -> float:
    """Bytes of the shortest `count` elements."""
    if count == 0:
        return 0
    ordered = sorted(element.size for element in tail.elements)
    if tail.unique:
        size = sum(ordered[:count]) if count <= len(ordered) else math.inf
    else:
        size = count * ordered[0] if ordered else math.inf
    return size + count - first


def _prune(rule: Rule) -> None:
    rule.sequences = [sequence for sequence in rule.sequences if sequence.start.size < math.inf]
    for sequence in rule.sequences:
        sequence.states = [state for state in sequence.states if state.size < math.inf]
        for state in sequence.states:
            state.edges = [edge for edge in state.edges if edge[0].size + edge[1].size < math.inf]
            state.loop = _possible(state.loop)
            if state.skip is not None and state.skip.size == math.inf:
                state.skip = None
            if state.tail is not None:
                _prune_tail(state, state.tail)


def _prune_tail(state: State, tail: Tail) -> None:
    tail.elements = _possible(tail.elements)
    if not tail.elements:
        state.final = state.final or tail.low == 0
        state.tail = None


def _possible(elements: list[Element]) -> list[Element]:
    return [element for element in elements if element.size < math.inf]
