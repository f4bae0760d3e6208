"""What is refused as a whole is refused for a part, where there is one without which it would be taken."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from grammars import worker
from grammars.base import GrammarError, GrammarTooComplexError
from grammars.pool import WorkerPool
from grammars.schema import trials
from grammars.spec import Constraint, Start
from grammars.vocab import Vocabulary

NONE = "no value satisfies the schema"
EMPTY = {"type": "integer", "minimum": 5, "maximum": 3}
WORDS = {"type": "string", "maxLength": 5000, "pattern": r"^$|(^(?:\S+\s+){0,99}\S+$)"}
TANGLE = {"type": "string", "allOf": [{"pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(10, 13)]}
IN_WORDS = {"type": "object", "properties": {"w": WORDS}, "required": ["w"], "additionalProperties": False}
ODD = {"type": "object", "properties": {"x": EMPTY}, "required": ["x"]}
MANY = {f"p{number}": {"type": "integer"} for number in range(700)}


@pytest.fixture(autouse=True)
def by_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of trials is all that ends a search, not the time it takes."""
    monkeypatch.setattr(worker, "_QUICK_S", math.inf)
    monkeypatch.setattr(trials, "_MOST_S", math.inf)
    monkeypatch.setattr(trials, "_MOST_TRIALS", 18)


@pytest.mark.parametrize(
    ("schema", "message", "pointer", "keyword"),
    [
        (EMPTY, NONE, "/maximum", "maximum"),
        (False, NONE, "", None),
        ({"allOf": [True, False]}, NONE, "/allOf/1", "allOf"),
        ({"type": "string", "enum": []}, NONE, "/enum", "enum"),
        (
            {"type": "object", "properties": {"b": {"not": True}, "a/b": EMPTY}, "required": ["a/b"]},
            NONE,
            "/properties/a~1b/maximum",
            "maximum",
        ),
        (
            {"$defs": {"a": EMPTY}, "type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1},
            NONE,
            "/$defs/a/maximum",
            "maximum",
        ),
        (
            {"$defs": {"a": {"$anchor": "a", **EMPTY}}, "allOf": [{"$ref": "#a"}]},
            NONE,
            "/allOf/0/$ref",
            "$ref",
        ),
        # Two parts, of which neither alone is to blame.
        (
            {"type": "array", "prefixItems": [EMPTY, EMPTY], "minItems": 2},
            NONE,
            "/prefixItems",
            "prefixItems",
        ),
        # Without any properties there would be no place for what is required.
        (
            {
                "type": "object",
                "properties": {"b": {"type": "null"}, "a": {"$ref": "#/$defs/a"}},
                "required": ["a", "b"],
                "additionalProperties": False,
                "$defs": {"a": EMPTY},
            },
            NONE,
            "/$defs/a/maximum",
            "maximum",
        ),
        ({"type": "array", "items": {"type": "null"}, "minItems": 9000}, "bytes", "/minItems", "minItems"),
        (
            {"$defs": {"many": {"type": "object", "properties": MANY, "additionalProperties": False}}}
            | {"allOf": [{"$ref": "#/$defs/many"}]},
            "too much may come next",
            "/$defs/many/properties",
            "properties",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "integer"}, "q": WORDS}, "required": ["q"]},
            "too many states",
            "/properties/q/pattern",
            "pattern",
        ),
        ({"$ref": "#"}, "leads back to itself", "/$ref", "$ref"),
        (
            {"properties": {"a": {"enum": list(range(30_000))}, "b": {"enum": list(range(9000))}}},
            r"3900\d values, more than 20000",
            "/properties/a/enum",
            "enum",
        ),
        ({"allOf": [{"title": "x" * 300_000}]}, "more than 262144", "/allOf/0/title", "title"),
        # No part is so large that it would do to leave it out.
        ({"enum": [0] * 15_000, "examples": [0] * 15_000, "default": [0] * 15_000}, "values", "", None),
    ],
)
def test_a_refusal_names_the_smallest_part_that_it_is_for(
    schema: Any, message: str, pointer: str, keyword: str | None, vocabulary: Vocabulary
) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        worker.check(Constraint(kind="json_schema", spec=json.dumps(schema)), vocabulary)
    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)


def _nested(depth: int) -> dict[str, Any]:
    return {"properties": {"a": _nested(depth - 1)}} if depth else {}


