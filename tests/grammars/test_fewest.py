"""The fewest tokens of a whole text, against all sequences of tokens that a matcher takes."""

from __future__ import annotations

import json
import random
from itertools import product
from typing import Any

import numpy as np
import pytest

from grammars import few_tokens as limits
from grammars.base import Grammar, Matcher
from grammars.compiler import Compiler
from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.regular.ast import NOTHING
from grammars.regular.derivative import derive_text
from grammars.regular.patterns import full_language
from grammars.spec import Constraint, JsonOptions
from grammars.token_table import told_apart
from grammars.vocab import Vocabulary
from tests.grammars.driver import allowed, compiled
from tests.grammars.test_generation import check_valid
from tests.grammars.walks import walk

BYTES = [bytes((byte,)) for byte in b'ab01-.,:"[]{}nul\\ e']
MERGES = [
    "ab",
    "ba",
    "aab",
    '"a',
    'b"',
    'ab"',
    '","',
    '":',
    '":"',
    '"]',
    '["',
    '{"',
    '"}',
    "[]",
    "00",
    "10",
    "ul",
    "l]",
    '""',
]
SCHEMAS: list[Any] = [
    {"type": "string", "minLength": 3},
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": "string", "pattern": "^(ab)+$", "minLength": 4},
    {"type": "string", "pattern": "^(a|ba){2}b$"},
    {"enum": ["abab", "bbb", "aaab"]},
    {"type": "integer", "minimum": 100},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 0.01},
    {"type": "integer", "multipleOf": 10, "minimum": 1},
    {"type": "array", "items": {"type": "null"}, "minItems": 1},
    {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 2, "maxItems": 3},
    {"type": "array", "items": {"enum": ["a", "b", "ab"]}, "uniqueItems": True, "minItems": 2},
    {"type": "object", "properties": {"a": {"type": "string", "minLength": 2}}, "required": ["a"]},
    {
        "type": "object",
        "properties": {"ab": {"enum": ["b", 0, []]}},
        "required": ["ab"],
        "additionalProperties": False,
    },
    {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
    {"anyOf": [{"type": "string", "minLength": 4}, {"type": "array", "minItems": 1}]},
]
MOST_SEQUENCES = 400
REGEXES = ["(ab|ba){2}", "a{5}|b{3}", "[ab]{4}(01|10)", "a*b[01]{2}", "(a|aa|aab)b"]

CONSTRAINTS = [
    *map(Constraint.json_schema, SCHEMAS),
    *(Constraint(kind="regex", spec=regex) for regex in REGEXES),
    Constraint(kind="gbnf", spec='root ::= "[" root "]" | [ab]{3} | "-" root'),
    Constraint.choice(["abab", "ba01", "bbb"]),
]


def tiny(seed: int) -> Vocabulary:
    """A vocabulary of some bytes and some of their merges."""
    rng = random.Random(seed)
    merges = [text.encode() for text in MERGES if rng.random() < 0.6]
    texts = [b"", *BYTES, *merges]
    ids = {text: token_id for token_id, text in enumerate(texts) if text}

    def encode(text: str) -> list[int]:
        tokens, data = [], text.encode()
        while data:
            size = max((n for n in range(1, 4) if data[:n] in ids), default=0)
            if not size:
                break
            tokens.append(ids[data[:size]])
            data = data[size:]
        return tokens

    return Vocabulary(texts, frozenset({0}), frozenset(), len(texts), encode)


def shorter(grammar: Grammar, vocabulary: Vocabulary, length: int) -> bool | None:
    """Whether fewer than so many tokens end whole; None where there are too many sequences to try them."""
    layer: dict[bytes, Matcher] = {b"": grammar.matcher()}
    for left in reversed(range(length)):
        if any(matcher.is_complete for matcher in layer.values()):
            return True
        following: dict[bytes, Matcher] = {}
        for text, matcher in layer.items():
            for token in allowed(matcher, vocabulary) if left else ():
                whole = text + vocabulary.token_bytes[token]
                if whole not in following:
                    following[whole] = matcher.fork()
                    assert following[whole].accept(token)
        if len(following) > MOST_SEQUENCES:
            return None
        layer = following
    return False


@pytest.mark.parametrize("seed", range(4))
def test_no_sequence_of_tokens_is_shorter(seed: int) -> None:
    vocabulary = tiny(seed)
    undecided = 0
    for constraint in CONSTRAINTS:
        grammar = compiled(constraint, vocabulary)
        assert grammar.min_tokens is not None
        found = shorter(grammar, vocabulary, grammar.min_tokens)
        assert not found, constraint.spec
        undecided += found is None
    assert undecided < len(CONSTRAINTS) / 4


@pytest.mark.parametrize("seed", range(2))
def test_the_fewest_tokens_are_enough(seed: int) -> None:
    """As is one more, wherever the model would lead."""
    vocabulary = tiny(seed)
    for constraint in CONSTRAINTS:
        grammar = compiled(constraint, vocabulary)
        assert grammar.min_tokens is not None
        for more in (0, 1, 3):
            text = walk(grammar, vocabulary, random.Random(seed), grammar.min_tokens + more)
            if constraint.kind == "json_schema":
                check_valid(json.loads(constraint.spec), text.decode())


