"""Runs one batch on the model: forward pass, sampling, ids carried over to the next batch."""

from __future__ import annotations

import time
from typing import Protocol

import torch
from torch import Tensor

from engine.batch import Batch, StepOutput
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
        self._sampled = torch.zeros(0, dtype=torch.int64, device=device)

    @torch.inference_mode()
    def run(self, batch: Batch) -> StepOutput:
        """Forward and sample. The sampled ids stay on the device for the next call."""
        started = time.perf_counter()
        token_ids = to_device(batch.token_ids.copy(), self._device)
        if len(batch.pending_at):
            pending = self._sampled.index_select(0, to_device(batch.pending_from, self._device))
            token_ids.index_copy_(0, to_device(batch.pending_at, self._device), pending)
        hidden = None
        if len(batch.embed_rows):
            hidden = torch.empty(len(batch.embed_rows), self._model.hidden_size, device=self._device)
        logits = self._model.forward(batch, token_ids, hidden)
        forwarded = time.perf_counter()
        ids, host_ids, logprobs = self._sampler.sample(logits[: len(batch.samples)], batch)
        # What the host waits for comes last.
        prompt_logprobs = self._sampler.measure_prompt(logits[len(batch.samples) :], batch)
        self._sampled = ids.clamp(min=0)
        return StepOutput(
            token_ids=host_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            embeddings=[] if hidden is None else list(HostCopy(hidden).wait().numpy()),
            forward_s=forwarded - started,
            sample_s=time.perf_counter() - forwarded,
        )
