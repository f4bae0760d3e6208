"""uniqueItems over items with parts: no repetition, no dead end, and all else as before."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from grammars.base import GrammarError
from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.regular.ast import Regex
from grammars.schema import closing
from grammars.schema.distinct import Distinct
from grammars.schema.endings import FreshWords
from grammars.spec import Constraint
from grammars.vocab import Vocabulary
from tests.grammars.driver import accepts, allowed, mask_of


def _closed(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _distinct(items: Any, **keywords: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "uniqueItems": True, **keywords}


KIND = {"enum": ["A", "B"]}
BOOLEAN = {"type": "boolean"}
SCHEMAS = {
    "a string decides first": _distinct(_closed(n={"type": "string"}, k=KIND), maxItems=4),
    "all there are": _distinct(_closed(k=KIND, b=BOOLEAN), minItems=4),
    "one more property": _distinct(
        {"type": "object", "properties": {"k": KIND}, "required": ["k"]}, minItems=3
    ),
    "arrays in arrays": _distinct(_distinct({"enum": [1, 2]}, minItems=1), minItems=2),
    "texts or objects": _distinct(
        {"anyOf": [{"enum": ["x", "y"]}, _closed(z={"type": "integer", "minimum": 0, "maximum": 2})]},
        minItems=3,
    ),
    "by position": {
        "type": "array",
        "prefixItems": [BOOLEAN, BOOLEAN],
        "items": _closed(k=KIND),
        "uniqueItems": True,
    },
    "a text, then few": {
        "type": "array",
        "prefixItems": [{"type": "string", "maxLength": 2}],
        "items": {"type": "integer", "minimum": 1, "maximum": 3},
        "uniqueItems": True,
        "minItems": 3,
    },
    "few are asked for": _distinct(
        {"type": "integer"}, contains={"enum": [5, 6]}, minContains=2, minItems=2, maxItems=3
    ),
    "multiples": _distinct(_closed(a={"type": "integer", "multipleOf": 7}), minItems=3, maxItems=4),
    "numbers in arrays": _distinct(_distinct({"enum": [1, 1.5, "1", True, None]}, maxItems=3), minItems=2),
    "many are asked for": _distinct(_closed(n={"type": "string"}, k=KIND), minItems=9),
    "a list, then many": {
        "type": "array",
        "prefixItems": [{"type": "array", "items": {"type": "integer"}, "maxItems": 1}],
        "items": _closed([], n={"type": "integer"}),
        "uniqueItems": True,
        "minItems": 4,
    },
    "optional": _distinct(_closed([], a={"type": "string", "pattern": "^[ab]$"}), maxItems=3),
}


def _grammar(schema: Any, vocabulary: Vocabulary) -> LlgGrammar:
    return LlgGrammar(vocabulary, lower(Constraint.json_schema(schema)))


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (
            _distinct({"type": "object"}),
            ['[{"a":1},{"a":2}]', "[{},[]]".replace(",[]", ',{"a":{}}')],
            ['[{"a":1},{"a":1}]', "[{},{}]", '[{"a":1,"b":2},{"b":2,"a":1}]', '[{"a":"é"},{"a":"\\u00e9"}]'],
        ),
        (
            {"uniqueItems": True},
            ["[1,true]", "[[1],[true]]", '[{"a":[1,2]},{"a":[2,1]}]', "[[],{}]", "[[1],[[1]]]", '["[]",[]]'],
            ["[1,1]", "[1,1.0]", "[[1],[1.0]]", '[{"a":{"b":[0]}},{"a":{"b":[0]}}]', "[[[]],[[]]]"],
        ),
        (
            _distinct(_closed(n={"type": "string"}, k=KIND)),
            ['[{"n":"x","k":"A"},{"n":"x","k":"B"},{"n":"xy","k":"A"}]'],
            ['[{"n":"x","k":"A"},{"n":"x","k":"A"}]', '[{"n":"x","k":"A"},{"n":"x","k":"B"},{"n":"x"'],
        ),
    ],
)
def test_equal_items_come_once(
    schema: Any, valid: list[str], invalid: list[str], vocabulary: Vocabulary
) -> None:
    grammar = _grammar(schema, vocabulary)
    assert [text for text in valid if not accepts(grammar, vocabulary, text)] == []
    assert [text for text in invalid if accepts(grammar, vocabulary, text)] == []


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"prefixItems": [BOOLEAN, {"const": True}], "items": {"type": "string"}}, "taken by others"),
        ({"prefixItems": [{"type": "string"}, {"enum": ["a"]}]}, "taken by others"),
        ({"prefixItems": [{"type": "string"}], "items": {"enum": ["a", "b"]}}, "taken by others"),
        ({"contains": {"enum": [1, 2]}, "allOf": [{"contains": {"enum": [1, 3]}}]}, "contains asks for"),
    ],
)
def test_an_item_whose_few_values_others_may_take_is_refused(schema: Any, why: str) -> None:
    """Else all of them might be gone when its turn comes."""
    with pytest.raises(GrammarError, match=why) as refusal:
        lower(Constraint.json_schema({"type": "array", "uniqueItems": True, **schema}))
    assert (refusal.value.keyword, refusal.value.pointer) == ("uniqueItems", "/uniqueItems")


def test_more_items_cannot_be_asked_for_than_there_are() -> None:
    with pytest.raises(GrammarError, match="no value satisfies"):
        lower(Constraint.json_schema(_distinct({}, contains={"const": 5}, minContains=2)))


@pytest.mark.parametrize("name", SCHEMAS)
def test_random_texts_never_end_dead_and_are_valid(name: str, vocabulary: Vocabulary) -> None:
    schema = SCHEMAS[name]
    grammar = _grammar(schema, vocabulary)
    validator = jsonschema.Draft202012Validator(schema)
    rng = random.Random(name)
    for _ in range(6):
        matcher = grammar.matcher()
        text = b""
        for step in range(80):
            row = mask_of(matcher, vocabulary)
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            assert allowed.size, text
            for other in rng.sample(range(len(vocabulary.token_bytes)), 3):
                if other not in vocabulary.eos_ids:
                    assert matcher.fork().accept(other) == bool(row[other >> 5] >> (other & 31) & 1)
            token = matcher.accept_within(int(rng.choice(allowed)), 79 - step)
            assert token is not None
            if matcher.is_terminated:
                break
            text += vocabulary.token_bytes[token]
        assert matcher.is_complete, text
        validator.validate(json.loads(text))


@pytest.mark.parametrize(
    ("items", "begun", "token", "valid"),
    [
        (["", True, 5], '["', '","', '["",5]'),
        ([True, "a"], '["a', '","', '["a",true]'),
        (["a", "b"], '["a', '","', '["a","b"]'),
        ([[], 5], "[[", "],[", "[[],5]"),
        ([[], [5]], "[[", "],[", "[[],[5]]"),
    ],
)
def test_a_token_is_masked_that_ends_the_first_item_and_begins_a_second_like_it(
    items: list[Any], begun: str, token: str, valid: str, vocabulary: Vocabulary
) -> None:
    """Only where nothing else can start like that."""
    grammar = _grammar(_distinct({"enum": items}), vocabulary)
    matcher = grammar.matcher()
    for byte in begun:
        assert matcher.accept(vocabulary.token_bytes.index(byte.encode()))
    token_id = vocabulary.token_bytes.index(token.encode())
    in_mask = bool(mask_of(matcher, vocabulary)[token_id >> 5] >> (token_id & 31) & 1)
    assert in_mask == valid.startswith(begun + token)
    assert matcher.accept(token_id) == in_mask
    assert accepts(grammar, vocabulary, valid)


def test_the_end_of_many_distinct_items_is_found_in_as_many_tries(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not each of them among all that come before it: that took seconds, a token."""
    schema = _distinct({"enum": [f"item {n}" for n in range(150)]}, minItems=120)
    grammar = LlgGrammar(vocabulary, lower(Constraint.json_schema(schema)))
    made: list[FreshWords] = []

    class Watched(FreshWords):
        def __init__(self, regex: Regex) -> None:
            super().__init__(regex)
            made.append(self)

    monkeypatch.setattr(closing, "FreshWords", Watched)
    close = grammar.matcher().shortest_close()
    assert close is not None
    items = json.loads(b"".join(vocabulary.token_bytes[token_id] for token_id in close))
    assert len(set(items)) == len(items) == 120
    assert {*items} <= {*schema["items"]["enum"]}
    assert 119 <= sum(words._tries for words in made) <= 120


