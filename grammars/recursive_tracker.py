"""Following the text of a grammar that recurs, by what may be left of it: a set of stacks.

The stacks are those of a machine that guesses how a text is derived, followed all at once. Those with one top
share it, whatever is below (M. Tomita, An efficient augmented-context-free parsing algorithm, 1987), so there
are never more of them than the grammar has entries. Rules that begin with one another would take ever larger
ones. There, and where they become too many, the text is followed no longer: it is right all the same, but its
budget may cut it off.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple
from weakref import WeakValueDictionary

from grammars.base import MaskRow
from grammars.recursive_tables import All, OneOf, RecursiveTables, Repeated
from grammars.regular.ast import EMPTY, NOTHING, Regex
from grammars.regular.derivative import derive
from grammars.regular.questions import TooManyStatesError, shortest
from grammars.schema.closing import NoCloseError
from grammars.schema.points import OffGrammarError

_MOST_STACKS = 256
_MOST_STEPS = 2000
"""Of one token; some milliseconds."""
_MOST_STEPS_TO_END = 20_000
_MOST_CHARS_ANEW = 1 << 8
"""Of a shortest text, where each way is looked for anew: no two places are known to be the same."""
_DEEPEST = 400


class Stack:
    """What may be left of a text, from the top on: as many stacks as there are ways down. Immutable.

    Attributes:
        top: what may follow of a regular language, or the number of an entry.
        count: how often the top, if it is to be repeated, was there already.
        below: what may come after the top; None: the text may end.
        size: characters of a shortest text of all below the top.
    """

    __slots__ = ("__weakref__", "below", "count", "depth", "size", "top")

    def __init__(self, top: Regex | int, count: int, below: Below, size: float) -> None:
        self.top = top
        self.count = count
        self.below = below
        self.size = size
        self.depth: int = 1 + max(stack.depth if stack else 0 for stack in below)


Below = tuple[Stack | None, ...]


class StackPoint(NamedTuple):
    """What may follow, and the bytes of a character that is not complete.

    Attributes:
        stacks: each with something regular on top, and no two with the same; or None: the text may end.
        place: something of its own where the engine may take less than that.
    """

    stacks: Below
    rest: bytes
    place: object = None


class LostPoint:
    """Somewhere; every such place is another."""

    stacks: Below = ()
    rest = b""


class _TooMuchError(Exception):
    """There is more to follow than is worth it."""


class _Steps:
    """How many stacks may still be opened."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise _TooMuchError


