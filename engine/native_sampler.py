"""The sampler of the native CPU step: the same choices, one call on the threads of the step."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from torch import Tensor

from engine.batch import Masks, SampleRow
from engine.drawing import uniform
from engine.sampler import GREEDY_BELOW, Sampler
from kernels.cpu.abi import Draw, SampleJob
from kernels.cpu.runtime import Runtime


class NativeSampler(Sampler):
    """A `Sampler` that masks, truncates and draws in `kernels.cpu`, for logits on the CPU.

    Equal to its base but for the last bits of the weights: a draw whose noise lies within them of the
    border between two tokens may give the other one.
    """

    def __init__(self, vocab_size: int, runtime: Runtime) -> None:
        """
        Args:
            runtime: that of the decoder, whose steps never run while this samples.
        """
        super().__init__(vocab_size)
        self._runtime = runtime

    def _choose(self, logits: Tensor, rows: list[SampleRow], masks: Masks | None) -> Tensor:
        draws = (Draw * len(rows))()
        for draw, row in zip(draws, rows, strict=True):
            params = row.params
            if params.temperature >= GREEDY_BELOW:
                draw.temperature, draw.top_p, draw.min_p = params.temperature, params.top_p, params.min_p
                draw.top_k = min(params.top_k, self._vocab_size)
                draw.noise = uniform(row.seed, row.position)
        job = SampleJob(rows=len(rows), vocab=logits.shape[1])
        if masks is not None:
            bits = np.ascontiguousarray(masks.bits)
            job.mask_words = bits.shape[1]
            for row_index, row_bits in zip(masks.rows.tolist(), range(len(bits)), strict=True):
                draws[row_index].mask = bits.ctypes.data + row_bits * bits.strides[0]
        logits = logits.contiguous()
        chosen = torch.empty(len(rows), dtype=torch.int64)
        job.logits, job.draws, job.chosen = logits.data_ptr(), ctypes.addressof(draws), chosen.data_ptr()
        self._runtime.sample(job)
        return chosen
