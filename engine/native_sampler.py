"""The sampler of the native CPU step: the same choices, one call on the threads of the step."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from torch import Tensor

from engine.allowed_ids import Words
from engine.batch import Batch, Int32, Int64, Masks, SampleRow
from engine.draws import Draws
from engine.models.native import NOT_SOUGHT
from engine.sampler import Sampler
from kernels.cpu.abi import LogprobJob, SampleJob
from kernels.cpu.runtime import Runtime


class NativeSampler(Sampler):
    """A `Sampler` that does everything with logits in `kernels.cpu`, for logits on the CPU.

    Equal to its base but for the last bits of weights and log-probabilities: a draw whose noise lies within
    them of the border between two tokens may give the other one. Rows whose token is in `Batch.sampled`
    already, because the step found or drew it, keep it unless their grammar forbids it; the others have
    `NOT_SOUGHT` there.
    """

    def __init__(self, vocab_size: int, runtime: Runtime) -> None:
        """
        Args:
            runtime: that of the decoder, whose steps never run while this samples.
        """
        super().__init__(vocab_size)
        self._runtime = runtime
        self.measure_logprobs = self._measure

    def _pick(self, logits: Tensor, batch: Batch) -> Tensor:
        self.pick(logits, batch)
        return torch.from_numpy(batch.sampled)

    def pick(self, logits: Tensor, batch: Batch) -> None:
        """The part of `sample` that fills `batch.sampled`: all of it where every row is plain."""
        chosen = batch.sampled
        draws = Draws(self._vocab_size)
        for place in np.flatnonzero(chosen == NOT_SOUGHT).tolist():
            self._describe(draws, place, batch.samples[place])
        masks = batch.masks.result() if batch.masks is not None else None
        if masks is not None:
            # The likeliest of all is the likeliest of those that a mask allows, if it is one.
            likeliest = chosen.tolist()
            for place, bits in zip(masks.rows.tolist(), masks.bits, strict=True):
                if likeliest[place] != NOT_SOUGHT and not _allows(bits, likeliest[place]):
                    draws.add(place, batch.samples[place])
        if draws.draws:
            self._give_masks(draws, batch.samples, masks)
            self._draw(logits, draws, chosen)

    def _describe(self, draws: Draws, place: int, row: SampleRow) -> None:
        """How a row is to be chosen from, but for masks."""
        draw, params = draws.add(place, row), row.params
        if params.has_penalties:
            draw.repetition, draw.presence = params.repetition_penalty, params.presence_penalty
            draw.frequency = params.frequency_penalty
            seen, counts = self._penalties.occurrences(row)
            draw.num_seen, draw.seen, draw.counts = len(seen), draws.keep(seen), draws.keep(counts)
        if params.logit_bias:
            draw.num_biased = len(params.logit_bias)
            draw.biased = draws.keep(np.array(list(params.logit_bias), np.int64))
            draw.biases = draws.keep(np.array(list(params.logit_bias.values()), np.float32))
        if completing := self._restrictions.completing(row):
            draws.rule_out(draw, [*row.forbidden, *completing])

    def _give_masks(self, draws: Draws, rows: list[SampleRow], masks: Masks | None) -> None:
        """Give the draws their masks: of grammars, and of the ids that requests allow."""
        of_place = {} if masks is None else dict(zip(masks.rows.tolist(), masks.bits, strict=True))
        allowed = self._restrictions.allowed(rows, self._vocab_size)
        for draw in draws.draws:
            bits = of_place.get(draw.row)
            if bits is not None:
                bits = bits.view(np.uint32)
            if draw.row in allowed:
                bits = allowed[draw.row] if bits is None else _both(allowed[draw.row], bits)
            if bits is not None:
                draw.mask, draw.mask_words = draws.keep(bits), len(bits)

    def _draw(self, logits: Tensor, draws: Draws, chosen: Int64) -> None:
        assert logits.is_contiguous()
        array = draws.array()
        self._runtime.sample(
            SampleJob(
                logits=logits.data_ptr(),
                draws=ctypes.addressof(array),
                chosen=chosen.ctypes.data,
                count=len(array),
                vocab=logits.shape[1],
            )
        )

    def _measure(self, logits: Tensor, chosen: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """As `engine.logprobs.logprobs`; of equal logits the first are the likeliest."""
        logits = logits.contiguous()
        count = len(logits)
        of_chosen = torch.empty(count)
        ids, of_top = torch.empty(count, top, dtype=torch.int64), torch.empty(count, top)
        self._runtime.logprobs(
            LogprobJob(
                logits=logits.data_ptr(),
                chosen=chosen.data_ptr(),
                of_chosen=of_chosen.data_ptr(),
                top=ids.data_ptr(),
                of_top=of_top.data_ptr(),
                rows=count,
                vocab=logits.shape[1],
                count=top,
            )
        )
        return of_chosen, ids, of_top


def _allows(bits: Int32, token_id: int) -> bool:
    """Whether a mask allows the likeliest token. If there is none, that may be due to what is ruled out."""
    word = token_id >> 5
    return 0 <= word < len(bits) and bool(bits.item(word) >> (token_id & 31) & 1)


def _both(first: Words, second: Words) -> Words:
    """The bits that both have."""
    width = min(len(first), len(second))
    return first[:width] & second[:width]
