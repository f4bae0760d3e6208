"""Allowed ids and bad words, against `transformers`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import NoBadWordsLogitsProcessor

from engine.allowed_ids import AllowedIds
from engine.params import SamplingParams
from engine.restrictions import Restrictions
from engine.sampler import Sampler
from tests.engine.test_sampler import VOCAB, batch, sample_row

WORDS = ((5,), (7, 8), (7, 8, 9), (8, 8), (1, 2, 3, 4))


def applied(row: Any, restrictions: Restrictions | None = None) -> torch.Tensor:
    logits = torch.zeros(1, VOCAB)
    (restrictions or Restrictions()).apply(logits, [row])
    return logits[0]


@given(st.lists(st.sampled_from([1, 2, 3, 5, 7, 8, 9]), min_size=1, max_size=8))
def test_bad_words_are_those_of_the_reference(output: list[int]) -> None:
    reference = NoBadWordsLogitsProcessor([list(word) for word in WORDS])
    ids: Any = torch.tensor([output])
    row = sample_row(
        SamplingParams(max_tokens=9, bad_words=WORDS),
        tokens=[0, *output],
        num_prompt=1,
        position=len(output) + 1,
    )
    assert torch.equal(applied(row), reference(ids, torch.zeros(1, VOCAB))[0])


def test_the_prompt_begins_no_bad_word() -> None:
    row = sample_row(SamplingParams(max_tokens=9, bad_words=((7, 8),)), tokens=[1, 2, 7], position=3)
    assert applied(row).isfinite().all()


def test_a_token_that_is_not_read_back_counts() -> None:
    params = SamplingParams(max_tokens=9, bad_words=((6, 7, 8),))
    restrictions = Restrictions()
    restrictions.record(sample_row(params, tokens=[1, 2, 3, 6], position=4), 7)
    row = sample_row(params, tokens=[1, 2, 3, 6], position=5)
    assert applied(row, restrictions).isneginf().nonzero().flatten().tolist() == [8]
    restrictions.release([row.key])
    with pytest.raises(RuntimeError, match="not known"):
        applied(sample_row(params, tokens=[1, 2, 3, 6], position=6), restrictions)


def test_a_token_may_be_sampled_again_where_the_step_failed_afterwards() -> None:
    params = SamplingParams(max_tokens=9, bad_words=((6, 7, 8), (7, 9, 5)))
    restrictions = Restrictions()
    restrictions.record(sample_row(params, tokens=[1, 2, 3, 6], position=4), 7)
    row = sample_row(params, tokens=[1, 2, 3, 6], position=5)
    for token_id in (4, 9):
        assert applied(row, restrictions).isneginf().nonzero().flatten().tolist() == [8]
        restrictions.record(row, token_id)
    row = sample_row(params, tokens=[1, 2, 3, 6, 7], position=6)
    assert applied(row, restrictions).isneginf().nonzero().flatten().tolist() == [5]


def test_nothing_but_allowed_ids_is_sampled_whatever_the_bias() -> None:
    allowed = frozenset({3, 50})
    params = SamplingParams(
        max_tokens=9, allowed_token_ids=allowed, logit_bias={7: 100.0, 50: 1.0}, repetition_penalty=1.3
    )
    row = sample_row(params)
    for seed in range(20):
        logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed))
        ids, *_ = Sampler(VOCAB).sample(logits, batch([row]))
        assert int(ids[0]) in allowed


def test_allowed_ids_are_made_once_for_all_rows_and_steps_that_have_them() -> None:
    ids = AllowedIds()
    params = SamplingParams(max_tokens=9, allowed_token_ids=frozenset({0, 33}))
    one, other = sample_row(params), sample_row(SamplingParams(max_tokens=9))
    first = ids.bits([one, other, one], VOCAB)
    assert list(first) == [0, 2]
    assert first[0][:2].tolist() == [1, 2]
    assert not first[0][2:].any()
    assert ids.bits([other, one], VOCAB)[1] is first[0] is first[2]
    assert ids.bits([other], VOCAB) == {}
