"""A grammar that recurs, as a flat table: what a reader of the output needs of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from grammars.gbnf import Choice, Node, Ref, Seq, Times, Token
from grammars.regular.ast import Regex
from grammars.regular.questions import TooManyStatesError, shortest

_MAX_CHARS = 1 << 10
"""Of a shortest text. There are as many as entries, and the way along one is found a token at a time."""


@dataclass(frozen=True, slots=True)
class All:
    """One part after the other; parts are numbers of entries."""

    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several; a rule that refers to another is one of one."""

    options: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """Between `low` and `high` times (None: no upper bound)."""

    inner: int
    low: int
    high: int | None


Entry = All | OneOf | Repeated | Regex


@dataclass(frozen=True, slots=True)
class RecursiveTables:
    """The entries of a grammar; its text is one of entry 0.

    Attributes:
        shortest: of each entry, the shortest of its texts; None where there is none, or none of
            so few characters that it is worth it.
        exact: the engine takes all of its texts; else it may take some of them only.
    """

    entries: tuple[Entry, ...]
    shortest: tuple[str | None, ...]
    exact: bool


def recursive_tables(rules: dict[str, Node], *, exact: bool) -> RecursiveTables | None:
    """The table of the grammar of `root`; None where it names tokens, whose text is not known here."""
    flat = _Flat(rules)
    if flat.has_tokens:
        return None
    return RecursiveTables(tuple(flat.entries), tuple(_shortest_texts(flat.entries)), exact)


def _right_recursive(name: str, node: Node) -> Node:
    """The same rule where options begin with the rule itself: one of the others, then any of their rests."""
    if not isinstance(node, Choice):
        return node
    again = [
        option for option in node.options if isinstance(option, Seq) and option.parts[:1] == (Ref(name),)
    ]
    if not again:
        return node
    others = tuple(option for option in node.options if option not in (*again, Ref(name)))
    rests = tuple(Seq(option.parts[1:]) for option in again if isinstance(option, Seq))
    return Seq((Choice(others), Times(Choice(rests), 0, None)))


class _Flat:
    """Numbers the nodes of rules through."""

    def __init__(self, rules: dict[str, Node]) -> None:
        self.entries: list[Entry] = [OneOf(()) for _ in rules]
        self.has_tokens = False
        names = ["root", *(name for name in rules if name != "root")]
        self._numbers = {name: number for number, name in enumerate(names)}
        for name, number in self._numbers.items():
            self.entries[number] = OneOf((self._add(_right_recursive(name, rules[name])),))

    def _add(self, node: Node) -> int:
        match node:
            case Ref(name=name):
                return self._numbers[name]
            case Token():
                self.has_tokens = True
                entry: Entry = OneOf(())
            case Seq(parts=parts):
                entry = All(tuple(map(self._add, parts)))
            case Choice(options=options):
                entry = OneOf(tuple(map(self._add, options)))
            case Times(inner=inner, low=low, high=high):
                entry = Repeated(self._add(inner), low, high)
            case _:
                entry = node
        self.entries.append(entry)
        return len(self.entries) - 1


def _shortest_texts(entries: list[Entry]) -> list[str | None]:
    """By the usual fixed point: a text is only made of others that were there before it."""
    texts: list[str | None] = [None] * len(entries)
    changed = True
    while changed:
        changed = False
        # Parts come behind what they are parts of.
        for number in reversed(range(len(entries))):
            old, text = texts[number], _text(entries[number], texts)
            if text is not None and (old is None or len(text) < len(old)):
                texts[number] = text
                changed = True
    return texts


def _text(entry: Entry, texts: list[str | None]) -> str | None:
    match entry:
        case All(parts=parts):
            return _joined(texts[part] for part in parts)
        case OneOf(options=options):
            known = [text for option in options if (text := texts[option]) is not None]
            return min(known, key=len, default=None)
        case Repeated(inner=inner, low=low):
            text = texts[inner]
            if low == 0:
                return ""
            return None if text is None or len(text) * low > _MAX_CHARS else text * low
        case _:
            try:
                return shortest(entry)
            except TooManyStatesError:
                return None


def _joined(parts: Iterable[str | None]) -> str | None:
    joined = []
    size = 0
    for part in parts:
        if part is None or (size := size + len(part)) > _MAX_CHARS:
            return None
        joined.append(part)
    return "".join(joined)
