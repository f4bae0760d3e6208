"""The sampler against `transformers`' logits processors, plain numpy, and exact probabilities."""

from __future__ import annotations

import math
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.batch import Batch, Masks, SampleRow
from engine.drawing import draw, uniform
from engine.models.native import NOT_SOUGHT
from engine.params import SamplingParams
from engine.sampler import Sampler

VOCAB = 100


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=100, **fields)


def sample_row(fields: SamplingParams, **overrides: Any) -> SampleRow:
    values: dict[str, Any] = {"key": 0, "seed": 0, "position": 3, "tokens": [1, 2, 3], "num_prompt": 3}
    values |= overrides
    values.setdefault("num_known", len(values["tokens"]))
    return SampleRow(params=fields, **values)


def batch(
    rows: list[SampleRow], masks: Future[Masks | None] | None = None, released: list[int] | None = None
) -> Batch:
    """A step of which only what the sampler reads is filled in."""
    ints, words = np.zeros(0, np.int64), np.zeros(0, np.int32)
    return Batch(
        token_ids=ints,
        pending_at=ints,
        pending_from=ints,
        positions=ints,
        query_starts=words,
        context_lens=words,
        page_table=words.reshape(0, 0),
        kv_slots=ints,
        logit_rows=ints,
        samples=rows,
        sampled=np.full(len(rows), NOT_SOUGHT),
        masks=masks,
        released=released or [],
    )


def random_logits(rows: int, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def resolved(rows: list[int], allowed: npt.NDArray[np.bool_]) -> Future[Masks | None]:
    """Masks from a [rows, V] array of booleans."""
    width = -(-allowed.shape[1] // 32) * 32
    padded = np.pad(allowed, ((0, 0), (0, width - allowed.shape[1])))
    bits = np.packbits(padded, axis=1, bitorder="little").view("<i4")
    future: Future[Masks | None] = Future()
    future.set_result(Masks(rows=np.array(rows, np.int64), bits=list(bits)))
    return future


def choose(logits: Tensor, row: SampleRow, **kwargs: Any) -> int:
    """Sample one row of a copy of `logits` ([V])."""
    ids, *_ = Sampler(len(logits)).sample(logits[None].clone(), batch([row], **kwargs))
    return int(ids[0])


# --- which token ------------------------------------------------------------------------------


def test_temperature_zero_takes_the_likeliest_token() -> None:
    logits = random_logits(8)
    rows = [sample_row(params(temperature=0.0), key=i) for i in range(8)]
    ids, _, logprobs = Sampler(VOCAB).sample(logits.clone(), batch(rows))
    assert ids.dtype == torch.int64
    assert ids.tolist() == logits.argmax(-1).tolist()
    assert logprobs == [None] * 8


def test_a_step_without_sampling_rows_gives_nothing() -> None:
    ids, _, logprobs = Sampler(VOCAB).sample(torch.empty(0, VOCAB), batch([]))
    assert ids.tolist() == []
    assert logprobs == []


def expected_probabilities(logits: Tensor, fields: SamplingParams) -> npt.NDArray[np.float64]:
    """What `transformers` would sample from: its warpers in its order."""
    scores = logits[None].double()
    ids: Any = torch.zeros(1, 1, dtype=torch.int64)  # the warpers are annotated with the legacy LongTensor
    scores = TemperatureLogitsWarper(fields.temperature)(ids, scores)
    if fields.top_k:
        scores = TopKLogitsWarper(fields.top_k)(ids, scores)
    if fields.top_p < 1:
        scores = TopPLogitsWarper(fields.top_p)(ids, scores)
    if fields.min_p:
        scores = MinPLogitsWarper(fields.min_p)(ids, scores)
    return np.asarray(scores[0].softmax(-1).numpy())


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 2.0, "top_k": 5},
        {"top_k": 1},
        {"top_k": VOCAB + 1},
        {"top_p": 0.5},
        {"top_p": 0.999},
        {"top_p": 1e-6},
        {"temperature": 5.0, "top_p": 0.9},
        {"min_p": 0.1},
        {"temperature": 1.7, "min_p": 0.02},
        {"temperature": 1.5, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    ],
)
def test_draws_follow_the_inverse_of_the_reference_distribution(fields: dict[str, Any]) -> None:
    logits = random_logits(1, seed=5)[0]
    ends = expected_probabilities(logits, params(**fields)).cumsum()
    noises = np.linspace(0, 1, 997, endpoint=False)
    certain = [u for u in noises if np.abs(ends - u).min() > 1e-5]
    drawn = [int(draw(logits.clone(), params(**fields), u)) for u in certain]
    assert len(certain) > 900
    assert drawn == np.searchsorted(ends, certain, side="right").tolist()


