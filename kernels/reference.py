"""The operations of a decoder step in plain torch: the oracle, and the path for any machine.

Reductions run in float32 whatever the dtype of the arguments. Each row of a batch is computed by
itself, so attention does not depend on what else is in the batch.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.paged import PagedCache, PagedRows
from kernels.quantize import PackedRows, QuantizedRows, Vectors, Weight, dequantize_rows

_MAX_SCORES: Final = 1 << 20
"""Attention scores held at once; bounds memory whatever the context, and 4 MiB stays in cache."""
_NONE: Final = torch.finfo(torch.float32).min
"""The score of a hidden key. Unlike minus infinity it leaves a block of nothing else without NaN: its
weight vanishes beside any real score."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension (arXiv:1910.07467); shape and dtype of x."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (arXiv:2104.09864), pairs in half-split order.

    Args:
        x: [T, heads, head_dim].
        cos, sin: float32 [T, rotary_dim / 2]; dimensions from rotary_dim on pass unchanged.
    """
    half = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
    return rotated if 2 * half == x.shape[-1] else torch.cat((rotated, x[..., 2 * half :]), dim=-1)


def linear(x: Vectors, weight: Weight, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias, [T, N].

    Args:
        x: [T, K]; where only the weight is in 8 bits, x is brought to the same format.
        weight: [N, K]; 4-bit ones stand for numbers of the type of x.
    """
    if not isinstance(weight, QuantizedRows):
        assert isinstance(x, Tensor), "quantised activations go with weights in 8 bits"
        return F.linear(x, weight.plain().to(x.dtype) if isinstance(weight, PackedRows) else weight, bias)
    rows = QuantizedRows.of(x, weight.codes.dtype) if isinstance(x, Tensor) else x
    product = F.linear(rows.plain(), weight.plain(), None if bias is None else bias.float())
    return product.to(rows.dtype)


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, the SwiGLU of arXiv:2002.05202."""
    return F.silu(gate) * up


def kv_write(keys: Tensor, values: Tensor, cache: PagedCache, rows: PagedRows) -> None:
    """Store new keys and values, [T, kv_heads, head_dim] each, at the tokens' slots of the cache."""
    for new, pages, scales in (
        (keys, cache.keys, cache.key_scales),
        (values, cache.values, cache.value_scales),
    ):
        stored = new
        if scales is not None:
            quantized = QuantizedRows.of(new, pages.dtype)
            stored = quantized.codes
            scales.flatten(0, 1).index_copy_(0, rows.slots, quantized.scales)
        pages.flatten(0, 1).index_copy_(0, rows.slots, stored)


def paged_attention(query: Tensor, cache: PagedCache, rows: PagedRows, window: int | None) -> Tensor:
    """Causal softmax attention of packed queries over paged keys and values.

    Args:
        query: [T, num_heads, head_dim]; head h reads KV head h // (num_heads / kv_heads).
        cache: a layer's keys and values; this step's are written.
        window: tokens each query sees, itself included; None: all before it.

    Returns:
        Shape and dtype of `query`. Memory beyond it is linear in the longest row.
    """
    output = torch.empty_like(query)
    for row, context in enumerate(rows.context_lens):
        start, stop = rows.query_starts[row], rows.query_starts[row + 1]
        output[start:stop] = _attend(query[start:stop], cache, rows.page_table[row], context, window)
    return output


def _attend(query: Tensor, cache: PagedCache, page_ids: Tensor, context: int, window: int | None) -> Tensor:
    """One row, by blocks of keys; the results of blocks are weighted by the sums of their exponentials,
    kept as logarithms (arXiv:2112.05682)."""
    count, num_heads, head_dim = query.shape
    page_size, kv_heads = cache.page_size, cache.num_heads
    group = num_heads // kv_heads
    positions = range(context - count, context)
    # [kv_heads, group * count, head_dim]: one matrix product a KV head serves its whole group.
    scaled = (query.float() * head_dim**-0.5).view(count, kv_heads, group, head_dim)
    scaled = scaled.permute(1, 2, 0, 3).reshape(kv_heads, group * count, head_dim)
    attended, mass = torch.zeros_like(scaled), scaled.new_full((kv_heads, group * count, 1), _NONE)
    oldest = 0 if window is None else max(0, positions.start + 1 - window)
    block = max(1, _MAX_SCORES // (num_heads * count * page_size)) * page_size
    for start in range(oldest // page_size * page_size, context, block):
        seen = range(start, min(start + block, context))
        blocks = page_ids[start // page_size : -(-seen.stop // page_size)]
        keys = _gather(cache.keys, cache.key_scales, blocks, len(seen))
        values = _gather(cache.values, cache.value_scales, blocks, len(seen))
        scores = torch.bmm(scaled, keys.transpose(1, 2))
        if seen.stop - 1 > positions.start or (window is not None and start < context - window):
            hidden = _hidden(positions, seen, window, query.device)
            scores.view(kv_heads, group, count, len(seen)).masked_fill_(hidden, _NONE)
        weights = scores.softmax(-1)
        # log(sum(exp(scores))), from what the softmax made of the highest score.
        block_mass = scores.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True).log()
        total = torch.logaddexp(mass, block_mass)
        attended.mul_((mass - total).exp_()).add_(
            torch.bmm(weights, values).mul_((block_mass - total).exp_())
        )
        mass = total
    attended = attended.view(kv_heads, group, count, head_dim)
    return attended.permute(2, 0, 1, 3).reshape(count, num_heads, head_dim).to(query.dtype)


def _gather(pages: Tensor, scales: Tensor | None, page_ids: Tensor, count: int) -> Tensor:
    """The first `count` tokens of the given pages: float32 [kv_heads, count, head_dim]."""
    chosen = pages.index_select(0, page_ids).flatten(0, 1)[:count].transpose(0, 1)
    if scales is None:
        return chosen.float()
    return dequantize_rows(chosen, scales.index_select(0, page_ids).flatten(0, 1)[:count].transpose(0, 1))


def _hidden(queries: range, keys: range, window: int | None, device: torch.device) -> Tensor:
    """[queries, keys] True where a query position must not see a key position."""
    distance = (
        torch.arange(queries.start, queries.stop, device=device)[:, None]
        - torch.arange(keys.start, keys.stop, device=device)[None, :]
    )
    return distance < 0 if window is None else (distance < 0) | (distance >= window)
