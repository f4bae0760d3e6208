"""The likeliest tokens that a native step finds without writing logits, against the logits it writes."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.batch import Batch, SampleRow
from engine.models.native import NOT_SOUGHT, NativeDecoder, wanted
from kernels.cpu.build import Isa
from tests.engine.test_sampler import params, sample_row
from tests.models.random_models import random_model
from tests.models.test_native import CASES, NativeSequences, Quantize, ids

VOCAB = 333
LIKELIEST = params(temperature=0.0)
OTHERS = [
    params(),
    params(temperature=0.0, logprobs=0),
    params(temperature=0.0, presence_penalty=0.1),
    params(temperature=0.0, repetition_penalty=1.1),
    params(temperature=0.0, logit_bias={1: 1.0}),
    params(temperature=0.0, allowed_token_ids=frozenset({1})),
    params(temperature=0.0, bad_words=((1,),)),
]


def run(sequences: NativeSequences, step: Batch) -> tuple[Tensor, list[int]]:
    """A step's logits, and the likeliest tokens that its rows want."""
    decoder = sequences.decoder
    assert isinstance(decoder, NativeDecoder)
    chosen = np.full(len(step.samples), NOT_SOUGHT)
    logits = np.full((len(step.logit_rows), VOCAB), np.nan, np.float32)
    decoder.run(decoder.prepare(step, wanted=bytearray(map(wanted, step.samples)), chosen=chosen), logits)
    return torch.from_numpy(logits), chosen.tolist()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("isa", "dtype", "quantize", "kv_dtype"), [c for c in CASES if c[3] is None])
def test_same_as_of_written_logits(
    isa: Isa, dtype: torch.dtype, quantize: Quantize, kv_dtype: torch.dtype | None, threads: int
) -> None:
    """For any number of rows, beside rows whose logits are wanted; every logit is there twice, but one."""
    model = random_model(dtype=dtype, vocab_size=VOCAB, tie_embeddings=False)
    head = model.weights.lm_head
    head[VOCAB // 2 + 1 :] = head[: VOCAB // 2]
    native = NativeSequences(
        model, num_pages=64, page_size=4, threads=threads, isa=isa, quantize=quantize, kv_dtype=kv_dtype
    )
    for count in (1, 5, 13, 40):
        step = native._batch({key: ids(2, VOCAB, seed=key + count) for key in range(count)}, "last")
        written, _ = run(native, step)
        samples = [sample_row(LIKELIEST if key % 3 else OTHERS[key % len(OTHERS)]) for key in range(count)]
        logits, found = run(native, replace(step, samples=samples))
        for key, likeliest in enumerate(found):
            if key % 3:
                assert logits[key].isnan().all(), "they need not be written"
                assert likeliest == int(written[key].numpy().argmax())
            else:
                assert likeliest == NOT_SOUGHT
                assert torch.equal(logits[key], written[key])


def test_rows_that_want_more_have_their_logits_written() -> None:
    assert sample_row(LIKELIEST).takes_likeliest
    rows: list[SampleRow] = [sample_row(other) for other in OTHERS]
    rows.append(sample_row(LIKELIEST, forbidden=frozenset({2})))
    assert not any(row.takes_likeliest for row in rows)


def test_under_a_grammar_logits_are_written_too() -> None:
    """What its mask allows is not known before the step ends; those beside it need none."""
    native = NativeSequences(random_model(vocab_size=VOCAB), num_pages=8, page_size=4)
    step = native._batch({key: [1, 2 + key] for key in range(3)}, "last")
    written, _ = run(native, step)
    samples = [sample_row(LIKELIEST), sample_row(LIKELIEST, has_grammar=True), sample_row(OTHERS[0])]
    logits, found = run(native, replace(step, samples=samples, masks=Future()))
    assert found == [*(int(row.numpy().argmax()) for row in written[:2]), NOT_SOUGHT]
    assert torch.equal(logits[1:], written[1:])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_no_numbers_give_no_token(value: float) -> None:
    model = random_model(vocab_size=VOCAB, tie_embeddings=False)
    model.weights.lm_head[VOCAB - 1] = value
    native = NativeSequences(model, num_pages=8, page_size=4)
    step = replace(native._batch({0: [1, 2]}, "last"), samples=[sample_row(LIKELIEST)])
    assert run(native, step)[1] == [-1]
