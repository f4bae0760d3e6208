"""What is remembered of how much grammars dictate."""

from __future__ import annotations

from typing import Any

import pytest

from engine.dictation import Dictations


class Plain:
    """A grammar that nobody asks anything."""

    nbytes = 0
    min_tokens = None

    def matcher(self) -> Any:
        raise NotImplementedError


def test_a_sequence_begins_with_what_was_learned_of_its_grammar() -> None:
    dictations, first, second = Dictations(), Plain(), Plain()
    begun = dictations.of(first)
    assert begun.share == 1
    begun.note(is_dictated=False)
    assert begun.share == pytest.approx(7 / 8)
    for _ in range(200):
        begun.note(is_dictated=False)
    assert dictations.of(first).share < 0.01
    assert dictations.of(second).share == 1


def test_sequences_differ_from_others_of_their_grammar() -> None:
    dictations, grammar = Dictations(), Plain()
    free, dictated = dictations.of(grammar), dictations.of(grammar)
    for _ in range(200):
        free.note(is_dictated=False)
        dictated.note(is_dictated=True)
    assert (free.share, dictated.share) == pytest.approx((0, 1), abs=0.01)
    assert dictations.of(grammar).share == pytest.approx(0.5, abs=0.1)


def test_grammars_that_nobody_has_are_forgotten() -> None:
    dictations, grammar = Dictations(), Plain()
    dictations.of(grammar).note(is_dictated=False)
    del grammar
    assert not dictations._shares
