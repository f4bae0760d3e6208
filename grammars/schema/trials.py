"""Tries a schema, or a structural tag, that is refused, with some parts changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from grammars.json_pointer import escape, keys_of
from grammars.schema.document import MAPS

_MOST_TRIALS = 100
_MOST_S = 1.0
"""Of processor time, beyond which no more is tried."""
_FEW = 4
_ASIDE = ("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$defs", "definitions")
"""Keywords that ask for nothing by themselves, but what is asked for may need them."""
DEFINITIONS = ("$defs", "definitions")
_IN_OBJECTS = ("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties")
_IN_ARRAYS = ("additionalItems", "contains", "items", "prefixItems", "unevaluatedItems")

_T = TypeVar("_T")
_Step = tuple[str, list[str]]
"""A keyword, and of which of its schemas, where it has several."""

Verdict = Literal["taken", "same", "other"]
"""Of what is tried: it is taken, or refused for the same reason as before, or for another."""

Change = tuple[str, Any]
"""A pointer, and what is there instead; None: nothing."""


class Trials:
    """Tries a schema, or a structural tag, with parts changed; so often, and for so long.

    Args:
        text: what is refused.
        judge: tells of another.
        is_unsatisfiable: it is refused because nothing satisfies it.
        most_s: how long it may take; None: a second.
        clock: what tells.
    """

    def __init__(
        self,
        text: str,
        judge: Callable[[str], Verdict],
        *,
        is_unsatisfiable: bool = False,
        most_s: float | None = None,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.is_unsatisfiable = is_unsatisfiable
        self._whole = json.loads(text)
        self._judge = judge
        self._left = _MOST_TRIALS
        self._clock = clock
        self._until = clock() + (_MOST_S if most_s is None else most_s)

    def at(self, pointer: str) -> Any:
        """What a pointer leads to; None where there is nothing."""
        value = self._whole
        for key in keys_of(pointer):
            if isinstance(value, list):
                value = value[int(key)] if key.isdecimal() and int(key) < len(value) else None
            else:
                value = value.get(key) if isinstance(value, dict) else None
        return value

    def is_cure(self, *changes: Change) -> bool:
        """Whether it is taken with something else in some places."""
        return self._verdict(list(changes)) == "taken"

    def cure_among(self, changes: list[Change]) -> str | None:
        """The pointer of a change that is a cure alone."""
        found = _found(changes, lambda some: self.is_cure(*some))
        return None if found is None else found[0]

    def refused_among(self, root: str, parts: list[str]) -> str | None:
        """The pointer of a schema, of those of one keyword, that is refused for the same reason alone.

        Args:
            root: the pointer to the schema that they are parts of.
        """
        return _found(parts, lambda some: self._are_refused(root, some))

    def _are_refused(self, root: str, parts: list[str]) -> bool:
        whole = self.at(root)
        ways = [_steps(whole, keys_of(part[len(root) :])) for part in parts]
        *before, (keyword, _) = ways[0]
        names = [name for way in ways for name in way[-1][1]]
        return self._verdict([(root, _only(whole, [*before, (keyword, names)]))]) == "same"

    def _verdict(self, changes: list[Change]) -> Verdict:
        if self._left == 0 or self._clock() > self._until:
            return "other"
        self._left -= 1
        return self._judge(json.dumps(_changed(self._whole, [(keys_of(at), new) for at, new in changes])))


def _found(items: list[_T], holds: Callable[[list[_T]], bool]) -> _T | None:
    """One of several of which something holds, as it may of all that it is among."""
    while len(items) > _FEW:
        middle = len(items) // 2
        items = items[:middle] if holds(items[:middle]) else items[middle:]
    return next((item for item in items if holds([item])), None)


def _steps(schema: Any, keys: list[str]) -> list[_Step]:
    steps = []
    while keys:
        keyword, value = keys[0], schema[keys[0]]
        if keyword in MAPS or isinstance(value, list):
            steps.append((keyword, keys[1:2]))
            schema = value[int(keys[1]) if isinstance(value, list) else keys[1]]
        else:
            steps.append((keyword, []))
            schema = value
        keys = keys[len(steps[-1][1]) + 1 :]
    return steps


def _only(schema: Any, steps: list[_Step]) -> Any:
    """Nothing of a schema but what leads to some in it, so that a value has to be theirs."""
    if not steps:
        return schema
    (keyword, names), *rest = steps
    value = schema[keyword]
    inner: Any
    if isinstance(value, list):
        # Of a union, nothing else; of others, no more is asked.
        aside = keyword not in ("anyOf", "oneOf")
        inner = [_only(item, rest) if str(i) in names else aside for i, item in enumerate(value)]
    elif names:
        inner = {name: _only(value[name], rest) for name in names}
    else:
        inner = _only(value, rest)
    if keyword in DEFINITIONS:
        inner = value | inner
    kept = {key: value for key, value in schema.items() if key in _ASIDE}
    return kept | _asked(schema, keyword, names) | {keyword: inner}


def _asked(schema: dict[str, Any], keyword: str, names: list[str]) -> dict[str, Any]:
    """What makes a value meet what a keyword is about."""
    if keyword in DEFINITIONS:
        return {"anyOf": [{"$ref": f"#/{keyword}/{escape(name)}"} for name in names]}
    if keyword == "properties":
        return {"type": "object", "required": names, "additionalProperties": False}
    if keyword in _IN_OBJECTS:
        return {"type": "object"}
    if keyword in _IN_ARRAYS:
        return {"type": "array", "minItems": max(map(int, names), default=0) + 1}
    return {"type": schema["type"]} if "type" in schema else {}


def _changed(value: Any, changes: list[tuple[list[str], Any]]) -> Any:
    """A copy with something else at some places; None: nothing."""
    inner: dict[str, list[tuple[list[str], Any]]] = {}
    for keys, instead in changes:
        if not keys:
            return instead
        inner.setdefault(keys[0], []).append((keys[1:], instead))
    copy = value.copy()
    for key, below in inner.items():
        place: Any = int(key) if isinstance(value, list) else key
        if below == [([], None)]:
            del copy[place]
        else:
            copy[place] = _changed(value[place], below)
    return copy
