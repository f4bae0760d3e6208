"""POST /v1/schema/check: what the server would make of a schema, before anything is generated under it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from app.state import AppState
from grammars.base import GrammarError
from grammars.spec import Constraint

_MAPS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
_DATA = frozenset({"const", "enum", "default", "examples"})
DECIDING = frozenset({
    "$dynamicRef", "$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "const", "contains",
    "dependencies", "dependentRequired", "dependentSchemas", "else", "enum", "exclusiveMaximum",
    "exclusiveMinimum", "format", "if", "items", "maxContains", "maxItems", "maxLength", "maxProperties",
    "maximum", "minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "not",
    "oneOf", "pattern", "patternProperties", "prefixItems", "properties", "propertyNames", "required",
    "then", "type", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
})  # fmt: skip
"""The keywords of drafts 7 and 2020-12 that decide whether a value is valid; others only describe."""


class SchemaCheckRequest(msgspec.Struct):
    """Body of POST /v1/schema/check."""

    schema: dict[str, Any] | bool


class Refusal(msgspec.Struct):
    message: str
    pointer: str
    keyword: str | None


class SchemaCheck(msgspec.Struct, kw_only=True):
    accepted: bool
    refusal: Refusal | None
    """What is in the way of enforcing the schema exactly."""
    enforced: list[str]
    """The keywords in the schema that decide what is valid; none if the schema is refused."""
    ignored: list[str]
    """The keywords in it that decide nothing."""
    min_tokens: int | None
    """The fewest tokens of a valid value, where that is known."""
    compile_ms: float
    """Near 0 where the schema was compiled before."""


async def check_schema(state: AppState, body: bytes) -> SchemaCheck:
    request = await state.decode(body, SchemaCheckRequest)
    found = set(_keywords(request.schema))
    started = time.perf_counter()
    refusal = min_tokens = None
    try:
        grammar = await state.grammar(Constraint.json_schema(request.schema))
        min_tokens = grammar.min_tokens
    except GrammarError as error:
        refusal = Refusal(error.message, error.pointer, error.keyword)
    return SchemaCheck(
        accepted=refusal is None,
        refusal=refusal,
        enforced=sorted(found & DECIDING) if refusal is None else [],
        ignored=sorted(found - DECIDING - _MAPS),
        min_tokens=min_tokens,
        compile_ms=round((time.perf_counter() - started) * 1000, 3),
    )


def _keywords(schema: Any) -> Iterator[str]:
    """Every keyword in a schema, however deep; a body's depth is bounded."""
    if isinstance(schema, list):
        for item in schema:
            yield from _keywords(item)
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        yield key
        if key in _MAPS and isinstance(value, dict):
            for member in value.values():
                yield from _keywords(member)
        elif key not in _DATA:
            yield from _keywords(value)
