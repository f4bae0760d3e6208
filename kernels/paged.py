"""Where the tokens of a step lie: the addressing every attention kernel shares."""

from __future__ import annotations

from dataclasses import dataclass

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
