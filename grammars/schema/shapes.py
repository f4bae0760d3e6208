"""A schema as a grammar over JSON tokens: rules for values, automata inside arrays and objects."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

from grammars.regular.ast import Regex, literal
from grammars.schema.numbers import Numbers
from grammars.schema.partial import write


@dataclass(frozen=True, slots=True)
class Text:
    """A value without parts, by the texts that spell it.

    Attributes:
        regex: the text; of a string, what it means rather than how it is escaped.
        quoted: whether it is a string.
        size: characters of a shortest one.
    """

    regex: Regex
    quoted: bool
    shortest: str

    @property
    def size(self) -> int:
        """Bytes of the shortest text, of a string with its quotes."""
        return len(write(self.shortest).encode()) + 2 if self.quoted else len(self.shortest)


@dataclass(frozen=True, slots=True)
class Multiples:
    """Numbers of which each is a multiple of another, spelled plainly."""

    numbers: Numbers
    step: Fraction
    shortest: str


@dataclass(eq=False, slots=True)
class Rule:
    """The values of one place; `sequences` are its arrays and objects."""

    texts: list[Text] = field(default_factory=list)
    multiples: list[Multiples] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    size: float = math.inf
    """Bytes of a shortest value, written compactly; infinite when there is none."""


@dataclass(frozen=True, slots=True)
class Key:
    """The name of a property: one, or any of a language."""

    name: str | None
    regex: Regex | None = None
    shortest: str = ""

    @property
    def language(self) -> Regex:
        """The names as a language."""
        return literal(self.name or "") if self.regex is None else self.regex

    @property
    def size(self) -> int:
        """Bytes of a shortest key, with quotes and colon."""
        return len(write(self.shortest if self.name is None else self.name).encode()) + 3


@dataclass(frozen=True, slots=True)
class Element:
    """An item (no key) or a property."""

    key: Key | None
    value: Rule

    @property
    def size(self) -> float:
        """Bytes of a shortest one."""
        return self.value.size + (self.key.size if self.key else 0)


@dataclass(eq=False, slots=True)
class State:
    """A place between the elements of a sequence.

    Attributes:
        first: no element stands before it, so the next has no comma.
        edges: an element, and the state after it.
        skip: a state that is also this one, without an element.
        final: the sequence may end here.
        loop: elements that may come any number of times before an edge is taken (never when `first`).
        tail: elements of which so many end the sequence; `high` None: any number.
    """

    first: bool
    edges: list[tuple[Element, State]] = field(default_factory=list)
    skip: State | None = None
    final: bool = False
    loop: list[Element] = field(default_factory=list)
    tail: Tail | None = None
    size: float = math.inf
    """Bytes of a shortest way to the end, without the closing bracket."""


@dataclass(eq=False, slots=True)
class Tail:
    """`low` to `high` elements; `unique`: no element twice."""

    elements: list[Element]
    low: int
    high: int | None
    unique: bool = False


@dataclass(eq=False, slots=True)
class Sequence:
    """An array or an object; `start` is where its automaton starts.

    `distinct`: no two items are equal, which the automaton does not know of.
    """

    is_object: bool
    start: State
    states: list[State]
    distinct: bool = False
