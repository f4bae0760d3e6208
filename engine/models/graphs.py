"""Decode steps as CUDA graphs: one launch for all kernels of a step, captured once for each of a few sizes.

A step is padded to the next size with null rows, which read and write nothing. Steps that read prompts, and
contexts longer in total than a graph's lists, go to the decoder as they are: their kernels run for longer
than launching them takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.batch import Batch
from engine.models.decoder import Decoder
from kernels.gpu.static_rows import StaticRows
from kernels.gpu.step import static_rows
from kernels.transfer import to_device

MOST_ROWS: Final = 256
"""Rows of the largest step worth a graph: a larger one runs for longer than its launches take."""
Launch = Callable[[], None]


class Capture(Protocol):
    """Records what a function launches."""

    def __call__(self, launch: Launch) -> Launch:
        """Launch, record, and give back what launches the same again over the same tensors."""
        ...


class CudaCapture:
    """CUDA graphs that share one pool of memory, as only one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, launch: Launch) -> Launch:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            launch()  # kernels are compiled and workspaces made now: neither may happen in a capture
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            launch()
        replay: Launch = graph.replay
        return replay


@dataclass(frozen=True, slots=True)
class _Graph:
    rows: StaticRows
    replay: Launch


class GraphedDecoder:
    """A decoder whose decode steps are replayed."""

    def __init__(
        self, decoder: Decoder, *, max_rows: int, capture: Capture, progress: Callable[[float], None]
    ) -> None:
        """Capture a step of each size.

        Args:
            max_rows: most rows of a step that is replayed.
            progress: told how much of it is done (0 to 1).
        """
        self.hidden_size = decoder.hidden_size
        self._decoder = decoder
        self._sizes = graph_sizes(max_rows)
        spec, page_size = decoder.spec, decoder.kv.layers[0].page_size
        width = -(-spec.max_position // page_size)
        width += -width % 16  # entries: rows of 64 bytes
        with torch.device(decoder.device):
            self._table = torch.zeros(max_rows, width, dtype=torch.int32)
            self._token_ids = torch.zeros(max_rows, dtype=torch.int64)
            self._logits = torch.empty(max_rows, spec.vocab_size, dtype=torch.float32)
        self._graphs: dict[int, _Graph] = {}
        # The largest first: the others find all the memory they need in the pool.
        for size in reversed(self._sizes):
            progress(len(self._graphs) / len(self._sizes))
            self._graphs[size] = self._captured(size, capture)

    @torch.inference_mode()
    def _captured(self, size: int, capture: Capture) -> _Graph:
        decoder = self._decoder
        rows = static_rows(
            decoder.kv.layers[0],
            decoder.dtype,
            num_heads=decoder.spec.num_heads,
            capacity=size,
            parts=most_parts(size),
            table=self._table,
        )
        token_ids, logits = self._token_ids[:size], self._logits[:size]

        def launch() -> None:
            logits.copy_(decoder.head(decoder.compute(token_ids, rows.positions, rows)))

        return _Graph(rows, capture(launch))

    @torch.inference_mode()
    def forward(self, batch: Batch, token_ids: Tensor, hidden: Tensor | None = None) -> Tensor:
        """`Decoder.forward`; the logits of a step that is replayed hold until the next one."""
        count = len(batch.context_lens)
        if is_decode(batch) and count <= self._sizes[-1]:
            graph = self._graphs[self._sizes[bisect_left(self._sizes, count)]]
            if graph.rows.fill(batch.context_lens, batch.page_table, batch.kv_slots):
                self._token_ids[:count].copy_(token_ids)
                graph.replay()
                logits = self._logits[:count]
                wanted = batch.logit_rows
                if np.array_equal(wanted, np.arange(count)):
                    return logits
                return logits.index_select(0, to_device(wanted, logits.device))
        return self._decoder.forward(batch, token_ids, hidden)


def is_decode(batch: Batch) -> bool:
    """Whether every row has one token, of which no more is wanted than its logits."""
    return len(batch.token_ids) == len(batch.context_lens) and not len(batch.embed_rows)


def graph_sizes(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, 24 … and `most`: a third of a step at most is padding."""
    sizes = [1]
    while sizes[-1] < most:
        sizes.append(min(most, sizes[-1] + max(1, (1 << sizes[-1].bit_length()) // 4)))
    return sizes


def most_parts(size: int) -> int:
    """Splits of the keys of a captured step of this size, null ones included, which cost a little each."""
    return 64 + 8 * size
