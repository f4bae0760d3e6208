"""Device functions that the attention kernels share: paged tiles, the running softmax, 8-bit formats.

Conventions of all Triton kernels here: bfloat16 is only loaded, stored, cast and multiplied as matrices;
every other computation is in float32, because versions of Triton differ in what they promote. Block
conditions are joined with & and |. Page ids are widened to 64 bits before they meet a stride.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def e4m3_to_float(codes):
    """float16 values of e4m3fn codes (uint8), exact for every finite one.

    Integer arithmetic, so it needs no fp8 hardware (Ampere, AMD) and no interpreter support.
    """
    wide = codes.to(tl.uint16)
    bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return bits.to(tl.float16, bitcast=True) * 256.0


@triton.jit
def float_to_e4m3(x):
    """e4m3fn codes (uint8) of float32 values: to nearest even, saturating at 448."""
    size = tl.minimum(tl.abs(x), 448.0)
    sign = (x.to(tl.uint32, bitcast=True) >> 24) & 0x80
    bits = size.to(tl.uint32, bitcast=True)
    rounded = bits + 0x7FFFF + ((bits >> 20) & 1)
    normal = (rounded >> 20).to(tl.int32) - 960  # exponent bias 127 to 7, times 8 mantissa steps
    # Below 2^-6 codes are multiples of 2^-9; adding 1.5 * 2^23 leaves that multiple in the low bits.
    subnormal = (size * 512.0 + 12582912.0).to(tl.uint32, bitcast=True) & 0xF
    return (sign.to(tl.int32) | tl.where(size < 0.015625, subnormal.to(tl.int32), normal)).to(tl.uint8)


@triton.jit
def round_to_int8(x):
    """int8 of float32 values within [-127, 127], to nearest even."""
    return ((x + 12582912.0) - 12582912.0).to(tl.int8)


@triton.jit
def dequantized(tile, like: tl.constexpr):
    """A tile of keys or values in the type `like`, their scales not applied yet."""
    if tile.dtype == tl.uint8:
        tile = e4m3_to_float(tile)
    return tile.to(like)


@triton.jit
def load_tile(pointers, is_key, is_dim, MASK_KEYS: tl.constexpr, MASK_DIMS: tl.constexpr):
    """[N, D] keys or values; what a mask hides reads as 0. Masks that are all true are left out, because
    the compiler cannot see that they are."""
    if MASK_KEYS:
        if MASK_DIMS:
            return tl.load(pointers, mask=is_key[:, None] & is_dim[None, :], other=0)
        return tl.load(pointers, mask=is_key[:, None], other=0)
    if MASK_DIMS:
        return tl.load(pointers, mask=is_dim[None, :], other=0)
    return tl.load(pointers)


@triton.jit
def capped(scores, cap):
    """cap * tanh(scores / cap), in terms of exp2."""
    e = tl.exp2(tl.abs(scores) * (-2.0 * LOG2_E / cap))
    magnitude = cap * (1.0 - e) / (1.0 + e)
    return tl.where(scores < 0, -magnitude, magnitude)


@triton.jit
def attend(
    query,
    position,
    accumulated,
    total,
    highest,
    keys,
    values,
    key_scales,
    value_scales,
    pages,
    head,
    start,
    stop,
    scale,
    cap,
    window,
    stride_page,
    stride_slot,
    stride_head,
    stride_scale_page,
    stride_scale_slot,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Take the keys [start, stop) of one page list into a running softmax (arXiv:1805.02867).

    Args:
        query: [M, BLOCK_D].
        position: int32 [M], the last key each row sees.
        accumulated, total, highest: float32 [M, BLOCK_D], [M], [M]; scores are in units of log2.
        keys, values: pointers to one KV head's pages; int8 and uint8 (e4m3) tiles have a scale a key.
        pages: pointer to the row's page ids; key i is in page i // PAGE_SIZE.
        scale: softmax scale; applied before `cap`.
        window: keys each row sees, the one at its position included.
        MASKED: False promises that every row sees every key of [start, stop), a multiple of BLOCK_N.

    Returns:
        The three, updated.
    """
    compute: tl.constexpr = query.dtype
    QUANTIZED: tl.constexpr = (keys.dtype.element_ty == tl.int8) | (keys.dtype.element_ty == tl.uint8)
    dims = tl.arange(0, BLOCK_D)
    is_dim = dims < HEAD_DIM
    for block in tl.range(start, stop, BLOCK_N, num_stages=STAGES):
        at = block + tl.arange(0, BLOCK_N)
        is_key = at < stop
        if MASKED:
            page = tl.load(pages + at // PAGE_SIZE, mask=is_key, other=0).to(tl.int64)
        else:
            page = tl.load(pages + at // PAGE_SIZE).to(tl.int64)
        slot = at % PAGE_SIZE
        offsets = (page * stride_page + slot * stride_slot + head * stride_head)[:, None] + dims[None, :]
        tile = load_tile(keys + offsets, is_key, is_dim, MASKED, HEAD_DIM != BLOCK_D)
        scores = tl.dot(query, tl.trans(dequantized(tile, compute)), input_precision="ieee") * scale
        if QUANTIZED:
            scale_offsets = page * stride_scale_page + slot * stride_scale_slot + head
            scores *= tl.load(key_scales + scale_offsets, mask=is_key, other=0.0)[None, :]
        if HAS_CAP:
            scores = capped(scores, cap)
        scores *= LOG2_E
        if MASKED:
            seen = is_key[None, :] & (at[None, :] <= position[:, None])
            if HAS_WINDOW:
                seen = seen & (at[None, :] > position[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))
        raised = tl.maximum(highest, tl.max(scores, 1))
        if MASKED:  # a row that has seen nothing yet would subtract infinity from infinity
            shift = tl.where(raised == float("-inf"), 0.0, raised)
        else:
            shift = raised
        decay = tl.exp2(highest - shift)
        weights = tl.exp2(scores - shift[:, None])
        total = total * decay + tl.sum(weights, 1)
        if QUANTIZED:
            weights *= tl.load(value_scales + scale_offsets, mask=is_key, other=0.0)[None, :]
        tile = load_tile(values + offsets, is_key, is_dim, MASKED, HEAD_DIM != BLOCK_D)
        accumulated = tl.dot(
            weights.to(compute),
            dequantized(tile, compute),
            accumulated * decay[:, None],
            input_precision="ieee",
        )
        highest = raised
    return accumulated, total, highest
