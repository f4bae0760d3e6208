"""The rows of a decode step in tensors that never move, which is what a captured graph reads.

Lists are as long as they may get. What a step leaves over of them are null items, without members, and null
rows, without context and with nowhere to store: their programs end at once, and the grid stays the same.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from kernels.gpu.attention_plan import ALIGNMENT, AttentionPlan, Int32, Int64, plan_arrays
from kernels.gpu.tiles import AttentionTiles
from kernels.paged import PagedCache
from kernels.transfer import to_device


class StaticRows:
    """What `kernels.gpu.step.StepRows` is, for at most `capacity` rows of one token each."""

    def __init__(
        self, *, capacity: int, parts: int, table: Tensor, page_size: int, group: int, tiles: AttentionTiles
    ) -> None:
        """
        Args:
            parts: most splits of all rows together; a step with more is refused.
            table: int32 [at least capacity, W], on the device, W a multiple of 16; written to by `fill`.
            group: query heads of a KV head.
        """
        self._capacity = capacity
        self._page_size, self._group, self._tiles = page_size, group, tiles
        self._table = table[:capacity]
        self._shapes: dict[str, tuple[int, ...]] = {
            "query_starts": (capacity + 1,),
            "context_lens": (capacity,),
            "positions": (capacity,),
            "slots": (capacity,),
            "decode_tokens": (capacity,),
            "part_starts": (capacity + 1,),
            "members": (parts,),
            "narrow_items": (parts, 5),
            # Only splits that more rows share than a narrow item has members are wide.
            "wide_items": (parts // 2, 5),
            "prefill_tiles": (0, 2),
        }
        sizes = [math.prod(shape) + -math.prod(shape) % ALIGNMENT for shape in self._shapes.values()]
        self._offsets = np.cumsum([0, *sizes]).tolist()
        self._lists = torch.zeros(self._offsets[-1], dtype=torch.int32, device=table.device)
        lists = {
            name: self._lists[offset : offset + math.prod(shape)].view(shape)
            for offset, (name, shape) in zip(self._offsets, self._shapes.items(), strict=False)
        }
        self._plan = AttentionPlan(tiles=tiles, page_table=self._table, num_parts=parts, **lists)
        nothing = np.zeros(0, np.int32)
        self.fill(nothing, np.zeros((0, 1), np.int32), nothing.astype(np.int64))

    def plan(self, _query: Tensor, _cache: PagedCache) -> AttentionPlan:
        """The same for every step."""
        return self._plan

    @property
    def positions(self) -> Tensor:
        """int32 [capacity]; -1 for a null row."""
        return self._plan.positions

    @property
    def slots(self) -> Tensor:
        """int32 [capacity]; -1 for a null row."""
        return self._plan.slots

    def fill(self, context_lens: Int32, page_table: Int32, slots: Int64) -> bool:
        """Take over a step's rows, with the host waiting for nothing.

        Args:
            context_lens, page_table, slots: [R], [R, W] and [R], as in `kernels.gpu.attention_plan`.

        Returns:
            False if the step does not fit; nothing was changed then.
        """
        count, width = page_table.shape
        contexts = np.zeros(self._capacity, np.int32)
        contexts[:count] = context_lens
        places = np.full(self._capacity, -1, np.int64)
        places[:count] = slots
        arrays = plan_arrays(
            query_starts=np.arange(self._capacity + 1, dtype=np.int32),
            context_lens=contexts,
            page_table=page_table,
            slots=places,
            page_size=self._page_size,
            group=self._group,
            tiles=self._tiles,
        )
        if width > self._table.shape[1] or any(
            len(arrays[name]) > shape[0] for name, shape in self._shapes.items()
        ):
            return False
        device = self._table.device
        host = np.zeros(len(self._lists), np.int32)
        for offset, name in zip(self._offsets, self._shapes, strict=False):
            host[offset : offset + arrays[name].size] = arrays[name].ravel()
        self._lists.copy_(to_device(host, device))
        self._table[:count, :width].copy_(to_device(page_table, device))
        return True
