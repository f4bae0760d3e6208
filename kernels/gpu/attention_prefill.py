"""Causal attention of many packed query tokens over paged keys, which include their own.

FlashAttention-2 (arXiv:2307.08691) over pages. Rows of the matrix products are (token, query head of one KV
head). Keys that every token of a tile sees are read without any mask: only the ends of the range, where
causality or a window cuts through the tile, pay for one.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.attention_plan import AttentionPlan
from kernels.gpu.flash import attend
from kernels.paged import PagedCache


@triton.jit
def prefill_kernel(
    query,
    keys,
    values,
    key_scales,
    value_scales,
    page_table,
    query_starts,
    context_lens,
    tiles,
    output,
    scale,
    cap,
    window,
    stride_token,
    stride_query_head,
    stride_page,
    stride_slot,
    stride_head,
    stride_scale_page,
    stride_scale_slot,
    stride_table,
    stride_output_token,
    stride_output_head,
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
    """Grid (tiles, KV heads)."""
    sequence = tl.load(tiles + tl.program_id(0) * 2)
    first_token = tl.load(tiles + tl.program_id(0) * 2 + 1)
    head = tl.program_id(1)
    query_start = tl.load(query_starts + sequence)
    num_tokens = tl.load(query_starts + sequence + 1) - query_start
    context = tl.load(context_lens + sequence)
    pages = page_table + sequence.to(tl.int64) * stride_table

    heads_a_token: tl.constexpr = triton.next_power_of_2(GROUP)
    tokens_a_tile: tl.constexpr = BLOCK_M // heads_a_token
    row = tl.arange(0, BLOCK_M)
    token = first_token + row // heads_a_token
    in_group = row % heads_a_token
    is_row = (token < num_tokens) & (in_group < GROUP)
    position = context - num_tokens + token
    first_position = context - num_tokens + first_token
    query_head = head * GROUP + in_group
    dims = tl.arange(0, BLOCK_D)
    is_value = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    packed = (query_start + token).to(tl.int64)
    query_at = packed * stride_token + query_head * stride_query_head
    queries = tl.load(query + query_at[:, None] + dims[None, :], mask=is_value, other=0.0)

    stop = tl.minimum(context, first_position + tokens_a_tile)
    start = 0
    whole_from = 0
    if HAS_WINDOW:
        start = tl.maximum(0, first_position - window + 1) // BLOCK_N * BLOCK_N
        whole_from = tl.maximum(0, first_position + tokens_a_tile - window + BLOCK_N - 1) // BLOCK_N * BLOCK_N
    whole_to = tl.maximum(whole_from, (first_position + 1) // BLOCK_N * BLOCK_N)

    accumulated = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    # Three stretches: those the window cuts, those all tokens see, those causality cuts.
    for stretch in tl.static_range(0 if HAS_WINDOW else 1, 3):
        if stretch == 0:
            begin, end = start, tl.minimum(whole_from, stop)
        elif stretch == 1:
            begin, end = whole_from, whole_to
        else:
            begin, end = whole_to, stop
        accumulated, total, highest = attend(
            queries,
            position,
            accumulated,
            total,
            highest,
            keys,
            values,
            key_scales,
            value_scales,
            pages,
            head,
            begin,
            end,
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
            MASKED=stretch != 1,
            STAGES=STAGES,
        )
    result = accumulated / tl.where(total > 0.0, total, 1.0)[:, None]
    output_at = packed * stride_output_token + query_head * stride_output_head
    tl.store(output + output_at[:, None] + dims[None, :], result.to(output.dtype.element_ty), mask=is_value)


def prefill_attention(
    query: Tensor,
    cache: PagedCache,
    plan: AttentionPlan,
    output: Tensor,
    *,
    window: int | None = None,
    cap: float | None = None,
) -> None:
    """Attention of the tokens of the plan's prefilled rows.

    Args:
        query: [T, num_heads, head_dim], float16, bfloat16 or float32; strided, last dimension dense.
        output: like `query`; only rows of prefilled tokens are written.
        window: tokens each query sees, itself included; None: all before it.
        cap: soft cap of the scores (arXiv:2408.00118), None: none.
    """
    if not len(plan.prefill_tiles):
        return
    num_heads, head_dim = query.shape[1:]
    group = num_heads // cache.num_heads
    tile = plan.tiles.prefill
    prefill_kernel[(len(plan.prefill_tiles), cache.num_heads)](
        query,
        cache.keys,
        cache.values,
        cache.key_scales,
        cache.value_scales,
        plan.page_table,
        plan.query_starts,
        plan.context_lens,
        plan.prefill_tiles,
        output,
        head_dim**-0.5,
        cap or 0.0,
        window or 0,
        *query.stride()[:2],
        *cache.strides,
        *cache.scale_strides,
        plan.page_table.stride(0),
        *output.stride()[:2],
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
