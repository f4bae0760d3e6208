"""Sequences driven through a decoder step by step, without scheduler or pool."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from engine.batch import Batch
from engine.models.decoder import Decoder
from engine.models.kv_cache import KVCache
from engine.models.loader import LoadedModel
from engine.models.quantized import QuantizedModel
from engine.runner import Model

CPU = torch.device("cpu")


class PagedSequences:
    """Any number of sequences over one decoder; their pages are dealt out in a shuffled order."""

    def __init__(
        self,
        model: LoadedModel | QuantizedModel,
        *,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
        seed: int = 0,
    ) -> None:
        """
        Args:
            dtype: of the pages.
            device: that of the model's weights.
        """
        kv = KVCache.allocate(model.spec, num_pages, page_size, dtype, device)
        for layer in kv.layers:  # what is read before it is written must show
            for pages in (layer.keys, layer.values):
                pages.fill_(torch.nan if dtype.is_floating_point else 120)
        self.decoder: Model = Decoder(model.spec, model.weights, kv)
        self._device = device
        self._page_size = page_size
        self._free = list(range(num_pages))
        random.Random(seed).shuffle(self._free)
        self._pages: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    def step(
        self, chunks: dict[int, list[int]], *, logits_of: Literal["last", "every", "first", "none"] = "last"
    ) -> Tensor:
        """Append new tokens to sequences, by key; logits after the last token of each, or every token,
        or the last one of the first."""
        batch = self._batch(chunks, logits_of)
        return self.decoder.forward(batch, torch.from_numpy(batch.token_ids).to(self._device))

    def hidden_states(self, chunks: dict[int, list[int]]) -> Tensor:
        """Append new tokens; float32 [sequences, hidden] of the last token of each, after the final norm."""
        batch = self._batch(chunks, "none")
        batch = replace(batch, embed_rows=batch.query_starts[1:].astype(np.int64) - 1)
        hidden = torch.full((len(chunks), self.decoder.hidden_size), torch.nan)
        self.decoder.forward(batch, torch.from_numpy(batch.token_ids), hidden)
        return hidden

    def fork(self, source: int, key: int, tokens: int) -> None:
        """Begin a sequence with the pages of another's first `tokens`, whole pages."""
        assert tokens % self._page_size == 0
        assert tokens <= self._lengths[source]
        self._pages[key] = self._pages[source][: tokens // self._page_size]
        self._lengths[key] = tokens

    def _batch(self, chunks: dict[int, list[int]], logits_of: str) -> Batch:
        positions: list[int] = []
        slots: list[int] = []
        for key, tokens in chunks.items():
            pages = self._pages.setdefault(key, [])
            start = self._lengths.get(key, 0)
            self._lengths[key] = start + len(tokens)
            while len(pages) * self._page_size < self._lengths[key]:
                pages.append(self._free.pop())
            positions += range(start, start + len(tokens))
            slots += [
                pages[at // self._page_size] * self._page_size + at % self._page_size
                for at in range(start, start + len(tokens))
            ]
        tables = [self._pages[key] for key in chunks]
        width = max(map(len, tables))
        query_starts = np.cumsum([0, *map(len, chunks.values())])
        nothing = np.zeros(0, np.int64)
        last = query_starts[1:] - 1
        logit_rows = {"last": last, "every": np.arange(query_starts[-1]), "first": last[:1], "none": nothing}
        return Batch(
            token_ids=np.array([token for tokens in chunks.values() for token in tokens], np.int64),
            pending_at=nothing,
            pending_from=nothing,
            positions=np.array(positions, np.int64),
            query_starts=query_starts.astype(np.int32),
            context_lens=np.array([self._lengths[key] for key in chunks], np.int32),
            page_table=np.array([table + [0] * (width - len(table)) for table in tables], np.int32),
            kv_slots=np.array(slots, np.int64),
            logit_rows=logit_rows[logits_of],
            samples=[],
        )


def prompt_logits(model: LoadedModel, tokens: list[int], *, page_size: int = 4) -> Tensor:
    """float32 [tokens, vocab], computed in one step."""
    sequences = PagedSequences(model, num_pages=-(-len(tokens) // page_size), page_size=page_size)
    return sequences.step({0: tokens}, logits_of="every")