class RecursiveTracker:
    """Follows plain text of a grammar; see `grammars.tracking.Tracker`."""

    def __init__(self, tables: RecursiveTables) -> None:
        self._tables = tables
        # Equal stacks are one object, so that equal points are found equal at once.
        self._known: WeakValueDictionary[tuple[Regex | int, int, Below], Stack] = WeakValueDictionary()
        self.start: StackPoint | LostPoint
        try:
            root = self._push(0, 0, (None,))
            self.start = StackPoint(self._ready([root], [], _Steps(_MOST_STEPS)), b"")
        except _TooMuchError:
            self.start = LostPoint()

    def follows_shortest(self) -> bool:
        """Whether there is a shortest text, and few steps follow it."""
        text = self._tables.shortest[0]
        if text is None or isinstance(self.start, LostPoint):
            return False
        if len(text) > _MOST_CHARS_ANEW and not self._tables.exact:
            return False
        stacks, steps = self.start.stacks, _Steps(_MOST_STEPS_TO_END)
        try:
            for char in text:
                stacks = self._after(stacks, ord(char), steps)
        except (_TooMuchError, OffGrammarError):
            return False
        return True

    def advance(
        self, point: StackPoint | LostPoint, data: bytes, *, ends: bool = False
    ) -> StackPoint | LostPoint:
        if isinstance(point, LostPoint):
            return LostPoint()
        raw = point.rest + data
        text = raw.decode(errors="ignore")
        stacks, steps = point.stacks, _Steps(_MOST_STEPS)
        try:
            for char in text:
                stacks = self._after(stacks, ord(char), steps)
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
        words = [(stack, self._word(stack)) for stack in point.stacks if stack and stack.size < math.inf]
        sizes = [math.inf if word is None else len(word) + stack.size for stack, word in words]
        least = min(sizes, default=math.inf)
        if least == math.inf:
            raise NoCloseError
        ends = [
            (word or "") + self._rest(stack)
            for (stack, word), size in zip(words, sizes, strict=True)
            if size == least
        ]
        return min(ends).encode()

    def forbid(self, row: MaskRow, point: StackPoint | LostPoint) -> None:
        pass

    def most_counted(self, point: StackPoint | LostPoint) -> int:
        return 0

    def may_end(self, point: StackPoint | LostPoint) -> bool:
        return None in point.stacks and not point.rest

    def order(self, point: StackPoint | LostPoint) -> tuple[Hashable, int] | None:
        return None if isinstance(point, LostPoint) else ((point.stacks, point.rest), 0)

    def languages(self, point: StackPoint | LostPoint) -> tuple[Regex, ...]:
        return ()

    def _most(self, stack: Stack) -> float:
        assert isinstance(stack.top, Regex)
        return (stack.top.floor + stack.size + 1) * 4 if stack.top.pure else math.inf

    def _word(self, stack: Stack) -> str | None:
        """A shortest text of the top, if one is found."""
        assert isinstance(stack.top, Regex)
        try:
            return shortest(stack.top)
        except TooManyStatesError:
            return None

    def _rest(self, stack: Stack) -> str:
        """A shortest text of what is below the top."""
        texts = []
        below = min(stack.below, key=self._size)
        while below is not None:
            texts.append(self._text(below))
            below = min(below.below, key=self._size)
        return "".join(texts)

    def _text(self, stack: Stack) -> str:
        """A shortest text of the top, which is an entry and has one."""
        assert isinstance(stack.top, int)
        entry = self._tables.entries[stack.top]
        if isinstance(entry, Repeated):
            return (self._tables.shortest[entry.inner] or "") * max(0, entry.low - stack.count)
        return self._tables.shortest[stack.top] or ""

    def _push(self, number: int, count: int, below: Below) -> Stack:
        return self._stack(number, count, below, min(map(self._size, below)))

    def _stack(self, top: Regex | int, count: int, below: Below, size: float) -> Stack:
        key = top, count, below
        stack = self._known.get(key)
        if stack is None:
            stack = Stack(top, count, below, size)
            if stack.depth > _DEEPEST:
                raise _TooMuchError
            self._known[key] = stack
        return stack

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

    def _after(self, stacks: Below, code_point: int, steps: _Steps) -> Below:
        """The stacks after a character (OffGrammarError: there are none)."""
        steps.take(len(stacks))
        after: list[Stack] = []
        rest: dict[Stack | None, None] = {}
        for stack in stacks:
            if stack is None:
                continue
            assert isinstance(stack.top, Regex)
            left = derive(stack.top, code_point)
            if left not in (EMPTY, NOTHING):
                after.append(self._stack(left, 0, stack.below, stack.size))
            if left.nullable:
                rest.update(dict.fromkeys(stack.below))
        if not after and not rest:
            raise OffGrammarError
        return self._ready(self._merged(rest), after, steps)

    def _ready(self, stacks: Iterable[Stack | None], others: list[Stack], steps: _Steps) -> Below:
        """The same with what is regular on top, and others that have that."""
        ready: list[Stack | None] = [*others]
        seen = dict.fromkeys(stacks)
        pending = list(seen)
        while pending:
            steps.take(1)
            stack = pending.pop()
            if stack is None or isinstance(stack.top, Regex):
                ready.append(stack)
                continue
            for found in self._opened(stack):
                if found not in seen:
                    seen[found] = None
                    pending.append(found)
        merged = self._merged(ready)
        if len(merged) > _MOST_STACKS:
            raise _TooMuchError
        return merged

    def _merged(self, stacks: Iterable[Stack | None]) -> Below:
        """The same, of which no two have one top."""
        groups: dict[tuple[Regex | int, int] | None, list[Stack | None]] = {}
        for stack in stacks:
            groups.setdefault(None if stack is None else (stack.top, stack.count), []).append(stack)
        return tuple(map(self._joined, groups.values()))

    def _joined(self, stacks: list[Stack | None]) -> Stack | None:
        """One for several that have one top."""
        first = stacks[0]
        if first is None or len(stacks) == 1:
            return first
        below = tuple(dict.fromkeys(under for stack in stacks if stack for under in stack.below))
        if len(below) > _MOST_STACKS:
            raise _TooMuchError
        return self._stack(first.top, first.count, below, min(stack.size for stack in stacks if stack))

    def _opened(self, stack: Stack) -> Iterator[Stack | None]:
        """What a stack may be once its top, an entry, is begun."""
        assert isinstance(stack.top, int)
        below = stack.below
        match self._tables.entries[stack.top]:
            case All(parts=parts):
                for part in reversed(parts):
                    below = (self._push(part, 0, below),)
                yield from below
            case OneOf(options=options):
                for option in options:
                    yield self._push(option, 0, below)
            case Repeated(inner=inner, low=low, high=high):
                if stack.count >= low:
                    yield from below
                if high is None or stack.count < high:
                    count = min(stack.count + 1, low) if high is None else stack.count + 1
                    yield self._push(inner, 0, (self._push(stack.top, count, below),))
            case language:
                if language.nullable:
                    yield from below
                if language not in (EMPTY, NOTHING):
                    yield self._stack(language, 0, below, stack.size)
