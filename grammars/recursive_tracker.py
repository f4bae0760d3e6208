"""Following the text of a grammar that recurs, by what may be left of it: a set of stacks.

The stacks are those of a machine that guesses how a text is derived, followed all at once (as in llama.cpp's
own reading of its grammars). Rules that begin with one another would take ever larger ones. There, and where
they become too many, the text is followed no longer: it is right all the same, but its budget may cut it off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from grammars.base import MaskRow
from grammars.recursive_tables import All, OneOf, RecursiveTables, Repeated
from grammars.regular.ast import EMPTY, NOTHING, Regex
from grammars.regular.derivative import derive
from grammars.regular.questions import TooManyStatesError, shortest
from grammars.schema.closing import NoCloseError
from grammars.schema.points import OffGrammarError

_MOST_STACKS = 64
_MOST_STEPS = 1000
_DEEPEST = 400


class Stack:
    """What is left of a text, from the top on. Immutable.

    Attributes:
        top: what may follow of a regular language, or the number of an entry.
        count: how often the top, if it is to be repeated, was there already.
        size: characters of a shortest text of all below the top.
    """

    __slots__ = ("_hash", "below", "count", "depth", "size", "top")

    def __init__(self, top: Regex | int, count: int, below: Stack | None, size: float) -> None:
        self.top = top
        self.count = count
        self.below = below
        self.size = size
        self.depth: int = 1 if below is None else below.depth + 1
        self._hash = hash((top, count, below))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Stack)
            and (self._hash, self.count, self.top) == (other._hash, other.count, other.top)
            and self.below == other.below
        )


class StackPoint(NamedTuple):
    """What may follow, and the bytes of a character that is not complete.

    Attributes:
        stacks: each with something regular on top, or None: the text may end.
        place: something of its own where the engine may take less than that.
    """

    stacks: frozenset[Stack | None]
    rest: bytes
    place: object = None


class LostPoint:
    """Somewhere; every such place is another."""

    stacks: frozenset[Stack | None] = frozenset()
    rest = b""


class _TooMuchError(Exception):
    """There is more to follow than is worth it."""


class RecursiveTracker:
    """Follows plain text of a grammar; see `grammars.tracking.Tracker`."""

    def __init__(self, tables: RecursiveTables) -> None:
        self._tables = tables
        self.start: StackPoint | LostPoint
        try:
            self.start = StackPoint(self._ready([self._push(0, 0, None)]), b"")
        except _TooMuchError:
            self.start = LostPoint()

    def advance(self, point: StackPoint | LostPoint, data: bytes) -> StackPoint | LostPoint:
        if isinstance(point, LostPoint):
            return LostPoint()
        raw = point.rest + data
        text = raw.decode(errors="ignore")
        stacks = point.stacks
        try:
            for char in text:
                stacks = self._after(stacks, ord(char))
        except _TooMuchError:
            return LostPoint()
        except OffGrammarError:
            if self._tables.exact:
                raise
            return LostPoint()
        place = None if self._tables.exact else object()
        return StackPoint(stacks, raw[len(text.encode()) :], place)

    def size(self, point: StackPoint | LostPoint) -> float:
        if None in point.stacks and not point.rest:
            return 0
        # At most four bytes a character, and one more for a character that is not complete.
        return min((self._most(stack) for stack in point.stacks if stack), default=math.inf)

    def close(self, point: StackPoint | LostPoint) -> bytes:
        if point.rest:
            raise NoCloseError
        if None in point.stacks:
            return b""
        ends = [self._end(stack) for stack in point.stacks if stack and stack.size < math.inf]
        if not ends:
            raise NoCloseError
        return min(ends, key=lambda text: (len(text), text)).encode()

    def forbid(self, row: MaskRow, point: StackPoint | LostPoint) -> None:
        pass

    def _most(self, stack: Stack) -> float:
        assert isinstance(stack.top, Regex)
        return (stack.top.floor + stack.size + 1) * 4 if stack.top.pure else math.inf

    def _end(self, stack: Stack) -> str:
        """The rest of a shortest text."""
        assert isinstance(stack.top, Regex)
        try:
            word = shortest(stack.top)
        except TooManyStatesError as error:
            raise NoCloseError from error
        if word is None:
            raise NoCloseError
        texts = [word]
        below = stack.below
        while below is not None:
            texts.append(self._text(below))
            below = below.below
        return "".join(texts)

    def _text(self, stack: Stack) -> str:
        """A shortest text of the top, which is an entry and has one."""
        assert isinstance(stack.top, int)
        entry = self._tables.entries[stack.top]
        if isinstance(entry, Repeated):
            return (self._tables.shortest[entry.inner] or "") * max(0, entry.low - stack.count)
        return self._tables.shortest[stack.top] or ""

    def _push(self, number: int, count: int, below: Stack | None) -> Stack:
        if below is not None and below.depth >= _DEEPEST:
            raise _TooMuchError
        return Stack(number, count, below, self._size(below))

    def _size(self, stack: Stack | None) -> float:
        """Characters of a shortest text of a stack whose top is an entry."""
        if stack is None:
            return 0
        assert isinstance(stack.top, int)
        entry = self._tables.entries[stack.top]
        number, times = stack.top, 1
        if isinstance(entry, Repeated):
            number, times = entry.inner, max(0, entry.low - stack.count)
        text = self._tables.shortest[number]
        if not times:
            return stack.size
        return math.inf if text is None else stack.size + times * len(text)

    def _after(self, stacks: Iterable[Stack | None], code_point: int) -> frozenset[Stack | None]:
        """The stacks after a character (OffGrammarError: there are none)."""
        after: list[Stack] = []
        rest: list[Stack | None] = []
        for stack in stacks:
            if stack is None:
                continue
            assert isinstance(stack.top, Regex)
            left = derive(stack.top, code_point)
            if left not in (EMPTY, NOTHING):
                after.append(Stack(left, 0, stack.below, stack.size))
            if left.nullable:
                rest.append(stack.below)
        if not after and not rest:
            raise OffGrammarError
        ready = self._ready(rest).union(after)
        if len(ready) > _MOST_STACKS:
            raise _TooMuchError
        return ready

    def _ready(self, stacks: list[Stack | None]) -> frozenset[Stack | None]:
        """The same with what is regular on top."""
        ready: set[Stack | None] = set()
        seen = set(stacks)
        pending = list(seen)
        while pending:
            stack = pending.pop()
            if stack is None or isinstance(stack.top, Regex):
                ready.add(stack)
                continue
            found = set(self._opened(stack)) - seen
            seen |= found
            pending += found
            if len(seen) > _MOST_STEPS:
                raise _TooMuchError
        return frozenset(ready)

    def _opened(self, stack: Stack) -> Iterable[Stack | None]:
        """What a stack may be once its top, an entry, is begun."""
        assert isinstance(stack.top, int)
        below = stack.below
        match self._tables.entries[stack.top]:
            case All(parts=parts):
                for part in reversed(parts):
                    below = self._push(part, 0, below)
                yield below
            case OneOf(options=options):
                for option in options:
                    yield self._push(option, 0, below)
            case Repeated(inner=inner, low=low, high=high):
                if stack.count >= low:
                    yield below
                if high is None or stack.count < high:
                    count = min(stack.count + 1, low) if high is None else stack.count + 1
                    yield self._push(inner, 0, self._push(stack.top, count, below))
            case language:
                if language.nullable:
                    yield below
                if language not in (EMPTY, NOTHING):
                    yield Stack(language, 0, below, stack.size)
