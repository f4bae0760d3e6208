"""The interpreter that proves the kernels is itself proven: it rounds rightly, and it refuses."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError


@triton.jit
def copy_kernel(source, target, count, block: tl.constexpr):
    at = tl.arange(0, block)
    values = tl.load(source + at, mask=at < count, other=0.0)
    tl.store(target + at, values.to(target.dtype.element_ty), mask=at < count)


@triton.jit
def product_kernel(a, b, output, size: tl.constexpr):
    row, column = tl.arange(0, size)[:, None], tl.arange(0, size)[None, :]
    at = row * size + column
    tl.store(output + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def sum_kernel(source, target, block: tl.constexpr):
    values = tl.load(source + tl.arange(0, block))
    tl.store(target + tl.arange(0, block), values + values)


@triton.jit
def assert_kernel(source):
    tl.device_assert(tl.load(source) > 0.0, "not positive")


def test_rounds_to_bfloat16_as_torch_does() -> None:
    bits = torch.randint(-(2**31), 2**31 - 1, (4096,), generator=torch.Generator().manual_seed(0))
    source = bits.to(torch.int32).view(torch.float32)
    source[:3] = torch.tensor([1.00390625, 1.01171875, torch.inf])  # two ties, one to each side
    target = torch.empty(4096, dtype=torch.bfloat16)
    copy_kernel[(1,)](source, target, 4096, block=4096)
    assert torch.equal(target.nan_to_num(7.0), source.to(torch.bfloat16).nan_to_num(7.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_multiplies_matrices(dtype: torch.dtype) -> None:
    a, b = torch.randn((2, 16, 16), generator=torch.Generator().manual_seed(0)).to(dtype)
    output = torch.empty(16, 16)
    product_kernel[(1,)](a, b, output, size=16)
    torch.testing.assert_close(output, a.float() @ b.float())


def test_refuses_bfloat16_arithmetic() -> None:
    numbers = torch.ones(16, dtype=torch.bfloat16)
    with pytest.raises(InterpreterError, match="cast to float32 first"):
        sum_kernel[(1,)](numbers, numbers.clone(), block=16)


@pytest.mark.parametrize(("source", "target"), [(100, 64), (64, 100)])
def test_finds_what_is_out_of_bounds(source: int, target: int) -> None:
    """By the tensor's storage, whatever lies behind it in memory; masked lanes may point anywhere."""
    arguments = torch.ones(source), torch.ones(target)
    copy_kernel[(1,)](*arguments, 64, block=1024)
    access = (
        "store out of bounds.*'target', which has 256" if source > target else "load out of bounds.*'source'"
    )
    with pytest.raises(InterpreterError, match=access):
        copy_kernel[(1,)](*arguments, 100, block=128)


def test_device_assertions_fire() -> None:
    assert_kernel[(1,)](torch.ones(1))
    with pytest.raises(InterpreterError, match="not positive"):
        assert_kernel[(1,)](torch.zeros(1))
