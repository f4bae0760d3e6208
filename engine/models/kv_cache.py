"""The pages of keys and values, one array of each a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from engine.models.spec import ModelSpec
from kernels.paged import PagedCache

EIGHT_BITS: Final = frozenset({torch.int8, torch.uint8})
"""Types of pages that need scales; uint8 holds e4m3fn codes."""


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys (rotated) and values of every layer."""

    layers: tuple[PagedCache, ...]

    @classmethod
    def allocate(
        cls, spec: ModelSpec, num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> KVCache:
        """Reserve pages. On a CPU the system backs a page of memory only once it is written to.

        Args:
            dtype: a float type, or one of `EIGHT_BITS`.
        """
        of_scales = (num_pages, page_size, spec.num_kv_heads)
        shape = (*of_scales, spec.head_dim)

        def layer() -> PagedCache:
            keys, values = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
            if dtype not in EIGHT_BITS:
                return PagedCache(keys, values)
            return PagedCache(keys, values, *(torch.empty(of_scales, device=device) for _ in range(2)))

        return cls(tuple(layer() for _ in range(spec.num_layers)))

    @staticmethod
    def bytes_per_page(spec: ModelSpec, page_size: int, dtype: torch.dtype) -> int:
        """Bytes that one page takes over all layers, keys and values together, their scales included."""
        scale = torch.float32.itemsize if dtype in EIGHT_BITS else 0
        vector = spec.head_dim * dtype.itemsize + scale
        return 2 * spec.num_layers * page_size * spec.num_kv_heads * vector