def test_a_nucleus_of_thousands_of_tokens_is_exact() -> None:
    logits = torch.randn(50_000, generator=torch.Generator().manual_seed(1)) * 0.3
    ends = expected_probabilities(logits, params(top_p=0.9)).cumsum()
    noises = (np.arange(200) + 0.5) / 200
    drawn = np.array([int(draw(logits.clone(), params(top_p=0.9), u)) for u in noises])
    kept = np.diff(ends, prepend=0.0) > 0
    assert kept[drawn].all()
    assert np.abs(ends[drawn] - noises).max() < 1e-4


@pytest.mark.parametrize("noise", [0.0, 0.5, 1 - 2.0**-52])
def test_impossible_tokens_are_never_drawn(noise: float) -> None:
    logits = torch.full((VOCAB,), -math.inf)
    logits[[7, 60]] = torch.tensor([1.0, 1.0])
    assert int(draw(logits, params(), noise)) in (7, 60)


def test_equal_logits_at_the_cut_are_all_kept() -> None:
    logits = torch.zeros(10)
    noises = (np.arange(10) + 0.5) / 10
    for fields in ({"top_k": 3}, {"top_p": 0.3}):
        assert [int(draw(logits.clone(), params(**fields), u)) for u in noises] == list(range(10))


def test_a_temperature_next_to_zero_is_greedy() -> None:
    logits = random_logits(1)[0]
    assert choose(logits, sample_row(params(temperature=1e-320))) == int(logits.argmax())


# --- noise --------------------------------------------------------------------------------------


def chi_square(observed: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64]) -> float:
    expected = probabilities * observed.sum()
    return float(((observed - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("fixed", ["seed", "position"])
def test_noise_is_uniform_over_positions_and_over_seeds(fixed: str) -> None:
    pairs = [(42, i) if fixed == "seed" else (i, 42) for i in range(20_000)]
    noise = np.array([uniform(seed, position) for seed, position in pairs])
    assert noise.min() >= 0
    assert noise.max() < 1
    counts, _ = np.histogram(noise, bins=100, range=(0, 1))
    assert chi_square(counts, np.full(100, 0.01)) < 148.2  # 99.9 % quantile of 99 degrees of freedom
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.03


def test_sampled_tokens_have_the_exact_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, 1.5, 0.7, 0.2])
    rows = [
        sample_row(params(temperature=0.8), seed=seed, position=position)
        for seed in range(100)
        for position in range(200)
    ]
    ids, *_ = Sampler(10).sample(logits.repeat(len(rows), 1), batch(rows))
    counts = np.bincount(ids.numpy(), minlength=10)
    assert chi_square(counts, expected_probabilities(logits, params(temperature=0.8))) < 27.9  # 9 degrees


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.9}, {"top_k": 10}, {"min_p": 0.01}])
def test_neighbours_do_not_change_a_sample(fields: dict[str, Any]) -> None:
    logits = random_logits(16, seed=2)
    rows = [sample_row(params(**fields), key=i, seed=i, position=i) for i in range(16)]
    alone = [choose(logits[i], rows[i]) for i in range(16)]
    order = torch.randperm(16, generator=torch.Generator().manual_seed(3)).tolist()
    ids, *_ = Sampler(VOCAB).sample(logits[order], batch([rows[i] for i in order]))
    assert ids.tolist() == [alone[i] for i in order]
    assert len(set(alone)) > 8


# --- penalties, bias, forbidden ids --------------------------------------------------------------


