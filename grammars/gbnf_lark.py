"""From GBNF to llguidance's Lark dialect.

GBNF is about characters; the engine reads lexemes, each as long as it can be. So whatever of a grammar
does not recur becomes one regular language, and neighbours that are regular become one terminal: where
the whole grammar is regular, the translation is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from grammars.base import GrammarError
from grammars.gbnf import Choice, Node, Ref, Seq, Times, Token
from grammars.regular.ast import EMPTY, Regex, alt, concat, intersect, length, repeat
from grammars.regular.lark import PLAIN, grammar

MAX_NODES = 20_000

_Join = Callable[[Iterable[Regex]], Regex]


@dataclass(frozen=True, slots=True)
class Translation:
    """A grammar in Lark, and its language where that is regular."""

    source: str
    language: Regex | None


def translate(rules: dict[str, Node]) -> Translation:
    """The grammar of `root`.

    Raises:
        GrammarError: a rule that does not exist, or a grammar that grows too large.
    """
    return _Translator(rules).translate()


class _Translator:
    def __init__(self, rules: dict[str, Node]) -> None:
        self._rules = rules
        self._regular: dict[str, Regex | None] = {}
        self._terminals: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._nodes = 0

    def translate(self) -> Translation:
        language = self._rule_language("root", frozenset())
        if language is not None:
            return Translation(grammar(language), language)
        start = self._name("root")
        lines = []
        done: set[str] = set()
        while len(done) < len(self._names):
            name = next(name for name in self._names if name not in done)
            done.add(name)
            lines.append(f"{self._names[name]}: {self._node(self._rules[name])}")
        terminals = [f"{name}: {text}" for text, name in self._terminals.items()]
        source = "\n".join(["%llguidance {}", f"start: {start}", *lines, *terminals, ""])
        return Translation(source, None)

    def _name(self, rule: str) -> str:
        return self._names.setdefault(rule, f"r{len(self._names)}")

    def _rule_language(self, name: str, path: frozenset[str]) -> Regex | None:
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
            raise GrammarError("grammar too complex")
        match node:
            case Regex():
                return node
            case Ref(name=name):
                return self._rule_language(name, path)
            case Token():
                return None
            case Times(inner=inner, low=low, high=high):
                language = self._language(inner, path)
                return None if language is None else repeat(language, low, high)
            case Seq(parts=parts):
                return self._all(parts, path, concat)
            case Choice(options=options):
                return self._all(options, path, alt)
        raise TypeError(node)

    def _all(self, nodes: tuple[Node, ...], path: frozenset[str], join: _Join) -> Regex | None:
        languages = [self._language(node, path) for node in nodes]
        return None if None in languages else join(one for one in languages if one is not None)

    def _node(self, node: Node) -> str:
        """A node of a rule, as Lark."""
        language = self._language(node, frozenset())
        if language is not None:
            return self._terminal(language)
        match node:
            case Ref(name=name):
                return self._name(name)
            case Token(token_id=token_id, negated=negated):
                return f"<[^{token_id}]>" if negated else f"<[{token_id}]>"
            case Times(inner=inner, low=low, high=high):
                return f"({self._node(inner)}){{{low},{'' if high is None else high}}}"
            case Seq(parts=parts):
                return self._sequence(parts)
            case Choice(options=options):
                return "(" + " | ".join(map(self._node, options)) + ")"
        raise TypeError(node)

    def _sequence(self, parts: tuple[Node, ...]) -> str:
        """Neighbours that are regular are one terminal."""
        texts = []
        together: list[Regex] = []
        for part in parts:
            language = self._language(part, frozenset())
            if language is not None:
                together.append(language)
                continue
            if together:
                texts.append(self._terminal(concat(together)))
                together = []
            texts.append(self._node(part))
        if together:
            texts.append(self._terminal(concat(together)))
        return " ".join(texts)

    def _terminal(self, language: Regex) -> str:
        if language == EMPTY:
            return '""'
        # A terminal must not be empty, a rule may.
        inside = intersect((language, length(1, None))) if language.nullable else language
        name = self._terminals.setdefault(PLAIN.terminal(inside), f"T{len(self._terminals)}")
        return f'({name} | "")' if language.nullable else name
