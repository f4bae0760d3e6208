"""The fewest tokens of a whole text: a search over the places of a grammar, one token further at a time.

Places that go on alike are one (`Tracker.order`), tokens that lead to one place are one, so the layers of the
search (E. F. Moore, The shortest path through a maze, 1959) stay small where the grammar does. The search has
a limit on its work, beyond which it finds nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
from llguidance import LLMatcher

from grammars.regular.ast import Regex
from grammars.regular.questions import TooManyStatesError
from grammars.token_table import Ids, is_ordinary, told_apart
from grammars.tracking import OffGrammarError, RepeatedError, Tracker
from grammars.vocab import Vocabulary

P = TypeVar("P")

_WORK_A_NODE, _WORK_A_MASK = 50, 150
_WORK_A_STEP = 12
_WORK_OF_CLASSES = 1500
"""What parts of a search take: see `Work`."""
_WORK_A_LOOK = 500
"""After so much the clock is looked at again."""
_MANY, _VERY_MANY = 256, 1024
"""Among so many tokens it pays to leave out those that are like others, and to go through them together."""
_WIDE = 4096
"""Where so many tokens are legal, those with escapes or beyond ASCII are not looked at."""
_MOST_TRIES = 8
_NO_ALIASES = bytes(range(256))


class _TooMuchError(Exception):
    """The search is not worth it."""


class Work:
    """How much may be done still, in about microseconds.

    Args:
        most_s: processor time that it may take, should the engine be slow.
    """

    def __init__(self, left: int, most_s: float) -> None:
        self.left = left
        self._looked = left
        self._until = time.thread_time() + most_s

    def spend(self, amount: int) -> None:
        """Note what is done (_TooMuchError: more than may be)."""
        self.left -= amount
        if self.left < 0:
            raise _TooMuchError
        if self.left < self._looked - _WORK_A_LOOK:  # the clock is slow to look at
            self._looked = self.left
            if time.thread_time() > self._until:
                raise _TooMuchError


def fewest_tokens(
    tracker: Tracker[Any],
    engine: LLMatcher | None,
    vocabulary: Vocabulary,
    work: Work,
    *,
    below: float = math.inf,
) -> list[int] | None:
    """The fewest tokens that make a whole text; None if they are not found within the limits.

    Args:
        engine: at the start of the grammar, used up; None where the tracker knows all.
        below: so many, or more, are not looked for.
    """
    try:
        return _Search(tracker, vocabulary, work).run(engine, below)
    except (_TooMuchError, TooManyStatesError, RecursionError):
        return None


@lru_cache(maxsize=1024)
def _aliases(languages: tuple[Regex, ...]) -> bytes:
    """For each byte one that languages do not tell from it, if it is an ordinary character."""
    classes = told_apart(languages)
    if classes is None:
        return _NO_ALIASES
    firsts: dict[int, int] = {}
    return bytes(firsts.setdefault(classes[byte], byte) if is_ordinary(byte) else byte for byte in range(256))


class _Node(Generic[P]):
    """A place on a way, and how it is reached."""

    __slots__ = ("before", "engine", "point", "token_id")

    def __init__(self, point: P, before: _Node[P] | None, token_id: int, engine: LLMatcher | None) -> None:
        self.point = point
        self.before = before
        self.token_id = token_id
        self.engine = engine

    def way(self) -> list[int]:
        tokens = []
        node = self
        while node.before is not None:
            tokens.append(node.token_id)
            node = node.before
        return tokens[::-1]


class _Search(Generic[P]):
    def __init__(self, tracker: Tracker[P], vocabulary: Vocabulary, work: Work) -> None:
        self._tracker = tracker
        self._token_bytes = vocabulary.token_bytes
        self._table = vocabulary.table
        self._told: set[bytes] = set()
        # Of places that go on alike, the number of the best that was met.
        self._least: dict[Hashable, int] = {}
        self._spend = work.spend
        self._places = _Places(tracker, work.spend)

    def run(self, engine: LLMatcher | None, below: float) -> list[int] | None:
        root = _Node(self._tracker.start, None, -1, engine)
        if self._is_end(root):
            return []
        layer = [root]
        length = 1
        while layer and length < below:
            following: dict[Hashable, _Node[P]] = {}
            for node in layer:
                for child in self._children(node):
                    if self._tracker.may_end(child.point) and self._is_end(child):
                        return child.way()
                    order = self._tracker.order(child.point)
                    if order is not None and self._is_better(order):
                        self._least[order[0]] = order[1]
                        following[order[0]] = child
            layer = list(following.values())
            length += 1
        return None

    def _is_better(self, order: tuple[Hashable, int]) -> bool:
        """Whether there is no place yet from which every end is one from such a place."""
        return order[0] not in self._least or order[1] < self._least[order[0]]

    def _is_end(self, node: _Node[P]) -> bool:
        engine = self._engine(node)
        return self._tracker.may_end(node.point) if engine is None else bool(engine.is_accepting())

    def _engine(self, node: _Node[P]) -> LLMatcher | None:
        """The engine at a node, which is fed the node's token only then."""
        before = node.before
        if node.engine is None and before is not None and before.engine is not None:
            node.engine = before.engine.deep_copy()
            if node.engine.try_consume_tokens([node.token_id]) != 1:
                raise _TooMuchError
        return node.engine

    def _children(self, node: _Node[P]) -> Iterator[_Node[P]]:
        """What may come next, one of each kind."""
        self._spend(_WORK_A_NODE if self._engine(node) is None else _WORK_A_MASK)
        ids = self._allowed(node)
        if len(ids) == 1:
            child = self._child(node, ids)
            yield from [] if child is None else [child]
            return
        number = self._places.number(node.point)
        groups = {} if number < 0 else self._groups(number, ids)
        done: set[Hashable] = set()
        for target in sorted(groups, key=lambda target: self._places.orders[target][1]):
            order = self._places.orders[target]
            may_end = self._tracker.may_end(self._places.points[target])
            if may_end or (order[0] not in done and self._is_better(order)):
                child = self._child(node, groups[target])
                if child is not None:
                    done.add(order[0])
                    yield child

    def _child(self, node: _Node[P], ids: Ids) -> _Node[P] | None:
        """The node after the shortest of some tokens that is no repetition."""
        ordered = ids[np.argsort(self._table.lengths[ids], kind="stable")[:_MOST_TRIES]]
        for token_id in ordered.tolist():
            try:
                point = self._tracker.advance(node.point, self._token_bytes[token_id])
            except (OffGrammarError, RepeatedError):
                continue
            return _Node(point, node, token_id, None)
        return None

    def _allowed(self, node: _Node[P]) -> Ids:
        """The tokens that may come next, some of those that are alike left out."""
        engine = self._engine(node)
        if engine is None:
            legal = self._table.lengths > 0
        else:
            forced = engine.compute_ff_tokens()
            if forced:
                return np.array(forced[:1], np.int64)
            mask = np.frombuffer(engine.compute_bitmask(), np.uint8)
            if engine.is_error():
                raise _TooMuchError
            legal = np.unpackbits(mask, count=len(self._table.lengths), bitorder="little").view(np.bool_)
            legal &= self._table.lengths > 0
        if np.count_nonzero(legal) > _WIDE:
            self._spend(_WORK_A_MASK)
            legal &= self._table.simple
        if np.count_nonzero(legal) > _MANY:
            languages = self._tracker.languages(node.point)
            classes = told_apart(languages) if languages else None
            if classes is not None:
                if classes not in self._told:
                    self._told.add(classes)
                    self._spend(_WORK_OF_CLASSES)
                legal &= self._table.unlike(classes)
        return np.flatnonzero(legal)

    def _groups(self, number: int, ids: Ids) -> dict[int, Ids]:
        """The tokens that lead from a place to each other one."""
        if len(ids) > _VERY_MANY:
            return self._table.groups(number, ids, self._places.step, self._spend)
        self._spend(len(ids))
        groups: dict[int, list[int]] = {}
        for token_id in ids.tolist():
            groups.setdefault(self._places.lead(number, self._token_bytes[token_id]), []).append(token_id)
        return {target: np.array(group) for target, group in groups.items() if target >= 0}