def penalised(logits: Tensor, tokens: list[int], num_prompt: int, fields: SamplingParams) -> Tensor:
    """The reference: everything recounted from the whole sequence."""
    scores = logits.clone()
    if fields.repetition_penalty != 1.0:
        processor = RepetitionPenaltyLogitsProcessor(fields.repetition_penalty)
        scores = processor(torch.tensor([tokens]), scores[None])[0]
    counts = torch.bincount(torch.tensor(tokens[num_prompt:], dtype=torch.int64), minlength=len(logits))
    return scores - fields.frequency_penalty * counts - fields.presence_penalty * (counts > 0)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_penalties_count_each_token_once_whatever_the_engine_does(data: st.DataObject) -> None:
    """Steps read back late or at once, tokens forced in between, sequences cut back or kept waiting."""
    fields = params(
        temperature=0.0,
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.3])),
        presence_penalty=data.draw(st.sampled_from([0.0, 0.5])),
        frequency_penalty=0.25,
    )
    sampler = Sampler(VOCAB)
    prompt = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
    tokens, known = list(prompt), len(prompt)
    for step in range(data.draw(st.integers(1, 12))):
        logits = random_logits(1, seed=step)
        expected = penalised(logits[0], tokens, len(prompt), fields)
        row = sample_row(fields, key=7, position=len(tokens), tokens=tokens[:known], num_prompt=len(prompt))
        ids, *_ = sampler.sample(logits, batch([row]))  # leaves the adjusted logits behind
        torch.testing.assert_close(logits[0], expected)
        tokens.append(int(ids[0]))
        was_late = known < len(tokens) - 1
        event = data.draw(st.sampled_from(["late", "read", "force", "replace", "cut", "rewrite"]))
        known = len(tokens) - (event == "late")
        if event == "force":
            tokens += data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=70))
            known = len(tokens)
        elif event == "replace":
            tokens[-1] = data.draw(st.integers(0, 9))
        elif event == "rewrite" and was_late:
            tokens[-2:] = [data.draw(st.integers(0, 9))]
            known = len(tokens)
        elif event == "cut":
            del tokens[data.draw(st.integers(len(prompt), len(tokens))) :]
            known = len(tokens)


def test_released_sequences_leave_nothing_behind() -> None:
    fields = params(temperature=0.0, repetition_penalty=2.0)
    sampler = Sampler(VOCAB)
    sampler.sample(random_logits(1), batch([sample_row(fields, key=1, tokens=[5, 6, 7])]))
    fresh = sample_row(fields, key=1, tokens=[8, 9, 10, 11], num_prompt=4, position=4)
    logits = random_logits(1)
    expected = penalised(logits[0], [8, 9, 10, 11], 4, fields)
    sampler.sample(logits, batch([fresh], released=[1]))
    torch.testing.assert_close(logits[0], expected)


def test_a_missing_token_is_an_error_not_a_wrong_count() -> None:
    row = sample_row(params(presence_penalty=1.0), tokens=[1, 2, 3], position=5)
    with pytest.raises(RuntimeError, match="position 5"):
        Sampler(VOCAB).sample(random_logits(1), batch([row]))


def test_bias_and_forbidden_ids() -> None:
    logits = random_logits(1)[0]
    best, second = logits.topk(2).indices.tolist()
    assert choose(logits, sample_row(params(temperature=0.0, logit_bias={40: 100.0}))) == 40
    assert choose(logits, sample_row(params(temperature=0.0, logit_bias={best: -100}))) == second
    assert choose(logits, sample_row(params(temperature=0.0), forbidden=frozenset({best}))) == second


# --- masks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [96, 100, 127])
def test_masks_rule_out_exactly_the_tokens_whose_bit_is_clear(vocab: int) -> None:
    logits = random_logits(4, vocab=vocab)
    allowed = np.random.default_rng(0).random((2, vocab)) < 0.1
    rows = [sample_row(params(temperature=0.0), key=i) for i in range(4)]
    adjusted = logits.clone()
    ids, *_ = Sampler(vocab).sample(adjusted, batch(rows, masks=resolved([3, 1], allowed)))
    expected = logits.clone()
    expected[3][~torch.from_numpy(allowed[0])] = -math.inf
    expected[1][~torch.from_numpy(allowed[1])] = -math.inf
    assert torch.equal(adjusted, expected)
    assert ids.tolist() == expected.argmax(-1).tolist()


