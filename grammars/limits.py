"""The limits on the size of a constraint, checked before anything recursive looks at it."""

from __future__ import annotations

import re

from grammars.base import GrammarError
from grammars.json_parts import MOST_LOOKED_AT, deepest, largest
from grammars.schema.document import keyword_at
from grammars.spec import Constraint, Kind

MAX_CHARS = 256 * 1024
MAX_DEPTH = 64
MAX_VALUES = 20_000

# Strings are passed over whole (possessively: linear time); only what nests or separates is seen.
_STRUCTURE = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+|[\[\]{},]', re.DOTALL)
_NAMES: dict[Kind, str] = {
    "json_schema": "schema",
    "structural_tag": "structural tag",
    "lark": "grammar",
    "gbnf": "grammar",
    "regex": "regular expression",
}


def check_limits(constraint: Constraint) -> None:
    """Refuse by size.

    Raises:
        GrammarError: too long, a NUL character, or JSON nested too deeply or with too many values; for the
            largest part, or the one that nests.
    """
    text, kind = constraint.spec, constraint.kind
    name = _NAMES.get(kind, kind)
    is_json = kind in ("json_schema", "structural_tag")
    if len(text) > MAX_CHARS:
        at = largest(text, MAX_CHARS, by_chars=True) if is_json and len(text) <= MOST_LOOKED_AT else ""
        raise _refusal(f"the {name} has {len(text)} characters, more than {MAX_CHARS}", at, kind)
    if "\0" in text:
        place = text.index("\0") + 1
        raise GrammarError(f"the {name} has a NUL character, as its character {place}")
    if is_json:
        depth, values = _extent(text)
        if depth > MAX_DEPTH:
            at = deepest(text, MAX_DEPTH) or ""
            raise _refusal(f"the {name} is nested deeper than {MAX_DEPTH} levels", at, kind)
        if values > MAX_VALUES:
            at = largest(text, MAX_VALUES, by_chars=False)
            raise _refusal(f"the {name} has {values} values, more than {MAX_VALUES}", at, kind)


def _extent(text: str) -> tuple[int, int]:
    """How many levels of a text nest, and how many values it has."""
    depth = most = values = 0
    for match in _STRUCTURE.finditer(text):
        char = match[0]
        if char in ("[", "{"):
            depth += 1
            most = max(depth, most)
        elif char in ("]", "}"):
            depth -= 1
        values += char in ("[", "{", ",")
    return most, values


def _refusal(message: str, pointer: str, kind: Kind) -> GrammarError:
    keyword = keyword_at(pointer, in_tags=kind == "structural_tag")
    return GrammarError(message, pointer=pointer, keyword=keyword)
