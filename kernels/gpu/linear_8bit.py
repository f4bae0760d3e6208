"""Linears on 8-bit weights and activations (W8A8), with one scale a row of either.

int8 as in LLM.int8() without outliers (arXiv:2208.07339); e4m3 as in arXiv:2209.05433. Products are of codes,
int8 ones exact; scales are applied once, to the sums.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.flash import e4m3_to_float
from kernels.gpu.linear_tiles import ROW_BLOCKS, block_of, eight_bit_tile
from kernels.gpu.tiles import architecture

_NO_FP8: Final = frozenset({"sm_80", "sm_86", "sm_87"})


@triton.jit(do_not_specialize=["rows"])
def linear_8bit_kernel(
    x,
    x_scales,
    weight,
    weight_scales,
    bias,
    output,
    rows,
    columns,
    stride_x,
    stride_weight,
    stride_output,
    DEPTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ROW_BLOCKS: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid (blocks)."""
    row_block, column_block = block_of(tl.program_id(0), rows, columns, BLOCK_M, BLOCK_N, ROW_BLOCKS)
    row = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    column = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    is_int8: tl.constexpr = x.dtype.element_ty == tl.int8
    x_at = x + row.to(tl.int64)[:, None] * stride_x
    weight_at = weight + column.to(tl.int64)[:, None] * stride_weight
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.int32 if is_int8 else tl.float32)
    for start in tl.range(0, DEPTH, BLOCK_K, num_stages=STAGES):
        depth = start + tl.arange(0, BLOCK_K)[None, :]
        is_x, is_weight = (row < rows)[:, None], (column < columns)[:, None]
        if DEPTH % BLOCK_K:
            is_x, is_weight = is_x & (depth < DEPTH), is_weight & (depth < DEPTH)
        left = tl.load(x_at + depth, mask=is_x, other=0)
        right = tl.load(weight_at + depth, mask=is_weight, other=0)
        if is_int8:
            total = tl.dot(left, tl.trans(right), total, out_dtype=tl.int32)
        elif NATIVE_FP8:
            codes = right.to(tl.float8e4nv, bitcast=True)
            total = tl.dot(left.to(tl.float8e4nv, bitcast=True), tl.trans(codes), total)
        else:
            total = tl.dot(e4m3_to_float(left), tl.trans(e4m3_to_float(right)), total)
    result = total.to(tl.float32) * tl.load(x_scales + row, mask=row < rows, other=0.0)[:, None]
    result *= tl.load(weight_scales + column, mask=column < columns, other=0.0)[None, :]
    if bias is not None:
        result += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    at = output + row.to(tl.int64)[:, None] * stride_output + column[None, :]
    is_value = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(at, result.to(output.dtype.element_ty), mask=is_value)


def linear_8bit(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    *,
    dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """x @ weight.T + bias of quantised rows.

    Args:
        x: int8, or uint8 that holds e4m3fn codes; [T, K].
        weight: [N, K] in the same format.
        x_scales, weight_scales: float32 [T] and [N], as of `kernels.quantize.quantize_rows`.
        bias: [N].

    Returns:
        [T, N] of `dtype`.
    """
    rows, depth = x.shape
    columns = weight.shape[0]
    output = torch.empty((rows, columns), dtype=dtype, device=x.device)
    tile = eight_bit_tile(rows)
    grid = (triton.cdiv(rows, tile.block_m) * triton.cdiv(columns, tile.block_n),)
    linear_8bit_kernel[grid](
        x,
        x_scales,
        weight,
        weight_scales,
        bias,
        output,
        rows,
        columns,
        x.stride(0),
        weight.stride(0),
        output.stride(0),
        DEPTH=depth,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        ROW_BLOCKS=ROW_BLOCKS,
        NATIVE_FP8=has_fp8(architecture(x.device)),
        STAGES=tile.stages,
        num_warps=tile.warps,
    )
    return output


def has_fp8(name: str) -> bool:
    """Whether an architecture multiplies e4m3fn codes; gfx942 has fp8, but of another encoding."""
    return name.startswith("sm_") and name not in _NO_FP8
