"""Rows in 8 bits, for linears whose input no norm has brought there."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.flash import float_to_e4m3, round_to_int8
from kernels.quantize import QuantizedRows


@triton.jit
def row_codes_kernel(x, output, scales, stride_x, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_column = column < WIDTH
    wide = tl.load(x + row * stride_x + column, mask=is_column, other=0.0).to(tl.float32)
    is_int8: tl.constexpr = output.dtype.element_ty == tl.int8
    scale = tl.div_rn(tl.max(tl.abs(wide), 0), 127.0 if is_int8 else 448.0)
    tl.store(scales + row, scale)
    wide = tl.div_rn(wide, tl.where(scale > 0.0, scale, 1.0))
    codes = round_to_int8(wide) if is_int8 else float_to_e4m3(wide)
    tl.store(output + row * WIDTH + column, codes, mask=is_column)


def row_codes(x: Tensor, dtype: torch.dtype) -> QuantizedRows:
    """What `kernels.quantize.quantize_rows` computes, in one pass.

    Args:
        x: [T, N], a float type, last dimension dense; N at most 65536.
        dtype: of the codes, torch.int8 or torch.uint8.
    """
    rows, width = x.shape
    output = torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(width)
    row_codes_kernel[(rows,)](
        x,
        output,
        scales,
        x.stride(0),
        WIDTH=width,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
    )
    return QuantizedRows(output, scales, x.dtype)
