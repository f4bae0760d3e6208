"""Where reading the longest lexeme would go wrong.

A lexer that takes the longest lexeme cannot end one where a character follows that goes on with it, or
with another that starts the same. If such a character may also begin what comes next, texts are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from grammars.gbnf import Choice, Node, Ref, Seq, Times
from grammars.regular.ast import NOTHING, Chars, Regex, chars
from grammars.regular.derivative import classes, derive

_MAX_PAIRS = 2000

_Set = Regex
"""A set of characters: one of `Chars`, or nothing."""


def find_unsafe(rules: dict[str, Node]) -> set[Regex]:
    """Terminals of a grammar that must be read character by character; then there may be more.

    If one of two terminals that get into each other's way is a single character, it is the other.
    """
    follows = _Follows(rules).terminals
    unsafe: set[Regex] = set()
    for language, follow in follows.items():
        for other in follows:
            if _meet(follow, _going_on(language, other)) != NOTHING:
                unsafe.add(other if isinstance(language, Chars) else language)
    return {language for language in unsafe if not isinstance(language, Chars)}


class _Follows:
    """Which characters may follow each terminal, by the usual fixed point.

    Attributes:
        terminals: each terminal and those characters.
    """

    def __init__(self, rules: dict[str, Node]) -> None:
        self._rules = rules
        self._first: dict[str, _Set] = dict.fromkeys(rules, NOTHING)
        self._nullable: dict[str, bool] = dict.fromkeys(rules, False)
        self._follow: dict[str, _Set] = dict.fromkeys(rules, NOTHING)
        self.terminals: dict[Regex, _Set] = {}
        self._until_settled(self._grow_first)
        self._until_settled(self._grow_follow)

    def _until_settled(self, grow: Callable[[str, Node], None]) -> None:
        while True:
            before = dict(self._first), dict(self._nullable), dict(self._follow), dict(self.terminals)
            for name, node in self._rules.items():
                grow(name, node)
            if before == (self._first, self._nullable, self._follow, self.terminals):
                return

    def _grow_first(self, name: str, node: Node) -> None:
        self._first[name] = _join((self._first[name], self._first_of(node)))
        self._nullable[name] |= self._is_nullable(node)

    def _grow_follow(self, name: str, node: Node) -> None:
        self._pass(node, self._follow[name])

    def _first_of(self, node: Node) -> _Set:
        match node:
            case Regex():
                return _first_chars(node)
            case Ref(name=name):
                return self._first[name]
            case Times(inner=inner):
                return self._first_of(inner)
            case Seq(parts=parts):
                return self._first_of_all(parts)
            case Choice(options=options):
                return _join(map(self._first_of, options))
        return NOTHING

    def _first_of_all(self, parts: Iterable[Node]) -> _Set:
        found: _Set = NOTHING
        for part in parts:
            found = _join((found, self._first_of(part)))
            if not self._is_nullable(part):
                break
        return found

    def _is_nullable(self, node: Node) -> bool:
        match node:
            case Regex():
                return node.nullable
            case Ref(name=name):
                return self._nullable[name]
            case Times(inner=inner, low=low):
                return low == 0 or self._is_nullable(inner)
            case Seq(parts=parts):
                return all(map(self._is_nullable, parts))
            case Choice(options=options):
                return any(map(self._is_nullable, options))
        return False

    def _pass(self, node: Node, follow: _Set) -> None:
        """Tell a node, and all in it, what may follow it."""
        match node:
            case Regex():
                self.terminals[node] = _join((self.terminals.get(node, NOTHING), follow))
            case Ref(name=name):
                self._follow[name] = _join((self._follow[name], follow))
            case Times(inner=inner, high=high):
                again = self._first_of(inner) if high != 1 else NOTHING
                self._pass(inner, _join((follow, again)))
            case Seq(parts=parts):
                for index, part in enumerate(parts):
                    rest = parts[index + 1 :]
                    after = self._first_of_all(rest)
                    self._pass(part, _join((after, follow)) if all(map(self._is_nullable, rest)) else after)
            case Choice(options=options):
                for option in options:
                    self._pass(option, follow)


def _going_on(language: Regex, other: Regex) -> _Set:
    """The characters with which a whole text of `language` goes on towards one of `other`."""
    found: _Set = NOTHING
    seen = {(language, other)}
    pending = [(language, other)]
    while pending:
        here, there = pending.pop()
        if here.nullable:
            found = _join((found, _first_chars(there)))
        for pair in _steps(here, there):
            if pair not in seen:
                seen.add(pair)
                pending.append(pair)
        if len(seen) > _MAX_PAIRS:
            return chars([(0, 0x10FFFF)])
    return found


def _steps(here: Regex, there: Regex) -> Iterator[tuple[Regex, Regex]]:
    for ranges in classes(here):
        after = derive(here, ranges[0][0])
        if after != NOTHING:
            yield from ((after, derive(there, code)) for code in _representatives(ranges, there))


def _representatives(ranges: tuple[tuple[int, int], ...], regex: Regex) -> Iterator[int]:
    """One character out of `ranges` for each class of another language."""
    for others in classes(regex):
        found = next((max(a, c) for a, b in ranges for c, d in others if max(a, c) <= min(b, d)), None)
        if found is not None and derive(regex, found) != NOTHING:
            yield found


def _first_chars(regex: Regex) -> _Set:
    ranges = [pair for group in classes(regex) if derive(regex, group[0][0]) != NOTHING for pair in group]
    return chars(ranges)


def _join(sets: Iterable[_Set]) -> _Set:
    return chars(pair for one in sets if isinstance(one, Chars) for pair in one.ranges)


def _meet(left: _Set, right: _Set) -> _Set:
    if not (isinstance(left, Chars) and isinstance(right, Chars)):
        return NOTHING
    return chars(
        (max(a, c), min(b, d)) for a, b in left.ranges for c, d in right.ranges if max(a, c) <= min(b, d)
    )
