"""SwiGLU's elementwise half."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK: Final = 2048


@triton.jit
def silu_mul_kernel(
    gate, up, output, stride_gate, stride_up, stride_output, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Grid (rows, blocks of columns)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < WIDTH
    wide = tl.load(gate + row * stride_gate + column, mask=is_column, other=0.0).to(tl.float32)
    factor = tl.load(up + row * stride_up + column, mask=is_column, other=0.0).to(tl.float32)
    result = wide / (1.0 + tl.exp2(-1.4426950408889634 * wide)) * factor
    tl.store(output + row * stride_output + column, result.to(output.dtype.element_ty), mask=is_column)


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up (arXiv:2002.05202), [T, N]; both may be slices with a dense last dimension."""
    output = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    rows, width = gate.shape
    silu_mul_kernel[(rows, triton.cdiv(width, _BLOCK))](
        gate,
        up,
        output,
        gate.stride(0),
        up.stride(0),
        output.stride(0),
        WIDTH=width,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return output