@pytest.mark.parametrize(
    ("constraint", "least"),
    [
        (Constraint.json_schema({"type": "string", "minLength": 3}), 2),
        (Constraint.json_schema({"type": "string", "minLength": 40}), 3),
        (Constraint.json_schema({"type": "string", "minLength": 30, "maxLength": 60}), 3),
        (Constraint.json_schema({"type": "string", "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}$"}), 6),
        (Constraint.json_schema({"type": "integer", "minimum": 1000}), 4),
        (Constraint.json_schema({"type": "string", "format": "date"}), 12),
        (Constraint(kind="regex", spec="[^a]{12}"), 1),
        (Constraint(kind="regex", spec=".{20,30}"), 1),
        (Constraint(kind="regex", spec="[a-z]{8}"), 1),
        (Constraint(kind="regex", spec="[0-9]{4}-[0-9]{2}"), 7),
        (Constraint(kind="gbnf", spec='root ::= "(" root ")" | [a-z]{6} | "x" root'), 1),
        (Constraint(kind="lark", spec='start: "x" start | A\nA: /[a-z]{6}/'), 1),
    ],
)
def test_the_fewest_of_a_real_vocabulary(
    constraint: Constraint, least: int, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_MOST_S", 60.0)  # however slow the machine
    grammar = compiled(constraint, vocabulary)
    assert grammar.min_tokens == least
    for more in (0, 1, 2):
        walk(grammar, vocabulary, random.Random(more), least + more)


@pytest.mark.parametrize(
    ("constraint", "least"),
    [
        (Constraint.json_schema({"type": "string", "minLength": 3}), 2),
        (Constraint(kind="regex", spec="[a-z]{8}"), 1),
    ],
)
async def test_a_worker_finds_them(
    constraint: Constraint, least: int, compiler: Compiler, vocabulary: Vocabulary
) -> None:
    """Its tokenizer is another than the model's."""
    grammar = await compiler.compile(constraint)
    assert grammar.min_tokens == least
    walk(grammar, vocabulary, random.Random(0), least)


def test_what_is_too_much_to_search_has_values_of_few_tokens(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search ends at its limit, and what is known without it is an upper bound."""
    monkeypatch.setattr(limits, "_MOST_S_A_TEXT", 60.0)
    limits._fewest.cache_clear()
    names = [f"p{number}" for number in range(12)]
    properties = {name: {"type": "string", "format": "uuid"} for name in names}
    schema = {"type": "object", "properties": properties, "required": names}
    lowered = lower(Constraint.json_schema(schema))
    shortest, few = LlgGrammar(vocabulary, lowered), compiled(Constraint.json_schema(schema), vocabulary)
    assert shortest.min_tokens is not None
    assert few.min_tokens is not None
    assert few.min_tokens < shortest.min_tokens / 2
    check_valid(schema, walk(few, vocabulary, random.Random(0), few.min_tokens).decode())

    small = Constraint.json_schema(
        {"type": "array", "items": {"type": "string", "minLength": 4}, "minItems": 2}
    )
    exact = compiled(small, vocabulary).min_tokens
    monkeypatch.setattr(limits, "_MOST_WORK", 100)
    monkeypatch.setattr(limits, "_MOST_WORK_A_TEXT", 100)
    limits._fewest.cache_clear()
    bound = compiled(small, vocabulary)
    limits._fewest.cache_clear()
    assert exact is not None
    assert bound.min_tokens is not None
    assert exact <= bound.min_tokens
    walk(bound, vocabulary, random.Random(0), bound.min_tokens)


def test_blanks_between_tokens_take_none(vocabulary: Vocabulary) -> None:
    schema = {"type": "array", "items": {"type": "string", "minLength": 2}, "minItems": 2}
    compact, flexible = (
        compiled(Constraint.json_schema(schema, JsonOptions(whitespace=whitespace)), vocabulary).min_tokens
        for whitespace in ("compact", "flexible")
    )
    assert compact is not None
    assert flexible is not None
    assert flexible <= compact


def test_data_is_split_into_the_fewest_tokens() -> None:
    spellings = tiny(1).spellings
    tokens = tiny(1).texts
    for text in map(b"".join, product([b"a", b"b", b'"', b":"], repeat=5)):
        split = spellings.fewest(text)
        assert split is not None
        assert b"".join(tokens[token] for token in split) == text
        starts = {0: 0}
        for end in range(1, len(text) + 1):
            starts[end] = min(starts[start] + 1 for start in range(end) if text[start:end] in tokens)
        assert len(split) == starts[len(text)]
    assert spellings.fewest(b"a?") is None


@pytest.mark.parametrize("pattern", ["[a-z]{3,5}[0-9]", "(the|[A-Z]+)-x*", ".{2,4}", "[^e]*e?"])
def test_tokens_that_are_left_out_are_like_others(pattern: str, vocabulary: Vocabulary) -> None:
    language = full_language(pattern)
    table = vocabulary.table
    classes = told_apart((language,))
    assert classes is not None
    unlike = table.unlike(classes)

    def after(token: int) -> Any:
        return derive_text(language, vocabulary.token_bytes[token].decode())

    ordinary = np.flatnonzero(table.ordinary)
    kept = {after(token) for token in ordinary[unlike[ordinary]].tolist()}
    assert len(kept) < len(ordinary) / 10
    rng = random.Random(0)
    assert {after(token) for token in rng.sample(ordinary.tolist(), 2000)} <= kept | {NOTHING}
