"""Sampling kernels against the sampler's own torch: the same tokens, not only the same distribution."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.batch import Batch, Masks, SampleRow
from engine.drawing import draw, uniform
from engine.gpu_sampler import GpuSampler
from engine.params import SamplingParams
from engine.penalties import _penalised
from kernels.gpu.logprobs import logprobs
from kernels.gpu.penalties import Adjustments, adjust
from kernels.gpu.sampling import SamplingRows, sample


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    return numbers.to(torch.get_default_device()) * scale


def sampling_rows(params: list[SamplingParams], positions: list[int]) -> SamplingRows:
    seeds = [(each.seed & (2**64 - 1)) for each in params]
    return SamplingRows(
        temperatures=torch.tensor([each.temperature for each in params]),
        top_ks=torch.tensor([each.top_k for each in params], dtype=torch.int32),
        top_ps=torch.tensor([each.top_p for each in params], dtype=torch.float64),
        min_ps=torch.tensor([each.min_p for each in params]),
        seeds=torch.tensor([seed - 2**64 if seed >= 2**63 else seed for seed in seeds]),
        positions=torch.tensor(positions),
    )


def chosen(logits: Tensor, params: list[SamplingParams], positions: list[int]) -> list[int]:
    return sample(logits.clone(), sampling_rows(params, positions), greedy_below=1e-5).tolist()


def expected(logits: Tensor, params: list[SamplingParams], positions: list[int]) -> list[int]:
    rows = zip(logits.cpu().clone(), params, positions, strict=True)
    return [int(draw(row, each, uniform(each.seed, position))) for row, each, position in rows]


TRUNCATIONS: list[dict[str, Any]] = [
    {},
    {"top_k": 1},
    {"top_k": 40},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"min_p": 0.05},
    {"top_k": 50, "top_p": 0.8, "min_p": 0.02},
    {"top_k": 10_000, "top_p": 0.999},
]


@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
@pytest.mark.parametrize("vocab", [1000, 6001])
def test_draws_what_the_sampler_draws(vocab: int, truncation: dict[str, Any]) -> None:
    count = 9
    logits = normal(count, vocab, seed=1, scale=3.0)
    logits[1, ::3] = -torch.inf
    logits[2] = logits[2].round()  # ties at every cut
    params = [
        SamplingParams(max_tokens=1, seed=977 * row - 5, temperature=(0.3, 1.0, 2.0)[row % 3], **truncation)
        for row in range(count)
    ]
    positions = [row * 1000 for row in range(count)]
    assert chosen(logits, params, positions) == expected(logits, params, positions)


def test_every_noise_draws_what_the_sampler_draws() -> None:
    """Cumulative weights meet targets all over the row, equal ones too."""
    logits = normal(1, 300, seed=2).round(decimals=1).expand(200, 300)
    params = [SamplingParams(max_tokens=1, seed=3)] * 200
    positions = list(range(200))
    assert chosen(logits, params, positions) == expected(logits, params, positions)


def test_greedy_takes_the_first_of_the_likeliest() -> None:
    logits = normal(3, 9000, seed=3)
    logits[1, [17, 4200, 8800]] = 9.0
    logits[2, 8999] = 9.0
    greedy = [SamplingParams(max_tokens=1, temperature=0.0)] * 3
    assert chosen(logits, greedy, [0, 0, 0]) == logits.argmax(-1).tolist()


def test_rows_without_a_usable_number() -> None:
    logits = normal(5, 5000, seed=4)
    logits[0, 4500] = torch.nan
    logits[1] = -torch.inf
    logits[2, 0] = torch.inf
    logits[3, 1:] = -torch.inf
    params = [SamplingParams(max_tokens=1, top_k=3)] * 5
    result = chosen(logits, params, [1] * 5)
    assert result[:4] == [-1, -1, -1, 0]
    assert result[4] >= 0


def test_step_without_samples() -> None:
    """A step that only reads a part of a prompt."""
    ids, host_ids, logprobs = GpuSampler(1000).sample(torch.empty(0, 1000), empty_batch())
    assert (ids.tolist(), host_ids, logprobs) == ([], [], [])


def test_step_whose_constrained_rows_all_ended() -> None:
    """They sample, but no mask is filled for them any more."""
    logits = normal(1, 1000, seed=6)
    row = SampleRow(
        key=0,
        params=SamplingParams(max_tokens=9, temperature=0.0),
        seed=0,
        position=1,
        tokens=[1],
        num_prompt=1,
        num_known=1,
        has_grammar=True,
    )
    masks: Future[Masks | None] = Future()
    masks.set_result(Masks(rows=np.zeros(0, np.int64), bits=[]))
    batch = replace(empty_batch(), logit_rows=np.zeros(1, np.int64), samples=[row], masks=masks)
    _, host_ids, _ = GpuSampler(1000).sample(logits, batch)
    assert host_ids == logits.argmax(-1).tolist()


def empty_batch() -> Batch:
    places, nothing = np.zeros(0, np.int64), np.zeros(0, np.int32)
    return Batch(
        token_ids=places,
        pending_at=places,
        pending_from=places,
        positions=places,
        query_starts=np.zeros(1, np.int32),
        context_lens=nothing,
        page_table=nothing[None],
        kv_slots=places,
        logit_rows=places,
        samples=[],
    )


def test_penalties_and_biases() -> None:
    logits = normal(3, 500, seed=5, scale=3.0)
    settings = [
        SamplingParams(max_tokens=1, repetition_penalty=1.3),
        SamplingParams(max_tokens=1),
        SamplingParams(max_tokens=1, presence_penalty=0.7, frequency_penalty=-0.4, repetition_penalty=0.8),
    ]
    tokens = [torch.tensor([3, 499, 7]), torch.tensor([], dtype=torch.int64), torch.arange(1, 400)]
    counts = [torch.tensor([0.0, 2.0, 1.0]), torch.tensor([]), torch.arange(399.0) % 4]
    biased = torch.tensor([0, 450])
    bias = torch.tensor([-torch.inf, 2.5])
    expected = logits.clone()
    for row, params in enumerate(settings):
        expected[row, tokens[row]] = _penalised(expected[row, tokens[row]], counts[row], params)
    expected[2, biased] += bias
    adjust(
        logits,
        Adjustments(
            starts=torch.tensor([0, 3, 3, 404], dtype=torch.int32),
            tokens=torch.cat([*tokens, biased]).to(torch.int32),
            counts=torch.cat([*counts, torch.full((2,), -1.0)]),
            biases=torch.cat([torch.zeros(402), bias]),
            repetitions=torch.tensor([each.repetition_penalty for each in settings]),
            presences=torch.tensor([each.presence_penalty for each in settings]),
            frequencies=torch.tensor([each.frequency_penalty for each in settings]),
        ),
    )
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)


def test_logprobs() -> None:
    logits = normal(4, 9000, seed=6, scale=4.0)
    logits[1, 5000:5003] = 40.0  # equal ones come in order of their ids
    logits[2, 10:] = -torch.inf
    picked = torch.tensor([8999, 5001, 3, 0])
    exact = logits.double().log_softmax(-1)
    of_chosen, top_ids, top = logprobs(logits, picked, 12)
    torch.testing.assert_close(
        of_chosen.double(), exact.gather(1, picked[:, None])[:, 0], rtol=1e-5, atol=1e-5
    )
    order = exact.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(top_ids[[0, 1, 3]], order.indices[[0, 1, 3], :12])
    assert top_ids[2].tolist() == [*order.indices[2, :10].tolist(), 10, 11]
    torch.testing.assert_close(top.double(), order.values[:, :12], rtol=1e-5, atol=1e-5)
