"""Where the tokens of a step lie: the addressing every attention kernel shares."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedRows:
    """R rows of T packed tokens over a paged KV cache, prepared once a step.

    Row r's queries are tokens [query_starts[r], query_starts[r + 1]); they are the last tokens of its
    context, whose token i is at offset i % page_size of page page_table[r, i // page_size].
    """

    query_starts: list[int]
    """[R + 1]"""
    context_lens: list[int]
    """[R] tokens visible to the row's last query, itself included."""
    page_table: Tensor
    """int64 [R, W] on the cache's device, padded with any valid page."""
    slots: Tensor
    """int64 [T] page * page_size + offset of each token."""


@dataclass(frozen=True, slots=True)
class PagedCache:
    """One layer's pages of keys and values, plain or in 8 bits with a scale for each token and head."""

    keys: Tensor
    """[num_pages, page_size, kv_heads, head_dim] of a float type, int8, or uint8 that holds e4m3fn codes."""
    values: Tensor
    """Shape, strides and dtype of `keys`."""
    key_scales: Tensor | None = None
    """float32 [num_pages, page_size, kv_heads], dense; what 8-bit keys are to be multiplied with."""
    value_scales: Tensor | None = None

    def __post_init__(self) -> None:
        if self.keys.stride() != self.values.stride() or self.keys.stride(-1) != 1:
            raise ValueError("keys and values need the same strides and a dense last dimension")
        quantized = self.keys.dtype in (torch.int8, torch.uint8)
        if (self.key_scales is None or self.value_scales is None) == quantized:
            raise ValueError(f"scales go with 8-bit pages, and these are {self.keys.dtype}")

    @property
    def page_size(self) -> int:
        return self.keys.shape[1]

    @property
    def num_heads(self) -> int:
        return self.keys.shape[2]

    @property
    def strides(self) -> tuple[int, int, int]:
        """Of a page, a slot and a head."""
        page, slot, head, _ = self.keys.stride()
        return page, slot, head

    @property
    def scale_strides(self) -> tuple[int, int]:
        """Of a page and a slot of the scales."""
        return self.page_size * self.num_heads, self.num_heads
