"""Lark grammars: where their rules can be read, a text is led to an end within its budget."""

from __future__ import annotations

import random

import pytest

from grammars.base import GrammarError
from grammars.lark_rules import lark_rules
from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.spec import Constraint
from grammars.vocab import Vocabulary
from tests.grammars.driver import reads
from tests.grammars.walks import walk

SUMS = r"""
?start: sum "=" NUMBER -> total
sum: sum ("+" | "-") term   // begins with itself
    | term
term: NUMBER | "(" sum ")" | "-" term
NUMBER: DIGIT{1,3} ("." DIGIT~2)?
DIGIT: /[0-9]/
%ignore " "
"""
JSON = r"""
start: value
value: object | array | STRING | NUMBER | "true" | "null"
object: "{" [pair ("," pair)*] "}"
pair: STRING ":" value
array: "[" (value ("," value)*)? "]"
STRING: /"([^"\\\x00-\x1f]|\\["\\\/bfnrt])*"/
NUMBER: /-?(0|[1-9][0-9]*)/
"""


@pytest.mark.parametrize(
    ("source", "close", "texts"),
    [
        (SUMS, "0=0", ["1 + 2-3 = 0", "-(4.50+(7))=12", "(((1)))= 9"]),
        (JSON, "1", ['{"a":[1,{},null]}', "[]"]),
        ('start: "<a>" start "</a>" | /[a-z]{3,}/', "aaa", ["<a><a>abc</a></a>"]),
    ],
)
def test_a_text_is_whole_when_its_budget_ends(
    source: str, close: str, texts: list[str], vocabulary: Vocabulary
) -> None:
    grammar = LlgGrammar(vocabulary, lower(Constraint(kind="lark", spec=source)))
    assert all(reads(grammar, vocabulary, text) for text in texts)
    tokens = grammar.matcher().shortest_close()
    assert tokens is not None
    assert grammar.min_tokens == len(tokens)
    assert b"".join(vocabulary.token_bytes[token] for token in tokens).decode() == close
    for more in range(8):
        walk(grammar, vocabulary, random.Random(more), len(tokens) + more)


@pytest.mark.parametrize(
    "source",
    [
        '%import common.INT\nstart: INT ("," INT)*',
        'start: "abc"i',
        "start: /a/s",
        'start[capture]: "a"',
        'start: a\na: b "x" | "y"\nb: a "z" | "w"',
    ],
)
def test_of_more_than_rules_nothing_is_known(source: str, vocabulary: Vocabulary) -> None:
    """Rules that begin with one another are read, but not followed."""
    grammar = LlgGrammar(vocabulary, lower(Constraint(kind="lark", spec=source)))
    assert grammar.min_tokens is None
    assert lark_rules(source) is None or "b: a" in source


def test_an_end_that_the_engine_does_not_take_is_none(vocabulary: Vocabulary) -> None:
    """It reads the longest lexeme, so that `ifa` is a name, whatever the rules say."""
    source = 'start: "if" NAME | NAME "==" NUMBER\nNAME: /[a-z]+/\nNUMBER: /[0-9]+/'
    grammar = LlgGrammar(vocabulary, lower(Constraint(kind="lark", spec=source)))
    assert not reads(grammar, vocabulary, "ifa")
    assert grammar.min_tokens is None
    matcher = grammar.matcher()
    assert all(matcher.accept_within(token, 0) == token for token in vocabulary.encode("ifa==1"))
    assert matcher.is_complete


@pytest.mark.parametrize("source", ['start: "a" ->', 'start: "a" -> |', "start: (", 'start: "a"{'])
def test_what_is_no_grammar_is_left_to_the_engine_to_refuse(source: str, vocabulary: Vocabulary) -> None:
    assert lark_rules(source) is None
    with pytest.raises(GrammarError):
        LlgGrammar(vocabulary, lower(Constraint(kind="lark", spec=source)))
