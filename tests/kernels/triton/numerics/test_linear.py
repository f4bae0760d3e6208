"""Quantised linears against float64 on what the codes stand for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.gpu import linear_8bit as module
from kernels.gpu.linear_8bit import has_fp8, linear_8bit
from kernels.gpu.linear_int4 import linear_int4
from kernels.gpu.tiles import INTERPRETER, architecture
from kernels.quantize import PackedRows, dequantize_rows, quantize_rows


def normal(*shape: int, seed: int = 0) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    return numbers.to(torch.get_default_device())


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("rows", [3, 70, 150])
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "depth"), [(5, 256), (70, 416), (150, 96)])
def test_linear_int4(rows: int, depth: int, dtype: torch.dtype) -> None:
    """One case for each tile, with depths that are not whole blocks of it."""
    x, weight = normal(rows, depth).to(dtype), normal(130, depth, seed=1) + normal(130, 1, seed=3)
    bias = normal(130, seed=2).to(dtype)
    packed = PackedRows.of(weight)
    exact = x.double() @ packed.plain().to(dtype).double().T + bias.double()
    tolerance = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    result = linear_int4(x, packed, bias)
    torch.testing.assert_close(result.double(), exact, rtol=tolerance, atol=5 * tolerance)


def test_rounding_to_4_bits() -> None:
    """Within half a step of each block, whatever its offset; a block of one number is exact."""
    weight = normal(6, 128) + normal(6, 1, seed=1) * 4
    weight[2, 32:64] = 0.75
    weight[3] = 0.0
    packed = PackedRows.of(weight)
    error = (packed.plain() - weight).abs().view(6, 4, 32).amax(-1)
    steps = (weight.view(6, 4, 32).amax(-1) - weight.view(6, 4, 32).amin(-1)) / 15
    assert (error <= steps * 0.5 + weight.abs().max() * 2**-10).all()
    assert error[2, 1] == 0.0
    assert (error[3] == 0.0).all()
    with pytest.raises(ValueError, match="rows of 80 weights are not blocks of 32"):
        PackedRows.of(weight[:, :80])
