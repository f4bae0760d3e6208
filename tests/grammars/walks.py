"""Random texts within a budget."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.grammars.driver import allowed

if TYPE_CHECKING:
    from grammars.base import Grammar
    from grammars.vocab import Vocabulary


def walk(grammar: Grammar, vocabulary: Vocabulary, rng: random.Random, budget: int) -> bytes:
    """Random tokens that the mask allows, and a whole text when the budget ends, or before."""
    matcher = grammar.matcher()
    text = b""
    for left in reversed(range(budget)):
        token = matcher.accept_within(rng.choice(sorted(allowed(matcher, vocabulary))), left)
        assert token is not None
        if matcher.is_terminated:
            break
        text += vocabulary.token_bytes[token]
    assert matcher.is_complete
    return text
