"""A schema document: its JSON, the subschemas in it, and what references in it point to.

Only what is in the document is ever referred to; nothing is fetched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from grammars.base import GrammarError
from grammars.schema.keywords import check_keywords

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
_MAP = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
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
        anchors: plain names of schemas in it.
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
    """One schema object in the document; equal only to itself."""

    value: dict[str, Any]
    pointer: str
    resource: Resource


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
        resource = Resource("", value, _draft(value, None))
        self._resources[""] = resource
        self._index(value, "", resource)
        self.root: Schema | bool = self._get(value)

    def subschema(self, parent: Schema, *path: str | int) -> Schema | bool:
        """The schema at a path of keys below a schema."""
        value: Any = parent.value
        for step in path:
            value = value[step]
        return self._get(value)

    def derived(self, value: dict[str, Any], parent: Schema) -> Schema:
        """A schema that is not in the document, read as if it stood at `parent`."""
        schema = Schema(value, parent.pointer, parent.resource)
        self._schemas[id(value)] = schema
        return schema

    def resolve(self, schema: Schema, keyword: str) -> Schema | bool:
        """What `$ref`, `$dynamicRef` or `$recursiveRef` of a schema points to.

        Raises:
            GrammarError: nothing in this document, or what it is depends on the way there.
        """
        reference = schema.value[keyword]

        def refuse(why: str) -> GrammarError:
            pointer = f"{schema.pointer}/{keyword}"
            return GrammarError(f"{keyword} {reference!r} {why}", pointer=pointer, keyword=keyword)

        uri, fragment = urldefrag(reference)
        target = _join(schema.resource.uri, uri) if uri else schema.resource.uri
        resource = self._resources.get(target)
        if resource is None:
            raise refuse("is not in this document, and nothing is fetched")
        fragment = unquote(fragment)
        if keyword == "$recursiveRef" and any(r.root is not resource.root for r in self._recursive()):
            raise refuse("depends on where it is reached from, which is not supported")
        if keyword == "$dynamicRef" and fragment in resource.dynamic and self._is_ambiguous(fragment):
            raise refuse("depends on where it is reached from, which is not supported")
        if fragment and not fragment.startswith("/"):
            if fragment not in resource.anchors:
                raise refuse("names an anchor that does not exist")
            return self._get(resource.anchors[fragment])
        try:
            return self._at(resource, fragment)
        except (KeyError, IndexError, ValueError):
            raise refuse("points to nothing") from None

    def _recursive(self) -> Iterator[Resource]:
        for resource in self._resources.values():
            if isinstance(resource.root, dict) and resource.root.get("$recursiveAnchor") is True:
                yield resource

    def _is_ambiguous(self, anchor: str) -> bool:
        owners = {id(r) for r in self._resources.values() if anchor in r.dynamic}
        return len(owners) > 1

    def _at(self, resource: Resource, pointer: str) -> Schema | bool:
        """The schema a JSON pointer (RFC 6901) leads to, also where no keyword puts a schema."""
        value = resource.root
        base = self._get(value)
        path = base.pointer if isinstance(base, Schema) else ""
        for token in pointer.split("/")[1:]:
            key = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list):
                if not key.isdecimal():
                    raise KeyError(key)
                value = value[int(key)]
            elif isinstance(value, dict):
                value = value[key]
            else:
                raise KeyError(key)
            path += "/" + token
            if id(value) in self._schemas:
                resource = self._schemas[id(value)].resource
        if not isinstance(value, dict | bool):
            raise KeyError(pointer)
        if isinstance(value, dict) and id(value) not in self._schemas:
            self._index(value, path, resource)
        return self._get(value)

    def _get(self, value: Any) -> Schema | bool:
        return value if isinstance(value, bool) else self._schemas[id(value)]

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
            pending.extend((child, at, resource) for child, at in _children(value, pointer))

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
        return resource


def _children(value: dict[str, Any], pointer: str) -> Iterator[tuple[Any, str]]:
    for keyword in _ONE:
        if isinstance(value.get(keyword), dict):
            yield value[keyword], f"{pointer}/{keyword}"
    for keyword in _LIST:
        if isinstance(value.get(keyword), list):
            for index, child in enumerate(value[keyword]):
                yield child, f"{pointer}/{keyword}/{index}"
    for keyword in _MAP:
        for key, child in value.get(keyword, {}).items():
            yield child, f"{pointer}/{keyword}/{escape(key)}"


def escape(key: str) -> str:
    """A key as a token of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


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


def _number(text: str) -> Fraction | int:
    value = Decimal(text)
    if value and abs(value.adjusted()) > _MAX_EXPONENT:
        raise ValueError(f"the number {text} is out of range")
    exact = Fraction(value)
    return exact.numerator if exact.denominator == 1 else exact


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key appears twice in one object")
    return value
