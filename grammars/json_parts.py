"""The parts of a JSON text by their size; told in one pass without recursion, so of any text however deep."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from grammars.json_pointer import escape

MOST_LOOKED_AT = 1 << 21
"""Characters of a text beyond which no part of it is looked for."""

# Strings are passed over whole (possessively: linear time).
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+|[\[\]{},:]|[^\s\[\]{},:"]++', re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Part:
    """A value that has ended: how much it holds, and the part of it that holds most."""

    key: str
    chars: int
    values: int
    most: _Part | None


@dataclass(slots=True)
class _Open:
    """An object or an array that has begun at a character, as so many-eth value of the text."""

    start: int
    values: int
    index: int | None
    """Of the item, in an array."""
    key: str = ""
    """Of the property, in an object, as it is written."""
    most: _Part | None = None

    def name(self) -> str:
        return _token(self.key) if self.index is None else str(self.index)


def deepest(text: str, most_levels: int) -> str | None:
    """The pointer to the first array or object that is nested deeper; None: there is none."""
    for stack, _ in _walk(text, by_chars=False):
        if len(stack) > most_levels:
            return "".join(f"/{level.name()}" for level in stack[:-1])
    return None


def largest(text: str, most: int, *, by_chars: bool) -> str:
    """The pointer to the smallest part without which a text has at most so many values, or characters.

    "" where no part is so large, or the text is not whole.
    """
    whole = None
    for stack, ended in _walk(text, by_chars=by_chars):
        whole = ended if not stack else None
    if whole is None:
        return ""
    pointer, part = "", whole
    total = len(text) if by_chars else whole.values
    while part.most is not None and total - _size(part.most, by_chars) <= most:
        part = part.most
        pointer += f"/{part.key}"
    return pointer


def _walk(text: str, *, by_chars: bool) -> Iterator[tuple[list[_Open], _Part | None]]:
    """What is open after each value that has begun or ended, and that which has ended."""
    stack: list[_Open] = []
    values = 0
    for match in _TOKEN.finditer(text):
        token, level = match[0], stack[-1] if stack else None
        if token in ("{", "["):
            stack.append(_Open(match.start(), values, 0 if token == "[" else None))
            values += 1
            yield stack, None
        elif token in ("}", "]"):
            if level is None:
                return
            stack.pop()
            yield stack, _ended(stack, match.end() - level.start, values - level.values, level.most, by_chars)
        elif token == ",":
            if level is not None and level.index is not None:
                level.index += 1
            elif level is not None:
                level.key = ""
        elif token == ":":
            continue
        elif level is not None and level.index is None and not level.key:
            level.key = token
        else:
            values += 1
            yield stack, _ended(stack, len(token), 1, None, by_chars)


def _ended(stack: list[_Open], chars: int, values: int, most: _Part | None, by_chars: bool) -> _Part:
    """The part that a value is, noted where it is one that holds most."""
    if not stack:
        return _Part("", chars, values, most)
    level = stack[-1]
    known = level.most
    size = chars if by_chars else values
    if known is None or size > _size(known, by_chars):
        level.most = _Part(level.name(), chars, values, most)
        return level.most
    return known


def _size(part: _Part, by_chars: bool) -> int:
    return part.chars if by_chars else part.values


def _token(key: str) -> str:
    """A key as it is written in JSON, as a token of a JSON pointer."""
    try:
        name = json.loads(key)
    except ValueError:
        name = key
    return escape(str(name))
