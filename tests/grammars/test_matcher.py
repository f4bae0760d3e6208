"""The matcher's contract, whatever the grammar."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from grammars.base import Matcher
from grammars.compiler import Compiler
from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.spec import Constraint
from grammars.vocab import Vocabulary
from tests.grammars.driver import allowed, feed, mask_of

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


async def test_every_eos_is_legal_exactly_when_complete(compiler: Compiler, vocabulary: Vocabulary) -> None:
    grammar = await compiler.compile(Constraint.json_schema(PERSON))
    matcher = grammar.matcher()
    completions = []
    for token in vocabulary.encode('{"name":"Ada","age":36}'):
        assert not allowed(matcher, vocabulary) & vocabulary.eos_ids
        assert not matcher.accept(min(vocabulary.eos_ids))
        assert matcher.accept(token)
        completions.append(matcher.is_complete)
    assert completions == [False] * (len(completions) - 1) + [True]
    assert allowed(matcher, vocabulary) == vocabulary.eos_ids
    count = matcher.num_tokens
    assert matcher.accept(max(vocabulary.eos_ids))
    assert matcher.num_tokens == count + 1
    assert matcher.accept(5)
    assert matcher.num_tokens == count + 1
    assert matcher.is_terminated
    matcher.rollback(2)
    assert feed(matcher, vocabulary, "}")


async def test_a_refused_token_changes_nothing(compiler: Compiler, vocabulary: Vocabulary) -> None:
    matcher = (await compiler.compile(Constraint.json_schema(PERSON))).matcher()
    assert feed(matcher, vocabulary, '{"name":"A')
    before = mask_of(matcher, vocabulary)
    (newline,) = vocabulary.encode("\n")
    assert not matcher.accept(newline)
    assert (mask_of(matcher, vocabulary) == before).all()
    assert feed(matcher, vocabulary, '","age":1}')


async def test_special_tokens_are_never_legal_in_text(compiler: Compiler, vocabulary: Vocabulary) -> None:
    matcher = (await compiler.compile(Constraint.json_schema({"type": "string"}))).matcher()
    assert feed(matcher, vocabulary, '"')
    assert not allowed(matcher, vocabulary) & vocabulary.special_ids
    assert feed(matcher, vocabulary, "<|im_end|>")
    assert not matcher.is_complete
    assert feed(matcher, vocabulary, '"')


async def test_half_a_character_must_be_finished(compiler: Compiler, vocabulary: Vocabulary) -> None:
    matcher = (await compiler.compile(Constraint.json_schema({"type": "string"}))).matcher()
    assert feed(matcher, vocabulary, '"')
    half = next(i for i, text in enumerate(vocabulary.token_bytes) if text == "😀".encode()[:2])
    assert matcher.accept(half)
    for token in allowed(matcher, vocabulary):
        assert 0x80 <= vocabulary.token_bytes[token][0] < 0xC0
    assert not matcher.is_complete


async def test_bits_beyond_the_vocabulary_are_clear(compiler: Compiler, vocabulary: Vocabulary) -> None:
    matcher = (await compiler.compile(Constraint(kind="regex", spec="(?s:.*)"))).matcher()
    assert max(allowed(matcher, vocabulary)) < len(vocabulary.token_bytes)


async def test_forced_tokens_are_the_canonical_ones(compiler: Compiler, vocabulary: Vocabulary) -> None:
    matcher = (await compiler.compile(Constraint.json_schema(PERSON))).matcher()
    text = '{"name":"'
    forced = matcher.forced_tokens()
    assert forced
    assert forced == vocabulary.encode(text)[: len(forced)]
    assert allowed(matcher, vocabulary) == {forced[0]}


async def test_rollback_beyond_the_start_is_refused(compiler: Compiler) -> None:
    matcher = (await compiler.compile(Constraint.json_schema(PERSON))).matcher()
    with pytest.raises(ValueError, match="cannot undo 1"):
        matcher.rollback(1)


SCHEMA_TREE = {
    "type": "object",
    "properties": {
        "v": {"type": "number"},
        "s": {"type": "string", "maxLength": 8},
        "kids": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
    },
    "required": ["v"],
    "additionalProperties": False,
}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_any_path_equals_its_replay(
    compiler: Compiler, vocabulary: Vocabulary, data: st.DataObject
) -> None:
    """Random accepts, rollbacks and forks leave a matcher where feeding its tokens leaves a fresh one."""
    grammar = await compiler.compile(Constraint.json_schema(SCHEMA_TREE))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    matcher: Matcher = grammar.matcher()
    tokens: list[int] = []
    for _ in range(40):
        match rng.integers(6):
            case 0 if tokens:
                count = int(rng.integers(1, min(4, len(tokens)) + 1))
                matcher.rollback(count)
                del tokens[-count:]
            case 1:
                stale, matcher = matcher, matcher.fork()
                legal = sorted(allowed(stale, vocabulary))
                stale.accept(legal[0])
            case _ if not matcher.is_terminated:
                token = int(rng.choice(sorted(allowed(matcher, vocabulary))))
                assert matcher.accept(token)
                tokens.append(token)
    replayed = grammar.matcher()
    assert all(replayed.accept(token) for token in tokens)
    assert replayed.num_tokens == matcher.num_tokens == len(tokens)
    assert (mask_of(replayed, vocabulary) == mask_of(matcher, vocabulary)).all()
    assert replayed.is_complete == matcher.is_complete
    assert replayed.forced_tokens() == matcher.forced_tokens()


async def test_a_matcher_asks_the_engine_for_nothing_until_it_needs_it(
    compiler: Compiler, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may have a thousand sequences; of a heavy grammar each engine is built anew."""
    grammar = await compiler.compile(Constraint.json_schema(PERSON), namespace="of this test")
    engine, made = LlgGrammar.engine, list[LlgGrammar]()

    def watched(self: LlgGrammar) -> LLMatcher:
        made.append(self)
        return engine(self)

    monkeypatch.setattr(LlgGrammar, "engine", watched)
    matcher, *_ = (grammar.matcher() for _ in range(1000))
    assert made == []
    assert feed(matcher, vocabulary, '{"name":"A')
    fork = matcher.fork()
    assert feed(matcher, vocabulary, 'da","age":36}')
    assert feed(fork, vocabulary, 'l","age":7}')
    assert 1 <= len(made) <= 2


