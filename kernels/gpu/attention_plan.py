"""One step's attention as work lists, made on the host in a few NumPy passes and sent in one copy.

Rows with few new tokens are decoded: their keys are cut at multiples of a fixed split, and each split of
each row becomes a work item. Rows with more are prefilled: tiles of query tokens that read all their keys.

Sequences that share a prefix of the radix tree have the same page ids at the same places of the page table,
at every depth of the tree. A split whose pages several rows share becomes one item for all of them, so
its keys are read once: the cascade of this engine. As the splits are the same ones either way, sharing
changes who computes a part, not which parts there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.gpu.tiles import AttentionTiles

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Arrays = dict[str, npt.NDArray[np.integer[Any]]]

MOST_DECODE_TOKENS: Final = 8
"""New tokens of a row that is decoded: one, or a short draft to be verified."""
ALIGNMENT: Final = 16
"""Entries: 64 bytes, so that every array is aligned alike and kernels are specialised once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """Work lists on the device, all int32, for one model's head counts."""

    tiles: AttentionTiles
    page_table: Tensor
    """[R, W]"""
    query_starts: Tensor
    """[R + 1]"""
    context_lens: Tensor
    """[R]"""
    positions: Tensor
    """[T]"""
    slots: Tensor
    """[T] page * page_size + offset; -1: not to be stored."""
    decode_tokens: Tensor
    """[tokens of decoded rows]"""
    part_starts: Tensor
    """[T + 1] token t's partial results are [part_starts[t], part_starts[t + 1]), one a split."""
    members: Tensor
    """Tokens of the items, item after item."""
    narrow_items: Tensor
    """[items, 5] first member, number of members, row of the page table, first key, end of the keys."""
    wide_items: Tensor
    """[items, 5] of more members."""
    prefill_tiles: Tensor
    """[tiles, 2] row and its first query token, most keys first."""
    num_parts: int


def plan_attention(
    *,
    query_starts: Int32,
    context_lens: Int32,
    page_table: Int32,
    slots: Int64,
    page_size: int,
    group: int,
    tiles: AttentionTiles,
    device: torch.device,
    share_from: int = 4,
) -> AttentionPlan:
    """Plan a step.

    Args:
        query_starts, context_lens, page_table, slots, page_size, group, tiles, share_from: of `plan_arrays`.
    """
    arrays = plan_arrays(
        query_starts=query_starts,
        context_lens=context_lens,
        page_table=page_table,
        slots=slots,
        page_size=page_size,
        group=group,
        tiles=tiles,
        share_from=share_from,
    )
    num_parts = int(arrays["part_starts"][-1])
    arrays["page_table"] = _padded_table(page_table)
    return AttentionPlan(tiles=tiles, num_parts=num_parts, **_upload(arrays, device))


