"""Constraints other than schemas: regular expressions, choices, grammars, tags, types of Outlines."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Any, Literal

import outlines.types
import pydantic
import pytest

from grammars.base import GrammarError
from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.outlines_types import constraint_of
from grammars.spec import Constraint
from grammars.vocab import Vocabulary
from tests.grammars.driver import accepts, feed

JSON_GBNF = r"""
root   ::= object   # a comment
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4})
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""

VERDICTS: list[tuple[str, str, list[str], list[str]]] = [
    ("regex", "(a|b)", ["a", "b"], ["ab", ""]),
    ("regex", r"^\d{3}-\d{4}$", ["123-4567"], ["123-456", "١٢٣-4567"]),
    ("regex", r"\w+", ["héllo_1"], ["a b"]),
    ("regex", r"(?=.*\d)[a-z0-9]{3}", ["a1b"], ["abc"]),
    ("regex", r"(?i)abc", ["ABC", "aBc"], ["abd"]),
    ("regex", r"\A[a-z]*\Z", ["abc", ""], ["A"]),
    (
        "choice",
        '["yes","no, really","日本","a\\n"]',
        ["yes", "no, really", "日本", "a\n"],
        ["ye", "yesno", "a"],
    ),
    ("lark", 'start: NUM ("+" NUM)*\nNUM: /[0-9]+/\n', ["1", "1+22+3"], ["1+", "+"]),
    ("gbnf", JSON_GBNF, ['{"a": [1, -2.5, {"b": null}], "c":"x\\n"}', "{}"], ['{"a": 1,}', "[1]", '{"a" 1}']),
    ("gbnf", 'root ::= item+\nitem ::= "- " [^\\r\\n]+ "\\n"', ["- milk\n- eggs\n"], ["milk\n", "- \n"]),
    ("gbnf", 'root ::= [a-z]+ "end"', ["blend", "blenxend"], ["end", "blen"]),
    (
        "gbnf",
        'root ::= "a" |\n  "b"\n  | "c" x\nx ::= "\\u00e9" "\\U0001F600"{2}',
        ["a", "b", "cé😀😀"],
        ["cé😀"],
    ),
    (
        "gbnf",
        "root ::= [0-9]{2,} ([.] [0-9]{1,2})? x*\nx ::= [a-c] | [^a-z\\]]",
        ["12", "123.4ab?"],
        ["1", "12z"],
    ),
]
TAGS: dict[str, Any] = {
    "type": "structural_tag",
    "triggers": ["<function="],
    "structures": [
        {
            "begin": "<function=weather>",
            "schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            "end": "</function>",
        },
        {
            "begin": "<function=add>",
            "schema": {"type": "array", "items": {"type": "integer"}},
            "end": "</function>",
        },
    ],
}


def _grammar(kind: Any, spec: str, vocabulary: Vocabulary) -> LlgGrammar:
    return LlgGrammar(vocabulary, lower(Constraint(kind=kind, spec=spec)))


@pytest.mark.parametrize(("kind", "spec", "valid", "invalid"), VERDICTS)
def test_verdicts(kind: str, spec: str, valid: list[str], invalid: list[str], vocabulary: Vocabulary) -> None:
    grammar = _grammar(kind, spec, vocabulary)
    assert [text for text in valid if not accepts(grammar, vocabulary, text)] == []
    assert [text for text in invalid if accepts(grammar, vocabulary, text)] == []


@pytest.mark.parametrize(
    ("kind", "spec", "complaint"),
    [
        ("regex", "", "empty one"),
        ("regex", "a(", "a group does not end"),
        ("lark", "start: x", "line 1, column 8: unknown name"),
        ("regex", "a(?!.*)b", "empty one"),
        ("choice", "[]", "empty one"),
        ("choice", '{"a":1}', "list of texts"),
        ("lark", "nonsense", "rror|xpected"),
        ("gbnf", 'x ::= "a"', "no rule root"),
        ("gbnf", "root ::= x", "no rule x"),
        ("gbnf", 'root ::= "a', "line 1: a text"),
        ("gbnf", 'root ::= "a"\nroot ::= "b"', "line 2.*twice"),
        ("gbnf", 'root ::= ("a"', "group"),
        ("gbnf", 'root ::= "a"{3,2}', "smaller number first"),
        ("gbnf", 'root ::= "\\q"', "escape"),
        ("structural_tag", "{}", "either a format"),
        (
            "structural_tag",
            '{"triggers":["<a"],"structures":[{"begin":"x","schema":{},"end":""}]}',
            "no trigger",
        ),
        ("structural_tag", '{"format":{"type":"regex","pattern":"("}}', "does not end"),
    ],
)
def test_what_is_malformed_is_refused(kind: str, spec: str, complaint: str, vocabulary: Vocabulary) -> None:
    with pytest.raises(GrammarError, match=complaint):
        _grammar(kind, spec, vocabulary)


def test_free_text_with_tags(vocabulary: Vocabulary) -> None:
    grammar = _grammar("structural_tag", json.dumps(TAGS), vocabulary)
    for text in (
        "No call at all, not even <functio",
        'First <function=weather>{"city":"Rome"}</function>, then <function=add>[1,2]</function>.',
    ):
        assert accepts(grammar, vocabulary, text)
    for text in (
        "<function=unknown>",
        '<function=weather>{"town":"Rome"}</function>',
        '<function=weather>{"city":"Rome"}',
        '<function=weather>{"city":"a","x":1,"x":2}</function>',
        "<function=add>[1.5]</function>",
    ):
        assert not accepts(grammar, vocabulary, text)


