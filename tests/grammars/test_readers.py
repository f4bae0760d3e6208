"""Readers of a schema differ: in keywords they know, formats, numbers. What is written suits all of them."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

from grammars.base import GrammarError
from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.spec import Constraint, JsonOptions
from grammars.vocab import Vocabulary
from tests.grammars.driver import reads

URIS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
VALUES: list[Any] = [1, "a", [], {}, [1], ["a"], ["a", 1], [1, "a"], {"a": 1}, {"a": 1, "b": 1}, {"b": 2}]
VALUES += [{"x": value} for value in VALUES]
NEEDS_B = {"a": ["b"]}


def _accepted(schema: Any, texts: list[str], vocabulary: Vocabulary, options: JsonOptions) -> list[str]:
    try:
        grammar = LlgGrammar(vocabulary, lower(Constraint.json_schema(schema, options)))
    except GrammarError as refusal:
        if "no value" not in refusal.message:
            raise
        return []
    return [text for text in texts if reads(grammar, vocabulary, text)]


@pytest.mark.parametrize(
    ("draft", "schema", "count"),
    [
        # Asked for, it is kept; what is negated may have been passed over.
        (4, {"const": 1}, 1),
        (4, {"not": {"const": 1}}, 0),
        (4, {"properties": {"x": {"not": {"const": 1}}}}, 11),
        (4, {"oneOf": [{"const": 1}, {"type": "string"}]}, 1),
        (4, {"oneOf": [{"const": 1}, {"type": "integer"}]}, 0),
        (4, {"oneOf": [{"const": 1, "type": "integer"}, {"type": "string"}]}, 2),
        (4, {"not": {"contains": {}}}, 0),
        (6, {"not": {"if": {"type": "array"}, "then": False}}, 0),
        (7, {"contains": {"type": "string"}, "minContains": 0, "type": "array"}, 3),
        (7, {"oneOf": [{}, {"contains": {}, "maxContains": 0}], "type": "array"}, 0),
        (7, {"prefixItems": [{"type": "string"}], "items": {"type": "integer"}, "type": "array"}, 1),
        (
            7,
            {
                "oneOf": [
                    {"dependentRequired": NEEDS_B, "type": "object"},
                    {"required": ["a"], "type": "object"},
                ]
            },
            13,
        ),
        (7, {"oneOf": [{"type": "object", "propertyNames": {"minLength": 2}}, {"type": "string"}]}, 2),
        (7, {"if": {"dependentRequired": NEEDS_B}, "then": {"type": "object"}, "else": True}, 14),
        (7, {"dependencies": {"x": {"not": {"dependentSchemas": {"x": False}}}}}, 11),
        (7, {"not": {"unevaluatedProperties": False}}, 0),
        (2019, {"not": {"prefixItems": [{"type": "string"}]}}, 0),
        (2020, {"not": {"dependencies": NEEDS_B}}, 0),
        (2020, {"not": {"contentEncoding": "base16"}}, 0),
    ],
)
def test_keywords_of_other_versions(
    draft: int, schema: dict[str, Any], count: int, vocabulary: Vocabulary
) -> None:
    schema = {"$schema": URIS[draft], **schema}
    validator = jsonschema.validators.validator_for(schema)(schema)
    texts = [json.dumps(value, separators=(",", ":")) for value in VALUES]
    accepted = _accepted(schema, texts, vocabulary, JsonOptions())
    assert [text for text in accepted if not validator.is_valid(json.loads(text))] == []
    assert len(accepted) == count


# In our formats: the first only. For some validator all are of the format.
LOOSE = {
    "email": ["a@b.de", "a@b c", "@"],
    "time": ["10:00:00Z", "23:59:60Z"],
    "uri": ["a:b", "a:\u00fc"],
}


@pytest.mark.parametrize("name", LOOSE)
def test_what_may_count_as_a_format_is_not_outside_of_it(name: str, vocabulary: Vocabulary) -> None:
    formatted = {"type": "string", "format": name}
    texts = [json.dumps(text, ensure_ascii=False) for text in (*LOOSE[name], "word")]
    listed = {"enum": [*LOOSE[name], "word"]}
    keyed = [{"properties": {"k": one}, "required": ["k"], "type": "object"} for one in (listed, formatted)]
    for schema, right in (
        ({"not": {**formatted, **listed}, "type": "string"}, ['"word"']),
        ({"not": {"allOf": [formatted, listed]}, **listed}, ['"word"']),
        ({"oneOf": [listed, formatted]}, ['"word"']),
        ({"oneOf": [listed, {"not": formatted}], "type": "string"}, texts[:1]),
    ):
        assert _accepted(schema, texts, vocabulary, JsonOptions()) == right, schema
    assert _accepted({"oneOf": keyed}, _keyed(texts), vocabulary, JsonOptions()) == _keyed(['"word"'])


def _keyed(texts: list[str]) -> list[str]:
    return [f'{{"k":{text}}}' for text in texts]


@pytest.mark.parametrize(
    ("schema", "texts", "right"),
    [
        ('{"const":1e23}', ["1" + "0" * 23, "1" + "0" * 23 + ".0"], [1]),
        ('{"enum":[9007199254740993.0]}', ["9007199254740993", "9007199254740993.0"], [1]),
        ('{"enum":[9007199254740993]}', ["9007199254740993", "9007199254740993.0"], [0]),
        ('{"enum":[9007199254740992.0]}', ["9007199254740992", "9007199254740992.0"], [0, 1]),
        ('{"maximum":1e23,"minimum":1e22,"type":"integer"}', ["1" + "0" * 23, "9" * 15 + "0" * 8], [1]),
        ('{"maximum":12345678901234567890.5,"type":"integer"}', ["12345678901234567890", "1"], [1]),
        ('{"minimum":9007199254740993,"type":"number"}', ["9007199254740993.2", "9007199254740993"], [1]),
        ('{"maximum":9007199254740995,"type":"number"}', ["9007199254740995.0", "9007199254740995"], [1]),
        ('{"exclusiveMinimum":9007199254740992}', ["9007199254740993", "9007199254740994"], [1]),
        ('{"exclusiveMaximum":9007199254740993}', ["9007199254740992", "9007199254740991"], [1]),
        ('{"not":{"const":9007199254740993},"type":"integer"}', ["9007199254740992", "5"], [1]),
        ('{"multipleOf":5,"type":"integer"}', ["9007199254740995", "-995"], [1]),
    ],
)
def test_numbers_that_are_no_doubles(
    schema: str, texts: list[str], right: list[int], vocabulary: Vocabulary
) -> None:
    for integers in (False, True):
        options = JsonOptions(integer_digits=24, decimal_integers=integers)
        accepted = _accepted(schema, texts, vocabulary, options)
        assert [texts.index(text) for text in accepted] == right
    for read in ((float, int), (float, float), (Decimal, int)):
        validator = jsonschema.Draft202012Validator(
            json.loads(schema, parse_float=read[0], parse_int=read[1])
        )
        for index in right:
            instance = json.loads(texts[index], parse_float=read[0], parse_int=read[1])
            assert validator.is_valid(instance), texts[index]
