"""The grammar notation of llama.cpp (GBNF), which is also the EBNF that other servers take.

Rules are `name ::= alternatives`; the text starts at `root`. Read into a tree, whose parts that do not
recur are then regular languages (`grammars.gbnf_lark`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from grammars.base import GrammarError
from grammars.regular.ast import ANY_CHAR, Range, Regex, chars, invert, literal

MAX_NESTING = 64
MAX_REPEAT = 10_000
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_COUNT = re.compile(r"\{\s*(\d+)\s*(,?)\s*(\d*)\s*\}")
_TOKEN = re.compile(r"(!?)<\[(\d+)\]>")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_HEX = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True)
class Ref:
    """Another rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the vocabulary, or with `negated` any other."""

    token_id: int
    negated: bool


@dataclass(frozen=True, slots=True)
class Seq:
    """One part after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """Repeated between `low` and `high` times (None: no upper bound)."""

    inner: Node
    low: int
    high: int | None


Node = Ref | Token | Seq | Choice | Times | Regex


def parse_gbnf(text: str) -> dict[str, Node]:
    """The rules of a grammar.

    Raises:
        GrammarError: what is wrong, and in which line.
    """
    return _Parser(text).parse()


class _Parser:
    """Recursive descent."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parse(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._skip(_BLANK_LINES)
        while self._at < len(self._text):
            name = self._name()
            self._skip(_BLANK)
            if not self._text.startswith("::=", self._at):
                raise self._error("::= is missing")
            self._at += 3
            self._skip(_BLANK_LINES)
            if name in rules:
                raise self._error(f"the rule {name} is defined twice")
            rules[name] = self._choice(nested=False)
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._error(f"unexpected {self._text[self._at]!r}")
            self._skip(_BLANK_LINES)
        if "root" not in rules:
            raise GrammarError("the grammar has no rule root")
        return rules

    def _error(self, what: str) -> GrammarError:
        line = self._text.count("\n", 0, self._at) + 1
        return GrammarError(f"line {line}: {what}")

    def _skip(self, blank: re.Pattern[str]) -> None:
        match = blank.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _name(self) -> str:
        match = _NAME.match(self._text, self._at)
        if match is None:
            raise self._error("the name of a rule is missing")
        self._at = match.end()
        return match[0]

    def _choice(self, *, nested: bool) -> Node:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._error(f"groups nested deeper than {MAX_NESTING}")
        options = [self._sequence(nested=nested)]
        while self._text.startswith("|", self._at):
            self._at += 1
            self._skip(_BLANK_LINES)
            options.append(self._sequence(nested=nested))
        self._depth -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, *, nested: bool) -> Node:
        blank = _BLANK_LINES if nested else _BLANK
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)\r\n":
            parts.append(self._repeated(self._item()))
            self._skip(blank)
        if not nested:
            self._to_bar()
        return parts[0] if len(parts) == 1 else Seq(tuple(parts))

    def _to_bar(self) -> None:
        """Go to the next line if that starts with a bar, and so goes on with this rule."""
        match = _BLANK_LINES.match(self._text, self._at)
        assert match is not None
        if self._text.startswith("|", match.end()):
            self._at = match.end()

    def _item(self) -> Node:
        char = self._text[self._at]
        if char == '"':
            return self._literal()
        if char == "[":
            return self._class()
        if char == "(":
            return self._group()
        if char == ".":
            self._at += 1
            return ANY_CHAR
        if char in "<!":
            match = _TOKEN.match(self._text, self._at)
            if match is None:
                raise self._error("a token is written as <[id]>")
            self._at = match.end()
            return Token(int(match[2]), bool(match[1]))
        return Ref(self._name())

    def _group(self) -> Node:
        self._at += 1
        self._skip(_BLANK_LINES)
        inner = self._choice(nested=True)
        if not self._text.startswith(")", self._at):
            raise self._error("a group does not end")
        self._at += 1
        return inner

    def _repeated(self, item: Node) -> Node:
        self._skip(_BLANK)
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        while self._at < len(self._text):
            bounds: tuple[int, int | None] | None = simple.get(self._text[self._at])
            count = _COUNT.match(self._text, self._at)
            if bounds is not None:
                self._at += 1
            elif count is not None:
                low = int(count[1])
                bounds = (low, (int(count[3]) if count[3] else None) if count[2] else low)
                self._at = count.end()
            else:
                break
            if max(bounds[0], bounds[1] or 0) > MAX_REPEAT or (
                bounds[1] is not None and bounds[1] < bounds[0]
            ):
                raise self._error(f"repetitions are counted up to {MAX_REPEAT}, the smaller number first")
            item = Times(item, *bounds)
        return item

    def _literal(self) -> Regex:
        self._at += 1
        text = []
        while not self._text.startswith('"', self._at):
            text.append(self._char())
        self._at += 1
        return literal("".join(text))

    def _class(self) -> Regex:
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        ranges: list[Range] = []
        while not self._text.startswith("]", self._at):
            low = high = ord(self._char())
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                high = ord(self._char())
            ranges.append((low, high))
        self._at += 1
        return invert(ranges) if negated else chars(ranges)

    def _char(self) -> str:
        if self._at >= len(self._text) or self._text[self._at] in "\r\n":
            raise self._error("a text or class does not end")
        char = self._text[self._at]
        self._at += 1
        if char != "\\":
            return char
        escaped = self._text[self._at : self._at + 1]
        self._at += 1
        size = _HEX.get(escaped)
        if size is None:
            if escaped.isalnum() and escaped not in _ESCAPES:
                raise self._error(rf"the escape \{escaped} is not known")
            return _ESCAPES.get(escaped, escaped)
        digits = self._text[self._at : self._at + size]
        self._at += size
        try:
            return chr(int(digits, 16))
        except ValueError:
            raise self._error(rf"\{escaped} needs {size} hexadecimal digits") from None
