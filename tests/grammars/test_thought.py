"""Thoughts before answers, token by token: every mask holds what it says, and all can be undone."""

from __future__ import annotations

import random

import numpy as np
import pytest

from grammars.compiler import Compiler
from grammars.spec import Constraint
from grammars.thought import CLOSE
from grammars.vocab import Vocabulary
from tests.grammars.driver import allowed, feed

ANSWER = Constraint.json_schema({"type": "array", "items": {"enum": ["yes", "no"]}, "maxItems": 3})


@pytest.mark.parametrize("begun", [False, True])
async def test_texts(begun: bool, compiler: Compiler, vocabulary: Vocabulary) -> None:
    grammar = compiler.after_thought(await compiler.compile(ANSWER), begun=begun)
    start = "" if begun else "<think>"
    for text in ("a { 日本 <thi", "\n<think>\n", "", '["yes"]'):
        for gap in ("", "\n", "\n\n"):
            matcher = grammar.matcher()
            assert feed(matcher, vocabulary, f"{start}{text}")
            assert not matcher.is_complete
            assert not allowed(matcher, vocabulary) & vocabulary.eos_ids
            assert feed(matcher, vocabulary, "</think>")
            assert feed(matcher, vocabulary, gap)
            assert feed(matcher.fork(), vocabulary, '["yes","no"]')
            assert not feed(matcher.fork(), vocabulary, '["maybe"]')
            assert feed(matcher, vocabulary, "[]")
            assert matcher.is_complete
    assert feed(grammar.matcher(), vocabulary, '["yes"]') is True
    assert grammar.matcher().shortest_close() is not None
    assert feed(grammar.matcher(), vocabulary, "hm") is begun


@pytest.mark.parametrize("begun", [False, True])
async def test_masks_hold_what_they_say(begun: bool, compiler: Compiler, vocabulary: Vocabulary) -> None:
    """What a mask allows is accepted, what it forbids is refused, and undoing leads back."""
    grammar = compiler.after_thought(await compiler.compile(ANSWER), begun=begun)
    rng = random.Random(int(begun))
    closing = [i for i, text in enumerate(vocabulary.token_bytes) if text and CLOSE.startswith(text)]
    for _ in range(12):
        matcher, states = grammar.matcher(), []
        for _ in range(20):
            legal = allowed(matcher, vocabulary)
            states.append(legal)
            for token in rng.sample(range(len(vocabulary.token_bytes)), 20):
                copy = matcher.fork()
                assert copy.accept(token) == (token in legal)
            likely = [token for token in closing if token in legal] or [rng.choice(sorted(legal))]
            token = rng.choice([rng.choice(sorted(legal)), rng.choice(likely)])
            assert matcher.accept(token)
            assert matcher.num_tokens == len(states)
            if matcher.is_exhausted or matcher.is_terminated:
                break
        count = rng.randrange(len(states) + 1)
        matcher.rollback(count)
        if count:
            assert allowed(matcher, vocabulary) == states[len(states) - count]


@pytest.mark.parametrize("budget", range(14, 30))
async def test_within_a_budget_all_is_ended(budget: int, compiler: Compiler, vocabulary: Vocabulary) -> None:
    grammar = compiler.after_thought(await compiler.compile(ANSWER), begun=False)
    rng = np.random.default_rng(budget)
    for _ in range(4):
        matcher, text = grammar.matcher(), b""
        (mark, *rest) = vocabulary.encode("<think>")
        wanted = [mark, *rest]
        for left in range(budget - 1, -1, -1):
            legal = sorted(allowed(matcher, vocabulary))
            token = wanted.pop(0) if wanted else int(rng.choice(legal))
            taken = matcher.accept_within(token, left)
            assert taken is not None
            text += vocabulary.token_bytes[taken] if taken not in vocabulary.eos_ids else b""
            if matcher.is_complete:
                break
        assert matcher.is_complete
        assert text.startswith(b"<think>")
        assert CLOSE in text