def test_an_end_that_was_found_is_not_searched_for_at_each_of_its_tokens(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = {
        "type": "object",
        "properties": {"a": {"enum": [1, 2, 3]}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    schema = {"type": "array", "uniqueItems": True, "minItems": 6, "items": item}
    matcher = LlgGrammar(vocabulary, lower(Constraint.json_schema(schema))).matcher()
    begun = '[{"a":3,"b":true},{"a":3'
    assert all(map(matcher.accept, vocabulary.encode(begun)))
    monkeypatch.setattr(Distinct, "is_dead", None)
    tokens = matcher.shortest_close()
    assert tokens is not None
    items = json.loads(begun + b"".join(vocabulary.token_bytes[token] for token in tokens).decode())
    assert len({(one["a"], one["b"]) for one in items}) == len(items) == 6


@pytest.mark.parametrize("name", SCHEMAS)
def test_no_end_is_longer_than_its_bound(name: str, vocabulary: Vocabulary) -> None:
    grammar = _grammar(SCHEMAS[name], vocabulary)
    assert grammar.states is not None
    rng = random.Random(name)
    matcher = grammar.matcher()
    for _ in range(24):
        row = mask_of(matcher, vocabulary)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        token = int(rng.choice([token for token in allowed if token not in vocabulary.eos_ids] or allowed))
        assert matcher.accept(token)
        if matcher.is_terminated:
            break
        place = matcher._path[-1]
        assert place.size == math.inf or len(grammar.states.close(place)) <= place.size


def test_many_objects_that_differ_may_be_asked_for(vocabulary: Vocabulary) -> None:
    item = _closed(k={"enum": list("ABCDEFGH")}, b={"enum": [1, 2, 3]}, c={"enum": [1, 2, 3]})
    schema = _distinct(item, minItems=16)
    grammar = _grammar(schema, vocabulary)
    tokens = grammar.matcher().shortest_close()
    assert tokens is not None
    assert len(tokens) == grammar.min_tokens
    items = json.loads(b"".join(vocabulary.token_bytes[token] for token in tokens))
    jsonschema.Draft202012Validator(schema).validate(items)
    assert len(items) == 16


def test_more_than_there_are_may_not(vocabulary: Vocabulary) -> None:
    item = _closed(k=KIND, b=BOOLEAN)
    assert _grammar(_distinct(item, minItems=4), vocabulary).min_tokens is not None
    assert _grammar(_distinct(item, minItems=5), vocabulary).min_tokens is None


PAIRS = {
    "type": "array",
    "uniqueItems": True,
    "items": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1},
}


@pytest.mark.parametrize(
    ("schema", "begun"),
    [
        (
            {"type": "array", "items": {"$ref": "#"}, "uniqueItems": True, "maxItems": 3},
            "[[],[[]],[[],[[],[[],[",
        ),
        ({"type": "array", "items": {"$ref": "#"}, "uniqueItems": True, "maxItems": 3}, "[[],[[]],[[],["),
        (
            {
                "type": "array",
                "uniqueItems": True,
                "items": {"prefixItems": [{**PAIRS, "maxItems": 3}, {"type": "string"}], "type": "array"},
            },
            "[[[[1],[2,1]],",
        ),
        ({"type": "array", "uniqueItems": True, "items": {**PAIRS, "maxItems": 4}}, "[[[1],[2]],[[1],["),
    ],
)
def test_a_repetition_in_an_array_within_a_new_item_is_masked(
    schema: dict[str, Any], begun: str, vocabulary: Vocabulary
) -> None:
    matcher = LlgGrammar(vocabulary, lower(Constraint.json_schema(schema))).matcher()
    for char in begun:
        assert matcher.accept(vocabulary.token_bytes.index(char.encode()))
    following = allowed(matcher, vocabulary)
    assert following
    brackets = {token for token, text in enumerate(vocabulary.token_bytes) if b"]" in text or b"[" in text}
    for token in following | brackets:
        assert matcher.fork().accept(token) == (token in following), vocabulary.token_bytes[token]
