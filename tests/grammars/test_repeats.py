"""No name twice in an object, no item twice in an array of distinct ones, and no dead ends."""

from __future__ import annotations

import random
from typing import Any

import pytest

from grammars.base import Matcher
from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.spec import Constraint, JsonOptions
from grammars.vocab import Vocabulary
from tests.grammars.driver import accepts, allowed, feed


def _matcher(vocabulary: Vocabulary, schema: Any) -> Matcher:
    return LlgGrammar(vocabulary, lower(Constraint.json_schema(schema))).matcher()


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object"}, '{"a":1,"b":2,"a":3}'),
        ({"type": "object"}, '{"":1,"":2}'),
        ({"type": "object"}, '{"é\\n":1,"é\\n":2}'),
        ({"type": "object"}, '{"a":{"b":1},"a":2}'),
        ({"type": "object", "properties": {"a": {}}}, '{"a":1,"a":2}'),
        ({"type": "object", "patternProperties": {"^x": {}}}, '{"x1":[],"x2":[],"x1":0}'),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, '["a","b","a"]'),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, '["a","\\u0061"]'),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "[1,12,1]"),
        ({"type": "array", "items": {"type": "number"}, "uniqueItems": True}, "[1.5,1.50]"),
        ({"type": "array", "items": {"enum": ["a", 1, True, None]}, "uniqueItems": True}, '["a",1,"a"]'),
        ({"type": "array", "items": {"enum": list(range(30))}, "uniqueItems": True}, "[3,7,3]"),
    ],
)
def test_a_repetition_is_masked(schema: Any, text: str, vocabulary: Vocabulary) -> None:
    grammar = LlgGrammar(vocabulary, lower(Constraint.json_schema(schema)))
    assert not accepts(grammar, vocabulary, text)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object"}, '{"a":1,"ab":2,"b":{"a":3}}'),
        ({"type": "array", "items": {"type": "object"}}, '[{"a":1},{"a":1}]'),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, '["a","ab","","b"]'),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "[1,12,2,-1]"),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, "[[1,1]]"),
        (
            {"type": "array", "prefixItems": [{"type": "boolean"}] * 2, "items": False, "uniqueItems": True},
            "[true,false]",
        ),
    ],
)
def test_what_only_looks_alike_is_not(schema: Any, text: str, vocabulary: Vocabulary) -> None:
    assert accepts(LlgGrammar(vocabulary, lower(Constraint.json_schema(schema))), vocabulary, text)


def test_a_name_is_not_begun_that_can_only_be_a_repetition(vocabulary: Vocabulary) -> None:
    """Three digits: after 12, the 3 leads nowhere once 123 was there; the 4 does not."""
    schema = {"type": "object", "patternProperties": {"^[0-9]{3}$": {}}, "additionalProperties": False}
    matcher = _matcher(vocabulary, schema)
    assert feed(matcher, vocabulary, '{"123":0,"12')
    (three,), (four,) = vocabulary.encode("3"), vocabulary.encode("4")
    legal = allowed(matcher, vocabulary)
    assert three not in legal
    assert four in legal
    assert not matcher.accept(three)
    assert matcher.accept(four)
    assert feed(matcher, vocabulary, '":0}')


def test_few_distinct_values_run_out(vocabulary: Vocabulary) -> None:
    schema = {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}
    matcher = _matcher(vocabulary, schema)
    assert feed(matcher, vocabulary, '["b","a"]')
    matcher.rollback(1)
    comma = set(vocabulary.encode(","))
    assert not comma & allowed(matcher, vocabulary)


def test_rollback_and_fork_forget_names(vocabulary: Vocabulary) -> None:
    grammar = LlgGrammar(
        vocabulary, lower(Constraint.json_schema({"type": "object"}, JsonOptions(whitespace="flexible")))
    )
    matcher = grammar.matcher()
    start = vocabulary.encode('{"a": 1, ')
    for token in start:
        assert matcher.accept(token)
    fork = matcher.fork()
    matcher.rollback(len(start))
    assert feed(matcher, vocabulary, '{"b": 2, "a": 1}')
    assert not feed(fork, vocabulary, '"a": 1}')


LONG = (
    '":1,"a', '":1,"a"', '":1,"b', 'a":1,"a":', '{"a":1,"a', '{"a":1,"b', '"a":1,"a":2', '":{"a":1},"a',
    '":1},{"a', '":1}', '":1},', '"},{"', '],["a', '","a"', '","b', '"a","a"', ',"a"', ',"', "1,1", "1,",
    "1]", "2,1", "],[1", "tr", "true", "true,t", "e,f", "null", "nu", "[[", "[]", "{}", '""', '"],', "[1,1",
    ',{"a', '":[1],"a', '"\\u0061',
)  # fmt: skip
"""Tokens that end one thing and begin or end others."""


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "integer"}}},
        {"type": "object", "patternProperties": {"^[ab]{2}$": {}}, "additionalProperties": False},
        {"type": "object", "propertyNames": {"maxLength": 1}},
        {"type": "array", "uniqueItems": True},
        {
            "type": "array",
            "uniqueItems": True,
            "items": {"type": ["boolean", "null", "string"], "maxLength": 1},
        },
        {
            "type": "array",
            "uniqueItems": True,
            "items": {"type": "object", "propertyNames": {"maxLength": 1}},
        },
    ],
)
def test_masks_of_long_tokens_say_what_is_accepted(schema: Any) -> None:
    """What is left out where tokens are tried one by one leads to no repetition."""
    texts = [bytes((byte,)) for byte in range(256)] + [text.encode() for text in LONG]
    wide = Vocabulary(
        [*texts, b""], frozenset({len(texts)}), frozenset({len(texts)}), len(texts) + 1, _as_bytes
    )
    tried = [*range(256, len(texts)), *b'"ab01tfn,[]{}:-']
    grammar = LlgGrammar(wide, lower(Constraint.json_schema(schema)))
    rng = random.Random(0)
    for _ in range(12):
        matcher = grammar.matcher()
        for _ in range(14):
            legal = allowed(matcher, wide).intersection(tried)
            assert legal == {token for token in tried if matcher.fork().accept(token)}
            if not legal:
                break
            assert matcher.accept(rng.choice(sorted(legal)))


def _as_bytes(text: str) -> list[int]:
    return list(text.encode())
