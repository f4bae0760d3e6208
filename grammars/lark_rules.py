"""Lark grammars as rules: what of the notation is common, for finding short texts.

The engine reads the grammar itself, one lexeme after the other, each as long as it can be; so what is read
here may allow more. Where a grammar has more to it than this, nothing is known of it here.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise

from grammars.gbnf import MAX_NESTING, Choice, Node, Ref, Seq, Times
from grammars.regular.ast import EMPTY, literal
from grammars.regular.classes import COMMON
from grammars.regular.pattern_syntax import PatternError
from grammars.regular.patterns import full_language

_TOKEN = re.compile(
    r"""(?P<blank> [ \t\r\n]+ | (?://|\#)[^\n]*)
    | (?P<name> [?!]?[A-Za-z_][A-Za-z0-9_]*)
    | (?P<string> "(?:[^"\\\n]|\\.)*")
    | (?P<regex> /(?:[^/\\\n]|\\.)+/)
    | (?P<count> \{\d+(?:,\d*)?\} | ~\s*\d+(?:\s*\.\.\s*\d+)?)
    | (?P<ignore> %ignore\b)
    | (?P<mark> -> | [:|()\[\]?*+])""",
    re.VERBOSE,
)
_NUMBER = re.compile(r"\d+")
_TIMES: dict[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}
_ROOT = "start"


class _BeyondError(Exception):
    """The grammar has more to it than is read here."""


def lark_rules(text: str) -> dict[str, Node] | None:
    """The rules of a grammar, of which `root` is the first; None where there is more to it."""
    try:
        rules, ignored = _Parser(_tokens(text)).parse()
    except (_BeyondError, PatternError, ValueError):
        return None
    if _ROOT not in rules or not _references(rules) <= rules.keys():
        return None
    if ignored:
        blanks = Times(Choice(tuple(ignored)), 0, None)
        rules = {name: node if _is_terminal(name) else _spaced(node, blanks) for name, node in rules.items()}
        return {**rules, "root": Seq((Ref(_ROOT), blanks))}
    return {**rules, "root": Ref(_ROOT)}


def _is_terminal(name: str) -> bool:
    return name.strip("_").isupper()


def _references(rules: dict[str, Node]) -> set[str]:
    found = set()
    pending = list(rules.values())
    while pending:
        match pending.pop():
            case Ref(name=name):
                found.add(name)
            case Seq(parts=parts) | Choice(options=parts):
                pending += parts
            case Times(inner=inner):
                pending.append(inner)
    return found


def _spaced(node: Node, blanks: Node) -> Node:
    """The same with blanks before each terminal."""
    match node:
        case Ref(name=name) if not _is_terminal(name):
            return node
        case Seq(parts=parts):
            return Seq(tuple(_spaced(part, blanks) for part in parts))
        case Choice(options=options):
            return Choice(tuple(_spaced(option, blanks) for option in options))
        case Times(inner=inner, low=low, high=high):
            return Times(_spaced(inner, blanks), low, high)
    return Seq((blanks, node))


def _tokens(text: str) -> list[tuple[str, str]]:
    """What kind each piece of the grammar is, and the piece."""
    tokens = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise _BeyondError
        if match.lastgroup != "blank":
            tokens.append((match.lastgroup, match[0]))
        at = match.end()
    # A flag, or another thing that stands right behind.
    ends = [match.end() for match in _TOKEN.finditer(text) if match.lastgroup in ("string", "regex")]
    if any(text[end : end + 1].isalpha() for end in ends):
        raise _BeyondError
    return tokens


class _Parser:
    """Reads tokens; a name with a colon behind it begins a rule."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = [*tokens, ("end", "")]
        self._at = 0
        self._begins = {
            index
            for index, (one, two) in enumerate(pairwise(self._tokens))
            if one[0] == "name" and two[1] == ":"
        }

    def parse(self) -> tuple[dict[str, Node], list[Node]]:
        """The rules, and what is ignored between terminals."""
        rules: dict[str, Node] = {}
        ignored: list[Node] = []
        while self._tokens[self._at][0] != "end":
            kind, text = self._next()
            if kind == "ignore":
                ignored.append(self._choice(0))
            elif kind == "name" and self._next()[1] == ":" and text.lstrip("?!") not in rules:
                rules[text.lstrip("?!")] = self._choice(0)
            else:
                raise _BeyondError
        return rules, ignored

    def _next(self) -> tuple[str, str]:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _choice(self, depth: int) -> Node:
        if depth > MAX_NESTING:
            raise _BeyondError
        options = [self._sequence(depth)]
        while self._tokens[self._at][1] == "|":
            self._at += 1
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, depth: int) -> Node:
        parts = []
        while not self._at_end():
            parts.append(self._repeated(self._atom(depth)))
        if self._tokens[self._at][1] == "->":
            self._next()
            if self._next()[0] != "name":
                raise _BeyondError
        return parts[0] if len(parts) == 1 else Seq(tuple(parts)) if parts else EMPTY

    def _at_end(self) -> bool:
        kind, text = self._tokens[self._at]
        return kind in ("end", "ignore") or text in ("|", ")", "]", "->") or self._at in self._begins

    def _atom(self, depth: int) -> Node:
        kind, text = self._next()
        match kind, text:
            case "name", _:
                return Ref(text)
            case "string", _:
                return literal(json.loads(text))
            case "regex", _:
                return full_language(text[1:-1].replace(r"\/", "/"), COMMON)
            case _, "(" | "[":
                inner = self._choice(depth + 1)
                if self._next()[1] != {"(": ")", "[": "]"}[text]:
                    raise _BeyondError
                return inner if text == "(" else Times(inner, 0, 1)
        raise _BeyondError

    def _repeated(self, node: Node) -> Node:
        kind, text = self._tokens[self._at]
        if kind == "count":
            numbers = [int(number) for number in _NUMBER.findall(text)]
            low, high = numbers[0], None if text.endswith(",}") else numbers[-1]
        elif text in _TIMES:
            low, high = _TIMES[text]
        else:
            return node
        self._at += 1
        return Times(node, low, high)
