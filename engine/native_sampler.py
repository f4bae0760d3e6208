"""The sampler of the native CPU step: the same choices, one call on the threads of the step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.allowed_ids import Words
from engine.batch import Batch, Int32, Masks, SampleRow
from engine.drawing import uniform
from engine.models.native import NOT_SOUGHT
from engine.params import GREEDY_BELOW
from engine.sampler import Sampler
from kernels.cpu.abi import Draw, LogprobJob, SampleJob
from kernels.cpu.runtime import Runtime

_Ids = npt.NDArray[np.int64]


class NativeSampler(Sampler):
    """A `Sampler` that does everything with logits in `kernels.cpu`, for logits on the CPU.

    Equal to its base but for the last bits of weights and log-probabilities: a draw whose noise lies within
    them of the border between two tokens may give the other one.
    """

    def __init__(self, vocab_size: int, runtime: Runtime, likeliest: Callable[[], _Ids]) -> None:
        """
        Args:
            runtime: that of the decoder, whose steps never run while this samples.
            likeliest: what the step whose logits are sampled found itself, `NativeDecoder.likeliest`.
        """
        super().__init__(vocab_size)
        self._runtime = runtime
        self._likeliest = likeliest
        self.measure_logprobs = self._measure

    def _pick(self, logits: Tensor, batch: Batch) -> Tensor:
        chosen = self._likeliest().copy()
        draws = _Draws()
        for place in np.flatnonzero(chosen == NOT_SOUGHT).tolist():
            self._describe(draws, place, batch.samples[place])
        masks = batch.masks.result() if batch.masks is not None else None
        if masks is not None:
            # The likeliest of all is the likeliest of those that a mask allows, if it is one.
            likeliest = chosen.tolist()
            for place, bits in zip(masks.rows.tolist(), masks.bits, strict=True):
                if likeliest[place] != NOT_SOUGHT and not _allows(bits, likeliest[place]):
                    draws.add(place)
        if draws.places:
            self._give_masks(draws, batch.samples, masks)
            chosen[draws.places] = self._draw(logits, draws)
        return torch.from_numpy(chosen)

    def _describe(self, draws: _Draws, place: int, row: SampleRow) -> None:
        """How a row is to be chosen from, but for masks."""
        draw, params = draws.add(place), row.params
        if params.temperature >= GREEDY_BELOW:
            draw.temperature, draw.top_p, draw.min_p = params.temperature, params.top_p, params.min_p
            draw.top_k = min(params.top_k, self._vocab_size)
            draw.noise = uniform(row.seed, row.position)
        if params.has_penalties:
            draw.repetition, draw.presence = params.repetition_penalty, params.presence_penalty
            draw.frequency = params.frequency_penalty
            seen, counts = self._penalties.occurrences(row)
            draw.num_seen, draw.seen, draw.counts = len(seen), draws.keep(seen), draws.keep(counts)
        if params.logit_bias:
            draw.num_biased = len(params.logit_bias)
            draw.biased = draws.keep(np.array(list(params.logit_bias), np.int64))
            draw.biases = draws.keep(np.array(list(params.logit_bias.values()), np.float32))
        impossible = [*row.forbidden, *self._restrictions.completing(row)]
        if impossible:
            draw.num_impossible, draw.impossible = len(impossible), draws.keep(np.array(impossible, np.int64))

    def _give_masks(self, draws: _Draws, rows: list[SampleRow], masks: Masks | None) -> None:
        """Give the draws their masks: of grammars, and of the ids that requests allow."""
        of_place = {} if masks is None else dict(zip(masks.rows.tolist(), masks.bits, strict=True))
        allowed = self._restrictions.allowed(rows, self._vocab_size)
        for draw, place in zip(draws.draws, draws.places, strict=True):
            bits = of_place.get(place)
            if bits is not None:
                bits = bits.view(np.uint32)
            if place in allowed:
                bits = allowed[place] if bits is None else _both(allowed[place], bits)
            if bits is not None:
                draw.mask, draw.mask_words = draws.keep(bits), len(bits)

    def _draw(self, logits: Tensor, draws: _Draws) -> _Ids:
        assert logits.is_contiguous()
        chosen = np.empty(len(draws.draws), np.int64)
        array = (Draw * len(chosen))(*draws.draws)
        self._runtime.sample(
            SampleJob(
                logits=logits.data_ptr(),
                draws=ctypes.addressof(array),
                chosen=chosen.ctypes.data,
                rows=len(chosen),
                vocab=logits.shape[1],
            )
        )
        return chosen

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


class _Draws:
    """Draws from rows of logits, and the arrays that they point to."""

    def __init__(self) -> None:
        self.draws: list[Draw] = []
        self.places: list[int] = []
        """The rows, one each."""
        self._kept: list[npt.NDArray[np.generic]] = []

    def add(self, place: int) -> Draw:
        """A draw from a row: its likeliest token, unless more is said of it."""
        draw = Draw(row=place)
        self.draws.append(draw)
        self.places.append(place)
        return draw

    def keep(self, array: npt.NDArray[np.generic]) -> int:
        """The address of an array."""
        self._kept.append(array)
        return array.ctypes.data


def _allows(bits: Int32, token_id: int) -> bool:
    """Whether a mask allows the likeliest token. If there is none, that may be due to what is ruled out."""
    word = token_id >> 5
    return 0 <= word < len(bits) and bool(bits.item(word) >> (token_id & 31) & 1)


def _both(first: Words, second: Words) -> Words:
    """The bits that both have."""
    width = min(len(first), len(second))
    return first[:width] & second[:width]
