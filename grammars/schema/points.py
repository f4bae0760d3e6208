"""Places in output that is being written, as a reader of it knows them.

A grammar is ambiguous where alternatives share a beginning, so a point in the output stands for several
items at once, each one way to read what came so far: within the innermost open array or object, a position
of its automaton, and which item of the enclosing one it belongs to. Points are immutable: to go back, keep
an old one.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from grammars.regular.ast import Regex
from grammars.schema.shapes import Multiples


class Position(NamedTuple):
    """In the automaton of an array or object: a place, how many elements of its tail came, and which."""

    place: int
    passed: int = 0
    taken: int = 0


ROOT = Position(-1)

Identity = Hashable
"""Equal for equal values: of strings a quote and their text, of other values without parts a text that has
none; of arrays a tuple, of objects a frozenset of pairs."""


class Item(NamedTuple):
    """One reading: a position, and the index of the item of the enclosing level that it is part of."""

    position: Position
    up: int


class Value(NamedTuple):
    """A value that may come: its rule, and the item once it is there."""

    rule: int
    then: Item


@dataclass(frozen=True, slots=True)
class Level:
    """An open array or object.

    Attributes:
        parent: the level around it; None for the level of the root value itself.
        back: the items of `parent` once this one is closed.
        is_object: what it is.
        distinct: no two items of the array may be equal.
        seen: its names so far, or the identities of its items if `distinct`.
        recorded: it is part of an item of a `distinct` array, so what is in it will be compared.
        key: the name that was written last, if `recorded`.
        parts: the identities of its elements so far, of an object each with its name, if `recorded`.
    """

    parent: Level | None
    back: tuple[Item, ...]
    is_object: bool = False
    distinct: bool = False
    seen: frozenset[Identity] = frozenset()
    recorded: bool = False
    key: str = ""
    parts: tuple[Identity, ...] = ()

    @property
    def identity(self) -> Identity:
        """The same for equal values; order counts in arrays only."""
        return frozenset(self.parts) if self.is_object else self.parts


class Mode(IntEnum):
    """What a point is in the middle of."""

    OPENED = 0
    """Behind an opening bracket."""
    BETWEEN = 1
    """Behind an element."""
    COMMA = 2
    KEY = 3
    COLON = 4
    VALUE = 5
    QUOTED = 6
    BARE = 7
    DONE = 8


Language = Regex | Multiples


@dataclass(frozen=True, slots=True)
class Point:
    """A point in the output.

    Attributes:
        mode, level: where it is.
        items: the readings of the innermost level (OPENED, BETWEEN, COMMA, KEY).
        values: what may come (COLON, VALUE).
        texts: what may go on, and the item then (QUOTED, BARE).
        names: of each language of names that may come, what may go on (KEY).
        text: the characters of the key or text so far.
        rest: bytes of a character of it that is not complete.
        blanks: those that came last, outside of keys and texts; how many more may come depends on them.
    """

    mode: Mode
    level: Level
    items: tuple[Item, ...] = ()
    values: tuple[Value, ...] = ()
    texts: tuple[tuple[Language, Item], ...] = ()
    names: tuple[tuple[Regex, Regex], ...] = ()
    text: str = ""
    rest: bytes = b""
    blanks: bytes = b""


class RepeatedError(Exception):
    """A name that is already in its object, or an item that is already in an array of distinct ones."""


class OffGrammarError(Exception):
    """Output that no reading fits."""
