"""Properties: their order, and that every object let through is valid by an independent validator."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import pytest

from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.spec import Constraint
from grammars.vocab import Vocabulary
from tests.grammars.driver import accepts

NAMES = ("a", "b", "c", "d")


@pytest.mark.parametrize(
    "schema",
    [
        {"required": ["a", "b", "c"]},
        {"required": ["a", "b"], "maxProperties": 2},
        {"required": ["b", "c"], "properties": {"a": {}, "b": {}}, "minProperties": 3},
        {"required": ["a", "b"], "additionalProperties": {"type": "integer"}},
        {"required": ["a", "c"], "patternProperties": {"^[bc]": {"type": "string"}}},
        {"type": "object", "dependentRequired": {"c": ["a", "b"]}, "maxProperties": 3},
        {"required": ["a", "b"], "propertyNames": {"pattern": "^[a-c]"}, "not": {"required": ["d"]}},
    ],
)
def test_what_is_only_required_comes_in_any_order(schema: dict[str, Any], vocabulary: Vocabulary) -> None:
    grammar = LlgGrammar(vocabulary, lower(Constraint.json_schema(schema)))
    validator = jsonschema.Draft202012Validator(schema)
    declared = [*schema.get("properties", {})]
    for count in range(len(NAMES) + 1):
        for names in itertools.permutations(NAMES, count):
            for value in (1, "x"):
                instance = {name: value if name == "c" else 1 for name in names}
                accepted = accepts(grammar, vocabulary, json.dumps(instance, separators=(",", ":")))
                valid = validator.is_valid(instance)
                assert valid or not accepted, instance
                first = declared + [name for name in names if name in schema.get("required", ())]
                rest = sorted(names, key=lambda name: first.index(name) if name in first else len(first))
                if names == tuple(rest):
                    assert accepted == valid, instance


def test_the_order_of_many_that_are_only_required_is_the_listed_one(vocabulary: Vocabulary) -> None:
    names = [f"p{number}" for number in range(12)]
    grammar = LlgGrammar(vocabulary, lower(Constraint.json_schema({"required": names})))
    assert accepts(grammar, vocabulary, json.dumps(dict.fromkeys(names, 1), separators=(",", ":")))
    mixed = json.dumps(dict.fromkeys(reversed(names), 1), separators=(",", ":"))
    assert not accepts(grammar, vocabulary, mixed)
