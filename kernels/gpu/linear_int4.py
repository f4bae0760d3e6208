"""Linears on 4-bit weights and float activations (W4A16), 32 weights of a row to a block.

Weights that are rounded to nearest in blocks, as GGUF's Q4_0 and Q4_1, GPTQ (arXiv:2210.17323) or AWQ
(arXiv:2306.00978) make them. A byte has two codes that are half a block apart, so low and high halves are
two matrices whose products with the matching halves of the activations add up: nothing is interleaved.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.linear_tiles import ROW_BLOCKS, block_of, int4_tile
from kernels.quantize import PackedRows


@triton.jit
def spread(blocks, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr):
    """[N, BLOCKS] numbers of blocks in float32, one for each byte: [N, 16 * BLOCKS]."""
    wide = tl.broadcast_to(blocks.to(tl.float32)[:, :, None], [COLUMNS, BLOCKS, 16])
    return tl.reshape(wide, [COLUMNS, 16 * BLOCKS])


@triton.jit(do_not_specialize=["rows"])
def linear_int4_kernel(
    x,
    codes,
    scales,
    offsets,
    bias,
    output,
    rows,
    columns,
    stride_x,
    stride_codes,
    stride_scales,
    stride_output,
    DEPTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ROW_BLOCKS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid (blocks)."""
    row_block, column_block = block_of(tl.program_id(0), rows, columns, BLOCK_M, BLOCK_N, ROW_BLOCKS)
    row = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    column = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_column = row < rows, column < columns
    compute: tl.constexpr = x.dtype.element_ty
    blocks: tl.constexpr = BLOCK_K // 32
    byte = tl.arange(0, BLOCK_K // 2)
    block = tl.arange(0, blocks)
    low_at = byte // 16 * 32 + byte % 16  # of the weight in the byte's low half
    x_at = x + row.to(tl.int64)[:, None] * stride_x + low_at[None, :]
    codes_at = codes + column.to(tl.int64)[:, None] * stride_codes + byte[None, :]
    block_at = column.to(tl.int64)[:, None] * stride_scales + block[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(0, DEPTH, BLOCK_K, num_stages=STAGES):
        is_x, is_code, is_block = is_row[:, None], is_column[:, None], is_column[:, None]
        if DEPTH % BLOCK_K:
            is_x = is_x & (start + low_at < DEPTH)[None, :]
            is_code = is_code & (start + 2 * byte < DEPTH)[None, :]
            is_block = is_block & (start + 32 * block < DEPTH)[None, :]
        low_x = tl.load(x_at + start, mask=is_x, other=0.0)
        high_x = tl.load(x_at + start + 16, mask=is_x, other=0.0)
        pairs = tl.load(codes_at + start // 2, mask=is_code, other=0)
        scale = tl.load(scales + block_at + start // 32, mask=is_block, other=0.0)
        offset = tl.load(offsets + block_at + start // 32, mask=is_block, other=0.0)
        scale, offset = spread(scale, BLOCK_N, blocks), spread(offset, BLOCK_N, blocks)
        low = ((pairs & 15).to(tl.float32) * scale + offset).to(compute)
        high = ((pairs >> 4).to(tl.float32) * scale + offset).to(compute)
        total = tl.dot(low_x, tl.trans(low), total, input_precision="ieee")
        total = tl.dot(high_x, tl.trans(high), total, input_precision="ieee")
    if bias is not None:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    at = output + row.to(tl.int64)[:, None] * stride_output + column[None, :]
    tl.store(at, total.to(output.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


def linear_int4(x: Tensor, weight: PackedRows, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias; weights are rounded to the type of x before they are multiplied.

    Args:
        x: [T, K], float16, bfloat16 or float32; last dimension dense.
        weight: [N, K].
        bias: [N].

    Returns:
        [T, N] in the dtype of `x`.
    """
    rows, depth = x.shape
    columns = len(weight.codes)
    output = x.new_empty((rows, columns))
    tile = int4_tile(rows)
    grid = (triton.cdiv(rows, tile.block_m) * triton.cdiv(columns, tile.block_n),)
    linear_int4_kernel[grid](
        x,
        weight.codes,
        weight.scales,
        weight.offsets,
        bias,
        output,
        rows,
        columns,
        x.stride(0),
        weight.codes.stride(0),
        weight.scales.stride(0),
        output.stride(0),
        DEPTH=depth,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        ROW_BLOCKS=ROW_BLOCKS,
        STAGES=tile.stages,
        num_warps=tile.warps,
    )
    return output
