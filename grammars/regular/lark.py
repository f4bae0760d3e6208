"""Languages as terminals of llguidance's Lark dialect.

A terminal may combine `/…/` (Rust regular expressions) with `&` and `~`; pure parts are printed as one
`/…/` each. Text is written either as it is or as the inside of a JSON string: then a character stands for
every spelling of it that we accept, and since no two characters share one, intersection and complement
keep their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from grammars.regular.ast import (
    ANY_CHAR,
    EMPTY,
    Alt,
    And,
    Chars,
    Concat,
    Not,
    Range,
    Regex,
    Repeat,
    intersect,
    length,
)

_SHORT: Final = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}
# What needs no escape may have one: \/ and \uXXXX, the latter in pairs beyond U+FFFF.
_OPTIONAL_ESCAPES: Final = (
    r"\/|u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)


def quote(text: str) -> str:
    """Exactly `text`, as a regular expression."""
    return "".join(_code(ord(char)) for char in text)


def _code(code_point: int) -> str:
    char = chr(code_point)
    return char if char.isascii() and (char.isalnum() or char in "_,:\"' ") else f"\\x{{{code_point:x}}}"


def _class(ranges: tuple[Range, ...]) -> str:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _code(ranges[0][0])
    return "[" + "".join(_code(a) if a == b else f"{_code(a)}-{_code(b)}" for a, b in ranges) + "]"


@dataclass(frozen=True)
class Writer:
    """Prints languages.

    Attributes:
        json: as the inside of a JSON string rather than as plain text.
        free: with `json`, accept escapes that are not needed, too.
    """

    json: bool
    free: bool = False

    @cached_property
    def any_text(self) -> str:
        """Every text, as a regular expression."""
        return self._chars(ANY_CHAR) + "*"

    def terminal(self, regex: Regex) -> str:
        """A Lark terminal expression for a language that is not empty."""
        match regex:
            case Regex(pure=True):
                text = self.pattern(regex)
                return f"/{text}/" if text else '""'
            case Concat(parts=parts):
                return " ".join(self._group(part) for part in parts)
            case Alt(parts=parts):
                return " | ".join(self._group(part) for part in parts)
            case And(parts=parts):
                # A complement would also contain byte sequences that are no text.
                positive = any(not isinstance(part, Not) for part in parts)
                guard = [] if positive else [f"/{self.any_text}/"]
                negated = [
                    f"~{self._group(p.inner)}" if isinstance(p, Not) else self._group(p) for p in parts
                ]
                return " & ".join(guard + negated)
            case Not(inner=inner):
                return f"/{self.any_text}/ & ~{self._group(inner)}"
            case Repeat(inner=inner, low=low, high=high):
                return self._group(inner) + _bounds(low, high)
        raise TypeError(regex)

    def _group(self, regex: Regex) -> str:
        text = self.terminal(regex)
        return text if regex.pure else f"({text})"

    def pattern(self, regex: Regex) -> str:
        """A Rust regular expression for a language without intersection and complement."""
        match regex:
            case Chars():
                return self._chars(regex)
            case Concat(parts=parts):
                return "".join(map(self.pattern, parts))
            case Alt(parts=parts):
                return f"(?:{'|'.join(map(self.pattern, parts))})"
            case Repeat(inner=inner, low=low, high=high):
                return f"(?:{self.pattern(inner)})" + _bounds(low, high)
        raise TypeError(regex)

    def _chars(self, regex: Chars) -> str:
        return _json_class(regex, self.free) if self.json else _class(regex.ranges)


@lru_cache(maxsize=4096)
def _json_class(regex: Chars, free: bool) -> str:
    """One character of a set, as it is written inside a JSON string."""
    raw = tuple(
        (max(a, low), min(b, high))
        for a, b in regex.ranges
        for low, high in ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF))
        if max(a, low) <= min(b, high)
    )
    options = [_class(raw)] if raw else []
    options += _escapes(regex, free)
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"


def _escapes(regex: Chars, free: bool) -> list[str]:
    if free and regex == ANY_CHAR:
        return [rf"\\(?:[\x{{22}}\\bfnrt]|{_OPTIONAL_ESCAPES})"]
    short = "".join(_code(ord(letter)) for code, letter in _SHORT.items() if code in regex)
    controls = [code for code in range(0x20) if code in regex] if regex.ranges[0][0] < 0x20 else []
    escapes = [rf"\\[{short}]"] if short else []
    for high in (0, 1):
        digits = [f"{code & 15:x}" for code in controls if code >> 4 == high]
        if digits:
            letters = "".join(d + d.upper() if d.isalpha() else d for d in digits)
            escapes.append(rf"\\u00{high}[{letters}]")
    return escapes


def grammar(language: Regex) -> str:
    """A whole grammar for a language: its only terminal must not be empty, its start may."""
    if language == EMPTY:
        return 'start: ""\n'
    inside = intersect((language, length(1, None))) if language.nullable else language
    start = 'T | ""' if language.nullable else "T"
    return f"start: {start}\nT: {PLAIN.terminal(inside)}\n"


def _bounds(low: int, high: int | None) -> str:
    match low, high:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case _, None:
            return f"{{{low},}}"
    return f"{{{low}}}" if low == high else f"{{{low},{high}}}"


PLAIN: Final = Writer(json=False)
JSON: Final = Writer(json=True)
JSON_FREE: Final = Writer(json=True, free=True)