def test_a_mask_narrower_than_the_logits_rules_out_the_rest() -> None:
    logits = torch.zeros(100)
    logits[80] = 5.0
    masks = resolved([0], np.ones((1, 64), bool))
    assert choose(logits, sample_row(params(temperature=0.0)), masks=masks) < 64


def test_masks_may_come_from_another_thread_while_the_sampler_waits() -> None:
    masks: Future[Masks | None] = Future()
    logits = random_logits(1)
    worst = int(logits[0].argmin())
    allowed = np.zeros((1, VOCAB), bool)
    allowed[0, worst] = True
    with ThreadPoolExecutor(1) as executor:
        step = batch([sample_row(params())], masks=masks)
        sampling = executor.submit(Sampler(VOCAB).sample, logits, step)
        masks.set_result(resolved([0], allowed).result())
        ids, *_ = sampling.result(timeout=30)
    assert ids.tolist() == [worst]


def test_no_mask_may_be_wanted_after_all() -> None:
    masks: Future[Masks | None] = Future()
    masks.set_result(None)
    logits = random_logits(1)[0]
    assert choose(logits, sample_row(params(temperature=0.0)), masks=masks) == int(logits.argmax())


# --- rows without a usable number -------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_row_fails_alone(temperature: float) -> None:
    logits = random_logits(4)
    logits[1, 50] = math.nan
    logits[3, 50] = math.inf
    fields = params(temperature=temperature, logprobs=2, top_p=0.9, repetition_penalty=1.1)
    rows = [sample_row(fields, key=i) for i in range(4)]
    nothing = resolved([2], np.zeros((1, VOCAB), bool))
    ids, _, logprobs = Sampler(VOCAB).sample(logits.clone(), batch(rows, masks=nothing))
    assert ids.tolist() == [choose(logits[0], rows[0]), -1, -1, -1]
    assert [entry is None for entry in logprobs] == [False, True, True, True]


# --- log-probabilities --------------------------------------------------------------------------------


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = random_logits(3)
    reference = logits.double().log_softmax(-1)
    fields = params(temperature=0.5, logprobs=5, top_k=3, logit_bias={9: 50.0}, presence_penalty=1.0)
    rows = [sample_row(fields, key=0), sample_row(params(logprobs=0), key=1), sample_row(params(), key=2)]
    ids, _, logprobs = Sampler(VOCAB).sample(logits.clone(), batch(rows))
    first, second, third = logprobs
    assert first is not None
    assert second is not None
    assert third is None
    assert first.token_id == int(ids[0]) == 9
    assert first.logprob == pytest.approx(float(reference[0, 9]), abs=1e-5)
    values, indices = reference[0].topk(5)
    assert [token_id for token_id, _ in first.top] == indices.tolist()
    assert [value for _, value in first.top] == pytest.approx(values.tolist(), abs=1e-5)
    assert second.top == ()
    assert second.logprob == pytest.approx(float(reference[1, ids[1]]), abs=1e-5)


def test_the_likeliest_token_has_the_very_value_of_the_top() -> None:
    logits = random_logits(50, seed=9, vocab=1000)
    rows = [sample_row(params(temperature=0.0, logprobs=1), key=i) for i in range(50)]
    *_, logprobs = Sampler(1000).sample(logits, batch(rows))
    for entry in logprobs:
        assert entry is not None
        assert entry.top == ((entry.token_id, entry.logprob),)


def test_logprobs_are_finite_even_for_impossible_tokens() -> None:
    """A21"""
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, 3] = 0.0
    *_, logprobs = Sampler(VOCAB).sample(logits.clone(), batch([sample_row(params(logprobs=20))]))
    assert logprobs[0] is not None
    assert logprobs[0].top[0] == (3, 0.0)
    assert {value for _, value in logprobs[0].top[1:]} == {-9999.0}


def test_more_logprobs_than_tokens_gives_all_of_them() -> None:
    *_, logprobs = Sampler(4).sample(random_logits(1, vocab=4), batch([sample_row(params(logprobs=20))]))
    assert logprobs[0] is not None
    assert len(logprobs[0].top) == 4
