"""Feeding texts to matchers the way an engine feeds tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from grammars.few_tokens import few_tokens
from grammars.llg import LlgGrammar
from grammars.lower import lower

if TYPE_CHECKING:
    from grammars.base import Grammar, MaskRow, Matcher
    from grammars.spec import Constraint
    from grammars.vocab import Vocabulary


def compiled(constraint: Constraint, vocabulary: Vocabulary) -> LlgGrammar:
    """The grammar of a constraint, with the few tokens that a compiler looks for."""
    lowered = lower(constraint)
    engine = LlgGrammar(vocabulary, lowered).engine()
    return LlgGrammar(vocabulary, lowered, way=few_tokens(lowered.sentences, engine, vocabulary))


def mask_of(matcher: Matcher, vocabulary: Vocabulary) -> MaskRow:
    row = np.full(vocabulary.row_words, -1, np.int32)
    matcher.fill_mask(row)
    return row


def allowed(matcher: Matcher, vocabulary: Vocabulary) -> set[int]:
    bits = np.unpackbits(mask_of(matcher, vocabulary).view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def feed(matcher: Matcher, vocabulary: Vocabulary, text: str) -> bool:
    """Whether every token of `text` is in the mask when its turn comes, and then accepted."""
    for token in vocabulary.encode(text):
        row = mask_of(matcher, vocabulary)
        in_mask = bool(row[token >> 5] >> (token & 31) & 1)
        assert matcher.accept(token) == in_mask
        if not in_mask:
            return False
    return True


def accepts(grammar: Grammar, vocabulary: Vocabulary, text: str) -> bool:
    """Whether `text` is a whole sentence of the grammar."""
    matcher = grammar.matcher()
    return feed(matcher, vocabulary, text) and matcher.is_complete


def reads(grammar: Grammar, vocabulary: Vocabulary, text: str) -> bool:
    """As `accepts`, but without looking at the masks: many times quicker."""
    matcher = grammar.matcher()
    return all(map(matcher.accept, vocabulary.encode(text))) and matcher.is_complete
