"""Regular expressions as values: closed under union, intersection and complement.

An expression denotes a set of texts (sequences of Unicode scalar values). Build them with the functions
here, never with the constructors: they keep a normal form in which many equal languages are equal
values, which is what makes derivatives (`grammars.regular.derivative`) a finite set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, TypeGuard

Range = tuple[int, int]

MAX_CODE_POINT: Final = 0x10FFFF
_COPIED = 8
"""So many parts are copied while one node is gone through."""


class Regex:
    """A node. Equality is by structure, quick because every node carries its hash."""

    __slots__ = ("_hash", "floor", "nullable", "pure", "size")

    nullable: bool
    """Whether the empty text belongs to the language."""
    pure: bool
    """Whether there is neither intersection nor complement inside."""
    floor: float
    """No text of the language is shorter (characters); exact when pure, infinite for none."""
    size: int
    """Nodes that a derivative goes through, which takes time in proportion."""

    def __init__(
        self, key: tuple[object, ...], *, nullable: bool, pure: bool, floor: float, size: int = 1
    ) -> None:
        # Hashes of numbers only: the same in every process, and with them the order of unions.
        self._hash = hash(key)
        self.nullable = nullable
        self.pure = pure
        self.floor = floor
        self.size = size

    def __hash__(self) -> int:
        return self._hash


class Chars(Regex):
    """One character out of sorted, disjoint, non-adjacent ranges of code points."""

    __slots__ = ("ranges",)

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__((1, ranges), nullable=False, pure=True, floor=1)
        self.ranges = ranges

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chars) and self.ranges == other.ranges

    __hash__ = Regex.__hash__

    def __contains__(self, code_point: int) -> bool:
        return any(low <= code_point <= high for low, high in self.ranges)


def _size(parts: Iterable[Regex]) -> int:
    return 1 + sum([part.size for part in parts])


def _front(parts: tuple[Regex, ...]) -> Iterator[Regex]:
    """Those of a concatenation with which a text of it may begin."""
    for part in parts:
        yield part
        if not part.nullable:
            return


class _Parts(Regex):
    __slots__ = ("parts",)

    parts: tuple[Regex, ...]

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(self) is type(other)
            and isinstance(other, _Parts)
            and self._hash == other._hash
            and self.parts == other.parts
        )

    __hash__ = Regex.__hash__


class Concat(_Parts):
    """One part after the other."""

    __slots__ = ()

    def __init__(self, parts: tuple[Regex, ...]) -> None:
        super().__init__(
            (2, *parts),
            nullable=all(p.nullable for p in parts),
            pure=all(p.pure for p in parts),
            floor=sum(p.floor for p in parts),
            size=_size(_front(parts)) + len(parts) // _COPIED,
        )
        self.parts = parts


class Alt(_Parts):
    """Union. No parts: the empty language."""

    __slots__ = ()

    def __init__(self, parts: tuple[Regex, ...]) -> None:
        super().__init__(
            (3, *parts),
            nullable=any(p.nullable for p in parts),
            pure=all(p.pure for p in parts),
            floor=min((p.floor for p in parts), default=math.inf),
            size=_size(parts),
        )
        self.parts = parts


class And(_Parts):
    """Intersection of at least two parts."""

    __slots__ = ()

    def __init__(self, parts: tuple[Regex, ...]) -> None:
        super().__init__(
            (4, *parts),
            nullable=all(p.nullable for p in parts),
            pure=False,
            floor=max(p.floor for p in parts),
            size=_size(parts),
        )
        self.parts = parts


class Not(Regex):
    """Complement: every text that `inner` does not contain."""

    __slots__ = ("inner",)

    def __init__(self, inner: Regex) -> None:
        super().__init__(
            (5, inner),
            nullable=not inner.nullable,
            pure=False,
            floor=int(inner.nullable),
            size=inner.size + 1,
        )
        self.inner = inner

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Not) and self._hash == other._hash and self.inner == other.inner

    __hash__ = Regex.__hash__


class Repeat(Regex):
    """Between `low` and `high` times (None: no upper bound)."""

    __slots__ = ("high", "inner", "low")

    def __init__(self, inner: Regex, low: int, high: int | None) -> None:
        super().__init__(
            (6, inner, low, -1 if high is None else high),
            nullable=low == 0 or inner.nullable,
            pure=inner.pure,
            floor=low * inner.floor if low else 0,
            size=inner.size + 1,
        )
        self.inner = inner
        self.low = low
        self.high = high

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Repeat)
            and (self._hash, self.low, self.high) == (other._hash, other.low, other.high)
            and self.inner == other.inner
        )

    __hash__ = Regex.__hash__


EMPTY: Final[Regex] = Concat(())
"""Only the empty text."""
NOTHING: Final[Regex] = Alt(())
"""No text at all."""
ANY_CHAR: Final = Chars(((0, 0xD7FF), (0xE000, MAX_CODE_POINT)))
ANYTHING: Final[Regex] = Repeat(ANY_CHAR, 0, None)
"""Every text."""


def chars(ranges: Iterable[Range]) -> Regex:
    """One character out of these ranges, surrogates taken out."""
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    scalars = [
        (max(low, a), min(high, b))
        for low, high in merged
        for a, b in ANY_CHAR.ranges
        if max(low, a) <= min(high, b)
    ]
    return Chars(tuple(scalars)) if scalars else NOTHING


def invert(ranges: Iterable[Range]) -> Regex:
    """One character outside these ranges."""
    outside = []
    start = 0
    for low, high in sorted(ranges):
        if start < low:
            outside.append((start, low - 1))
        start = max(start, high + 1)
    outside.append((start, MAX_CODE_POINT))
    return chars((low, high) for low, high in outside if low <= high)


@lru_cache(maxsize=1024)
def _char(char: str) -> Regex:
    return chars([(ord(char), ord(char))])


def literal(text: str) -> Regex:
    """Exactly this text."""
    return concat(map(_char, text))


def concat(parts: Iterable[Regex]) -> Regex:
    """One after the other."""
    flat: list[Regex] = []
    for part in parts:
        if part == NOTHING:
            return NOTHING
        flat.extend(part.parts if isinstance(part, Concat) else (part,))
    return flat[0] if len(flat) == 1 else Concat(tuple(flat))


def alt(parts: Iterable[Regex]) -> Regex:
    """Union; single characters are merged into one class."""
    flat: dict[Regex, None] = {}
    ranges: list[Range] = []
    for part in parts:
        for piece in part.parts if isinstance(part, Alt) else (part,):
            if piece == ANYTHING:
                return ANYTHING
            if isinstance(piece, Chars):
                ranges.extend(piece.ranges)
            else:
                flat[piece] = None
    if ranges:
        flat[chars(ranges)] = None
    if len(flat) > 1 and EMPTY in flat and any(p.nullable for p in flat if p != EMPTY):
        del flat[EMPTY]
    # Order has no meaning in a union; sorting by hash makes equal unions equal.
    ordered = tuple(sorted(flat, key=hash))
    return ordered[0] if len(ordered) == 1 else Alt(ordered)


def intersect(parts: Iterable[Regex]) -> Regex:
    """Intersection."""
    flat: dict[Regex, None] = {}
    for part in parts:
        for piece in part.parts if isinstance(part, And) else (part,):
            if piece == NOTHING:
                return NOTHING
            if piece != ANYTHING:
                flat[piece] = None
    if EMPTY in flat:
        return EMPTY if all(p.nullable for p in flat) else NOTHING
    classes = [p for p in flat if isinstance(p, Chars)]
    if len(classes) > 1:
        both = classes[0]
        for other in classes[1:]:
            met = chars(
                (max(a, c), min(b, d))
                for a, b in both.ranges
                for c, d in other.ranges
                if max(a, c) <= min(b, d)
            )
            if not isinstance(met, Chars):
                return NOTHING
            both = met
        flat = {both: None, **{p: None for p in flat if not isinstance(p, Chars)}}
    ordered = tuple(sorted(flat, key=hash))
    if not ordered:
        return ANYTHING
    return ordered[0] if len(ordered) == 1 else And(ordered)


def complement(inner: Regex) -> Regex:
    """Everything else."""
    if isinstance(inner, Not):
        return inner.inner
    if inner == ANYTHING:
        return NOTHING
    return ANYTHING if inner == NOTHING else Not(inner)


def repeat(inner: Regex, low: int, high: int | None) -> Regex:
    """`inner` between `low` and `high` times (None: no upper bound)."""
    if high == 0 or inner == EMPTY:
        return EMPTY
    if inner == NOTHING:
        return EMPTY if low == 0 else NOTHING
    if (low, high) == (1, 1):
        return inner
    if isinstance(inner, Repeat) and (inner.low, inner.high) == (0, None):
        return inner
    return Repeat(inner, low, high)


def length(low: int, high: int | None) -> Regex:
    """Every text of between `low` and `high` characters."""
    return repeat(ANY_CHAR, low, high)


def is_free(regex: Regex) -> TypeGuard[Repeat]:
    """Whether a language only bounds the length of its texts."""
    return isinstance(regex, Repeat) and regex.inner == ANY_CHAR
