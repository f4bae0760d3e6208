"""From GBNF to llguidance's Lark dialect.

GBNF is about characters; the engine reads lexemes, each as long as it can be. So whatever of a grammar
does not recur becomes one regular language, and neighbours that are regular become one terminal. Where a
terminal could swallow what should stand behind it (`grammars.lexing`), it is written out character by
character instead: then the longest lexeme is the only one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from grammars.base import GrammarError
from grammars.gbnf import Choice, Node, Ref, Seq, Times, Token
from grammars.lexing import find_unsafe
from grammars.recursive_tables import RecursiveTables, recursive_tables
from grammars.regular.ast import (
    EMPTY,
    Alt,
    Concat,
    Regex,
    Repeat,
    alt,
    concat,
    intersect,
    length,
    repeat,
)
from grammars.regular.lark import PLAIN, grammar

MAX_NODES = 20_000

_Join = Callable[[Iterable[Regex]], Regex]


@dataclass(frozen=True, slots=True)
class Translation:
    """A grammar in Lark, and its texts: a regular language, or a table; None where they are not known."""

    source: str
    sentences: Regex | RecursiveTables | None


def translate(rules: dict[str, Node]) -> Translation:
    """The grammar of `root`.

    Raises:
        GrammarError: a rule that does not exist, or a grammar that grows too large.
    """
    merger = _Merger(rules)
    language = merger.rule_language("root", frozenset())
    if language is not None:
        return Translation(grammar(language), language)
    merged = merger.merge()
    while unsafe := find_unsafe(merged):
        merged = {name: _spell_out(node, unsafe) for name, node in merged.items()}
    return Translation(_Writer(merged).write(), recursive_tables(merged, exact=True))


def _spell_out(node: Node, unsafe: set[Regex]) -> Node:
    """A node whose terminals in `unsafe` are written out character by character."""
    match node:
        case Seq(parts=parts):
            return Seq(tuple(_spell_out(part, unsafe) for part in parts))
        case Choice(options=options):
            return Choice(tuple(_spell_out(option, unsafe) for option in options))
        case Times(inner=inner, low=low, high=high):
            return Times(_spell_out(inner, unsafe), low, high)
        case Regex() if node in unsafe:
            return _characters(node)
    return node


def _characters(language: Regex) -> Node:
    match language:
        case Concat(parts=parts):
            return Seq(tuple(map(_characters, parts)))
        case Alt(parts=parts):
            return Choice(tuple(map(_characters, parts)))
        case Repeat(inner=inner, low=low, high=high):
            return Times(_characters(inner), low, high)
    return language


class _Merger:
    """Joins neighbours that are regular."""

    def __init__(self, rules: dict[str, Node]) -> None:
        self._rules = rules
        self._regular: dict[str, Regex | None] = {}
        self._nodes = 0

    def merge(self) -> dict[str, Node]:
        """The rules that recur, or that lead to a token."""
        merged: dict[str, Node] = {}
        pending = ["root"]
        while pending:
            name = pending.pop()
            if name not in merged:
                merged[name] = self._node(self._rules[name], pending)
        return merged

    def rule_language(self, name: str, path: frozenset[str]) -> Regex | None:
        """The language of a rule that does not recur."""
        if name not in self._rules:
            raise GrammarError(f"there is no rule {name}")
        if name in path:
            return None
        if name not in self._regular:
            language = self._language(self._rules[name], path | {name})
            if language is None and path:
                # It may only recur by way of where we come from; that is seen from there.
                return None
            self._regular[name] = language
        return self._regular[name]

    def _language(self, node: Node, path: frozenset[str]) -> Regex | None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise GrammarError(
                f"grammar too complex: written out, its rules have more than {MAX_NODES} parts"
            )
        match node:
            case Regex():
                return node
            case Ref(name=name):
                return self.rule_language(name, path)
            case Times(inner=inner, low=low, high=high):
                language = self._language(inner, path)
                return None if language is None else repeat(language, low, high)
            case Seq(parts=parts):
                return self._all(parts, path, concat)
            case Choice(options=options):
                return self._all(options, path, alt)
        return None

    def _all(self, nodes: tuple[Node, ...], path: frozenset[str], join: _Join) -> Regex | None:
        languages = [self._language(node, path) for node in nodes]
        return None if None in languages else join(one for one in languages if one is not None)

    def _node(self, node: Node, pending: list[str]) -> Node:
        language = self._language(node, frozenset())
        if language is not None:
            return language
        match node:
            case Ref(name=name):
                pending.append(name)
                return node
            case Times(inner=inner, low=low, high=high):
                return Times(self._node(inner, pending), low, high)
            case Seq(parts=parts):
                return self._sequence(parts, pending)
            case Choice(options=options):
                return Choice(tuple(self._node(option, pending) for option in options))
        return node

    def _sequence(self, parts: tuple[Node, ...], pending: list[str]) -> Node:
        merged: list[Node] = []
        for part in parts:
            node = self._node(part, pending)
            if isinstance(node, Regex) and merged and isinstance(merged[-1], Regex):
                merged[-1] = concat((merged[-1], node))
            else:
                merged.append(node)
        return merged[0] if len(merged) == 1 else Seq(tuple(merged))


class _Writer:
    """Writes rules."""

    def __init__(self, rules: dict[str, Node]) -> None:
        self._rules = rules
        self._terminals: dict[str, str] = {}

    def write(self) -> str:
        names = {name: f"r{number}" for number, name in enumerate(self._rules)}
        lines = [f"{names[name]}: {self._node(node, names)}" for name, node in self._rules.items()]
        terminals = [f"{name}: {text}" for text, name in self._terminals.items()]
        return "\n".join(["%llguidance {}", f"start: {names['root']}", *lines, *terminals, ""])

    def _node(self, node: Node, names: dict[str, str]) -> str:
        match node:
            case Regex():
                return self._terminal(node)
            case Ref(name=name):
                return names[name]
            case Token(token_id=token_id, negated=negated):
                return f"<[^{token_id}]>" if negated else f"<[{token_id}]>"
            case Times(inner=inner, low=low, high=high):
                return f"({self._node(inner, names)}){_times(low, high)}"
            case Seq(parts=parts):
                return " ".join(self._node(part, names) for part in parts) or '""'
            case Choice(options=options):
                return "(" + " | ".join(self._node(option, names) for option in options) + ")"
        raise TypeError(node)

    def _terminal(self, language: Regex) -> str:
        if language == EMPTY:
            return '""'
        # A terminal must not be empty, a rule may.
        inside = intersect((language, length(1, None))) if language.nullable else language
        name = self._terminals.setdefault(PLAIN.terminal(inside), f"T{len(self._terminals)}")
        return f'({name} | "")' if language.nullable else name


def _times(low: int, high: int | None) -> str:
    if high is None:
        return "*" if low == 0 else f"{{{low},}}"
    return "?" if (low, high) == (0, 1) else f"{{{low},{high}}}"
