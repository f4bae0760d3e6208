"""What comes out when tokens are drawn from the masks: whole, valid, within any budget."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from grammars.base import GrammarError, Matcher
from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.spec import Constraint, JsonOptions
from grammars.vocab import Vocabulary
from tests.grammars.driver import mask_of
from tests.grammars.random_schemas import Schemas

CASES = Path(__file__).parents[1] / "cases"
VALIDATORS = {
    "http://json-schema.org/draft-04/schema#": jsonschema.Draft4Validator,
    "http://json-schema.org/draft-07/schema#": jsonschema.Draft7Validator,
}


class Generator:
    """Draws allowed tokens at random, structure more often than its share, and checks each mask."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self._vocabulary = vocabulary
        self._rng = random.Random(seed)
        self._structural = np.zeros(vocabulary.width, np.bool_)
        for token_id, text in enumerate(vocabulary.token_bytes):
            self._structural[token_id] = any(byte in text for byte in b'"{}[]:,0123456789')
        self._structural[list(vocabulary.eos_ids)] = True

    def generate(self, matcher: Matcher, budget: int) -> str:
        """The text of at most `budget` tokens."""
        tokens: list[int] = []
        while len(tokens) < budget and not matcher.is_terminated:
            taken = matcher.accept_within(self.draw(matcher), budget - len(tokens) - 1)
            assert taken is not None
            if taken not in self._vocabulary.eos_ids:
                tokens.append(taken)
        return b"".join(self._vocabulary.token_bytes[token] for token in tokens).decode()

    def draw(self, matcher: Matcher) -> int:
        """An allowed token."""
        row = mask_of(matcher, self._vocabulary)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little").astype(np.bool_)[: self._vocabulary.width]
        assert bits.any()
        self._check(matcher, bits)
        structural = np.flatnonzero(bits & self._structural)
        allowed = np.flatnonzero(bits)
        return int(self._rng.choice(structural if len(structural) and self._rng.random() < 0.6 else allowed))

    def _check(self, matcher: Matcher, bits: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        """A token the mask allows is accepted, one it forbids is refused."""
        drawn = [self._rng.randrange(len(bits)) for _ in range(2)]
        for token in (*drawn, int(self._rng.choice(np.flatnonzero(bits)))):
            assert matcher.fork().accept(token) == bits[token], self._vocabulary.token_bytes[token]


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def check_valid(schema: Any, text: str) -> None:
    # Exactly: in floating point, 4.35 is not a multiple of 0.01.
    instance = json.loads(text, object_pairs_hook=_without_repeats, parse_float=Decimal)
    schema = json.loads(json.dumps(schema), parse_float=Decimal)
    draft = schema.get("$schema") if isinstance(schema, dict) else None
    validator = VALIDATORS.get(str(draft), jsonschema.Draft202012Validator)
    validator(schema, format_checker=validator.FORMAT_CHECKER).validate(instance)


def _probes() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CASES / "probes.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("budget", [0, 12, 50])
def test_probes_generate_valid_json_within_any_budget(budget: int, vocabulary: Vocabulary) -> None:
    generator = Generator(vocabulary, budget)
    for probe in _probes():
        try:
            lowered = lower(Constraint.json_schema(probe["schema"]))
        except GrammarError:
            continue
        grammar = LlgGrammar(vocabulary, lowered)
        assert grammar.min_tokens is not None
        matcher = grammar.matcher()
        text = generator.generate(matcher, max(budget, grammar.min_tokens))
        assert matcher.is_complete, (probe["name"], text)
        check_valid(probe["schema"], text)


@pytest.mark.parametrize("seed", range(4))
def test_random_schemas_generate_valid_json(seed: int, vocabulary: Vocabulary) -> None:
    schemas = Schemas(seed + 100)
    generator = Generator(vocabulary, seed)
    for _ in range(25):
        schema = schemas.document()
        options = JsonOptions(whitespace=schemas.rng.choice(["compact", "flexible"]))
        try:
            grammar = LlgGrammar(vocabulary, lower(Constraint.json_schema(schema, options)))
        except GrammarError:
            continue
        assert grammar.min_tokens is not None
        text = generator.generate(grammar.matcher(), max(schemas.rng.randrange(60), grammar.min_tokens))
        check_valid(schema, text)


def test_the_shortest_close_is_short(vocabulary: Vocabulary) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    matcher = LlgGrammar(vocabulary, lower(Constraint.json_schema(schema))).matcher()

    def close() -> str:
        tokens = matcher.shortest_close()
        assert tokens is not None
        return b"".join(vocabulary.token_bytes[token] for token in tokens).decode()

    for text, ending in (
        ("", '{"name":"","age":0}'),
        ('{"name":"', '","age":0}'),
        ("Ada", '","age":0}'),
        ('","age":', "0}"),
        ("12", "}"),
        (',"tags":[[{"', '":0}]]}'),
        ('a":"\\', '\\"}]]}'),
    ):
        for token in vocabulary.encode(text):
            assert matcher.accept(token)
        assert close() == ending


def test_a_token_that_would_not_leave_room_is_replaced(vocabulary: Vocabulary) -> None:
    grammar = LlgGrammar(vocabulary, lower(Constraint.json_schema({"type": "array"})))
    assert grammar.min_tokens is not None
    matcher = grammar.matcher()
    (opening,) = vocabulary.encode("[")
    (quote,) = vocabulary.encode('"')
    assert matcher.accept_within(opening, 5) == opening
    assert matcher.fork().accept_within(quote, 1) == quote
    assert matcher.accept_within(quote, 0) != quote
    assert matcher.is_complete
    (letter,) = vocabulary.encode("x")
    assert grammar.matcher().accept_within(letter, 5) is None


def test_a_regular_text_ends_within_its_budget(vocabulary: Vocabulary) -> None:
    grammar = LlgGrammar(vocabulary, lower(Constraint(kind="regex", spec="(yes|no), [a-z ]+\\.")))
    generator = Generator(vocabulary, 7)
    for budget in (4, 6, 20):
        matcher = grammar.matcher()
        text = generator.generate(matcher, budget)
        assert matcher.is_complete, text
