"""Quantised linears against float64 on what the codes stand for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.gpu import linear_8bit as module
from kernels.gpu.linear_8bit import has_fp8, linear_8bit
from kernels.gpu.linear_int4 import linear_int4
from kernels.gpu.tiles import INTERPRETER, architecture
from kernels.quantize import dequantize_int4, dequantize_rows, quantize_int4, quantize_rows


def normal(*shape: int, seed: int = 0) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    return numbers.to(torch.get_default_device())


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("rows", [3, 150])
def test_linear_8bit(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, rows: int, kind: str, native: bool
) -> None:
    """By fp8 instructions or by others. The former add with fewer digits, the interpreter does not."""
    can = architecture(device) == INTERPRETER or has_fp8(architecture(device))
    monkeypatch.setattr(module, "has_fp8", lambda _name: native and can)
    inexact = kind == "fp8" and native and device.type == "cuda"
    x, x_scales = quantize_rows(normal(rows, 200), kind)
    weight, weight_scales = quantize_rows(normal(130, 200, seed=1), kind)
    bias = normal(130, seed=2)
    exact = dequantize_rows(x, x_scales).double() @ dequantize_rows(weight, weight_scales).double().T + bias
    result = linear_8bit(x, x_scales, weight, weight_scales, dtype=torch.float32, bias=bias)
    torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=2e-2 if inexact else 1e-4)
    rounded = linear_8bit(x, x_scales, weight, weight_scales, dtype=torch.bfloat16)
    torch.testing.assert_close(rounded.double(), exact - bias, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "group"), [(5, 128), (70, 32)])
def test_linear_int4(rows: int, group: int, dtype: torch.dtype) -> None:
    x, weight, bias = normal(rows, 256).to(dtype), normal(130, 256, seed=1), normal(130, seed=2).to(dtype)
    packed, scales = quantize_int4(weight, group)
    stands_for = dequantize_int4(packed, scales)
    assert ((stands_for - weight).abs() <= scales.repeat_interleave(group, 1) * 0.501).all()
    exact = x.double() @ stands_for.double().T + bias.double()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    result = linear_int4(x, packed, scales, bias=bias)
    torch.testing.assert_close(result.double(), exact, rtol=tolerance, atol=10 * tolerance)
