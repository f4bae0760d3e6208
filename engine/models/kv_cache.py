"""The pages of keys and values, one array of each a layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys (rotated) and values of every layer: [num_pages, page_size, num_kv_heads, head_dim] each."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @classmethod
    def allocate(
        cls, spec: ModelSpec, num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> KVCache:
        """Reserve pages. On a CPU the system backs a page of memory only once it is written to."""
        shape = (num_pages, page_size, spec.num_kv_heads, spec.head_dim)

        def arrays() -> tuple[Tensor, ...]:
            return tuple(torch.empty(shape, dtype=dtype, device=device) for _ in range(spec.num_layers))

        return cls(arrays(), arrays())

    @staticmethod
    def bytes_per_page(spec: ModelSpec, page_size: int, dtype: torch.dtype) -> int:
        """Bytes that one page takes over all layers, keys and values together."""
        return 2 * spec.num_layers * page_size * spec.num_kv_heads * spec.head_dim * dtype.itemsize