def test_a_tag_that_was_begun_is_ended_shortest(vocabulary: Vocabulary) -> None:
    grammar = _grammar("structural_tag", json.dumps(TAGS), vocabulary)
    assert grammar.min_tokens == 0
    for text, ending in (
        ("Some text", ""),
        ("Call <function=", "add>[]</function>"),
        ("Call <function=weather>", '{"city":""}</function>'),
        ('<function=weather>{"city":"Rome', '"}</function>'),
        ("<function=add>[1]</", "function>"),
    ):
        matcher = grammar.matcher()
        assert feed(matcher, vocabulary, text)
        tokens = matcher.shortest_close()
        assert tokens is not None
        assert b"".join(vocabulary.token_bytes[token] for token in tokens).decode() == ending


def _tag(begin: str, content: dict[str, Any], end: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


CLOSED = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
THINKING = _tag("<think>", {"type": "any_text"}, "</think>")
FORMATS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (
        {"type": "sequence", "elements": [THINKING, {"type": "json_schema", "json_schema": CLOSED}]},
        ['<think>hm < /think></think>{"a":1}'],
        ['{"a":1}', "<think></think>"],
    ),
    (
        {
            "type": "or",
            "elements": [{"type": "const_string", "value": "no"}, {"type": "regex", "pattern": "[0-9]+"}],
        },
        ["no", "42"],
        ["n", "no42"],
    ),
    (
        {
            "type": "triggered_tags",
            "triggers": ["<t"],
            "tags": [_tag("<t>", {"type": "any_text"}, "</t>")],
            "at_least_one": True,
            "stop_after_first": True,
        },
        ["x <t>abc</t>", "<t></t>"],
        ["abc", "x <t>abc</t> y", "<t>abc"],
    ),
    (
        {
            "type": "tags_with_separator",
            "tags": [_tag("<a>", {"type": "json_schema", "json_schema": CLOSED}, "</a>")],
            "separator": ", ",
            "at_least_one": True,
        },
        ['<a>{"a":1}</a>', '<a>{"a":1}</a>, <a>{"a":2}</a>'],
        ["", '<a>{"a":1}</a>,<a>{"a":2}</a>'],
    ),
    (
        _tag("[", {"type": "grammar", "grammar": 'root ::= [a-c]+ ("," [a-c]+)*'}, "]"),
        ["[a,bc]"],
        ["[]", "[d]"],
    ),
]


@pytest.mark.parametrize(("form", "valid", "invalid"), FORMATS)
def test_formats(form: dict[str, Any], valid: list[str], invalid: list[str], vocabulary: Vocabulary) -> None:
    spec = json.dumps({"type": "structural_tag", "format": form})
    grammar = _grammar("structural_tag", spec, vocabulary)
    assert [text for text in valid if not accepts(grammar, vocabulary, text)] == []
    assert [text for text in invalid if accepts(grammar, vocabulary, text)] == []


def test_names_that_could_repeat_are_refused_where_nobody_watches_them() -> None:
    spec = {"format": _tag("<a>", {"type": "json_schema", "json_schema": {"type": "object"}}, "</a>")}
    with pytest.raises(GrammarError, match="additionalProperties"):
        lower(Constraint(kind="structural_tag", spec=json.dumps(spec)))


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=10)
    age: int | None


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Place:
    x: int


@pytest.mark.parametrize(
    ("output_type", "valid", "invalid"),
    [
        (Person, '{"name":"Ada","age":null}', '{"name":"Ada Lovelace","age":1}'),
        (Place, '{"x":1}', '{"x":"1"}'),
        (Literal["a", "b"], "b", "c"),
        (Colour, "red", "green"),
        (int, "-12", "1.5"),
        (list[int], "[1, 2]", "[a]"),
        (int | Literal["none"], "none", "no"),
        (outlines.types.Regex("[0-9]{3}"), "123", "12"),
        (outlines.types.email, "a@b.co", "a"),
        (outlines.types.JsonSchema('{"type":"integer"}'), "7", "x"),
        (outlines.types.CFG('start: "a"+'), "aaa", "b"),
    ],
)
def test_types_of_outlines(output_type: Any, valid: str, invalid: str, vocabulary: Vocabulary) -> None:
    grammar = LlgGrammar(vocabulary, lower(constraint_of(output_type)))
    assert accepts(grammar, vocabulary, valid)
    assert not accepts(grammar, vocabulary, invalid)


def test_what_outlines_does_not_know_is_refused() -> None:
    with pytest.raises(GrammarError, match="not an output type"):
        constraint_of(object())


@pytest.mark.parametrize("character", ["é", "ࠀ", "日", "퟿", "😀", "\U0010ffff"])
def test_free_text_between_tags_ends_with_a_whole_character(character: str, vocabulary: Vocabulary) -> None:
    matcher = _grammar("structural_tag", json.dumps(TAGS), vocabulary).matcher()
    single = {text: token for token, text in enumerate(vocabulary.token_bytes) if len(text) == 1}
    data = character.encode()
    for end in range(1, len(data)):
        token = single.get(data[end - 1 : end])
        assert token is not None
        assert matcher.accept(token)
        assert not matcher.is_complete
        close = matcher.shortest_close()
        assert close is not None
        rest = b"".join(vocabulary.token_bytes[token] for token in close)
        assert len((data[:end] + rest).decode()) == 1
        ended = matcher.fork()
        assert all(map(ended.accept, close))
        assert ended.is_complete
