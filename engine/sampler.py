"""Logits to tokens, for every row of a step that samples."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from engine.batch import Batch, Masks, SampleRow
from engine.drawing import draw, uniform
from engine.logprobs import Measure, RawLogprobs, describe, logprobs
from engine.params import GREEDY_BELOW
from engine.penalties import Penalties
from engine.restrictions import Restrictions
from engine.stream import TokenLogprob
from kernels.transfer import HostCopy

_IMPOSSIBLE = -float("inf")


class Sampler:
    """Chooses the next token of each row.

    In order: penalties, logit bias, forbidden ids, restrictions, grammar mask; then the likeliest token at
    temperature 0, else temperature, top-k, top-p, min-p and a draw. To be used by one thread.
    """

    measure_logprobs: Measure = staticmethod(logprobs)

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._penalties = Penalties()
        self._restrictions = Restrictions()

    def sample(self, logits: Tensor, batch: Batch) -> tuple[Tensor, list[int], list[TokenLogprob | None]]:
        """Sample every row of `batch.samples`; waits for `batch.masks` once nothing else is left.

        Args:
            logits: [S, V] float32; overwritten.
            batch: the step the logits are of.

        Returns:
            Token ids [S] int64 on the device of `logits`, -1 for a row whose maximum is not finite
            (a NaN, or nothing allowed); the same on the host; and log-probabilities where they are
            wanted, [S].
        """
        rows = batch.samples
        self.release(batch.released)
        raw = RawLogprobs(logits, rows, self.measure_logprobs)
        ids = self._pick(logits, batch)
        raw.begin(ids)
        host_ids: list[int] = HostCopy(ids).wait().tolist()
        for token_id, row in zip(host_ids, rows, strict=True):
            if row.params.has_penalties:
                self._penalties.record(row, token_id)
            self._restrictions.record(row, token_id)
        return ids, host_ids, raw.of(host_ids)

    def release(self, keys: Iterable[int]) -> None:
        """Forget sequences that will not sample again."""
        self._penalties.release(keys)
        self._restrictions.release(keys)

    def measure_prompt(self, logits: Tensor, batch: Batch) -> list[TokenLogprob]:
        """Log-probabilities of `batch.prompt_next`, one each, from logits [Q, V] float32."""
        return describe(self.measure_logprobs, logits, batch.prompt_next.tolist(), batch.prompt_top)

    def _pick(self, logits: Tensor, batch: Batch) -> Tensor:
        """Change the logits (in place) as each row wants, and choose; [S]."""
        self._adjust(logits, batch.samples)
        self._restrictions.apply(logits, batch.samples)
        masks = batch.masks.result() if batch.masks is not None else None
        return self._choose(logits, batch.samples, masks)

    def _adjust(self, logits: Tensor, rows: list[SampleRow]) -> None:
        """Apply (in place) what depends on each row's own parameters and history."""
        for index, row in enumerate(rows):
            if row.params.has_penalties or row.params.logit_bias or row.forbidden:
                self._adjust_row(logits[index], row)

    def _adjust_row(self, logits: Tensor, row: SampleRow) -> None:
        """Apply to one row ([V], in place) what depends on its own parameters and history."""
        if row.params.has_penalties:
            self._penalties.apply(logits, row)
        if row.params.logit_bias:
            biased = torch.tensor(list(row.params.logit_bias), device=logits.device)
            logits[biased] += torch.tensor(list(row.params.logit_bias.values()), device=logits.device)
        if row.forbidden:
            logits[torch.tensor(list(row.forbidden), device=logits.device)] = _IMPOSSIBLE

    def _mask(self, logits: Tensor, masks: Masks) -> None:
        """Rule out (in place) the tokens whose bit is not set."""
        for row, bits in zip(masks.rows.tolist(), masks.bits, strict=True):
            octets = bits.astype("<i4", copy=False).view(np.uint8)
            allowed = np.unpackbits(octets, count=self._vocab_size, bitorder="little")
            ruled_out = torch.from_numpy(allowed == 0).to(logits.device)
            logits[row].masked_fill_(ruled_out, _IMPOSSIBLE)

    def _choose(self, logits: Tensor, rows: list[SampleRow], masks: Masks | None) -> Tensor:
        """The likeliest possible token of each greedy row, a drawn one of each other; [S]."""
        if masks is not None:
            self._mask(logits, masks)
        highest, ids = logits.max(dim=-1)
        usable = highest.isfinite()
        ids[~usable] = -1
        drawn = [i for i, row in enumerate(rows) if row.params.temperature >= GREEDY_BELOW]
        for i, is_usable in zip(drawn, usable[drawn].tolist(), strict=True):
            if is_usable:
                noise = uniform(rows[i].seed, rows[i].position)
                ids[i] = draw(logits[i], rows[i].params, noise)
        return ids
