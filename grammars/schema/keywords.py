"""What values the keywords of JSON Schema may have."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeGuard

from grammars.base import GrammarError
from grammars.schema.errors import UnenforceableError

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


MOST_COUNTED = 2**31 - 2
"""Of characters, items or properties: as many as no text has, and the engine counts."""


def counts(
    value: dict[str, Any], low_keyword: str, high_keyword: str, *, default: int = 0
) -> tuple[int, int | None]:
    """The bounds on how many there are of something; None: there is no upper one.

    Raises:
        UnenforceableError: there have to be more than are counted.
    """
    low, high = value.get(low_keyword, default), value.get(high_keyword)
    if low > MOST_COUNTED:
        raise UnenforceableError(f"no more than {MOST_COUNTED} are counted", low_keyword)
    return low, None if high is None or high > MOST_COUNTED else high


def is_number(value: Any) -> TypeGuard[int | Fraction]:
    """Whether a parsed JSON value is a number."""
    return isinstance(value, int | Fraction) and not isinstance(value, bool)


def _schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _schemas(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(_schema, value))


def _schema_map(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_schema, value.values()))


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _types(value: Any) -> bool:
    return value in TYPES or (
        isinstance(value, list) and all(name in TYPES for name in value) and bool(value)
    )


def _step(value: Any) -> bool:
    return is_number(value) and value > 0


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _bound(value: Any) -> bool:
    return is_number(value) or isinstance(value, bool)


def _dependencies(value: Any) -> bool:
    return isinstance(value, dict) and all(_schema(v) or _names(v) for v in value.values())


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        (
            "additionalItems",
            "additionalProperties",
            "contains",
            "else",
            "if",
            "not",
            "propertyNames",
            "then",
            "unevaluatedItems",
            "unevaluatedProperties",
        ),
        (_schema, "a schema"),
    ),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), (_schemas, "a list of schemas")),
    **dict.fromkeys(
        ("dependentSchemas", "patternProperties", "properties"),
        (_schema_map, "an object of schemas"),
    ),
    **dict.fromkeys(
        (
            "maxContains",
            "maxItems",
            "maxLength",
            "maxProperties",
            "minContains",
            "minItems",
            "minLength",
            "minProperties",
        ),
        (_count, "an integer of at least 0"),
    ),
    **dict.fromkeys(("minimum", "maximum"), (is_number, "a number")),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (_bound, "a number")),
    **dict.fromkeys(
        ("$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveRef", "$ref", "format", "pattern"),
        (_text, "a string"),
    ),
    # What is not a schema there means nothing until it is referred to.
    **dict.fromkeys(("$defs", "definitions"), (_object, "an object of schemas")),
    "items": (lambda value: _schema(value) or value == [] or _schemas(value), "a schema, or a list of them"),
    "multipleOf": (_step, "a number above 0"),
    "required": (_names, "a list of property names"),
    "enum": (lambda value: isinstance(value, list), "a list"),
    "type": (_types, f"one or more of {', '.join(TYPES)}"),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    "dependentRequired": (
        lambda value: isinstance(value, dict) and all(map(_names, value.values())),
        "an object of lists of property names",
    ),
    "dependencies": (_dependencies, "an object of schemas and lists of property names"),
}

_OTHERS = frozenset(
    (
        "$comment",
        "$recursiveAnchor",
        "$schema",
        "$vocabulary",
        "const",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "deprecated",
        "description",
        "examples",
        "id",
        "nullable",
        "readOnly",
        "title",
        "writeOnly",
    )
)


def check_keywords(schema: dict[str, Any], pointer: str) -> None:
    """Refuse values that keywords cannot have.

    Raises:
        GrammarError: with the keyword and where it stands.
    """
    for keyword, value in schema.items():
        check = _CHECKS.get(keyword)
        if check is not None and not check[0](value):
            message = f"{keyword} must be {check[1]}"
            raise GrammarError(message, pointer=f"{pointer}/{keyword}", keyword=keyword)


def says_nothing(schema: dict[str, Any]) -> bool:
    """Whether a schema has keywords, but none that is one of JSON Schema's: likely not meant as a schema."""
    return bool(schema) and not any(
        key in _CHECKS or key in _OTHERS or key.startswith("x-") for key in schema
    )