def plan_arrays(
    *,
    query_starts: Int32,
    context_lens: Int32,
    page_table: Int32,
    slots: Int64,
    page_size: int,
    group: int,
    tiles: AttentionTiles,
    share_from: int = 4,
) -> Arrays:
    """A step's work lists on the host: all arrays of an `AttentionPlan` but its page table.

    Args:
        query_starts, context_lens, page_table, slots: as in `engine.batch`. Equal ids in one column of the
            page table stand for equal pages in all columns before it, as they do when pages belong to
            nodes of a radix tree.
        group: query heads of a KV head.
        share_from: rows that must share a split for one item to serve them all; fewer are computed apart,
            because more items keep more of the device busy.
    """
    counts = np.diff(query_starts)
    rows = np.flatnonzero((counts > 0) & (counts <= MOST_DECODE_TOKENS))
    splits = -(-context_lens // tiles.split)
    starts = np.zeros(query_starts[-1] + 1, np.int32)
    decoded = _ranges(query_starts[rows], counts[rows])
    starts[decoded + 1] = np.repeat(splits[rows], counts[rows])
    items = _Items(rows, query_starts, context_lens, splits, tiles.split)
    if tiles.split % page_size == 0:
        items.share(page_table, tiles.split // page_size, share_from)
    heads = 1 << (group - 1).bit_length()
    narrow, wide = (max(1, tile.block_m // heads) for tile in (tiles.narrow, tiles.wide))
    members, narrow_items, wide_items = items.lists(narrow, wide)
    first_positions = context_lens - counts
    return {
        "query_starts": query_starts,
        "context_lens": context_lens,
        "positions": _ranges(first_positions, counts),
        "slots": slots,
        "decode_tokens": decoded,
        "part_starts": np.cumsum(starts, dtype=np.int32),
        "members": members,
        "narrow_items": narrow_items,
        "wide_items": wide_items,
        "prefill_tiles": _prefill_tiles(counts, context_lens, max(1, tiles.prefill.block_m // heads)),
    }


class _Items:
    """The splits of decoded rows, and who computes each."""

    def __init__(
        self, rows: Int64, query_starts: Int32, context_lens: Int32, splits: Int32, split: int
    ) -> None:
        self._split = split
        self._row = np.repeat(rows, splits[rows])
        self._index = _ranges(np.zeros_like(rows), splits[rows])
        self._stop = np.minimum((self._index + 1) * split, context_lens[self._row])
        self._token = query_starts[self._row].astype(np.int64)
        self._count = np.diff(query_starts)[self._row].astype(np.int64)
        self._group = np.arange(len(self._row))
        """Splits of one group are computed together."""

    def share(self, page_table: Int32, pages: int, share_from: int) -> None:
        """Put together the splits whose last page, and therefore every page, is the same."""
        whole = np.flatnonzero(self._stop == (self._index + 1) * self._split)
        if len(whole) < share_from:
            return
        last_page = page_table[self._row[whole], (self._index[whole] + 1) * pages - 1].astype(np.int64)
        keys = self._index[whole] << 32 | last_page
        _, first, inverse, sizes = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        shared = sizes[inverse] >= share_from
        self._group[whole[shared]] = whole[first[inverse[shared]]]

    def lists(self, narrow: int, wide: int) -> tuple[Int64, Int64, Int64]:
        """Members, and items of at most `narrow` and of at most `wide` members."""
        order = np.argsort(self._group, kind="stable")
        tokens = _ranges(self._token[order], self._count[order])
        group = np.repeat(self._group[order], self._count[order])
        leaders, first, sizes = np.unique(group, return_index=True, return_counts=True)
        width = np.where(sizes <= narrow, narrow, wide)
        blocks = -(-sizes // width)
        leaders, group_width = np.repeat(leaders, blocks), np.repeat(width, blocks)
        offset = _ranges(np.zeros_like(blocks), blocks) * group_width
        size = np.minimum(np.repeat(sizes, blocks) - offset, group_width)
        start = self._index[leaders] * self._split
        fields = (np.repeat(first, blocks) + offset, size, self._row[leaders], start, self._stop[leaders])
        items = np.stack(fields, axis=1)
        is_narrow = np.repeat(sizes <= narrow, blocks)
        return tokens, items[is_narrow], items[~is_narrow]


def _prefill_tiles(counts: Int32, context_lens: Int32, tokens: int) -> Int64:
    """[tiles, 2]; the tiles that read most keys come first, so that none of them starts last."""
    rows = np.flatnonzero(counts > MOST_DECODE_TOKENS)
    blocks = -(-counts[rows] // tokens)
    row = np.repeat(rows, blocks)
    first = _ranges(np.zeros_like(rows), blocks) * tokens
    keys = context_lens[row] - counts[row] + first
    order = np.argsort(-keys, kind="stable")
    return np.stack((row[order], first[order]), axis=1)


def _ranges(starts: npt.NDArray[np.integer[Any]], counts: npt.NDArray[np.integer[Any]]) -> Int64:
    """[starts[0], starts[0] + counts[0]), then [starts[1], …), one after another."""
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts.astype(np.int64) - (ends - counts), counts)


def _padded_table(page_table: Int32) -> Int32:
    """Rows at a multiple of 64 bytes."""
    return np.pad(page_table, ((0, 0), (0, -page_table.shape[1] % ALIGNMENT)))


def _upload(arrays: Arrays, device: torch.device) -> dict[str, Tensor]:
    """All arrays as int32 through one buffer, so that a step pays for one copy."""
    sizes = [array.size + -array.size % ALIGNMENT for array in arrays.values()]
    offsets = np.cumsum([0, *sizes])
    buffer = torch.empty(int(offsets[-1]), dtype=torch.int32, pin_memory=device.type == "cuda")
    host = buffer.numpy()
    for offset, array in zip(offsets, arrays.values(), strict=False):
        host[offset : offset + array.size] = array.ravel()
    sent = buffer.to(device, non_blocking=True)
    return {
        name: sent[offset : offset + array.size].view(array.shape)
        for offset, (name, array) in zip(offsets, arrays.items(), strict=False)
    }
