"""Grammars that recur: every derivation is accepted, and what is accepted has a derivation."""

from __future__ import annotations

import random
from itertools import product

import pytest

from grammars.gbnf import Choice, Node, Ref, Seq, Times, parse_gbnf
from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.regular.ast import Regex
from grammars.regular.derivative import classes, derive, matches
from grammars.regular.questions import is_empty
from grammars.spec import Constraint
from grammars.vocab import Vocabulary
from tests.grammars.driver import reads
from tests.grammars.walks import walk

LITERALS = ['"a"', '"b"', '"ab"', "[ab]", '"c"', "[a-c]", '"ba"', '"("', '")"']


class Grammars:
    """Draws small grammars whose lexemes get into each other's way, and texts for them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def grammar(self) -> str:
        root = f"root ::= {self._node(2)} x\n"
        return (
            root + f'x ::= "(" {self._node(2)} ")" | {self._node(1)} y\ny ::= "c" x "c" | {self._node(1)}\n'
        )

    def _node(self, depth: int) -> str:
        kind = self.rng.random()
        if depth == 0 or kind < 0.35:
            return self.rng.choice(LITERALS)
        if kind < 0.55:
            return f"{self._node(depth - 1)} {self._node(depth - 1)}"
        if kind < 0.75:
            return f"({self._node(depth - 1)} | {self._node(depth - 1)})"
        if kind < 0.9:
            return f"({self._node(depth - 1)})" + self.rng.choice("*+?")
        return self.rng.choice("xy")

    def text(self, rules: dict[str, Node], node: Node, depth: int = 0) -> str:
        """A random derivation (RecursionError: it does not come to an end)."""
        if depth > 25:
            raise RecursionError
        match node:
            case Ref(name=name):
                return self.text(rules, rules[name], depth + 1)
            case Seq(parts=parts):
                return "".join(self.text(rules, part, depth + 1) for part in parts)
            case Choice(options=options):
                return self.text(rules, self.rng.choice(options), depth + 1)
            case Times(inner=inner, low=low, high=high):
                count = self.rng.randint(low, low + 2 if high is None else min(low + 2, high))
                return "".join(self.text(rules, inner, depth + 1) for _ in range(count))
            case Regex():
                return self._word(node)
        raise TypeError(node)

    def _word(self, language: Regex) -> str:
        text = ""
        while not (language.nullable and self.rng.random() < 0.5):
            options = [r for r in classes(language) if not is_empty(derive(language, r[0][0]))]
            if not options:
                break
            code = self.rng.choice(options)[0][0]
            text, language = text + chr(code), derive(language, code)
        return text


def _ends(rules: dict[str, Node], node: Node, text: str, start: int, depth: int = 0) -> set[int]:
    """Where a text of `node` that begins at `start` may end; to a depth no short text exceeds."""
    if depth > 40:
        return set()
    match node:
        case Ref(name=name):
            return _ends(rules, rules[name], text, start, depth + 1)
        case Seq(parts=parts):
            ends = {start}
            for part in parts:
                ends = {end for at in ends for end in _ends(rules, part, text, at, depth + 1)}
            return ends
        case Choice(options=options):
            return {end for option in options for end in _ends(rules, option, text, start, depth + 1)}
        case Times(inner=inner, low=low, high=high):
            found = {start} if low == 0 else set()
            ends = {start}
            for count in range(1, min(high or 9, 9) + 1):
                ends = {end for at in ends for end in _ends(rules, inner, text, at, depth + 1)}
                found |= ends if count >= low else set()
            return found
        case Regex():
            return {end for end in range(start, len(text) + 1) if matches(node, text[start:end])}
    raise TypeError(node)


@pytest.mark.parametrize("seed", range(2))
def test_a_grammar_that_recurs_means_what_it_says(seed: int, vocabulary: Vocabulary) -> None:
    grammars = Grammars(seed)
    derived = 0
    for _ in range(15):
        source = grammars.grammar()
        rules = parse_gbnf(source)
        grammar = LlgGrammar(vocabulary, lower(Constraint(kind="gbnf", spec=source)))
        for _ in range(8):
            try:
                text = grammars.text(rules, rules["root"])
            except RecursionError:
                continue
            derived += 1
            assert reads(grammar, vocabulary, text), (source, text)
        for _ in range(8):
            text = "".join(grammars.rng.choices("abc()", k=grammars.rng.randint(1, 6)))
            expected = len(text) in _ends(rules, rules["root"], text, 0)
            assert reads(grammar, vocabulary, text) == expected, (source, text)
    assert derived > 60


@pytest.mark.parametrize("seed", range(2))
def test_a_text_of_a_grammar_that_recurs_is_whole_when_its_budget_ends(
    seed: int, vocabulary: Vocabulary
) -> None:
    grammars = Grammars(seed)
    for _ in range(8):
        source = grammars.grammar()
        rules = parse_gbnf(source)
        grammar = LlgGrammar(vocabulary, lower(Constraint(kind="gbnf", spec=source)))
        assert grammar.min_tokens is not None
        close = grammar.matcher().shortest_close()
        assert close is not None
        shortest = b"".join(vocabulary.token_bytes[token] for token in close).decode()
        assert len(shortest) in _ends(rules, rules["root"], shortest, 0)
        for size in range(min(len(shortest), 4)):
            for shorter in map("".join, product("abc()", repeat=size)):
                assert size not in _ends(rules, rules["root"], shorter, 0)
        for more in (0, 1, 3, 6):
            walk(grammar, vocabulary, grammars.rng, grammar.min_tokens + more)


@pytest.mark.parametrize(
    ("source", "close"),
    [
        ('root ::= "<" root ">" root | "x"', "x"),
        ('root ::= sum "=" [0-9]+\nsum ::= sum "+" term | term\nterm ::= [0-9]+ | "(" sum ")"', "0=0"),
        ('root ::= "a" root "b" | "a" | root root', "a"),
        ('root ::= x{3} root* "."\nx ::= "(" x ")" | "y"', "yyy."),
        ('root ::= x\nx ::= y "a" | "é"\ny ::= x "b" | "cc"', None),
    ],
)
def test_the_shortest_end_of_a_grammar_that_recurs(
    source: str, close: str | None, vocabulary: Vocabulary
) -> None:
    """Rules that begin with one another are not followed."""
    grammar = LlgGrammar(vocabulary, lower(Constraint(kind="gbnf", spec=source)))
    if close is None:
        assert grammar.min_tokens is None
        assert reads(grammar, vocabulary, "ccaba")
        assert reads(grammar, vocabulary, "éba")
        return
    tokens = grammar.matcher().shortest_close()
    assert tokens is not None
    assert grammar.min_tokens == len(tokens)
    assert b"".join(vocabulary.token_bytes[token] for token in tokens).decode() == close
    for more in range(6):
        walk(grammar, vocabulary, random.Random(more), grammar.min_tokens + more)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        # Each bracket may be the whole of a factor, a term or a sum: four ways more for each that is open.
        (
            'root ::= sum\nsum ::= term | term "+" sum\nterm ::= factor | factor "*" term\n'
            'factor ::= "(" sum ")" | [0-9]+',
            "(1+2*3)*(4+((((((((5))))))))+6)",
        ),
        ('root ::= s\ns ::= "a" s | "a" s "b" | "a" s s | ""', "a" * 20 + "b"),
        ('root ::= "a" root "a" | "b" root "b" | "a" | "b" | ""', "abbaabaabba" * 3),
    ],
)
def test_however_many_ways_there_are_a_text_goes_on_as_long_as_its_budget(
    source: str, text: str, vocabulary: Vocabulary
) -> None:
    grammar = LlgGrammar(vocabulary, lower(Constraint(kind="gbnf", spec=source)))
    matcher = grammar.matcher()
    tokens = vocabulary.encode(text)
    for place, token in enumerate(tokens):
        assert matcher.accept_within(token, 100 - place) == token
    assert matcher.is_complete
    for more in range(4):
        walk(grammar, vocabulary, random.Random(more), 10 + more)


def test_a_way_to_the_end_that_takes_many_steps_is_not_followed() -> None:
    """Whoever computes them, others would wait."""
    options = " | ".join(f'"a" y{i}' for i in range(90))
    rules = "\n".join(f'y{i} ::= "" | "(" root y{i} ")"' for i in range(90))
    assert lower(_wide(8, options, rules)).sentences is not None
    assert lower(_wide(900, options, rules)).sentences is None
    for size, kept in ((256, True), (257, False)):
        # No place of a Lark grammar is known to be another, so each has its own way.
        lark = Constraint(kind="lark", spec=f'start: "x"{{{size}}} | "(" start ")"')
        assert (lower(lark).sentences is not None) == kept


def _wide(size: int, options: str, rules: str) -> Constraint:
    source = f'root ::= x{{{size}}} | "(" root ")"\nx ::= {options}\n{rules}'
    return Constraint(kind="gbnf", spec=source)
