"""Attention of few tokens over long paged contexts: split over the keys, then combined.

A work item takes the keys [start, stop) of one page list for a group of tokens: the tokens of one
sequence, or of many that share those pages (`kernels.gpu.attention_plan` decides). Rows of its matrix
products are (token, query head of one KV head), so a page is read once for the whole group. Flash-Decoding
(https://pytorch.org/blog/flash-decoding) with fixed splits; shared splits after Hydragen
(arXiv:2402.05099) and ChunkAttention (arXiv:2402.15220).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.attention_plan import AttentionPlan
from kernels.gpu.flash import attend
from kernels.gpu.tile_table import Tile
from kernels.paged import PagedCache

ITEM_FIELDS: tl.constexpr = tl.constexpr(5)
_COMBINED = 32
"""Parts that the combine kernel holds at once."""


@triton.jit
def split_kernel(
    query,
    keys,
    values,
    key_scales,
    value_scales,
    page_table,
    items,
    members,
    positions,
    part_starts,
    parts,
    part_weights,
    scale,
    cap,
    window,
    split,
    stride_token,
    stride_query_head,
    stride_page,
    stride_slot,
    stride_head,
    stride_scale_page,
    stride_scale_slot,
    stride_table,
    num_heads,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid (items, KV heads). Writes each member's part: its attention over the item's keys alone, float32
    [num_parts, num_heads, HEAD_DIM], and log2 of its softmax denominator [num_parts, num_heads], -inf for a
    part without visible keys, whose attention is not written."""
    item = items + tl.program_id(0) * ITEM_FIELDS
    head = tl.program_id(1)
    first_member = tl.load(item)
    num_members = tl.load(item + 1)
    pages = page_table + tl.load(item + 2).to(tl.int64) * stride_table
    start = tl.load(item + 3)
    stop = tl.load(item + 4)

    heads_a_token: tl.constexpr = triton.next_power_of_2(GROUP)
    row = tl.arange(0, BLOCK_M)
    member = row // heads_a_token
    in_group = row % heads_a_token
    is_row = (member < num_members) & (in_group < GROUP)
    token = tl.load(members + first_member + member, mask=is_row, other=0)
    position = tl.load(positions + token, mask=is_row, other=-1)
    query_head = head * GROUP + in_group
    part = tl.load(part_starts + token, mask=is_row, other=0).to(tl.int64) + start // split
    weight_at = part_weights + part * num_heads + query_head

    if HAS_WINDOW:
        oldest = tl.min(tl.where(is_row, position, 2147483647), 0) - window + 1
        first = tl.maximum(start, oldest // BLOCK_N * BLOCK_N)
    else:
        first = start
    dims = tl.arange(0, BLOCK_D)
    is_value = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    query_at = token.to(tl.int64) * stride_token + query_head * stride_query_head
    queries = tl.load(query + query_at[:, None] + dims[None, :], mask=is_value, other=0.0)
    accumulated, total, highest = attend(
        queries,
        position,
        tl.zeros([BLOCK_M, BLOCK_D], tl.float32),
        tl.zeros([BLOCK_M], tl.float32),
        tl.full([BLOCK_M], float("-inf"), tl.float32),
        keys,
        values,
        key_scales,
        value_scales,
        pages,
        head,
        first,
        stop,
        scale,
        cap,
        window,
        stride_page,
        stride_slot,
        stride_head,
        stride_scale_page,
        stride_scale_slot,
        HEAD_DIM=HEAD_DIM,
        BLOCK_D=BLOCK_D,
        BLOCK_N=BLOCK_N,
        PAGE_SIZE=PAGE_SIZE,
        HAS_CAP=HAS_CAP,
        HAS_WINDOW=HAS_WINDOW,
        MASKED=True,
        STAGES=STAGES,
    )
    is_seen = total > 0.0
    divisor = tl.where(is_seen, total, 1.0)
    tl.store(weight_at, tl.where(is_seen, highest + tl.log2(divisor), float("-inf")), mask=is_row)
    part_at = (part * num_heads + query_head) * HEAD_DIM
    tl.store(
        parts + part_at[:, None] + dims[None, :],
        accumulated / divisor[:, None],
        mask=is_value & is_seen[:, None],
    )


@triton.jit
def combine_kernel(
    parts,
    part_weights,
    part_starts,
    tokens,
    output,
    stride_token,
    stride_head,
    num_heads,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Grid (tokens, query heads). Parts weighted by their softmax denominators; 0 where there are none."""
    token = tl.load(tokens + tl.program_id(0)).to(tl.int64)
    head = tl.program_id(1)
    first = tl.load(part_starts + token)
    stop = tl.load(part_starts + token + 1)
    dims = tl.arange(0, BLOCK_D)
    is_dim = dims < HEAD_DIM
    accumulated = tl.zeros([BLOCK_D], tl.float32)
    total = 0.0
    highest = float("-inf")
    for block in tl.range(first, stop, BLOCK_P):
        part = block + tl.arange(0, BLOCK_P)
        weight_at = part.to(tl.int64) * num_heads + head
        weight = tl.load(part_weights + weight_at, mask=part < stop, other=float("-inf"))
        is_live = weight > float("-inf")  # other parts were never written
        part_at = weight_at[:, None] * HEAD_DIM + dims[None, :]
        attended = tl.load(parts + part_at, mask=is_live[:, None] & is_dim[None, :], other=0.0)
        raised = tl.maximum(highest, tl.max(weight, 0))
        shift = tl.where(raised == float("-inf"), 0.0, raised)
        decay = tl.exp2(highest - shift)
        share = tl.exp2(weight - shift)
        total = total * decay + tl.sum(share, 0)
        accumulated = accumulated * decay + tl.sum(attended * share[:, None], 0)
        highest = raised
    result = accumulated / tl.where(total > 0.0, total, 1.0)
    at = output + token * stride_token + head * stride_head + dims
    tl.store(at, result.to(output.dtype.element_ty), mask=is_dim)


def decode_attention(
    query: Tensor,
    cache: PagedCache,
    plan: AttentionPlan,
    output: Tensor,
    *,
    window: int | None = None,
    cap: float | None = None,
) -> None:
    """Attention of the plan's decode tokens.

    Args:
        query: [T, num_heads, head_dim], float16, bfloat16 or float32; strided, last dimension dense.
        output: like `query`; only rows of decode tokens are written.
        window: tokens each query sees, itself included; None: all before it.
        cap: soft cap of the scores (arXiv:2408.00118), None: none.
    """
    num_heads, head_dim = query.shape[1:]
    parts = torch.empty((plan.num_parts, num_heads, head_dim), dtype=torch.float32, device=query.device)
    weights = torch.empty((plan.num_parts, num_heads), dtype=torch.float32, device=query.device)
    for items, tile in ((plan.narrow_items, plan.tiles.narrow), (plan.wide_items, plan.tiles.wide)):
        if len(items):
            _launch_splits(query, cache, plan, items, tile, (parts, weights), window, cap)
    if len(plan.decode_tokens):
        combine_kernel[(len(plan.decode_tokens), num_heads)](
            parts,
            weights,
            plan.part_starts,
            plan.decode_tokens,
            output,
            *output.stride()[:2],
            num_heads,
            HEAD_DIM=head_dim,
            BLOCK_D=max(16, triton.next_power_of_2(head_dim)),
            BLOCK_P=_COMBINED,
            num_warps=4,
        )


def _launch_splits(
    query: Tensor,
    cache: PagedCache,
    plan: AttentionPlan,
    items: Tensor,
    tile: Tile,
    parts: tuple[Tensor, Tensor],
    window: int | None,
    cap: float | None,
) -> None:
    num_heads, head_dim = query.shape[1:]
    group = num_heads // cache.num_heads
    split_kernel[(len(items), cache.num_heads)](
        query,
        cache.keys,
        cache.values,
        cache.key_scales,
        cache.value_scales,
        plan.page_table,
        items,
        plan.members,
        plan.positions,
        plan.part_starts,
        *parts,
        head_dim**-0.5,
        cap or 0.0,
        window or 0,
        plan.tiles.split,
        *query.stride()[:2],
        *cache.strides,
        *cache.scale_strides,
        plan.page_table.stride(0),
        num_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_D=max(16, triton.next_power_of_2(head_dim)),
        BLOCK_M=max(tile.block_m, triton.next_power_of_2(group)),
        BLOCK_N=tile.block_n,
        PAGE_SIZE=cache.page_size,
        HAS_CAP=cap is not None,
        HAS_WINDOW=window is not None,
        STAGES=tile.stages,
        num_warps=tile.warps,
    )
