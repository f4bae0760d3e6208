"""Log-probabilities of sampled tokens, as the model gave them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.batch import SampleRow
from engine.stream import TokenLogprob

FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


class RawLogprobs:
    """Log-softmax of the raw logits of the rows that ask for it.

    Taken before penalties, bias, masks and temperature change the logits, as vLLM reports them.
    """

    def __init__(self, logits: Tensor, rows: Sequence[SampleRow]) -> None:
        self._wanted = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
        self._num_rows = len(rows)
        self._num_top = [rows[i].params.logprobs or 0 for i in self._wanted]
        if self._wanted:
            # [wanted, V]; a copy, since sampling overwrites the logits
            self._logits = logits[self._wanted]
            self._normalizer = self._logits.logsumexp(dim=-1, keepdim=True)

    def of(self, token_ids: Sequence[int]) -> list[TokenLogprob | None]:
        """One entry a row: None where none is wanted, or where `token_ids` has -1."""
        result: list[TokenLogprob | None] = [None] * self._num_rows
        if not self._wanted:
            return result
        chosen = torch.tensor([max(token_ids[i], 0) for i in self._wanted], device=self._logits.device)
        chosen_values = self._finish(self._logits.gather(-1, chosen[:, None]))
        top = self._logits.topk(min(max(self._num_top), self._logits.shape[-1]), dim=-1)
        top_values, top_ids = self._finish(top.values), top.indices.tolist()
        for place, row in enumerate(self._wanted):
            if token_ids[row] >= 0:
                count = self._num_top[place]
                likeliest = zip(top_ids[place][:count], top_values[place][:count], strict=True)
                result[row] = TokenLogprob(token_ids[row], chosen_values[place][0], tuple(likeliest))
        return result

    def _finish(self, logits: Tensor) -> list[list[float]]:
        """Logits to log-probabilities; equal logits of a row give equal bits."""
        values: list[list[float]] = (logits - self._normalizer).clamp(min=FLOOR).tolist()
        return values
