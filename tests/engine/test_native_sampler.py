"""The native sampler against the one in torch, on every instruction set of this machine."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.batch import Batch, SampleRow
from engine.drawing import _weights, uniform
from engine.logprobs import logprobs as reference_logprobs
from engine.models.native import NOT_SOUGHT
from engine.native_sampler import NativeSampler
from engine.params import GREEDY_BELOW
from engine.sampler import Sampler
from engine.stream import TokenLogprob
from kernels.cpu.build import supported_isas
from kernels.cpu.errors import NativeStepError
from kernels.cpu.runtime import Runtime
from tests.engine.test_sampler import batch, params, random_logits, resolved, sample_row

RUNTIMES = {isa: Runtime(2, isa) for isa in supported_isas()}
EXACTLY = 1e-6
"""Differences of cumulative probabilities that stem from the rounding of weights."""


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return RUNTIMES[request.param]


def sample(
    runtime: Runtime, logits: Tensor, step: Batch
) -> tuple[Tensor, list[int], list[TokenLogprob | None]]:
    """Sample a step whose logits were all written."""
    return NativeSampler(logits.shape[1], runtime).sample(logits, step)


def same(logprob: TokenLogprob | None, expected: TokenLogprob | None) -> bool:
    """Equal but for rounding; ids of equal values in any order."""
    if logprob is None or expected is None:
        return logprob is expected
    values, others = ([value for _, value in each.top] for each in (logprob, expected))
    return (
        logprob.token_id == expected.token_id
        and logprob.logprob == pytest.approx(expected.logprob, abs=1e-5)
        and values == pytest.approx(others, abs=1e-5)
    )


def check(
    runtime: Runtime,
    logits: Tensor,
    rows: list[SampleRow],
    masked: list[int] | None = None,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> list[int]:
    """Sample rows both ways; equal where that is certain, and always possible where noise is at a border."""
    vocab = logits.shape[1]

    def masks() -> Any:
        return None if masked is None or allowed is None else resolved(masked, allowed)

    adjusted = logits.clone()
    expected, _, expected_logprobs = Sampler(vocab).sample(adjusted, batch(rows, masks=masks()))
    ids, _, logprobs = sample(runtime, logits.clone(), batch(rows, masks=masks()))
    assert ids.dtype == torch.int64
    for index, row in enumerate(rows):
        chosen, reference = int(ids[index]), int(expected[index])
        if chosen == reference:
            assert same(logprobs[index], expected_logprobs[index])
            continue
        assert min(chosen, reference) >= 0
        assert row.params.temperature >= GREEDY_BELOW
        changed = logits[index].clone()
        if masked is not None and index in masked and allowed is not None:
            possible = np.zeros(vocab, bool)
            possible[: allowed.shape[1]] = allowed[masked.index(index)][:vocab]
            changed[~torch.from_numpy(possible)] = -math.inf
        ends = _weights(changed, row.params).cumsum(0, dtype=torch.float64)
        ends /= ends[-1].item()
        noise = uniform(row.seed, row.position)
        assert (ends[chosen - 1] if chosen else 0.0) - EXACTLY < noise < ends[chosen] + EXACTLY
    return [int(token_id) for token_id in ids]


MIXES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 1e-4},
    {"temperature": 0.3},
    {"temperature": 2.0, "top_k": 5},
    {"top_k": 1},
    {"top_k": 1 << 30},
    {"top_p": 0.5},
    {"top_p": 1e-6},
    {"temperature": 5.0, "top_p": 0.9},
    {"temperature": 100.0, "top_p": 0.999},
    {"min_p": 0.1},
    {"temperature": 1.7, "min_p": 0.02},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    {"logprobs": 3, "top_p": 0.9},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "temperature": 0.7},
    {"logit_bias": {3: 5.0, 7: -100.0}, "top_k": 3},
    {"allowed_token_ids": frozenset({1, 5, 60, 61}), "temperature": 3.0},
    {"allowed_token_ids": frozenset({1, 5, 60, 61}), "temperature": 0.0, "logit_bias": {5: 1.0, 9: 99.0}},
    {"bad_words": ((60,), (3, 5), (9, 1)), "temperature": 0.0},
]


@pytest.mark.parametrize("vocab", [100, 4096, 50_257])
def test_mixed_rows(runtime: Runtime, vocab: int) -> None:
    """Every mix of parameters in one step, half of the rows under a mask."""
    logits = random_logits(2 * len(MIXES), vocab=vocab)
    rows = [sample_row(params(**mix), key=i, seed=i) for i, mix in enumerate([*MIXES, *MIXES])]
    masked = list(range(len(MIXES), len(rows)))
    allowed = np.random.default_rng(0).random((len(MIXES), vocab)) < 0.05
    allowed[:, [1, 5, 60]] = True
    assert min(check(runtime, logits, rows, masked, allowed)) >= 0


steps = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-3, 0.5, 1.0, 3.0, 1000.0]),
        "top_k": st.sampled_from([0, 1, 2, 17, 1000]),
        "top_p": st.sampled_from([1e-9, 0.3, 0.9, 0.9999, 1.0]),
        "min_p": st.sampled_from([0.0, 1e-3, 0.2, 1.0]),
    }
)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_any_mix(data: st.DataObject) -> None:
    """Random widths, ties, masks of any density and width, logits of any size and sort."""
    runtime = RUNTIMES[data.draw(st.sampled_from([*RUNTIMES]))]
    vocab = data.draw(st.integers(1, 700))
    count = data.draw(st.integers(1, 4))
    chance = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    spread = data.draw(st.sampled_from([0.0, 0.1, 3.0, 200.0]))
    logits = np.round(chance.standard_normal((count, vocab)) * spread * 32) / 32
    for value in data.draw(st.lists(st.sampled_from([math.nan, math.inf, -math.inf]), max_size=2)):
        logits[chance.integers(count), chance.integers(vocab)] = value
    rows = [sample_row(params(**data.draw(steps)), key=key, seed=key, position=vocab) for key in range(count)]
    masked = data.draw(st.lists(st.integers(0, count - 1), unique=True))
    width = data.draw(st.sampled_from([vocab, max(1, vocab - 40), vocab + 40]))
    density = data.draw(st.sampled_from([0.0, 0.01, 0.5, 1.0]))
    allowed = chance.random((len(masked), width)) < density
    check(runtime, torch.from_numpy(logits).float(), rows, masked, allowed)


def test_equal_logits(runtime: Runtime) -> None:
    """Greedy takes the first of equals, a cut keeps all of them."""
    logits = torch.zeros(1, 1000)
    logits[0, [300, 301, 999]] = 2.0
    assert check(runtime, logits, [sample_row(params(temperature=0.0))]) == [300]
    rows = [sample_row(params(top_k=2), key=seed, seed=seed) for seed in range(40)]
    assert {*check(runtime, logits.repeat(40, 1), rows)} == {300, 301, 999}


def test_a_broken_row_fails_alone(runtime: Runtime) -> None:
    """NaN, infinity, and nothing allowed; a NaN that the mask rules out does no harm."""
    logits = random_logits(5, vocab=300)
    logits[1, 299], logits[3, 50], logits[4, 7] = math.nan, math.inf, math.nan
    allowed = np.ones((2, 300), bool)
    allowed[0], allowed[1, 7] = False, False
    for fields in ({"temperature": 0.0}, {"top_p": 0.9}):
        rows = [sample_row(params(**fields), key=i) for i in range(5)]
        ids = check(runtime, logits, rows, [2, 4], allowed)
        assert [token_id < 0 for token_id in ids] == [False, True, True, True, False]


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.9}, {"temperature": 0.0}])
def test_neighbours_and_threads_do_not_change_a_sample(runtime: Runtime, fields: dict[str, Any]) -> None:
    logits = random_logits(16, seed=2, vocab=40_000)
    rows = [sample_row(params(**fields), key=i, seed=i, position=i) for i in range(16)]
    together, *_ = sample(runtime, logits.clone(), batch(rows))
    for index, row in enumerate(rows):
        alone, *_ = sample(runtime, logits[index : index + 1].clone(), batch([row]))
        assert alone.tolist() == [int(together[index])]


def test_sampled_tokens_have_the_exact_distribution(runtime: Runtime) -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, 1.5, 0.7, 0.2])
    rows = [
        sample_row(params(temperature=0.8), seed=seed, position=position)
        for seed in range(50)
        for position in range(200)
    ]
    ids, *_ = sample(runtime, logits.repeat(len(rows), 1), batch(rows))
    expected = (logits.double() / 0.8).softmax(-1).numpy() * len(rows)
    counts = np.bincount(ids.numpy(), minlength=10)
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # 99.9 % quantile of 9 degrees of freedom


CHANGES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7, "presence_penalty": -0.31, "frequency_penalty": 0.17},
    {"presence_penalty": 1.1},
    {"frequency_penalty": 1.9, "logit_bias": {2: 0.1, 1: -3.7}},
    {"logit_bias": {299: 100.0, 0: -100.0}},
]


@pytest.mark.parametrize("forbidden", [frozenset[int](), frozenset({2, 299})])
def test_changes_of_logits_have_the_bits_of_torch(runtime: Runtime, forbidden: frozenset[int]) -> None:
    logits = random_logits(len(CHANGES), vocab=300)
    logits[0, 1] = -0.0
    tokens = [1, 2, 2, 7, 299, 2, 7]
    rows = [
        sample_row(
            params(temperature=0.0, **fields),
            key=key,
            tokens=tokens,
            num_prompt=3,
            position=len(tokens),
            forbidden=forbidden,
        )
        for key, fields in enumerate(CHANGES)
    ]
    expected, changed = logits.clone(), logits.clone()
    wanted, *_ = Sampler(300).sample(expected, batch(rows))
    ids, *_ = sample(runtime, changed, batch(rows))
    assert changed.numpy().tobytes() == expected.numpy().tobytes()
    assert ids.tolist() == wanted.tolist()


def test_an_id_outside_the_vocabulary_is_refused(runtime: Runtime) -> None:
    for token_id in (-1, 300):
        row = sample_row(params(logit_bias={token_id: 1.0}))
        with pytest.raises(NativeStepError, match="outside the vocabulary"):
            sample(runtime, random_logits(1, vocab=300), batch([row]))


@pytest.mark.parametrize("vocab", [1, 16, 300, 50_257])
def test_logprobs(runtime: Runtime, vocab: int) -> None:
    """Against torch: rows with many equal logits, one that is certain, and such as are impossible."""
    sampler = NativeSampler(vocab, runtime)
    logits = random_logits(6, vocab=vocab)
    logits[1] = logits[1].round()
    logits[2, vocab // 2] = 90.0
    logits[3, : vocab // 2] = -math.inf
    logits[4] *= 30
    chosen = torch.tensor([0, vocab - 1, vocab // 2, vocab - 1, 0, vocab // 3])
    for top in (0, 1, min(20, vocab)):
        values, ids, of_ids = sampler.measure_logprobs(logits, chosen, top)
        expected, expected_ids, expected_top = reference_logprobs(logits, chosen, top)
        torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-6)
        torch.testing.assert_close(of_ids, expected_top, atol=1e-5, rtol=1e-6)
        order = logits.sort(dim=-1, descending=True, stable=True).indices[:, :top]
        assert ids.tolist() == order.tolist()
        assert expected_ids.shape == ids.shape


def test_logprobs_of_a_broken_row_are_no_numbers(runtime: Runtime) -> None:
    sampler = NativeSampler(300, runtime)
    logits = random_logits(2, vocab=300)
    alone = logits[:1].clone()
    logits[1, 299] = math.nan
    values, _, _ = sampler.measure_logprobs(logits, torch.tensor([4, 4]), 2)
    assert values[1].isnan()
    assert values[0] == sampler.measure_logprobs(alone, torch.tensor([4]), 5)[0][0]


def test_what_the_step_found_is_taken_as_it_is(runtime: Runtime) -> None:
    """Only the rows it did not seek are read."""
    logits = random_logits(3, vocab=300)
    logits[[0, 2]] = math.nan
    rows = [sample_row(params(temperature=0.0), key=key) for key in range(3)]
    found = np.array([17, NOT_SOUGHT, -1])
    ids, host_ids, _ = sample(runtime, logits, replace(batch(rows), sampled=found))
    assert ids.tolist() == host_ids == [17, int(logits[1].argmax()), -1]


@pytest.mark.parametrize("density", [0.0, 0.02, 0.5, 1.0])
def test_what_a_step_found_is_taken_where_masks_allow_it(runtime: Runtime, density: float) -> None:
    """Also of rows without a mask, of masks narrower than the logits, and of a row without numbers."""
    vocab, count = 301, 24
    rng = np.random.default_rng(7)
    logits = torch.from_numpy(rng.integers(-9, 9, (count, vocab)).astype(np.float32))  # many are equal
    logits[5, 3] = torch.nan
    found = logits.argmax(-1).numpy().copy()
    found[5] = -1
    masked = [row for row in range(count) if row % 4]
    allowed = rng.random((len(masked), 288)) < density
    rows = [sample_row(params(temperature=0.0), key=row, has_grammar=row in masked) for row in range(count)]
    expected, *_ = Sampler(vocab).sample(logits.clone(), batch(rows, masks=resolved(masked, allowed)))
    step = replace(batch(rows, masks=resolved(masked, allowed)), sampled=found)
    ids, *_ = sample(runtime, logits.clone(), step)
    assert ids.tolist() == expected.tolist()
