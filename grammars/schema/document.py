"""A schema document: its JSON, the subschemas in it, and what references in it point to.

Only what is in the document is ever referred to; nothing is fetched.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from grammars.base import GrammarError
from grammars.json_pointer import escape, keys_of
from grammars.schema.keywords import check_keywords
from grammars.schema.metaschemas import metaschema

_ONE = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_LIST = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
MAPS = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
_TAG_LISTS = ("elements", "structures", "tags", "triggers")
_TAG_PARTS = ("content", "format")
_MAX_EXPONENT = 400


class Draft(IntEnum):
    """Versions of JSON Schema that differ in what a keyword means."""

    DRAFT4 = 4
    DRAFT6 = 6
    DRAFT7 = 7
    DRAFT2019 = 2019
    DRAFT2020 = 2020


_DRAFTS = {
    "json-schema.org/draft-04/schema": Draft.DRAFT4,
    "json-schema.org/draft-06/schema": Draft.DRAFT6,
    "json-schema.org/draft-07/schema": Draft.DRAFT7,
    "json-schema.org/draft/2019-09/schema": Draft.DRAFT2019,
    "json-schema.org/draft/2020-12/schema": Draft.DRAFT2020,
}


@dataclass(eq=False, slots=True)
class Resource:
    """A part of the document with a URI of its own.

    Attributes:
        uri: what references resolve against.
        root: its outermost schema.
        draft: the version it declares; None: none, then what old and new versions have is understood.
        anchors: plain names of schemas in it; "" for the root, where that is a recursive anchor.
        dynamic: those of them that are dynamic anchors.
    """

    uri: str
    root: Any
    draft: Draft | None
    anchors: dict[str, Any] = field(default_factory=dict)
    dynamic: set[str] = field(default_factory=set)

    @property
    def ref_stands_alone(self) -> bool:
        """Whether keywords beside `$ref` mean nothing, as before 2019-09."""
        return self.draft is not None and self.draft <= Draft.DRAFT7


@dataclass(eq=False, slots=True)
class Schema:
    """One schema object in the document, as reached on one way; equal only to itself.

    `scope`: of the resources that were entered on that way, outermost first, those that have a dynamic anchor
    which none before them has.
    """

    value: dict[str, Any]
    pointer: str
    resource: Resource
    scope: tuple[Resource, ...] = ()


class Document:
    """A parsed schema.

    Raises:
        GrammarError: it is not JSON, has a key twice in an object, or a keyword has a value it cannot have.
    """

    def __init__(self, text: str) -> None:
        value = _parse(text)
        if not isinstance(value, dict | bool):
            raise GrammarError("a schema is an object, true or false")
        self._resources: dict[str, Resource] = {}
        self._schemas: dict[int, Schema] = {}
        self._scoped: dict[tuple[int, tuple[Resource, ...]], Schema] = {}
        resource = Resource("", value, _draft(value, None))
        self._resources[""] = resource
        self._index(value, "", resource)
        self.root: Schema | bool = self._get(value, ())

    def subschema(self, parent: Schema, *path: str | int) -> Schema | bool:
        """The schema at a path of keys below a schema."""
        value: Any = parent.value
        for step in path:
            value = value[step]
        return self._get(value, parent.scope)

    def derived(self, value: dict[str, Any], parent: Schema) -> Schema:
        """A schema that is not in the document, read as if it stood at `parent`."""
        schema = Schema(value, parent.pointer, parent.resource, parent.scope)
        self._schemas[id(value)] = schema
        return schema

    def resolve(self, schema: Schema, keyword: str) -> Schema | bool:
        """What `$ref`, `$dynamicRef` or `$recursiveRef` of a schema points to.

        Raises:
            GrammarError: nothing in this document.
        """
        reference = schema.value[keyword]

        def refuse(why: str) -> GrammarError:
            pointer = f"{schema.pointer}/{keyword}"
            return GrammarError(f"{keyword} {reference!r} {why}", pointer=pointer, keyword=keyword)

        uri, fragment = urldefrag(reference)
        resource = self._resource(_join(schema.resource.uri, uri) if uri else schema.resource.uri)
        if resource is None:
            raise refuse("is not in this document, and nothing is fetched")
        fragment = unquote(fragment)
        if keyword != "$ref" and fragment in resource.dynamic:
            # The outermost of all that were entered decides.
            resource = next((outer for outer in schema.scope if fragment in outer.dynamic), resource)
            return self._get(resource.anchors[fragment], schema.scope)
        if fragment and not fragment.startswith("/"):
            if fragment not in resource.anchors:
                raise refuse("names an anchor that does not exist")
            return self._get(resource.anchors[fragment], schema.scope)
        try:
            return self._at(resource, fragment, schema.scope)
        except (KeyError, IndexError, ValueError):
            raise refuse("points to nothing") from None

    def _resource(self, uri: str) -> Resource | None:
        """The resource of a URI: one in the document, or a metaschema."""
        if uri not in self._resources:
            text = metaschema(uri)
            if text is None:
                return None
            value = _parse(text)
            resource = Resource(uri, value, _draft(value, None))
            self._resources[uri] = resource
            self._index(value, uri, resource)
        return self._resources[uri]

    def _at(self, resource: Resource, pointer: str, scope: tuple[Resource, ...]) -> Schema | bool:
        """The schema a JSON pointer (RFC 6901) leads to, also where no keyword puts a schema."""
        value = resource.root
        path = "" if isinstance(value, bool) else self._schemas[id(value)].pointer
        for key in keys_of(pointer):
            if isinstance(value, list):
                if not key.isdecimal():
                    raise KeyError(key)
                value = value[int(key)]
            elif isinstance(value, dict):
                value = value[key]
            else:
                raise KeyError(key)
            path += "/" + escape(key)
            if id(value) in self._schemas:
                resource = self._schemas[id(value)].resource
        if not isinstance(value, dict | bool):
            raise KeyError(pointer)
        if isinstance(value, dict) and id(value) not in self._schemas:
            self._index(value, path, resource)
        return self._get(value, scope)

    def _get(self, value: Any, scope: tuple[Resource, ...]) -> Schema | bool:
        """The schema that `value` is, reached by way of the resources in `scope`."""
        if isinstance(value, bool):
            return value
        schema = self._schemas[id(value)]
        if schema.resource.dynamic.difference(*(outer.dynamic for outer in scope)):
            # Only then: of anchors with one name the outermost decides, however many come inside it.
            scope = (*scope, schema.resource)
        if scope == schema.scope:
            return schema
        key = id(value), scope
        if key not in self._scoped:
            self._scoped[key] = Schema(value, schema.pointer, schema.resource, scope)
        return self._scoped[key]

    def _index(self, root: Any, pointer: str, resource: Resource) -> None:
        """Find every schema below `root`, with its resource, and check its keywords."""
        pending = [(root, pointer, resource)]
        while pending:
            value, pointer, resource = pending.pop()
            if not isinstance(value, dict):
                continue
            resource = self._enter(value, resource)
            self._schemas[id(value)] = Schema(value, pointer, resource)
            check_keywords(value, pointer)
            pending.extend((child, at, resource) for child, at in subschemas(value, pointer))

    def _enter(self, value: dict[str, Any], resource: Resource) -> Resource:
        """The resource of a schema: a new one if it has an identifier. Notes its anchors."""
        draft = _draft(value, resource.draft)
        identifier = value.get("id" if draft == Draft.DRAFT4 else "$id")
        if resource.ref_stands_alone and "$ref" in value:
            identifier = None
        if isinstance(identifier, str):
            uri, fragment = urldefrag(identifier)
            if uri:
                resource = Resource(_join(resource.uri, uri), value, draft)
                self._resources[resource.uri] = resource
            if fragment and (draft is None or draft <= Draft.DRAFT7):
                resource.anchors[fragment] = value
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(value.get(keyword), str):
                resource.anchors[value[keyword]] = value
        if isinstance(value.get("$dynamicAnchor"), str):
            resource.dynamic.add(value["$dynamicAnchor"])
        if value.get("$recursiveAnchor") is True:
            resource.anchors[""] = resource.root
            resource.dynamic.add("")
        return resource


def subschemas(value: dict[str, Any], pointer: str) -> Iterator[tuple[Any, str]]:
    """The schemas right in a schema, or what stands for them, and the pointers to them."""
    for keyword in _ONE:
        if isinstance(value.get(keyword), dict):
            yield value[keyword], f"{pointer}/{keyword}"
    for keyword in _LIST:
        if isinstance(value.get(keyword), list):
            for index, child in enumerate(value[keyword]):
                yield child, f"{pointer}/{keyword}/{index}"
    for keyword in MAPS:
        for key, child in value.get(keyword, {}).items():
            yield child, f"{pointer}/{keyword}/{escape(key)}"


def keyword_at(pointer: str, *, in_tags: bool = False) -> str | None:
    """The last keyword on the way to a part of a schema, or of a structural tag; None for all of it."""
    keyword: str | None = None
    tokens = keys_of(pointer)
    while tokens:
        keyword = tokens.pop(0)
        holds = _TAG_LISTS if in_tags else (*MAPS, *_LIST)
        leads_on = ("json_schema", "schema", *_TAG_PARTS) if in_tags else _ONE
        if keyword in holds and tokens and (keyword in MAPS or tokens[0].isdecimal()):
            del tokens[0]
        elif keyword not in leads_on:
            break
        in_tags = in_tags and keyword not in ("json_schema", "schema")
    return keyword


def _join(base: str, uri: str) -> str:
    # urljoin leaves alone what it does not know the scheme of; an absolute reference is itself.
    return urljoin(base, uri) if base else uri


def _draft(value: Any, inherited: Draft | None) -> Draft | None:
    declared = value.get("$schema") if isinstance(value, dict) else None
    if not isinstance(declared, str):
        return inherited
    return _DRAFTS.get(declared.rstrip("#").removeprefix("http://").removeprefix("https://"))


def _parse(text: str) -> Any:
    try:
        return json.loads(
            text, parse_float=_number, parse_constant=_refuse_constant, object_pairs_hook=_object
        )
    except ValueError as error:
        raise GrammarError(f"the schema is not JSON: {error}") from error


class PointedInt(int):
    """An integer that is written with a point or an exponent, as in 1.0."""


def _number(text: str) -> Fraction | int:
    value = Decimal(text)
    if value and abs(value.adjusted()) > _MAX_EXPONENT:
        raise ValueError(f"the number {text} is out of range")
    exact = Fraction(value)
    return PointedInt(exact) if exact.denominator == 1 else exact


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        times = Counter(name for name, _ in pairs)
        twice = next(name for name, count in times.items() if count > 1)
        raise ValueError(f"the key {twice!r} appears twice in one object")
    return value
