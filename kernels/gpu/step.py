"""The operations of a decoder step as `kernels.dispatch` names them, on the Triton kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.gpu import kv_write, norm
from kernels.gpu.activation import silu_mul
from kernels.gpu.attention_decode import decode_attention
from kernels.gpu.attention_plan import AttentionPlan, plan_attention
from kernels.gpu.attention_prefill import prefill_attention
from kernels.gpu.linear_8bit import linear_8bit
from kernels.gpu.linear_int4 import linear_int4
from kernels.gpu.row_codes import row_codes
from kernels.gpu.static_rows import StaticRows
from kernels.gpu.tiles import AttentionTiles, architecture, attention_tiles
from kernels.paged import PagedCache
from kernels.quantize import PackedRows, QuantizedRows, Vectors, Weight

__all__ = [
    "StepRows",
    "add_rms_norm",
    "linear",
    "paged_attention",
    "rotate_and_write",
    "silu_mul",
    "static_rows",
]


class StepRows:
    """The rows of one step, planned for a model's heads when a layer first asks, and used by all layers."""

    def __init__(
        self,
        query_starts: npt.NDArray[np.int32],
        context_lens: npt.NDArray[np.int32],
        page_table: npt.NDArray[np.int32],
        slots: npt.NDArray[np.int64],
        device: torch.device,
    ) -> None:
        self._arrays = (query_starts, context_lens, page_table, slots)
        self._device = device
        self._plan: AttentionPlan | None = None

    def plan(self, query: Tensor, cache: PagedCache) -> AttentionPlan:
        """The step's work lists. Every layer has heads of one shape and pages of one size."""
        if self._plan is None:
            query_starts, context_lens, page_table, slots = self._arrays
            self._plan = plan_attention(
                query_starts=query_starts,
                context_lens=context_lens,
                page_table=page_table,
                slots=slots,
                page_size=cache.page_size,
                group=query.shape[1] // cache.num_heads,
                tiles=tiles_for(cache, query.dtype),
                device=self._device,
            )
        return self._plan


def tiles_for(cache: PagedCache, dtype: torch.dtype) -> AttentionTiles:
    """The tiles for queries of `dtype` over this cache."""
    device, head_dim = cache.keys.device, cache.keys.shape[3]
    return attention_tiles(architecture(device), head_dim, dtype, cache.keys.dtype)


def static_rows(
    cache: PagedCache, dtype: torch.dtype, *, num_heads: int, capacity: int, parts: int, table: Tensor
) -> StaticRows:
    """Rows for graphs over `cache`, of `num_heads` query heads of `dtype`; the others are of `StaticRows`."""
    return StaticRows(
        capacity=capacity,
        parts=parts,
        table=table,
        page_size=cache.page_size,
        group=num_heads // cache.num_heads,
        tiles=tiles_for(cache, dtype),
    )


def add_rms_norm(
    x: Tensor | None, residual: Tensor, weight: Tensor, eps: float, codes: torch.dtype | None
) -> tuple[Vectors, Tensor]:
    """The norm, in 8 bits if `codes` says of which type, and the residual, to which x was added in place."""
    if codes is None:
        return norm.add_rms_norm(x, residual, weight, eps), residual
    quantized = norm.add_rms_norm_quantized(x, residual, weight, eps, codes)
    return QuantizedRows(*quantized, residual.dtype), residual


def linear(x: Vectors, weight: Weight, bias: Tensor | None) -> Tensor:
    """As `kernels.reference.linear`."""
    if not isinstance(weight, QuantizedRows):
        assert isinstance(x, Tensor), "quantised activations go with weights in 8 bits"
        return linear_int4(x, weight, bias) if isinstance(weight, PackedRows) else F.linear(x, weight, bias)
    rows = row_codes(x, weight.codes.dtype) if isinstance(x, Tensor) else x
    return linear_8bit(rows.codes, rows.scales, weight.codes, weight.scales, dtype=rows.dtype, bias=bias)


def rotate_and_write(
    projected: tuple[Tensor, Tensor, Tensor],
    angles: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor, float] | None,
    cache: PagedCache,
    rows: StepRows | StaticRows,
) -> Tensor:
    """The queries given, normed and turned in place."""
    query = projected[0]
    kv_write.rotate_and_write(projected, angles, cache, rows.plan(query, cache).slots, norms)
    return query


def paged_attention(
    query: Tensor, cache: PagedCache, rows: StepRows | StaticRows, window: int | None
) -> Tensor:
    """Rows of few tokens are decoded, the others prefilled."""
    plan = rows.plan(query, cache)
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    decode_attention(query, cache, plan, output, window=window)
    prefill_attention(query, cache, plan, output, window=window)
    return output