class _Places(Generic[P]):
    """Places on the way of a byte, numbered through; those that go on alike, and no better, are one.

    Attributes:
        points, orders: of each place; the orders as of the tracker.
    """

    def __init__(self, tracker: Tracker[P], spend: Callable[[int], None]) -> None:
        self.points: list[P] = []
        self.orders: list[tuple[Hashable, int]] = []
        self._tracker = tracker
        self._spend = spend
        self._numbers: dict[tuple[Hashable, int], int] = {}
        self._steps: dict[tuple[int, int], int] = {}
        self._aliases: dict[int, bytes] = {}

    def number(self, point: P) -> int:
        """The number of a place; negative where the text is not followed any longer."""
        order = self._tracker.order(point)
        if order is None:
            return -1
        number = self._numbers.setdefault(order, len(self.points))
        if number == len(self.points):
            self.points.append(point)
            self.orders.append(order)
        return number

    def lead(self, number: int, data: bytes) -> int:
        """The place after some bytes; negative: there is none."""
        for byte in data:
            if number < 0:
                break
            number = self.step(number, byte)
        return number

    def step(self, number: int, byte: int) -> int:
        """The place after a byte; negative: there is none."""
        byte = self._alias(number)[byte]
        known = self._steps.get((number, byte))
        if known is None:
            self._spend(_WORK_A_STEP + sum(language.size for language in self._languages(number)))
            try:
                known = self.number(self._tracker.advance(self.points[number], bytes((byte,))))
            except (OffGrammarError, RepeatedError):
                known = -1
            self._steps[number, byte] = known
        return known

    def _alias(self, number: int) -> bytes:
        """For each byte one that leads from a place to where it does."""
        known = self._aliases.get(number)
        if known is None:
            languages = self._languages(number)
            self._spend(sum(language.size for language in languages))
            known = self._aliases[number] = _aliases(languages) if languages else _NO_ALIASES
        return known

    def _languages(self, number: int) -> tuple[Regex, ...]:
        return self._tracker.languages(self.points[number])