def test_what_nests_too_deeply_is_found(vocabulary: Vocabulary) -> None:
    with pytest.raises(GrammarError, match="nested deeper than 64 levels") as caught:
        worker.check(Constraint.json_schema({"allOf": [True, _nested(50)]}), vocabulary)
    assert (caught.value.pointer, caught.value.keyword) == ("/allOf/1" + "/properties/a" * 31, "properties")


def _tag(number: int, schema: Any) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": f"<{number}>", "content": content, "end": "</>"}


def _sequence(*elements: Any) -> dict[str, Any]:
    return {"format": {"type": "sequence", "elements": elements}}


def _older(*schemas: Any) -> dict[str, Any]:
    structures = [{"begin": f"<{n}>", "schema": schema, "end": "</>"} for n, schema in enumerate(schemas)]
    return {"triggers": ["<"], "structures": structures}


IN_TAG = "/format/elements/1/content/json_schema"


@pytest.mark.parametrize(
    ("tags", "message", "pointer", "keyword"),
    [
        (_sequence(_tag(0, {"const": 1}), _tag(1, EMPTY)), NONE, f"{IN_TAG}/maximum", "maximum"),
        (
            _sequence(_tag(0, EMPTY | {"maximum": 9}), _tag(1, WORDS)),
            "states",
            f"{IN_TAG}/pattern",
            "pattern",
        ),
        (
            _sequence(_tag(0, {"const": 1}), _tag(1, {"$ref": "x"})),
            "nothing is fetched",
            f"{IN_TAG}/$ref",
            "$ref",
        ),
        (_older({}, ODD), NONE, "/structures/1/schema/properties/x/maximum", "maximum"),
        (_older({}, {"pattern": "("}), "does not end", "/structures/1/schema/pattern", "pattern"),
        (_older({}, {"enum": [*range(30_000)]}), "values", "/structures/1/schema/enum", "enum"),
        (
            _older({"type": "null"}, IN_WORDS),
            "states",
            "/structures/1/schema/properties/w/pattern",
            "pattern",
        ),
        (_older({}) | {"triggers": ["<", "x"]}, "no tag starts with 'x'", "/triggers/1", "triggers"),
        (_older({}) | {"triggers": ["<1"]}, "no trigger starts '<0>'", "/structures/0/begin", "begin"),
        (
            _sequence({"type": "regex", "pattern": "("}),
            "does not end",
            "/format/elements/0/pattern",
            "pattern",
        ),
        (
            _sequence({"type": "grammar", "grammar": "root ::= x"}),
            "no rule x",
            "/format/elements/0/grammar",
            "grammar",
        ),
        (
            _sequence({"type": "any_text"}, {"type": "const_string", "value": "x"}),
            "must be the last",
            "/format/elements/0",
            "elements",
        ),
        ({"format": {"type": "tag", "begin": 1}}, "Expected `str`", "/format/begin", "begin"),
    ],
)
def test_a_refusal_of_a_structural_tag_names_the_part_in_it(
    tags: Any, message: str, pointer: str, keyword: str | None, vocabulary: Vocabulary
) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        worker.check(Constraint(kind="structural_tag", spec=json.dumps(tags)), vocabulary)
    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)


def test_what_follows_each_beginning_is_tried_out(vocabulary: Vocabulary) -> None:
    """As the arguments of each tool are, which a random walk may not come to."""
    schema = {"type": "array", "items": {"anyOf": [{"type": "null"}, IN_WORDS]}, "minItems": 1}
    constraint = msgspec.structs.replace(
        Constraint.json_schema(schema), starts=(Start("[null,"), Start('[{"w":'))
    )
    with pytest.raises(GrammarError, match="states") as caught:
        worker.check(constraint, vocabulary)
    assert caught.value.pointer == "/items/anyOf/1/properties/w/pattern"


def test_what_took_too_long_is_tried_in_parts_that_can_be_ended(vocabulary: Vocabulary) -> None:
    pool = WorkerPool(vocabulary)
    schema = {
        "type": "object",
        "properties": {**{name: {"type": "null"} for name in "abcdefgh"}, "q": TANGLE},
    }
    error = GrammarTooComplexError("grammar too complex: not compiled within 9 s")
    try:
        found = pool.blame(error, Constraint.json_schema(schema), 10.0)
    finally:
        pool.close()
    assert type(found) is GrammarTooComplexError
    assert found.pointer.startswith("/properties/q/allOf/")
    assert str(found) == f"{found.keyword}: {error.message} (at {found.pointer})"
