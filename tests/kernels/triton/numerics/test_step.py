"""What a decoder step does besides attention and matrix products, against plain torch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.gpu.activation import silu_mul
from kernels.gpu.kv_write import rotate_and_write
from kernels.gpu.mask import apply_mask
from kernels.gpu.norm import add_rms_norm, add_rms_norm_quantized
from kernels.paged import PagedCache
from kernels.quantize import dequantize_pages, dequantize_rows, quantize_rows

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
RELATIVE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def normal(*shape: int, seed: int = 0) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    return numbers.to(torch.get_default_device())


def exact_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [64, 576, 1000])
def test_add_rms_norm(dtype: torch.dtype, width: int) -> None:
    x, residual = normal(3, 2 * width).to(dtype)[:, :width], normal(3, width, seed=1).to(dtype) * 3
    weight = normal(width, seed=2).to(dtype)
    summed = residual + x
    expected = exact_norm(summed, weight, 1e-5)
    result = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, summed)
    torch.testing.assert_close(result.double(), expected, rtol=RELATIVE[dtype], atol=1e-6)
    alone = add_rms_norm(None, residual, weight, 1e-5)
    assert torch.equal(alone, result)
    assert torch.equal(residual, summed)


@pytest.mark.parametrize(("kind", "dtype"), [("int8", torch.int8), ("fp8", torch.uint8)])
def test_add_rms_norm_in_8_bits(kind: str, dtype: torch.dtype) -> None:
    """The codes are those of the exact norm, except where rounding is a matter of the last bit."""
    x, residual, weight = normal(5, 300), normal(5, 300, seed=1), normal(300, seed=2)
    residual[2], x[2] = 0.0, 0.0
    codes, scales = quantize_rows(exact_norm(residual + x, weight, 1e-5), kind)
    result, result_scales = add_rms_norm_quantized(x, residual, weight, 1e-5, dtype)
    torch.testing.assert_close(result_scales, scales, rtol=1e-5, atol=0)
    assert (result != codes).float().mean() < 0.003
    step = scales[:, None] * (1.0 if kind == "int8" else 32.0)
    assert ((dequantize_rows(result, scales) - dequantize_rows(codes, scales)).abs() <= step).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul(dtype: torch.dtype) -> None:
    gate, up = (normal(3, 3000) * 4).to(dtype).split(1500, dim=1)
    gate[0, 0], gate[0, 1] = 80.0, -80.0
    wide = gate.double()
    expected = wide / (1 + torch.exp(-wide)) * up.double()
    torch.testing.assert_close(silu_mul(gate, up).double(), expected, rtol=RELATIVE[dtype], atol=1e-6)


@pytest.mark.parametrize("vocab", [33, 1000, 5000])
def test_apply_mask(vocab: int) -> None:
    random = np.random.default_rng(0)
    words = -(-vocab // 32)
    bits = random.integers(-(2**31), 2**31, (4, words), dtype=np.int32)
    bits[0], bits[1] = -1, 0
    logits, rows = normal(6, vocab), torch.tensor([5, 0, 3, 2])
    logits[3, 0] = torch.nan
    allowed = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little", count=vocab)
    expected = logits.clone()
    expected[rows] = expected[rows].masked_fill(torch.asarray(allowed == 0), -torch.inf)
    apply_mask(logits, torch.asarray(bits), rows)
    torch.testing.assert_close(logits, expected, rtol=0, atol=0, equal_nan=True)


def projection(dtype: torch.dtype, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of 5 tokens as slices of one projection: 6 heads and 2 KV heads."""
    fused = normal(5, 10, head_dim).to(dtype)
    query, key, value = fused.split([6, 2, 2], dim=1)
    return query, key, value


def angles(half: int) -> tuple[Tensor, Tensor]:
    turns = normal(5, half, seed=1) * 10
    return turns.cos(), turns.sin()


def expected_heads(heads: Tensor, turn: tuple[Tensor, Tensor], weight: Tensor | None) -> Tensor:
    """Norm and rotation in float64."""
    wide = heads.double() if weight is None else exact_norm(heads, weight, 1e-6)
    half = turn[0].shape[-1]
    cosine, sine = (each.double()[:, None] for each in turn)
    first, second = wide[..., :half], wide[..., half : 2 * half]
    turned = (first * cosine - second * sine, second * cosine + first * sine, wide[..., 2 * half :])
    return torch.cat(turned, dim=-1)


