"""What a caller may constrain output to, in one normal form."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Kind = Literal["json_schema", "json_object", "regex", "choice", "lark", "gbnf", "structural_tag"]


class JsonOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How JSON is spelled. Every bound here is one that a model could otherwise run into for ever."""

    whitespace: Literal["compact", "flexible"] = "compact"
    """compact: none between tokens. flexible: after `{[,:` and before `}]` at most one blank, or a newline
    and up to 32 blanks."""
    whitespace_pattern: str = ""
    """With flexible: a regular expression of what may stand there instead, of at most 32 characters."""
    integer_digits: int = 20
    """Most digits of a number before its point."""
    fraction_digits: int = 20
    """Most digits of a number after its point."""
    decimal_integers: bool = False
    """Also write integers as 5.0, which JSON Schema allows since draft 6 and many readers do not."""
    open_objects: bool = True
    """Whether an object may have properties that its schema says nothing about, as the standard has it."""
    exclusive_one_of: bool = True
    """Whether what two branches of a oneOf share is left out, as the standard has it; else oneOf is anyOf."""
    nullable: bool = False
    """Whether `nullable: true` adds null to a type, as in OpenAPI 3.0; else it says nothing."""


class Start(msgspec.Struct, frozen=True):
    """A beginning of texts, behind which something is tried out as well."""

    text: str
    pointer: str = ""
    """The part of the schema that must be able to follow; "": whatever may."""


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """One constraint. Equal constraints share one compiled grammar.

    `spec` is text whatever the kind, so that the order of a schema's properties survives: a JSON
    schema (json_schema), a regular expression (regex), a JSON array of strings (choice), a grammar
    (lark, gbnf), a JSON object (structural_tag), nothing (json_object).
    """

    kind: Kind
    spec: str = ""
    json: JsonOptions = JsonOptions()
    starts: tuple[Start, ...] = ()

    @classmethod
    def json_schema(cls, schema: str | bool | dict[str, Any], json: JsonOptions | None = None) -> Constraint:
        """A schema as text, or as the object it parses to (its key order is kept)."""
        text = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
        return cls(kind="json_schema", spec=text, json=json or JsonOptions())

    @classmethod
    def choice(cls, options: list[str]) -> Constraint:
        """Exactly one of these texts."""
        return cls(kind="choice", spec=msgspec.json.encode(options).decode())
