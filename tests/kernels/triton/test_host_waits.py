"""A step is launched as a whole before the host waits for any of it.

On meta tensors, which have no numbers: whatever would read one back (`item`, `tolist`, `cpu`, `nonzero`, a
condition on a tensor) raises. What is read on purpose goes through `HostCopy`, which is stood in for.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from triton.runtime.jit import KernelInterface

from engine import logprobs, runner, sampler
from engine.batch import Batch, Masks, SampleRow
from engine.gpu_sampler import GpuSampler
from engine.models.decoder import Decoder
from engine.models.graphs import GraphedDecoder
from engine.models.kv_cache import KVCache
from engine.params import SamplingParams
from engine.runner import ModelRunner
from tests.kernels.triton.launches import META, as_on, launched_once, mixed_batch, model_spec, weights_of

SPEC = model_spec(num_heads=32, num_kv_heads=8, head_dim=128)
PARAMS = [
    SamplingParams(
        max_tokens=9, repetition_penalty=1.1, logit_bias={5: 1.0}, top_k=50, top_p=0.9, logprobs=3
    ),
    SamplingParams(max_tokens=9, temperature=0.0, allowed_token_ids=frozenset({1, 2, 3})),
    SamplingParams(max_tokens=9, bad_words=((7,), (1, 2)), min_p=0.1, logprobs=0),
]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of kernels launched and "wait", in order."""
    happened: list[str] = []

    class Copy:
        def __init__(self, tensor: Tensor) -> None:
            assert tensor.device == META
            self._tensor = tensor

        def wait(self) -> Tensor:
            happened.append("wait")
            return torch.zeros(self._tensor.shape, dtype=self._tensor.dtype)

    def getitem(kernel: Any, _grid: object) -> Callable[..., None]:
        return lambda *_arguments, **_named: happened.append(kernel.__name__)

    for module in (logprobs, runner, sampler):
        monkeypatch.setattr(module, "HostCopy", Copy)
    monkeypatch.setattr(KernelInterface, "__getitem__", getitem)
    return happened


def batch_of(batch: Batch, *, masked: bool) -> Batch:
    """The batch with every way to choose a token, and ids that are still on the device."""
    rows = range(len(batch.context_lens))
    masks: Future[Masks | None] = Future()
    words = -(-SPEC.vocab_size // 32)
    masks.set_result(Masks(rows=np.arange(1), bits=[np.zeros(words, np.int32)]) if masked else None)
    return replace(
        batch,
        pending_at=np.arange(1),
        pending_from=np.zeros(1, np.int64),
        previous=np.array([-1]),
        samples=[
            SampleRow(
                key=row,
                params=PARAMS[row % len(PARAMS)],
                seed=row,
                position=9,
                tokens=[1] * 9,
                num_prompt=5,
                num_known=9,
            )
            for row in rows
        ],
        sampled=np.zeros(len(rows), np.int64),
        masks=masks,
    )


def decode_batch(rows: int) -> Batch:
    table = np.arange(rows * 44, dtype=np.int32).reshape(rows, 44)
    return replace(
        mixed_batch(),
        token_ids=np.zeros(rows, np.int64),
        positions=np.full(rows, 599),
        query_starts=np.arange(rows + 1, dtype=np.int32),
        context_lens=np.full(rows, 600, np.int32),
        page_table=table,
        kv_slots=table[:, 37].astype(np.int64) * 16,
        logit_rows=np.arange(rows),
    )


@pytest.mark.parametrize("masked", [False, True])
def test_the_host_waits_at_the_end_of_a_step(events: list[str], masked: bool) -> None:
    with as_on("sm_90"):
        decoder = Decoder(
            SPEC, weights_of(SPEC, head_norms=True), KVCache.allocate(SPEC, 256, 16, torch.bfloat16, META)
        )
        model = GraphedDecoder(decoder, max_rows=3, capture=launched_once, progress=lambda _done: None)
        on_device = ModelRunner(model, GpuSampler(SPEC.vocab_size), META)
        prompts = replace(
            mixed_batch(),
            logit_rows=np.append(mixed_batch().logit_rows, [3, 4]),
            prompt_next=np.array([5, 6]),
            prompt_top=[2, 0],
            embed_rows=np.array([1]),
        )
        for batch, is_mixed in ((decode_batch(3), False), (prompts, True), (decode_batch(2), False)):
            events.clear()
            output = on_device.prepare(batch_of(batch, masked=masked))()
            assert len(output.token_ids) == len(batch.context_lens)
            expected = {"sample_kernel", "logprobs_kernel", "penalties_kernel"}
            expected |= {"apply_mask_kernel"} if masked else set()
            assert expected <= set(events)
            first = events.index("wait")
            # Log-probabilities of a prompt are measured after everything else, and waited for then.
            assert set(events[first:]) == ({"wait", "logprobs_kernel"} if is_mixed else {"wait"})
