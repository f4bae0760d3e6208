"""Runs batches as native steps: one call each, from token ids to tokens, where that is possible.

Everything but that call is done beforehand, while the step before it runs. What cannot be known then (masks,
counts of tokens, the words that an output ends with) and what else is wanted of the logits follows the call.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Final

import numpy as np
import torch

from engine.batch import Batch, Float32, Launch, StepOutput
from engine.draws import Draws
from engine.models.native import NOT_SOUGHT, NativeDecoder, PreparedStep, wanted
from engine.native_sampler import NativeSampler
from engine.stream import TokenLogprob
from kernels.cpu.abi import Wanted
from kernels.cpu.runtime import padded

_KEPT_BYTES: Final = 64 << 20
"""Of logits; more of them, for the log-probabilities of a long prompt, are given back after the step."""
_ROWS: Final = 32
"""By which the kept memory grows."""


class _Left(IntEnum):
    """What is to be done once a step has run."""

    NOTHING = 0
    """It has chosen every token."""
    MASKS = 1
    """Tokens of plain rows are to be chosen under masks."""
    MORE = 2
    """More is wanted of the logits."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A batch as a native step."""

    batch: Batch
    step: PreparedStep
    hidden: Float32 | None
    """[E, hidden] to be written by the step."""
    draws: Draws
    writes_logits: bool
    left: _Left


class NativeRunner:
    """A `Runner` over a native decoder."""

    def __init__(self, decoder: NativeDecoder, sampler: NativeSampler, vocab_size: int) -> None:
        self._decoder = decoder
        self._sampler = sampler
        self._vocab_size = vocab_size
        self._logits: Float32 = np.empty((0, vocab_size), np.float32)
        """Kept for the next step that needs some: the system takes long to give and take back so much."""

    def prepare(self, batch: Batch) -> Launch:
        """Called on any thread: touches nothing that a running step does."""
        wants = bytearray(map(wanted, batch.samples))
        only_likeliest = wants.count(Wanted.ONLY_LIKELIEST) == len(batch.logit_rows)
        draws, left = Draws(self._vocab_size), _Left.NOTHING
        if not only_likeliest:
            left = self._describe(batch, wants, draws)
            batch.sampled.fill(NOT_SOUGHT)
        hidden = None
        if len(batch.embed_rows):
            hidden = np.empty((len(batch.embed_rows), self._decoder.hidden_size), np.float32)
        drawn = draws.array() if draws.draws else None
        step = self._decoder.prepare(batch, wanted=wants, chosen=batch.sampled, hidden=hidden, draws=drawn)
        return partial(self._run, _Prepared(batch, step, hidden, draws, not only_likeliest, left))

    @staticmethod
    def _describe(batch: Batch, wants: bytearray, draws: Draws) -> _Left:
        """Add the draws that are known by now; returns what they leave to be done."""
        left = _Left.MORE if len(batch.prompt_next) else _Left.NOTHING
        for place, row in enumerate(batch.samples):
            if wants[place] == Wanted.ONLY_LIKELIEST:
                continue
            if not row.is_plain:
                left = _Left.MORE
            elif row.has_grammar:
                left = max(left, _Left.MASKS)
            else:
                draws.add(place, row)
        return left

    def _run(self, prepared: _Prepared) -> StepOutput:
        batch, count = prepared.batch, len(prepared.batch.samples)
        self._sampler.release(batch.released)  # first, for a step that fails may not be run again
        started = time.perf_counter()
        logits = self._rows(len(batch.logit_rows)) if prepared.writes_logits else None
        self._decoder.run(prepared.step, logits)
        forwarded = time.perf_counter()
        logprobs: list[TokenLogprob | None] = [None] * count
        prompt_logprobs: list[TokenLogprob] = []
        if logits is not None and prepared.left == _Left.MASKS:
            self._sampler.pick(torch.from_numpy(logits[:count]), batch)
        elif logits is not None and prepared.left == _Left.MORE:
            rows = torch.from_numpy(logits)
            # Sampling comes last, as it waits for masks.
            prompt_logprobs = self._sampler.measure_prompt(rows[count:], batch)
            _, _, logprobs = self._sampler.sample(rows[:count], batch)
        return StepOutput(
            token_ids=batch.sampled.tolist(),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            embeddings=[] if prepared.hidden is None else list(prepared.hidden),
            forward_s=forwarded - started,
            sample_s=time.perf_counter() - forwarded,
        )

    def _rows(self, count: int) -> Float32:
        """[count, vocab] to be overwritten by a step."""
        if count > len(self._logits):
            rows = padded(count, _ROWS)
            if rows * self._vocab_size * self._logits.itemsize > _KEPT_BYTES:
                return np.empty((count, self._vocab_size), np.float32)
            self._logits = np.empty((rows, self._vocab_size), np.float32)
        return self._logits[:count]