@pytest.mark.parametrize("spec", ['["é","x"]', '["é","ü!"]', '["don\\u2019t","x"]', '["é\\u2028"]'])
def test_a_token_that_ends_one_character_and_begins_another(spec: str) -> None:
    """What must come next may be such a token, or two; the mask allows what is then accepted."""
    whole = [bytes([byte]) for byte in range(256)]
    across = [text.encode()[cut : cut + 2] for text in ("é", "\u2019t", "é\u2028", '"é"') for cut in range(4)]
    texts = [b"", *whole, *(text for text in dict.fromkeys(across) if len(text) > 1)]

    def longest_first(text: str) -> list[int]:
        tokens, data = [], text.encode()
        while data:
            tokens.append(
                max((i for i, t in enumerate(texts) if t and data.startswith(t)), key=lambda i: len(texts[i]))
            )
            data = data[len(texts[tokens[-1]]) :]
        return tokens

    vocabulary = Vocabulary(texts, frozenset({0}), frozenset(), len(texts), longest_first)
    for constraint in (
        Constraint(kind="choice", spec=spec),
        Constraint.json_schema({"enum": json.loads(spec)}),
    ):
        matcher = LlgGrammar(vocabulary, lower(constraint)).matcher()
        pending = [matcher]
        ends = 0
        while pending:
            matcher = pending.pop()
            following = allowed(matcher, vocabulary)
            for token in range(len(texts)):
                after = matcher.fork()
                assert after.accept(token) == (token in following), (token, texts[token])
                if token in following and not after.is_terminated:
                    pending.append(after)
            assert following
            ends += matcher.is_complete
        assert ends >= len(json.loads(spec))
