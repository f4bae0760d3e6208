"""Runs batches on a model in torch: forward pass, then sampling."""

from __future__ import annotations

import time
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from engine.batch import Batch, Launch, StepOutput
from engine.batch_part import known_ids
from engine.sampler import Sampler
from kernels.transfer import HostCopy, to_device


class Model(Protocol):
    """A decoder with its KV pages."""

    hidden_size: int

    def forward(self, batch: Batch, token_ids: Tensor, hidden: Tensor | None = None) -> Tensor:
        """float32 logits of `batch.logit_rows`, [S + Q, vocab]; writes the KV of all tokens to pages.

        Args:
            hidden: float32 [E, hidden], overwritten with what the final norm gives for `batch.embed_rows`;
                None where there are none.
        """
        ...


class ModelRunner:
    """A `Runner` over a real model."""

    def __init__(self, model: Model, sampler: Sampler, device: torch.device) -> None:
        self._model = model
        self._sampler = sampler
        self._device = device

    def prepare(self, batch: Batch) -> Launch:
        return partial(self._run, batch)

    @torch.inference_mode()
    def _run(self, batch: Batch) -> StepOutput:
        started = time.perf_counter()
        token_ids = to_device(known_ids(batch), self._device)
        hidden = None
        if len(batch.embed_rows):
            hidden = torch.empty(len(batch.embed_rows), self._model.hidden_size, device=self._device)
        logits = self._model.forward(batch, token_ids, hidden)
        forwarded = time.perf_counter()
        _, host_ids, logprobs = self._sampler.sample(logits[: len(batch.samples)], batch)
        # What the host waits for comes last.
        prompt_logprobs = self._sampler.measure_prompt(logits[len(batch.samples) :], batch)
        batch.sampled[:] = host_ids
        return StepOutput(
            token_ids=host_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            embeddings=[] if hidden is None else list(HostCopy(hidden).wait().numpy()),
            forward_s=forwarded - started,
            sample_s=time.perf_counter() - forwarded,
        )
