"""Linears on 4-bit weights and float activations (W4A16), weights in groups that share a scale.

Symmetric round-to-nearest groups, as GPTQ (arXiv:2210.17323) and AWQ (arXiv:2306.00978) store them. A group
is one step along the depth, so its scale is applied to a block of sums instead of to every weight.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.linear_8bit import block_of

_GROUP: Final = 8


@triton.jit(do_not_specialize=["rows"])
def linear_int4_kernel(
    x,
    weight,
    scales,
    bias,
    output,
    rows,
    columns,
    stride_x,
    stride_weight,
    stride_scales,
    stride_output,
    DEPTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid (blocks)."""
    row_block, column_block = block_of(tl.program_id(0), rows, columns, BLOCK_M, BLOCK_N, GROUP)
    row = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    column = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_column = row < rows, column < columns
    x_at = x + row.to(tl.int64)[:, None] * stride_x + tl.arange(0, BLOCK_K)[None, :]
    weight_at = weight + column.to(tl.int64)[:, None] * stride_weight + tl.arange(0, BLOCK_K // 2)[None, :]
    scale_at = scales + column.to(tl.int64) * stride_scales
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for group in tl.range(0, DEPTH // BLOCK_K, num_stages=STAGES):
        left = tl.load(x_at + group * BLOCK_K, mask=is_row[:, None], other=0.0)
        packed = tl.load(weight_at + group * (BLOCK_K // 2), mask=is_column[:, None], other=0).to(tl.int32)
        pairs = tl.join((packed & 15) - 8, (packed >> 4) - 8)
        right = tl.reshape(pairs, [BLOCK_N, BLOCK_K]).to(x.dtype.element_ty)
        scale = tl.load(scale_at + group, mask=is_column, other=0.0)
        total += tl.dot(left, tl.trans(right), input_precision="ieee") * scale[None, :]
    if bias is not None:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    at = output + row.to(tl.int64)[:, None] * stride_output + column[None, :]
    tl.store(at, total.to(output.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


def linear_int4(x: Tensor, weight: Tensor, scales: Tensor, *, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias.

    Args:
        x: [T, K], float16, bfloat16 or float32; last dimension dense.
        weight: uint8 [N, K / 2], as of `kernels.quantize.quantize_int4`.
        scales: float32 [N, K / group]; groups of a power of two, 32 at least.
        bias: [N].

    Returns:
        [T, N] in the dtype of `x`.
    """
    rows, depth = x.shape
    columns, groups = scales.shape
    output = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    block_m, block_n, warps, stages = (16, 64, 4, 2) if rows <= 16 else (64, 64, 8, 3)
    grid = (triton.cdiv(rows, block_m) * triton.cdiv(columns, block_n),)
    linear_int4_kernel[grid](
        x,
        weight,
        scales,
        bias,
        output,
        rows,
        columns,
        x.stride(0),
        weight.stride(0),
        scales.stride(0),
        output.stride(0),
        DEPTH=depth,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=depth // groups,
        GROUP=_GROUP,
        STAGES=stages,
        num_warps=warps,
    )
    return output
