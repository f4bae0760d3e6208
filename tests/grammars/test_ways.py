"""Ways to the end that sequences share, against ends that are looked for anew at every place."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from grammars.base import GrammarError
from grammars.llg import LlgGrammar
from grammars.llg_matcher import LlgMatcher
from grammars.lower import lower
from grammars.rows import RowCache
from grammars.spec import Constraint, JsonOptions
from grammars.states import State, States, Step, note_dead_end, note_end, note_way
from grammars.tracking import NoCloseError
from grammars.vocab import Vocabulary
from tests.grammars.driver import compiled
from tests.grammars.random_schemas import Schemas
from tests.grammars.test_generation import Generator, check_valid
from tests.grammars.test_masks import OTHERS, Counting
from tests.grammars.walks import walk

LIST = {"type": "array", "minItems": 3, "items": {"type": "string", "minLength": 4}}
NESTED = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}},
    "required": ["a"],
}


def slow_close(matcher: LlgMatcher, vocabulary: Vocabulary) -> list[int] | None:
    """Tokens of a shortest end, spelled out by a copy of the engine from here on."""
    states = matcher._states
    assert states is not None
    try:
        text = states.close(matcher._path[-1])
    except NoCloseError:
        return None
    engine, tokens = matcher._engine().deep_copy(), []
    while text:
        forced = engine.compute_ff_tokens()
        token = forced[0] if forced else vocabulary.spellings.longest(text)
        if token is None or not text.startswith(vocabulary.token_bytes[token]):
            return None
        if engine.try_consume_tokens([token]) != 1:
            return None
        tokens.append(token)
        text = text[len(vocabulary.token_bytes[token]) :]
    return tokens


class Comparing(Generator):
    """Draws output, and compares the way from every place with the slow one."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        super().__init__(vocabulary, seed)
        self.places = self.longer = 0

    def _check(self, matcher: Any, bits: Any) -> None:
        way, slow = matcher.shortest_close(), slow_close(matcher, self._vocabulary)
        # In half a character, only a way that was found before it leads on.
        assert way is not None or slow is None
        if way is not None:
            copy = matcher.fork()
            assert all(map(copy.accept, way))
            assert copy.is_complete
        if way is not None and slow is not None:
            self.places += 1
            self.longer += len(way) > len(slow)
            state = matcher._path[-1]
            assert len(way) <= state.left <= len(matcher._states.close(state))


@pytest.mark.parametrize("seed", range(6))
def test_ways_of_random_schemas_are_legal_short_and_enough(seed: int, vocabulary: Vocabulary) -> None:
    schemas, generator = Schemas(seed + 300), Comparing(vocabulary, seed)
    for number in range(14):
        schema: Any = (LIST, NESTED)[number] if number < 2 else schemas.document()
        options = JsonOptions(whitespace=schemas.rng.choice(["compact", "flexible"]))
        try:
            lowered = lower(Constraint.json_schema(schema, options))
            grammar = LlgGrammar(vocabulary, lowered, rows=RowCache(1 << 24))
        except GrammarError:
            continue
        assert grammar.min_tokens is not None
        for budget in (0, schemas.rng.randrange(12), schemas.rng.randrange(60)):
            matcher = grammar.matcher()
            text = generator.generate(matcher, grammar.min_tokens + budget)
            assert matcher.is_complete, (schema, text)
            check_valid(schema, text)
    assert generator.places > 100
    # A shared end may be spelled a little otherwise than one that is spelled from here on.
    assert generator.longer <= generator.places / 20


@pytest.mark.parametrize("constraint", OTHERS, ids=lambda constraint: constraint.kind)
def test_so_are_those_of_other_constraints(constraint: Constraint, vocabulary: Vocabulary) -> None:
    grammar = LlgGrammar(vocabulary, lower(constraint), rows=RowCache(1 << 24))
    if grammar.min_tokens is None:
        return
    generator = Comparing(vocabulary, 1)
    for budget in (0, 5, 20, 40):
        matcher = grammar.matcher()
        generator.generate(matcher, grammar.min_tokens + budget)
        assert matcher.is_complete
    assert generator.places > 10
    assert not generator.longer


