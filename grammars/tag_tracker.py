"""Following free text with tags that hold JSON."""

from __future__ import annotations

import math
from typing import NamedTuple

from grammars.alike import JsonOrder
from grammars.base import MaskRow
from grammars.regular.ast import Regex
from grammars.repeats import Repeats
from grammars.schema.closing import Closer
from grammars.schema.points import Mode, OffGrammarError, Point, RepeatedError
from grammars.schema.reader import Reader
from grammars.tag_tables import TagTables
from grammars.tracking import without_text
from grammars.vocab import Vocabulary


class TagPoint(NamedTuple):
    """A point in the text.

    Attributes:
        seen: in free text its last bytes if a trigger may begin with them; in a begin or an end, that so far.
        begun: whether it is in a begin.
        tag: the tag whose JSON or end it is in, -1 for none.
        inside: where in its JSON; None behind it.
        tags: whether there was a tag before (0, 1).
        rest: in free text, the bytes of a character that is not complete.
    """

    seen: bytes = b""
    begun: bool = False
    tag: int = -1
    inside: Point | None = None
    tags: int = 0
    rest: bytes = b""


class TagTracker:
    """Follows text with triggered tags; see `grammars.tracking.Tracker`."""

    def __init__(self, tables: TagTables, vocabulary: Vocabulary) -> None:
        self._tables = tables
        self._readers = [Reader(inner) for _, _, inner in tables.tags]
        self._closers = [Closer(reader) for reader in self._readers]
        self._repeats = [Repeats(reader, vocabulary) for reader in self._readers]
        self._orders = [JsonOrder(reader) for reader in self._readers]
        self._longest = max(map(len, tables.triggers))
        self.start = TagPoint()

    def advance(self, point: TagPoint, data: bytes, *, ends: bool = False) -> TagPoint:
        at = 0
        while at < len(data):
            if point.inside is not None:
                point, used = self._inside(point, data[at:])
                at += used
            elif point.tag >= 0:
                point = self._end(point, data[at : at + 1])
                at += 1
            elif point.begun:
                point = self._begin(point, data[at : at + 1])
                at += 1
            else:
                point = self._free(point, data[at : at + 1])
                at += 1
        return point

    def _free(self, point: TagPoint, byte: bytes) -> TagPoint:
        if point.tags and self._tables.stop_after_first:
            raise OffGrammarError
        seen = point.seen + byte
        trigger = next((t for t in self._tables.triggers if seen.endswith(t)), None)
        if trigger is None:
            return point._replace(seen=self._hopeful(seen), rest=_incomplete(point.rest + byte))
        return self._entered(point._replace(seen=trigger, begun=True, rest=b""))

    def _hopeful(self, seen: bytes) -> bytes:
        """The end of `seen` that a trigger may begin with: the longest, and often nothing."""
        starts = range(max(0, len(seen) - self._longest), len(seen))
        ends = (seen[start:] for start in starts)
        return next((end for end in ends if any(t.startswith(end) for t in self._tables.triggers)), b"")

    def _begin(self, point: TagPoint, byte: bytes) -> TagPoint:
        return self._entered(point._replace(seen=point.seen + byte))

    def _entered(self, point: TagPoint) -> TagPoint:
        """The same, or inside a tag whose begin is whole now."""
        if not any(begin.startswith(point.seen) for begin, _, _ in self._tables.tags):
            raise OffGrammarError
        for index, (begin, _, _) in enumerate(self._tables.tags):
            if begin == point.seen:
                return TagPoint(b"", False, index, self._readers[index].start, point.tags)
        return point

    def _inside(self, point: TagPoint, data: bytes) -> tuple[TagPoint, int]:
        assert point.inside is not None
        inside, used = self._readers[point.tag].advance_within(point.inside, data)
        if self._repeats[point.tag].is_dead(inside):
            raise RepeatedError
        if inside.mode != Mode.DONE:
            kept = inside if self._tables.tags[point.tag][2].has_distinct else without_text(inside)
            return point._replace(inside=kept), used
        behind = point._replace(inside=None)
        return (behind if self._tables.tags[point.tag][1] else self._left(behind)), used

    def _end(self, point: TagPoint, byte: bytes) -> TagPoint:
        end = self._tables.tags[point.tag][1]
        seen = point.seen + byte
        if not end.startswith(seen):
            raise OffGrammarError
        return self._left(point) if seen == end else point._replace(seen=seen)

    def _left(self, point: TagPoint) -> TagPoint:
        return TagPoint(tags=1)

    def size(self, point: TagPoint) -> float:
        """Free text may end with its last character; elsewhere an end must be looked for."""
        free = point.tag < 0 and not point.begun
        may_end = free and (point.tags or not self._tables.at_least_one)
        return len(_completion(point.rest)) if may_end else math.inf

    def close(self, point: TagPoint) -> bytes:
        ending = _completion(point.rest)
        if self.size(point) == len(ending):
            return ending
        if point.tag < 0:
            written = point.seen if point.begun else b""
            whole = [
                ending + begin[len(written) :] + self._closers[index].close(self._readers[index].start) + end
                for index, (begin, end, _) in enumerate(self._tables.tags)
                if begin.startswith(written)
            ]
            return min(whole, key=len)
        end = self._tables.tags[point.tag][1]
        if point.inside is None:
            return end[len(point.seen) :]
        return self._closers[point.tag].close(point.inside) + end

    def forbid(self, row: MaskRow, point: TagPoint) -> None:
        if point.inside is not None:
            self._repeats[point.tag].forbid(row, point.inside)

    def most_counted(self, point: TagPoint) -> int:
        return 0

    def may_end(self, point: TagPoint) -> bool:
        return self.size(point) == 0

    def order(self, point: TagPoint) -> tuple[TagPoint, int]:
        if point.inside is None:
            return point, 0
        inside, rank = self._orders[point.tag].of(point.inside)
        return point._replace(inside=inside), rank

    def languages(self, point: TagPoint) -> tuple[Regex, ...]:
        return () if point.inside is None else self._orders[point.tag].languages(point.inside)


def _incomplete(data: bytes) -> bytes:
    """The bytes of at most one character; nothing if it is whole."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data
    return b""


def _completion(rest: bytes) -> bytes:
    """Bytes that make a character of its beginning."""
    if not rest:
        return b""
    count = 2 if rest[0] < 0xE0 else 3 if rest[0] < 0xF0 else 4
    # Two beginnings are not followed by the lowest of bytes: that would be too long a form.
    second = {0xE0: b"\xa0", 0xF0: b"\x90"}.get(rest[0], b"\x80")
    whole = rest + (second if len(rest) == 1 else b"") + b"\x80\x80"
    return whole[len(rest) : count]
