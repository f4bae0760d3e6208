"""Which part of a schema it is refused for, where what is wrong is seen of the whole only.

That nothing satisfies a schema, or that its grammar is too large for the engine, has no place in it. But
there may be a part without which it is taken; it is found by leaving out one after the other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from grammars.schema.document import escape, subschemas

_MOST_TRIALS = 100
_MOST_S = 1.0
"""Of processor time, beyond which no more is tried."""
_FEW = 16


def find_fault(text: str, is_taken: Callable[[str], bool]) -> tuple[str, str] | None:
    """The pointer to the smallest part found without which a schema is taken, and its keyword.

    None where no part is found, or not in time.

    Args:
        text: the schema, which is refused.
        is_taken: whether another is taken.
    """
    trials = _Trials(json.loads(text), is_taken)
    fault: tuple[str, str] | None = None
    pointer, seen = "", set[str]()
    while pointer not in seen:
        seen.add(pointer)
        schema = trials.at(pointer)
        part = _faulty_part(schema, pointer, trials) if isinstance(schema, dict) else None
        if part is None:
            break
        fault = pointer, keyword = part
        reference = trials.at(pointer) if keyword == "$ref" else None
        if isinstance(reference, str) and reference.startswith("#/"):
            # What it points to is still to blame.
            pointer = unquote(reference[1:])
    return fault


def places_of(keyword: str, text: str) -> list[str]:
    """The pointers to a keyword, wherever a schema has it."""
    places = []
    pending = [(json.loads(text), "")]
    while pending:
        schema, pointer = pending.pop()
        if isinstance(schema, dict):
            if keyword in schema:
                places.append(f"{pointer}/{keyword}")
            pending += subschemas(schema, pointer)
    return places


def _faulty_part(schema: dict[str, Any], pointer: str, trials: _Trials) -> tuple[str, str] | None:
    """A schema in a schema, or else a keyword, without which all is well; and the keyword that it is of."""
    bounds = []
    for keyword, value in schema.items():
        here = f"{pointer}/{escape(keyword)}"
        if not _leads_on(keyword, value):
            bounds.append((here, keyword))
            continue
        is_cure = trials.is_cure(here)
        children = [child for _, child in subschemas({keyword: value}, pointer)]
        # Without all of them there may be other faults than without one.
        for child in children if is_cure or len(children) <= _FEW else ():
            if trials.is_cure(child, True):
                return child, keyword
        if is_cure:
            return here, keyword
    return next((bound for bound in reversed(bounds) if trials.is_cure(bound[0])), None)


def _leads_on(keyword: str, value: Any) -> bool:
    return keyword == "$ref" or any(True for _ in subschemas({keyword: value}, ""))


class _Trials:
    """Tries a schema without a part; so often, and for so long."""

    def __init__(self, schema: Any, is_taken: Callable[[str], bool]) -> None:
        self._schema = schema
        self._is_taken = is_taken
        self._left = _MOST_TRIALS
        self._until = time.thread_time() + _MOST_S

    def at(self, pointer: str) -> Any:
        """What a pointer leads to; None where there is nothing."""
        value = self._schema
        for key in _keys(pointer):
            if isinstance(value, list):
                value = value[int(key)] if key.isdecimal() and int(key) < len(value) else None
            else:
                value = value.get(key) if isinstance(value, dict) else None
        return value

    def is_cure(self, pointer: str, instead: Any = None) -> bool:
        """Whether the schema is taken without a part, or with another in its place."""
        if self._left == 0 or time.thread_time() > self._until:
            return False
        self._left -= 1
        return self._is_taken(json.dumps(_changed(self._schema, _keys(pointer), instead)))


def _keys(pointer: str) -> list[str]:
    return [key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")[1:]]


def _changed(value: Any, keys: list[str], instead: Any) -> Any:
    """A copy with something else at a place; None: nothing."""
    if not keys:
        return instead
    key: Any = int(keys[0]) if isinstance(value, list) else keys[0]
    copy = value.copy()
    if len(keys) == 1 and instead is None:
        del copy[key]
    else:
        copy[key] = _changed(value[key], keys[1:], instead)
    return copy
