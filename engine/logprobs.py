"""Log-probabilities of sampled tokens, as the model gave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from engine.batch import SampleRow
from engine.stream import TokenLogprob
from kernels.transfer import HostCopy, to_device

FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot say."""

Measure = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]
"""What `logprobs` is, or a faster one."""


def logprobs(logits: Tensor, chosen: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-softmax of [S, V] logits where it is wanted.

    Returns:
        float32 [S] of the `chosen` ids [S]; ids [S, top] of the likeliest, and float32 [S, top] theirs.
        Equal logits of a row give equal bits.
    """
    normalizer = logits.logsumexp(dim=-1, keepdim=True)
    likeliest = logits.topk(top, dim=-1)
    of_chosen = (logits.gather(-1, chosen[:, None]) - normalizer)[:, 0]
    return of_chosen, likeliest.indices, likeliest.values - normalizer


class Measurement:
    """Log-probabilities on their way to the host."""

    def __init__(self, measure: Measure, logits: Tensor, chosen: Tensor, num_top: Sequence[int]) -> None:
        """Begin to compute what [S, V] logits say of the ids `chosen` [S], on their device, and of the
        `num_top` [S] likeliest ids of each row."""
        self._num_top = num_top
        of_chosen, likeliest, of_likeliest = measure(logits, chosen, min(max(num_top), logits.shape[-1]))
        self._copies = (
            HostCopy(of_chosen.clamp(min=FLOOR)),
            HostCopy(likeliest),
            HostCopy(of_likeliest.clamp(min=FLOOR)),
        )

    def of(self, token_ids: Sequence[int]) -> list[TokenLogprob]:
        """One entry a row, once it is there.

        Args:
            token_ids: `chosen`, on the host.
        """
        values, top_ids, top_values = (copy.wait().tolist() for copy in self._copies)
        return [
            TokenLogprob(token_id, value, tuple(zip(ids[:count], logprobs[:count], strict=True)))
            for token_id, value, ids, logprobs, count in zip(
                token_ids, values, top_ids, top_values, self._num_top, strict=True
            )
        ]


def describe(
    measure: Measure, logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprob]:
    """What [S, V] logits say of `token_ids` [S], and of the `num_top` [S] likeliest ids of each row."""
    if not token_ids:
        return []
    return Measurement(measure, logits, to_device(np.array(token_ids), logits.device), num_top).of(token_ids)


class RawLogprobs:
    """Log-softmax of the raw logits of the rows that ask for it.

    Taken before penalties, bias, masks and temperature change the logits, as vLLM reports them.
    """

    def __init__(self, logits: Tensor, rows: Sequence[SampleRow], measure: Measure) -> None:
        self._measure = measure
        self._wanted = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
        self._num_rows = len(rows)
        self._num_top = [rows[i].params.logprobs or 0 for i in self._wanted]
        if self._wanted:
            self._at = to_device(np.array(self._wanted), logits.device)
            # [wanted, V]; a copy, since sampling overwrites the logits
            self._logits = logits.index_select(0, self._at)

    def begin(self, ids: Tensor) -> None:
        """Begin to measure the `ids` [S] sampled, on their device, so that the host waits but once."""
        if self._wanted:
            chosen = ids.index_select(0, self._at).clamp(min=0)
            self._measurement = Measurement(self._measure, self._logits, chosen, self._num_top)

    def of(self, token_ids: Sequence[int]) -> list[TokenLogprob | None]:
        """One entry a row: None where none is wanted, or where `token_ids`, what `begin` got, has -1."""
        result: list[TokenLogprob | None] = [None] * self._num_rows
        if not self._wanted:
            return result
        described = self._measurement.of([max(token_ids[i], 0) for i in self._wanted])
        for row, logprob in zip(self._wanted, described, strict=True):
            if token_ids[row] >= 0:
                result[row] = logprob
        return result
