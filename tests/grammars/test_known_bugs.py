"""Bugs that others had with constrained output, reduced; each is named by its number in the list of cases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grammars.base import GrammarError, Matcher
from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.schema.evaluate import MAX_MEANINGS
from grammars.spec import Constraint, JsonOptions
from grammars.vocab import Vocabulary
from tests.grammars.driver import accepts, allowed, feed

DRAFT7 = "http://json-schema.org/draft-07/schema#"
CLOSED_AB = {"a": {"type": "integer"}, "b": {"type": "integer"}}
OVERLAPPING = {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 10}]}
BASE = {"properties": {"x": {"type": "integer", "minimum": 10}}, "required": ["x"]}

VERDICTS: list[tuple[str, Any, list[str], list[str]]] = [
    ("A1", {"allOf": [{"type": "string"}, {"enum": ["yes", "no"]}]}, ['"yes"'], ['"maybe"', "42", "{}"]),
    (
        "A1 inheritance",
        {
            "$defs": {"Base": {"type": "object", **BASE}},
            "allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"y": {"type": "string"}}, "required": ["y"]}],
        },
        ['{"x":11,"y":"s"}'],
        ['{"x":5,"y":"s"}', '{"y":"s"}', '{"x":11}'],
    ),
    (
        "A2",
        {
            "type": "object",
            "properties": CLOSED_AB,
            "additionalProperties": False,
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        ['{"a":1}', '{"b":1}', '{"a":1,"b":2}'],
        ["{}", '{"c":1}'],
    ),
    ("A3", {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, ['"abc"'], ['"abcd"', '"a1"', '""']),
    (
        "A3 format",
        {"type": "string", "format": "email", "maxLength": 8},
        ['"a@b.co"'],
        ['"aaaa@bbb.co"', '"abc"'],
    ),
    ("A4", {"type": "integer", "minimum": -5}, ["-5", "-1", "7"], ["-6", "-"]),
    ("A4 above 0", {"type": "number", "exclusiveMinimum": 0}, ["0.1", "2"], ["0", "-0.1", "0.0"]),
    ("A4 range", {"type": "number", "minimum": 1, "maximum": 5}, ["1", "4.99", "5.0"], ["5.7", "0.9"]),
    ("A5", {"type": "integer", "minimum": 3}, ["3", "30"], ["01", "007", "2"]),
    (
        "A7",
        {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 10}]},
        ["11", "-1"],
        ["5"],
    ),
    (
        "A8",
        {
            "properties": {
                "a": {"type": "integer"},
                "b": {"$ref": "#/properties/a"},
                "c": {"$ref": "#/$defs/x~1y~0"},
            },
            "$defs": {"x/y~": {"$anchor": "here", "const": 7}, "z": {"$id": "other", "type": "null"}},
            "additionalProperties": {"anyOf": [{"$ref": "#here"}, {"$ref": "other"}]},
        },
        ['{"a":1,"b":2,"c":7,"d":null,"e":7}'],
        ['{"b":"x"}', '{"c":8}', '{"d":1}'],
    ),
    ("A11", {"type": "object", "properties": {}, "additionalProperties": False}, ["{}"], ["{ }", '{"a":1}']),
    ("A12", {"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
    (
        "A14",
        {"const": "http://example.com/a/b"},
        ['"http://example.com/a/b"'],
        ['"http:\\/\\/example.com/a/b"'],
    ),
    ("B2", {"enum": ["😀", "中文"]}, ['"😀"', '"中文"'], ['"😃"', '"中"']),
    (
        "E4",
        {
            "type": "object",
            "properties": {"v": {"oneOf": [{"type": "string"}, {"type": "null"}]}},
            "required": ["v"],
        },
        ['{"v":null}', '{"v":"x"}'],
        ['{"v":1}', "{}"],
    ),
]


def _grammar(schema: Any, vocabulary: Vocabulary, options: JsonOptions | None = None) -> LlgGrammar:
    return LlgGrammar(vocabulary, lower(Constraint.json_schema(schema, options)))


def _matcher(schema: Any, vocabulary: Vocabulary) -> Matcher:
    return _grammar(schema, vocabulary).matcher()


@pytest.mark.parametrize(("case", "schema", "valid", "invalid"), VERDICTS, ids=[case[0] for case in VERDICTS])
def test_verdicts(
    case: str, schema: Any, valid: list[str], invalid: list[str], vocabulary: Vocabulary
) -> None:
    grammar = _grammar(schema, vocabulary)
    assert [text for text in valid if not accepts(grammar, vocabulary, text)] == []
    assert [text for text in invalid if accepts(grammar, vocabulary, text)] == []


def test_a6_only_the_quote_is_left_after_the_last_character(vocabulary: Vocabulary) -> None:
    matcher = _matcher({"type": "string", "maxLength": 40}, vocabulary)
    assert feed(matcher, vocabulary, '"' + "é" * 20 + "\\n" * 20)
    assert {vocabulary.token_bytes[token] for token in allowed(matcher, vocabulary)} == {b'"'}


def test_a9_recursion_costs_nothing_to_compile(vocabulary: Vocabulary) -> None:
    tree: dict[str, Any] = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["v", "kids"],
    }
    grammar = _grammar(tree, vocabulary)
    assert grammar.nbytes < 50 << 20
    assert accepts(grammar, vocabulary, '{"v":1,"kids":[' * 8 + "]}" * 8)


@pytest.mark.parametrize("schema", [{}, True])
def test_a10_any_json_is_bounded_in_digits_and_blanks(schema: Any, vocabulary: Vocabulary) -> None:
    for options in (JsonOptions(), JsonOptions(whitespace="flexible")):
        grammar = _grammar(schema, vocabulary, options)
        assert accepts(grammar, vocabulary, '[1,-2.5e3,"x",null,{"a":true}]')
        for endless in ("1" * 60, "0." + "1" * 60, "[" + " " * 60 + "]"):
            assert not accepts(grammar, vocabulary, endless)


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        ({"type": "foo"}, "/type", "type"),
        ({"properties": {"a": {"minLength": -1}}}, "/properties/a/minLength", "minLength"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "", None),
        ({"$ref": "https://example.com/s.json"}, "/$ref", "$ref"),
        ({"items": {"$ref": "#/$defs/missing"}}, "/items/$ref", "$ref"),
        ({"properties": {"a/b": {"pattern": "(?<=a)b"}}}, "/properties/a~1b/pattern", "pattern"),
        ({"not": {"multipleOf": 7}}, "/not", "not"),
        ({"not": {"uniqueItems": True}}, "/not", "not"),
        ({"type": "integer", "multipleOf": 123456789}, "/multipleOf", "multipleOf"),
        ({"oneOf": [{"multipleOf": 7}, {"multipleOf": 5}]}, "/oneOf", "oneOf"),
        ({"anyOf": []}, "/anyOf", "anyOf"),
        ({"name": "string", "age": "integer"}, "", None),
        ({"required": "a"}, "/required", "required"),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "contentMediaType": "application/json"},
            "/contentMediaType",
            "contentMediaType",
        ),
    ],
)
def test_a12_a13_what_cannot_be_enforced_is_refused_where_it_stands(
    schema: Any, pointer: str, keyword: str | None
) -> None:
    with pytest.raises(GrammarError) as refused:
        lower(Constraint.json_schema(schema))
    assert (refused.value.pointer, refused.value.keyword) == (pointer, keyword)


def test_a7_overlapping_one_of_is_any_of_where_that_is_asked_for(vocabulary: Vocabulary) -> None:
    grammar = _grammar(OVERLAPPING, vocabulary, JsonOptions(exclusive_one_of=False))
    assert accepts(grammar, vocabulary, "5")


def test_a15_properties_come_in_the_order_of_their_declaration(vocabulary: Vocabulary) -> None:
    names = ["zebra", "apple", "mango"]
    matcher = _matcher(
        {"type": "object", "properties": dict.fromkeys(names, True), "required": names}, vocabulary
    )
    assert feed(matcher, vocabulary, '{"zebra":1,"apple":2,"mango":3}')


def test_a16_other_properties_are_allowed_unless_told_otherwise(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"a": {}}}
    for options, open_ in ((JsonOptions(), True), (JsonOptions(open_objects=False), False)):
        assert accepts(_grammar(schema, vocabulary, options), vocabulary, '{"a":1,"b":2}') == open_
    assert not accepts(_grammar({**schema, "additionalProperties": False}, vocabulary), vocabulary, '{"b":2}')
    assert accepts(
        _grammar({"type": "object"}, vocabulary, JsonOptions(open_objects=False)), vocabulary, '{"b":2}'
    )


def test_b1_b5_every_string_is_one_that_json_reads(vocabulary: Vocabulary) -> None:
    grammar = _grammar({"type": "string"}, vocabulary)
    for text in ('"中文 😀 é"', '"a\\/b\\u4e2d\\ud83d\\ude00"', '"\\n\\"\\\\"'):
        assert accepts(grammar, vocabulary, text)
        json.loads(text)
    for text in (
        '"\\公"',
        '"\\ud83d"',
        '"\\ude00"',
        '"\\ud83d\\u0041"',
        '"\\q"',
        '"\t"',
        '"\n"',
        '"\x01"',
        "'a'",
    ):
        assert not accepts(grammar, vocabulary, text)


def test_b7_c1_no_blanks_around_or_in_compact_json(vocabulary: Vocabulary) -> None:
    grammar = _grammar({"type": "object", "properties": CLOSED_AB}, vocabulary)
    for text in (' {"a":1}', '{"a":1} ', '{"a": 1}', '{ "a":1}', '{"a":1,\n"b":2}'):
        assert not accepts(grammar, vocabulary, text)


def test_c1_flexible_blanks_are_bounded(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}
    grammar = _grammar(schema, vocabulary, JsonOptions(whitespace="flexible"))
    for indent in (None, 2, 8):
        assert accepts(grammar, vocabulary, json.dumps({"a": [1, [], {}]}, indent=indent))
    for text in ('{"a":  []}', '{"a":\n' + " " * 33 + "[]}", '{"a":\n\n[]}', ' {"a":[]}', '{"a":[]}\n'):
        assert not accepts(grammar, vocabulary, text)


@pytest.mark.parametrize(
    ("pattern", "allowed_gaps", "forbidden"),
    [
        ("[ ]?", ["", " "], ["  ", "\n"]),
        ("[\n\t ]*", ["", " ", "\n\t ", " " * 32], ["\r", " " * 33]),
        (r"\s?", ["", " ", "\n"], ["  ", "\xa0"]),
        (r"(\n {0,4})?", ["", "\n", "\n    "], [" ", "\n     "]),
    ],
)
def test_c1_blanks_are_those_of_a_pattern(
    pattern: str, allowed_gaps: list[str], forbidden: list[str], vocabulary: Vocabulary
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}
    options = JsonOptions(whitespace="flexible", whitespace_pattern=pattern)
    grammar = _grammar(schema, vocabulary, options)
    for gap in allowed_gaps + forbidden:
        for text in ('{%s"a":[]}', '{"a":%s[]}', '{"a":[]%s}', '{"a":[1,%s2]}'):
            assert accepts(grammar, vocabulary, text % gap) == (gap in allowed_gaps), (text, gap)
    assert grammar.min_tokens == _grammar(schema, vocabulary).min_tokens


@pytest.mark.parametrize("pattern", [" +", "(  )*", "(?<=a) ", "x"])
def test_c1_a_pattern_of_blanks_that_could_not_be_left_is_refused(pattern: str) -> None:
    options = JsonOptions(whitespace="flexible", whitespace_pattern=pattern)
    with pytest.raises(GrammarError, match="whitespace_pattern"):
        lower(Constraint.json_schema({}, options))


def test_c2_c9_nothing_but_the_end_follows_a_whole_value(vocabulary: Vocabulary) -> None:
    matcher = _matcher({"type": "object"}, vocabulary)
    assert feed(matcher, vocabulary, '{"a":1')
    legal = [vocabulary.token_bytes[token] for token in allowed(matcher, vocabulary)]
    assert [text for text in legal if text.startswith(b"}")] == [b"}"]
    assert feed(matcher, vocabulary, "}")
    assert allowed(matcher, vocabulary) == vocabulary.eos_ids


def test_c8_an_end_may_be_legal_and_so_may_be_more(vocabulary: Vocabulary) -> None:
    matcher = LlgGrammar(vocabulary, lower(Constraint(kind="regex", spec="[1]{1,3}"))).matcher()
    (one,) = vocabulary.encode("1")
    for count in range(3):
        assert one in allowed(matcher, vocabulary), count
        assert matcher.accept(one)
        assert vocabulary.eos_ids <= allowed(matcher, vocabulary)
    assert allowed(matcher, vocabulary) == vocabulary.eos_ids


def test_d9_forced_tokens_are_a_beginning_of_the_canonical_ones(vocabulary: Vocabulary) -> None:
    schema = {
        "type": "object",
        "properties": {"orderId": {"type": "integer"}, "orderName": {"type": "string"}},
        "required": ["orderId", "orderName"],
    }
    matcher = _matcher(schema, vocabulary)
    text = '{"orderId":7,"orderName":"x"}'
    for token in vocabulary.encode(text):
        forced = matcher.forced_tokens()
        if forced:
            assert forced[0] == token
        assert matcher.accept(token)
    assert matcher.is_exhausted


@pytest.mark.parametrize("kind", ["regex", "lark", "gbnf", "json_schema", "choice", "structural_tag"])
def test_f2_f4_what_is_too_large_or_has_nul_is_refused_by_its_size(kind: Any) -> None:
    with pytest.raises(GrammarError, match="NUL"):
        lower(Constraint(kind=kind, spec="a\0b"))
    with pytest.raises(GrammarError, match="more than 262144"):
        lower(Constraint(kind=kind, spec="x" * (1 << 19)))


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("json_schema", "[" * 5000 + "]" * 5000),
        ("structural_tag", '{"a":' * 5000 + "1" + "}" * 5000),
        ("gbnf", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
    ],
)
def test_f4_deep_nesting_is_refused_before_anything_recurs(kind: Any, spec: str) -> None:
    with pytest.raises(GrammarError, match="nested deeper"):
        lower(Constraint(kind=kind, spec=spec))


def test_f3_f6_large_bounds_and_lists_compile(vocabulary: Vocabulary) -> None:
    grammar = _grammar({"type": "string", "pattern": "^[^\\n\\r]{1,129}$"}, vocabulary)
    assert accepts(grammar, vocabulary, '"' + "x" * 129 + '"')
    assert not accepts(grammar, vocabulary, '"' + "x" * 130 + '"')
    words = [f"word{number}" for number in range(5000)]
    grammar = _grammar({"enum": words, "maxLength": 7}, vocabulary)
    assert accepts(grammar, vocabulary, '"word777"')
    assert not accepts(grammar, vocabulary, '"word4999"')


def test_f1_combinations_are_counted_before_they_are_made() -> None:
    branches = [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(30)]
    with pytest.raises(GrammarError, match="combinations"):
        lower(Constraint.json_schema({"allOf": branches}))
    assert MAX_MEANINGS < 1 << 20


def test_f1_the_order_of_the_resources_on_the_way_makes_no_new_places(vocabulary: Vocabulary) -> None:
    """The metaschema comes back to itself by way of each of its vocabularies."""
    draft = "https://json-schema.org/draft/2020-12/schema"
    constraint = Constraint.json_schema({"$schema": draft, "$ref": draft})
    rules = lower(constraint).sentences.rules  # type: ignore[union-attr]  # of a schema
    assert len(rules) < 200
    grammar = LlgGrammar(vocabulary, lower(constraint))
    for text in ("true", '{"type":"object"}', '{"$defs":{"a":{"not":{"items":{"minLength":0}}}}}'):
        assert accepts(grammar, vocabulary, text)
    for text in ("1", '{"type":1}', '{"$defs":{"a":{"not":{"items":{"minLength":-1}}}}}'):
        assert not accepts(grammar, vocabulary, text)


def test_f1_schemas_that_differ_in_descriptions_only_are_one_place(vocabulary: Vocabulary) -> None:
    """Settings that each hold all settings again, as configuration files have them."""
    names = [f"option{number}" for number in range(150)]
    again = {name: {"description": f"as {name}", "default": {}, "$ref": "#"} for name in names}
    constraint = Constraint.json_schema({"type": "object", "properties": {"n": {"type": "integer"}, **again}})
    lowered = lower(constraint)
    assert len(lowered.source) < 100_000
    grammar = LlgGrammar(vocabulary, lowered)
    assert accepts(grammar, vocabulary, '{"n":1,"option3":{"option7":{"n":2}},"option149":{}}')
    assert not accepts(grammar, vocabulary, '{"option3":{"option7":{"n":""}}}')


def test_f9_no_text_is_lost_behind_an_optional_part(vocabulary: Vocabulary) -> None:
    grammar = LlgGrammar(vocabulary, lower(Constraint(kind="regex", spec="a(bc)?d?")))
    for text in ("a", "abc", "ad", "abcd"):
        assert accepts(grammar, vocabulary, text)
    assert accepts(_grammar({"type": "number"}, vocabulary), vocabulary, "3.5")


def test_a_nullable_of_openapi_is_null_where_that_is_asked_for(vocabulary: Vocabulary) -> None:
    schema = {"type": "string", "nullable": True}
    assert not accepts(_grammar(schema, vocabulary), vocabulary, "null")
    assert accepts(_grammar(schema, vocabulary, JsonOptions(nullable=True)), vocabulary, "null")
