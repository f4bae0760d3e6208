"""Vocabularies of other shapes than the embedded model's."""

from __future__ import annotations

import pytest

from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.spec import Constraint
from grammars.vocab import Vocabulary
from tests.grammars.driver import accepts, allowed


def _bytes_only(text: str) -> list[int]:
    return [3 + byte for byte in text.encode()]


def _vocabulary(more: list[bytes], width: int = 400) -> Vocabulary:
    """Two ends, an unused id, every byte (as byte-fallback has them), and some more pieces."""
    pieces = [b"", b"", b"", *(bytes([byte]) for byte in range(256)), *more]
    return Vocabulary(pieces, frozenset((0, 1)), frozenset((0, 1)), width, _bytes_only)


def test_bytes_alone_spell_every_character() -> None:
    vocabulary = _vocabulary([])
    grammar = LlgGrammar(vocabulary, lower(Constraint.json_schema({"enum": ["😀", "中文"]})))
    assert accepts(grammar, vocabulary, '"😀"')
    assert accepts(grammar, vocabulary, '"中文"')
    assert not accepts(grammar, vocabulary, '"中"')


def test_pieces_with_the_same_bytes_are_legal_alike() -> None:
    vocabulary = _vocabulary([b"ab", b"ab", b"a", b'"a', b'"a'])
    twice = [i for i, text in enumerate(vocabulary.token_bytes) if text == b"ab"]
    quoted = [i for i, text in enumerate(vocabulary.token_bytes) if text == b'"a']
    grammar = LlgGrammar(vocabulary, lower(Constraint(kind="regex", spec='[ab"]*')))
    assert {*twice, *quoted} <= allowed(grammar.matcher(), vocabulary)
    matcher = LlgGrammar(vocabulary, lower(Constraint.json_schema({"type": "object"}))).matcher()
    for token in _bytes_only('{"ab":1,"'):
        assert matcher.accept(token)
    for token in twice:
        fork = matcher.fork()
        assert fork.accept(token)
        # The name is there already, whichever piece spells it.
        assert 3 + ord('"') not in allowed(fork, vocabulary)


def test_ids_that_are_no_text_are_never_legal() -> None:
    vocabulary = _vocabulary([])
    matcher = LlgGrammar(vocabulary, lower(Constraint(kind="regex", spec="(?s:.+)x"))).matcher()
    legal = allowed(matcher, vocabulary)
    assert not legal & {0, 1, 2}
    assert max(legal) < len(vocabulary.token_bytes)
    for token in (2, 350, 1):
        assert not matcher.accept(token)


def test_a_vocabulary_must_fit_its_logits_and_have_an_end() -> None:
    with pytest.raises(ValueError, match="below the 259 tokens"):
        _vocabulary([], width=100)
    with pytest.raises(ValueError, match="end-of-sequence"):
        Vocabulary([b"a"], frozenset(), frozenset(), 1, _bytes_only)
