"""The syntax of regular expressions, as a tree whose leaves are languages.

That of ECMA-262 (§22.2.1) with the `u` flag, which JSON Schema recommends, but lenient on escaped
punctuation; named groups may also be written as Python writes them. Other dialects differ in what classes
mean, see `grammars.regular.classes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from grammars.regular.ast import Range, Regex, chars, invert
from grammars.regular.classes import Dialect, property_class

MAX_NESTING = 100
MAX_REPEAT = 100_000
_CONTROL = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}


class PatternError(ValueError):
    """Not a regular expression, or one with a construct that is not regular or not supported."""


@dataclass(frozen=True, slots=True)
class Seq:
    """One after the other."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    options: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """Repeated between `low` and `high` times."""

    inner: Tree
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Ahead:
    """`(?=inner)` or `(?!inner)`."""

    inner: Tree
    negative: bool


@dataclass(frozen=True, slots=True)
class Edge:
    """`^` or `$`."""

    at_start: bool


Tree = Seq | Choice | Times | Ahead | Edge | Regex


def parse(pattern: str, dialect: Dialect) -> Tree:
    """The tree of a pattern.

    Raises:
        PatternError: see there.
    """
    if "\0" in pattern:
        raise PatternError("a NUL character")
    return _Parser(pattern, dialect).parse()


class _Parser:
    """Recursive descent."""

    def __init__(self, pattern: str, dialect: Dialect) -> None:
        self._text = pattern
        self._dialect = dialect
        self._at = 0
        self._depth = 0

    def parse(self) -> Tree:
        tree = self._choice()
        if self._at < len(self._text):
            raise PatternError(f"unexpected {self._text[self._at]!r} at {self._at}")
        return tree

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        if self._peek(text):
            self._at += len(text)
            return True
        return False

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise PatternError("unexpected end")
        self._at += 1
        return self._text[self._at - 1]

    def _choice(self) -> Tree:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise PatternError(f"groups nested deeper than {MAX_NESTING}")
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        self._depth -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Tree:
        parts: list[Tree] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._term())
        return parts[0] if len(parts) == 1 else Seq(tuple(parts))

    def _term(self) -> Tree:
        atom = self._atom()
        bounds = self._quantifier()
        if bounds is None:
            return atom
        if isinstance(atom, Edge | Ahead):
            raise PatternError(f"nothing to repeat at {self._at}")
        return Times(atom, *bounds)

    def _quantifier(self) -> tuple[int, int | None] | None:
        bounds: tuple[int, int | None]
        if self._take("*"):
            bounds = (0, None)
        elif self._take("+"):
            bounds = (1, None)
        elif self._take("?"):
            bounds = (0, 1)
        elif self._peek("{"):
            counted = self._counted()
            if counted is None:
                return None
            bounds = counted
        else:
            return None
        self._take("?")  # lazy: the same language
        if self._at < len(self._text) and self._text[self._at] in "*+?":
            raise PatternError(f"nothing to repeat at {self._at}")
        return bounds

    def _counted(self) -> tuple[int, int | None] | None:
        """`{n}`, `{n,}` or `{n,m}`; None for a brace that stands for itself."""
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : end].partition(",") if end > 0 else ("", "", "")
        if not (low.isascii() and low.isdigit() and (not high or (high.isascii() and high.isdigit()))):
            return None
        self._at = end + 1
        first = int(low[:9])
        last = first if not comma else int(high[:9]) if high else None
        if max(first, last or 0) > MAX_REPEAT:
            raise PatternError(f"more than {MAX_REPEAT} repetitions")
        if last is not None and last < first:
            raise PatternError(f"the bounds {{{low},{high}}} are out of order")
        return first, last

    def _atom(self) -> Tree:
        char = self._next()
        match char:
            case "^" | "$":
                return Edge(char == "^")
            case ".":
                return invert(self._dialect.line_ends)
            case "(":
                return self._group()
            case "[":
                return self._class()
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise PatternError(f"nothing to repeat at {self._at - 1}")
            case "{" if self._looks_counted():
                raise PatternError(f"nothing to repeat at {self._at - 1}")
        return chars([(ord(char), ord(char))])

    def _looks_counted(self) -> bool:
        self._at -= 1
        at = self._at
        counted = self._counted() is not None
        self._at = at + 1
        return counted

    def _group(self) -> Tree:
        tree: Tree
        if self._take("?=") or self._take("?!"):
            negative = self._text[self._at - 1] == "!"
            tree = Ahead(self._choice(), negative)
        elif self._peek("?<=") or self._peek("?<!"):
            raise PatternError("lookbehind is not supported")
        else:
            if self._take("?<") or self._take("?P<"):
                name = self._text.find(">", self._at)
                if name < 0:
                    raise PatternError("a group's name does not end")
                self._at = name + 1
            elif not self._take("?:") and self._peek("?"):
                raise PatternError(f"the group (?{self._text[self._at + 1 : self._at + 2]} is not supported")
            tree = self._choice()
        if not self._take(")"):
            raise PatternError("a group does not end")
        return tree

    def _escape(self) -> Tree:
        char = self._next()
        if char in self._dialect.edges:
            return Edge(self._dialect.edges[char])
        if char in "bB":
            raise PatternError(rf"\{char} is not supported")
        if char.isdigit() and char != "0":
            raise PatternError("backreferences are not regular")
        if char == "k":
            raise PatternError("backreferences are not regular")
        ranges = self._dialect.escape(char)
        if ranges is not None:
            return chars(ranges)
        if char in "pP":
            return chars(self._property(negated=char == "P"))
        code = self._code_point(char)
        return chars([(code, code)])

    def _property(self, *, negated: bool) -> tuple[Range, ...]:
        if not self._take("{"):
            raise PatternError(r"\p needs a property in braces")
        end = self._text.find("}", self._at)
        ranges = property_class(self._text[self._at : end], negated=negated) if end > 0 else None
        if ranges is None:
            raise PatternError(
                rf"the property \p{{{self._text[self._at : max(end, self._at)]}}} is not known"
            )
        self._at = end + 1
        return ranges

    def _code_point(self, char: str) -> int:
        """What an escape that stands for one character stands for; `char` follows the backslash."""
        if char in _CONTROL:
            return _CONTROL[char]
        if char == "0" and not self._text[self._at : self._at + 1].isdigit():
            return 0
        if char == "c" and self._text[self._at : self._at + 1].isalpha():
            return ord(self._next()) % 32
        if char == "x":
            return self._hex(2)
        if char == "u":
            return self._unicode()
        if char.isascii() and char.isalnum():
            raise PatternError(rf"the escape \{char} is not known")
        return ord(char)

    def _hex(self, digits: int) -> int:
        text = self._text[self._at : self._at + digits]
        try:
            if len(text) < digits or not text.isalnum():
                raise ValueError
            code = int(text, 16)
        except ValueError:
            raise PatternError(f"{digits} hexadecimal digits are missing at {self._at}") from None
        self._at += digits
        return code

    def _unicode(self) -> int:
        if self._take("{"):
            end = self._text.find("}", self._at)
            digits = self._text[self._at : end] if end > 0 else ""
            if not 0 < len(digits) <= 6:
                raise PatternError(r"\u{…} needs up to six digits")
            code = self._hex(len(digits))
            self._at += 1
            if code > 0x10FFFF:
                raise PatternError(f"there is no character U+{code:X}")
            return code
        code = self._hex(4)
        if 0xD800 <= code < 0xDC00 and self._take("\\u"):
            low = self._hex(4)
            if 0xDC00 <= low < 0xE000:
                return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
            raise PatternError("a surrogate without its other half")
        return code

    def _class(self) -> Regex:
        negated = self._take("^")
        ranges: list[Range] = []
        while not self._take("]"):
            low = self._class_member()
            if self._peek("-") and not self._peek("-]"):
                self._at += 1
                high = self._class_member()
                if isinstance(low, int) and isinstance(high, int):
                    if high < low:
                        raise PatternError("a range of characters is out of order")
                    ranges.append((low, high))
                    continue
                # A class cannot end a range: the hyphen stands for itself.
                ranges.append((0x2D, 0x2D))
                ranges.extend([(high, high)] if isinstance(high, int) else high)
            ranges.extend([(low, low)] if isinstance(low, int) else low)
        return invert(ranges) if negated else chars(ranges)

    def _class_member(self) -> int | tuple[Range, ...]:
        char = self._next()
        if char != "\\":
            return ord(char)
        char = self._next()
        if char == "b":
            return 8
        ranges = self._dialect.escape(char)
        if ranges is not None:
            return ranges
        if char in "pP":
            return self._property(negated=char == "P")
        return self._code_point(char)