SLOTS = [7, 0, -1, 11, 4]


@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize(("head_dim", "half"), [(64, 32), (128, 64), (80, 40), (96, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotate_and_write(dtype: torch.dtype, head_dim: int, half: int, has_norms: bool) -> None:
    query, key, value = projection(dtype, head_dim)
    weights = normal(2, head_dim, seed=2).to(dtype)
    norms = (weights[0], weights[1], 1e-6) if has_norms else None
    turn = angles(half)
    keys = torch.full((4, 3, 2, head_dim), 9.0, dtype=dtype)
    cache = PagedCache(keys, keys.clone())
    want_query = expected_heads(query, turn, weights[0] if has_norms else None)
    want_key = expected_heads(key, turn, weights[1] if has_norms else None)
    before = key.clone()
    rotate_and_write((query, key, value), turn, cache, torch.tensor(SLOTS, dtype=torch.int32), norms)
    tolerance = RELATIVE[dtype]
    torch.testing.assert_close(query.double(), want_query, rtol=tolerance, atol=tolerance)
    assert torch.equal(key, before)
    stored, untouched = [0, 1, 3, 4], [1, 2, 3, 5, 6, 8, 9, 10]
    slots = [SLOTS[index] for index in stored]
    flat_keys, flat_values = cache.keys.flatten(0, 1), cache.values.flatten(0, 1)
    stored_keys = flat_keys[slots].double()
    torch.testing.assert_close(stored_keys, want_key[stored], rtol=tolerance, atol=tolerance)
    assert torch.equal(flat_values[slots], value[stored])
    assert (flat_keys[untouched] == 9.0).all()
    assert (flat_values[untouched] == 9.0).all()


@pytest.mark.parametrize(("kind", "dtype"), [("int8", torch.int8), ("fp8", torch.uint8)])
def test_rotate_and_write_in_8_bits(kind: str, dtype: torch.dtype) -> None:
    query, key, value = projection(torch.float32, 64)
    value[0, 0] = 0.0
    turn = angles(32)
    codes = torch.full((4, 3, 2, 64), 9, dtype=dtype)
    scales = torch.full((4, 3, 2), 9.0)
    cache = PagedCache(codes, codes.clone(), scales, scales.clone())
    rotate_and_write((query, key, value), turn, cache, torch.tensor(SLOTS, dtype=torch.int32), None)
    rotated = reference.rotate(key, *turn)
    keys, values = (pages.flatten(0, 1) for pages in dequantize_pages(cache))
    for index in (0, 1, 3, 4):
        slot = SLOTS[index]
        for stored, exact in ((keys[slot], rotated[index]), (values[slot], value[index])):
            relative = 1 / 254 if kind == "int8" else 1 / 16
            assert ((stored - exact).abs() <= relative * exact.abs().amax(-1, keepdim=True) * 1.01).all()
    assert (cache.keys.flatten(0, 1)[[1, 2, 3]] == 9).all()


def test_e4m3_codec_is_exact() -> None:
    """Every code, and every float32 halfway between two values, through the write kernel and back."""
    codes = torch.arange(256, dtype=torch.uint8)
    finite = codes.view(torch.float8_e4m3fn).float()
    ordered = finite[~finite.isnan()].sort().values
    halfway = (ordered[1:] + ordered[:-1]) / 2
    for exact in (ordered, halfway):
        # 64 a head, the largest value in front so that the scale is 1.
        heads = torch.cat([exact, exact.new_zeros(-len(exact) % 63)]).view(1, -1, 63)
        heads = torch.cat([torch.full((1, heads.shape[1], 1), 448.0), heads], dim=-1)
        count = heads.shape[1]
        pages = torch.zeros((1, 1, count, 64), dtype=torch.uint8)
        cache = PagedCache(pages, pages.clone(), torch.zeros(1, 1, count), torch.zeros(1, 1, count))
        turn = (torch.ones(1, 32), torch.zeros(1, 32))
        slots = torch.zeros(1, dtype=torch.int32)
        rotate_and_write((heads.clone(), heads, heads), turn, cache, slots, None)
        expected = heads.to(torch.float8_e4m3fn).float()
        assert torch.equal(dequantize_pages(cache)[1][0], expected)
