"""Branches of a oneOf that overlap where items must be distinct: nothing wrong gets through."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import pytest

from grammars.base import GrammarError
from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.spec import Constraint
from grammars.vocab import Vocabulary
from tests.grammars.driver import accepts, reads

WORDS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
ANY = {"type": "array", "maxItems": 3}
ONE_OR_MORE = {
    "oneOf": [{"type": "string"}, WORDS, {"type": "array", "items": {"type": ["string", "integer"]}}]
}
VALUES = ["x", 1, "y"]
INSTANCES = ["x", 1, *(list(items) for size in range(4) for items in itertools.product(VALUES, repeat=size))]


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [WORDS, ANY]},
        {"oneOf": [{"$ref": "#/$defs/w"}, ANY, {"type": "null"}], "$defs": {"w": WORDS}},
        ONE_OR_MORE,
        {"oneOf": [{"oneOf": [WORDS, ANY]}, {"type": "string"}]},
        {"oneOf": [WORDS, {"uniqueItems": True, "minItems": 2, "type": "array"}]},
    ],
)
def test_branches_with_distinct_items_may_overlap(schema: dict[str, Any], vocabulary: Vocabulary) -> None:
    grammar = LlgGrammar(vocabulary, lower(Constraint.json_schema(schema)))
    validator = jsonschema.Draft202012Validator(schema)
    for instance in INSTANCES:
        accepted = accepts(grammar, vocabulary, json.dumps(instance, separators=(",", ":")))
        valid = validator.is_valid(instance)
        assert valid or not accepted, instance
        repeats = isinstance(instance, list) and len(set(instance)) < len(instance)
        assert accepted or not valid or repeats, instance


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"oneOf": [WORDS, ANY]}},
        {"items": {"not": ONE_OR_MORE}},
        {"oneOf": [{"oneOf": [WORDS, ANY]}, {"type": "array"}]},
        {"if": {"properties": {"a": ONE_OR_MORE}}, "then": {"required": ["b"]}, "else": {"required": ["c"]}},
        {"not": {"dependentSchemas": {"a": {"properties": {"b": ONE_OR_MORE}}}}},
    ],
)
def test_what_is_left_out_of_a_branch_is_not_taken_for_its_outside(schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match="uniqueItems cannot be negated"):
        lower(Constraint.json_schema(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"multipleOf": 5}, {"multipleOf": 3}]},
        {"oneOf": [{"multipleOf": 5}, {"multipleOf": 2, "maximum": 20}]},
        {"not": {"multipleOf": 0.5}},
        {"multipleOf": 2, "not": {"multipleOf": 4}},
        {"if": {"multipleOf": 6}, "then": {"maximum": 10}, "else": {"minimum": 20}},
        {"not": {"not": {"multipleOf": 15}}},
    ],
)
def test_multiples_of_one_number_but_not_of_another(schema: dict[str, Any], vocabulary: Vocabulary) -> None:
    schema = {"type": "number", **schema}
    grammar = LlgGrammar(vocabulary, lower(Constraint.json_schema(schema)))
    validator = jsonschema.Draft202012Validator(schema)
    for value in [*range(-31, 64), *(quarter / 4 for quarter in range(-41, 41) if quarter % 4)]:
        assert reads(grammar, vocabulary, json.dumps(value)) == validator.is_valid(value), value
    # It is read as 5.
    assert not reads(grammar, vocabulary, "5.0000000000000000001")
