"""The residual sum and RMSNorm after it, in one pass, the result in 8 bits where a linear wants it so."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.flash import float_to_e4m3, round_to_int8


@triton.jit
def add_rms_norm_kernel(
    x,
    residual,
    weight,
    output,
    scales,
    eps,
    stride_x,
    stride_residual,
    stride_output,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_X: tl.constexpr,
):
    """Grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_column = column < WIDTH
    wide = tl.load(residual + row * stride_residual + column, mask=is_column, other=0.0).to(tl.float32)
    if HAS_X:
        wide += tl.load(x + row * stride_x + column, mask=is_column, other=0.0).to(tl.float32)
        summed = wide.to(residual.dtype.element_ty)
        tl.store(residual + row * stride_residual + column, summed, mask=is_column)
        wide = summed.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + eps)
    result = wide * inverse * tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    kind: tl.constexpr = output.dtype.element_ty
    if (kind == tl.int8) | (kind == tl.uint8):
        scale = tl.div_rn(tl.max(tl.abs(result), 0), 127.0 if kind == tl.int8 else 448.0)
        tl.store(scales + row, scale)
        result = tl.div_rn(result, tl.where(scale > 0.0, scale, 1.0))
        codes = round_to_int8(result) if kind == tl.int8 else float_to_e4m3(result)
        tl.store(output + row * stride_output + column, codes, mask=is_column)
    else:
        tl.store(output + row * stride_output + column, result.to(kind), mask=is_column)


def add_rms_norm(x: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual += x in place (nothing if x is None); then RMSNorm of it (arXiv:1910.07467).

    Args:
        x, residual: [T, N], last dimension dense, a float type; N at most 65536.
        weight: [N].

    Returns:
        [T, N] in the dtype of `residual`. The sum is rounded to that dtype before it is normed.
    """
    output = torch.empty_like(residual, memory_format=torch.contiguous_format)
    _launch(x, residual, weight, eps, output, None)
    return output


def add_rms_norm_quantized(
    x: Tensor | None, residual: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """`add_rms_norm` with its result in 8 bits.

    Args:
        dtype: torch.int8, or torch.uint8 for e4m3fn codes.

    Returns:
        Codes [T, N] and float32 scales [T], as of `kernels.quantize.quantize_rows`.
    """
    output = torch.empty(residual.shape, dtype=dtype, device=residual.device)
    scales = torch.empty(len(residual), dtype=torch.float32, device=residual.device)
    _launch(x, residual, weight, eps, output, scales)
    return output, scales


def _launch(
    x: Tensor | None, residual: Tensor, weight: Tensor, eps: float, output: Tensor, scales: Tensor | None
) -> None:
    rows, width = residual.shape
    block = triton.next_power_of_2(width)
    add_rms_norm_kernel[(rows,)](
        x,
        residual,
        weight,
        output,
        scales,
        eps,
        0 if x is None else x.stride(0),
        residual.stride(0),
        output.stride(0),
        WIDTH=width,
        BLOCK=block,
        HAS_X=x is not None,
        num_warps=min(16, max(1, block // 512)),
    )