class Asked(LlgGrammar):
    """Counts how often an end is looked for."""

    def __init__(self, vocabulary: Vocabulary, schema: Any) -> None:
        super().__init__(vocabulary, lower(Constraint.json_schema(schema)))
        assert self.states is not None
        self.asked = 0
        find = self.states.close

        def close(state: State[Any]) -> bytes:
            self.asked += 1
            return find(state)

        setattr(self.states, "close", close)  # noqa: B010


def test_an_end_is_looked_for_once_a_place(vocabulary: Vocabulary) -> None:
    schema = {"type": "array", "minItems": 16, "items": {"type": "string", "minLength": 6}}
    grammar = Asked(vocabulary, schema)
    assert grammar.min_tokens is not None
    text = json.dumps(["some words that go on", "and more of them"] * 8, separators=(",", ":"))
    tokens = vocabulary.encode(text)
    asked = []
    for _ in range(3):
        matcher = grammar.matcher()
        for number, token in enumerate(tokens[:-1]):
            # So few that it is weighed at every token.
            left = max(grammar.min_tokens, len(tokens)) - number
            assert matcher.accept_within(token, left) == token
        asked.append(grammar.asked)
    assert 0 < asked[0] < len(tokens)
    assert asked == asked[:1] * 3


def test_a_longer_way_never_takes_the_place_of_a_known_one() -> None:
    states = States(Counting())
    a, b, c = states.start, *(State(point, 0.0) for point in (1, 2))
    note_end(c)
    note_way([(a, Step(1, b"a", b)), (b, Step(2, b"b", c))])
    assert (a.left, b.left, c.left, list(a.way())) == (2, 1, 0, [1, 2])
    note_way([(b, Step(3, b"c", a))])
    assert (b.left, list(a.way())) == (1, [1, 2])
    note_way([(a, Step(4, b"d", c))])
    assert (a.left, list(a.way())) == (1, [4])
    # Its place may have been forgotten: the way goes through the state that it was found through.
    assert states.after(a, b"d") is c
    note_dead_end(b)
    assert b.left == math.inf


def test_random_budgets_end_whole_under_the_load_of_others(vocabulary: Vocabulary) -> None:
    """Sequences of one grammar take turns, with places forgotten in between."""
    rng = random.Random(5)
    grammar = LlgGrammar(vocabulary, lower(Constraint.json_schema(NESTED)), rows=RowCache(1 << 24))
    assert grammar.min_tokens is not None
    assert grammar.states is not None
    generator = Generator(vocabulary, 5)
    running = [(grammar.matcher(), grammar.min_tokens + rng.randrange(50)) for _ in range(12)]
    while running:
        matcher, budget = running.pop(rng.randrange(len(running)))
        if rng.random() < 0.1:
            grammar.states._known.clear()
            grammar.states._steps.clear()
        taken = generator.draw(matcher)
        assert matcher.accept_within(taken, budget - 1) is not None
        if matcher.is_terminated:
            continue
        assert budget > 1 or matcher.is_complete
        if budget > 1:
            running.append((matcher, budget - 1))


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (Constraint.choice(["xqzj", "zzzzq", "information"]), "information"),
        (Constraint(kind="regex", spec="xq[0-9]zj|because"), "because"),
        (Constraint.json_schema({"enum": [[1, 2], "xqzj", "international"]}), '"international"'),
        (
            Constraint.json_schema(
                {
                    "type": "object",
                    "properties": {"level": {"enum": ["DXXQ", "WARN", "INFO"]}, "n": {"enum": [123, 7]}},
                    "required": ["level", "n"],
                }
            ),
            '{"level":"INFO","n":7}',
        ),
    ],
)
def test_the_fewest_tokens_of_few_texts(constraint: Constraint, text: str, vocabulary: Vocabulary) -> None:
    """A longer text may take fewer than the shortest."""
    tokens = LlgGrammar(vocabulary, lower(constraint)).matcher().shortest_close()
    assert tokens is not None
    grammar = compiled(constraint, vocabulary)
    least = grammar.min_tokens
    assert least is not None
    assert least < len(tokens)
    close = grammar.matcher().shortest_close()
    assert close is not None
    assert b"".join(vocabulary.token_bytes[token] for token in close).decode() == text
    assert len(close) == least
    for seed in range(4):
        for more in (0, 1, 2, 4):
            walk(grammar, vocabulary, random.Random(seed), least + more)
