"""8-bit and 4-bit formats in plain torch: what the kernels' codes mean, and how to make them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.paged import PagedCache

INT8_MAX = 127.0
E4M3_MAX = 448.0
CODES = {"int8": torch.int8, "fp8": torch.uint8}
"""What codes of an 8-bit format are kept in."""
PACKED_BLOCK = 32
"""Weights that share a scale in 4 bits."""


def quantize_rows(x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Symmetric 8-bit codes with one scale for each vector of the last dimension.

    Args:
        x: [..., D], any float type.
        kind: "int8", or "fp8" for e4m3fn.

    Returns:
        int8 or uint8 codes [..., D] and float32 scales [...]; x ≈ codes * scales. A zero vector has scale 0.
    """
    wide = x.float()
    largest = wide.abs().amax(-1, keepdim=True)
    scales = largest / (INT8_MAX if kind == "int8" else E4M3_MAX)
    scaled = wide / torch.where(scales > 0, scales, 1.0)
    if kind == "int8":
        return scaled.round().to(torch.int8), scales[..., 0]
    if kind == "fp8":
        codes = scaled.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
        return codes.view(torch.uint8), scales[..., 0]
    raise ValueError(f"no 8-bit format {kind!r}")


def dequantize_rows(codes: Tensor, scales: Tensor) -> Tensor:
    """float32 values of `quantize_rows`."""
    plain = codes.view(torch.float8_e4m3fn) if codes.dtype == torch.uint8 else codes
    return plain.float() * scales[..., None]


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Vectors in 8 bits with a scale each: activations, or a matrix of weights."""

    codes: Tensor
    """int8, or uint8 for e4m3fn; [..., D]."""
    scales: Tensor
    """float32 [...]"""
    dtype: torch.dtype
    """Of what they were made from, and of products with them."""

    @classmethod
    def of(cls, x: Tensor, codes: torch.dtype) -> QuantizedRows:
        """Quantise the vectors of the last dimension to `codes`, a value of `CODES`."""
        return cls(*quantize_rows(x, "int8" if codes == torch.int8 else "fp8"), x.dtype)

    def plain(self) -> Tensor:
        """float32 values."""
        return dequantize_rows(self.codes, self.scales)


Vectors = Tensor | QuantizedRows


def quantize_pages(keys: Tensor, values: Tensor, kind: str) -> PagedCache:
    """Pages [num_pages, page_size, kv_heads, head_dim] in 8 bits."""
    key_codes, key_scales = quantize_rows(keys, kind)
    value_codes, value_scales = quantize_rows(values, kind)
    return PagedCache(key_codes, value_codes, key_scales, value_scales)


def dequantize_pages(cache: PagedCache) -> tuple[Tensor, Tensor]:
    """float32 keys and values."""
    if cache.key_scales is None or cache.value_scales is None:
        return cache.keys.float(), cache.values.float()
    return (
        dequantize_rows(cache.keys, cache.key_scales),
        dequantize_rows(cache.values, cache.value_scales),
    )


@dataclass(frozen=True, slots=True)
class PackedRows:
    """A matrix of weights in 4 bits, 32 neighbours of a row to a block: weight = code * scale + offset.

    The order of codes is that of GGUF's Q4_0 and Q4_1, whose blocks are therefore taken as they are.
    """

    codes: Tensor
    """uint8 [N, K / 2]; byte j of a block's 16 has code j in its low half and code j + 16 in the other."""
    scales: Tensor
    """float16 [N, K / 32]"""
    offsets: Tensor
    """float16 [N, K / 32]"""

    @classmethod
    def of(cls, weight: Tensor) -> PackedRows:
        """Round to the nearest of 16 steps between a block's least and greatest weight.

        Args:
            weight: [N, K], any float type; K a multiple of 32.
        """
        rows, depth = weight.shape
        if depth % PACKED_BLOCK:
            raise ValueError(f"rows of {depth} weights are not blocks of {PACKED_BLOCK}")
        blocks = weight.float().view(rows, depth // PACKED_BLOCK, PACKED_BLOCK)
        least = blocks.amin(-1)
        scales, offsets = ((blocks.amax(-1) - least) / 15).half(), least.half()
        steps = torch.where(scales > 0, scales.float(), 1.0)[..., None]
        codes = ((blocks - offsets.float()[..., None]) / steps).round().clamp(0, 15).to(torch.uint8)
        low, high = codes.split(PACKED_BLOCK // 2, dim=-1)
        return cls((low | high << 4).flatten(1), scales, offsets)

    def plain(self) -> Tensor:
        """float32 [N, K]"""
        blocks = self.codes.unflatten(1, (-1, PACKED_BLOCK // 2))
        codes = torch.cat((blocks & 15, blocks >> 4), dim=-1).float()
        return (codes * self.scales.float()[..., None] + self.offsets.float()[..., None]).flatten(1)


Weight = Vectors | PackedRows
