"""Between the projections and attention: norms of heads, rotary embedding, and new keys and values stored.

One pass over queries, keys and values instead of six: Qwen3's norm of each head (arXiv:2505.09388), RoPE
(arXiv:2104.09864) in half-split order, and the write to the paged cache, in 8 bits where the cache is.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.flash import float_to_e4m3, round_to_int8
from kernels.paged import PagedCache

_BLOCK_H: Final = 8
"""Heads of one program."""


@triton.jit
def load_heads(pointers, is_head, halves, is_half, rest, is_rest, HALF: tl.constexpr):
    """Heads in float32 as three pieces: both halves of the rotated dimensions, and the others."""
    first = tl.load(pointers + halves, mask=is_head & is_half, other=0.0).to(tl.float32)
    second = tl.load(pointers + HALF + halves, mask=is_head & is_half, other=0.0).to(tl.float32)
    other = tl.load(pointers + rest, mask=is_head & is_rest, other=0.0).to(tl.float32)
    return first, second, other


@triton.jit
def normed(
    first, second, other, weight, halves, is_half, rest, is_rest, eps, HALF: tl.constexpr, DIM: tl.constexpr
):
    """RMSNorm of each head (arXiv:1910.07467)."""
    squares = tl.sum(first * first, 1) + tl.sum(second * second, 1) + tl.sum(other * other, 1)
    inverse = tl.rsqrt(squares / DIM + eps)[:, None]
    first *= inverse * tl.load(weight + halves, mask=is_half, other=0.0).to(tl.float32)
    second *= inverse * tl.load(weight + HALF + halves, mask=is_half, other=0.0).to(tl.float32)
    other *= inverse * tl.load(weight + rest, mask=is_rest, other=0.0).to(tl.float32)
    return first, second, other


@triton.jit
def store_heads(
    pointers, scales, first, second, other, is_head, halves, is_half, rest, is_rest, HALF: tl.constexpr
):
    """Store the pieces in the type of the pages, 8-bit ones with a scale a head at `scales` [H, 1]."""
    kind: tl.constexpr = pointers.dtype.element_ty
    if (kind == tl.int8) | (kind == tl.uint8):
        largest = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))
        largest = tl.maximum(largest, tl.max(tl.abs(other), 1))[:, None]
        scale = tl.div_rn(largest, 127.0 if kind == tl.int8 else 448.0)
        tl.store(scales, scale, mask=is_head)
        divisor = tl.where(scale > 0.0, scale, 1.0)
        if kind == tl.int8:
            first, second, other = (
                round_to_int8(tl.div_rn(first, divisor)),
                round_to_int8(tl.div_rn(second, divisor)),
                round_to_int8(tl.div_rn(other, divisor)),
            )
        else:
            first, second, other = (
                float_to_e4m3(tl.div_rn(first, divisor)),
                float_to_e4m3(tl.div_rn(second, divisor)),
                float_to_e4m3(tl.div_rn(other, divisor)),
            )
    tl.store(pointers + halves, first.to(kind), mask=is_head & is_half)
    tl.store(pointers + HALF + halves, second.to(kind), mask=is_head & is_half)
    tl.store(pointers + rest, other.to(kind), mask=is_head & is_rest)


@triton.jit
def rotate_and_write_kernel(
    query,
    key,
    value,
    cosines,
    sines,
    query_weight,
    key_weight,
    keys,
    values,
    key_scales,
    value_scales,
    slots,
    eps,
    stride_query_token,
    stride_query_head,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    stride_page,
    stride_slot,
    stride_head,
    stride_scale_page,
    stride_scale_slot,
    NUM_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Grid (tokens, blocks of query heads, then blocks of KV heads)."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    query_blocks: tl.constexpr = (NUM_HEADS + BLOCK_H - 1) // BLOCK_H
    halves = tl.arange(0, BLOCK_HALF)[None, :]
    is_half = halves < HALF
    rest = 2 * HALF + tl.arange(0, BLOCK_REST)[None, :]
    is_rest = rest < HEAD_DIM
    cosine = tl.load(cosines + token * HALF + halves, mask=is_half, other=0.0)
    sine = tl.load(sines + token * HALF + halves, mask=is_half, other=0.0)
    if block < query_blocks:
        head = block * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
        is_head = head < NUM_HEADS
        at = query + token * stride_query_token + head * stride_query_head
        first, second, other = load_heads(at, is_head, halves, is_half, rest, is_rest, HALF)
        if HAS_NORM:
            first, second, other = normed(
                first, second, other, query_weight, halves, is_half, rest, is_rest, eps, HALF, HEAD_DIM
            )
        turned = first * cosine - second * sine
        second = second * cosine + first * sine
        store_heads(at, None, turned, second, other, is_head, halves, is_half, rest, is_rest, HALF)
    else:
        slot = tl.load(slots + token)
        head = (block - query_blocks) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
        is_head = head < tl.where(slot >= 0, KV_HEADS, 0)
        page = (slot // PAGE_SIZE).to(tl.int64)
        place = page * stride_page + slot % PAGE_SIZE * stride_slot + head * stride_head
        scale_place = page * stride_scale_page + slot % PAGE_SIZE * stride_scale_slot + head
        at = key + token * stride_key_token + head * stride_key_head
        first, second, other = load_heads(at, is_head, halves, is_half, rest, is_rest, HALF)
        if HAS_NORM:
            first, second, other = normed(
                first, second, other, key_weight, halves, is_half, rest, is_rest, eps, HALF, HEAD_DIM
            )
        turned = first * cosine - second * sine
        second = second * cosine + first * sine
        store_heads(
            keys + place, key_scales + scale_place if key_scales is not None else None,
            turned, second, other, is_head, halves, is_half, rest, is_rest, HALF,
        )  # fmt: skip
        at = value + token * stride_value_token + head * stride_value_head
        first, second, other = load_heads(at, is_head, halves, is_half, rest, is_rest, HALF)
        store_heads(
            values + place, value_scales + scale_place if value_scales is not None else None,
            first, second, other, is_head, halves, is_half, rest, is_rest, HALF,
        )  # fmt: skip


def rotate_and_write(
    projected: tuple[Tensor, Tensor, Tensor],
    angles: tuple[Tensor, Tensor],
    cache: PagedCache,
    slots: Tensor,
    norms: tuple[Tensor, Tensor, float] | None,
) -> None:
    """Norm and rotate queries in place; norm and rotate keys, and store them and the values.

    Args:
        projected: queries [T, num_heads, head_dim], keys and values [T, kv_heads, head_dim]; all may be
            slices of one wider projection with a dense last dimension.
        angles: cosines and sines, float32 [T, rotary_dim / 2], dense; further dimensions are not turned.
        slots: int32 [T], page * page_size + offset; -1: store nothing.
        norms: weights [head_dim] of the norms of query and key heads, and epsilon; None: no norms.
    """
    query, key, value = projected
    tokens, num_heads, head_dim = query.shape
    half = angles[0].shape[-1]
    blocks = triton.cdiv(num_heads, _BLOCK_H) + triton.cdiv(cache.num_heads, _BLOCK_H)
    query_weight, key_weight, eps = norms or (None, None, 0.0)
    rotate_and_write_kernel[(tokens, blocks)](
        query,
        key,
        value,
        *angles,
        query_weight,
        key_weight,
        cache.keys,
        cache.values,
        cache.key_scales,
        cache.value_scales,
        slots,
        eps,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        *cache.strides,
        *cache.scale_strides,
        NUM_HEADS=num_heads,
        KV_HEADS=cache.num_heads,
        HEAD_DIM=head_dim,
        HALF=half,
        PAGE_SIZE=cache.page_size,
        BLOCK_H=_BLOCK_H,
        BLOCK_HALF=triton.next_power_of_2(half),
        BLOCK_REST=triton.next_power_of_2(max(1, head_dim - 2 * half)),
        HAS_NORM=norms is not None,
        num_warps=1,
    )
