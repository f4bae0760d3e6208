"""The sampler of a GPU: the same choices, in a handful of kernels for all rows together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from engine.batch import Masks, SampleRow
from engine.logprobs import Measure
from engine.params import GREEDY_BELOW
from engine.sampler import Sampler
from kernels.gpu.logprobs import logprobs
from kernels.gpu.mask import apply_mask
from kernels.gpu.penalties import Adjustments, adjust
from kernels.gpu.sampling import SamplingRows, sample
from kernels.transfer import to_device

_SEED_MASK = (1 << 64) - 1


class GpuSampler(Sampler):
    """A `Sampler` for logits on a GPU."""

    measure_logprobs: Measure = staticmethod(logprobs)

    def _adjust(self, logits: Tensor, rows: list[SampleRow]) -> None:
        entries = [self._entries(row) for row in rows]
        starts = np.cumsum([0, *(len(tokens) for tokens, _, _ in entries)], dtype=np.int32)
        if starts[-1] == 0:
            return
        tokens, counts, biases = (np.concatenate(arrays) for arrays in zip(*entries, strict=True))
        params = [row.params for row in rows]
        scales = np.array(
            [(p.repetition_penalty, p.presence_penalty, p.frequency_penalty) for p in params], np.float32
        ).T.copy()
        repetitions, presences, frequencies = to_device(scales, logits.device)
        adjust(
            logits,
            Adjustments(
                starts=to_device(starts, logits.device),
                tokens=to_device(tokens.astype(np.int32), logits.device),
                counts=to_device(counts, logits.device),
                biases=to_device(biases, logits.device),
                repetitions=repetitions,
                presences=presences,
                frequencies=frequencies,
            ),
        )

    def _entries(
        self, row: SampleRow
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Tokens of one row whose logits change, each once, their counts and their biases."""
        tokens, counts = np.empty(0, np.int64), np.empty(0, np.float32)
        if row.params.has_penalties:
            tokens, counts = self._penalties.occurrences(row)
        biases = np.zeros(len(tokens), np.float32)
        biased = row.params.logit_bias | dict.fromkeys(row.forbidden, -np.inf)
        if biased:
            ids, values = np.array(list(biased)), np.array(list(biased.values()), np.float32)
            _, counted, met = np.intersect1d(tokens, ids, assume_unique=True, return_indices=True)
            biases[counted] = values[met]
            ids, values = np.delete(ids, met), np.delete(values, met)
            tokens = np.concatenate((tokens, ids))
            counts = np.concatenate((counts, np.full(len(ids), -1, np.float32)))
            biases = np.concatenate((biases, values))
        return tokens, counts, biases

    def _choose(self, logits: Tensor, rows: list[SampleRow], masks: Masks | None) -> Tensor:
        if masks is not None and masks.bits:
            bits = to_device(np.stack(masks.bits), logits.device)
            apply_mask(logits, bits, to_device(masks.rows, logits.device))
        params = [row.params for row in rows]
        seeds = np.array([row.seed & _SEED_MASK for row in rows], np.uint64).view(np.int64)
        floats = np.array([(p.temperature, p.min_p) for p in params], np.float32).reshape(-1, 2).T
        temperatures, min_ps = to_device(floats, logits.device)
        return sample(
            logits,
            SamplingRows(
                temperatures=temperatures,
                min_ps=min_ps,
                top_ks=to_device(np.array([p.top_k for p in params], np.int32), logits.device),
                top_ps=to_device(np.array([p.top_p for p in params], np.float64), logits.device),
                seeds=to_device(seeds, logits.device),
                positions=to_device(np.array([row.position for row in rows], np.int64), logits.device),
            ),
            greedy_below=GREEDY_BELOW,
        )
