"""One table: which implementation of each operation a device uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels import reference
from kernels.paged import PagedCache, PagedRows
from kernels.quantize import QuantizedRows, Vectors, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What a decoder is made of besides matrix products; semantics in `kernels.reference`.

    Each is as large as one pass over memory can be: a GPU runs it as one kernel.
    """

    rows: Callable[..., Any]
    """Place a step's tokens, once a step: arguments of `reference_rows`. Its result is for the others."""
    add_rms_norm: Callable[[Tensor | None, Tensor, Tensor, float, torch.dtype | None], tuple[Vectors, Tensor]]
    """(x, residual, weight, eps, codes) → the norm of residual + x, in 8 bits if `codes` is a type of such,
    and that sum. Nothing is added if x is None. The residual may be overwritten."""
    linear: Callable[[Vectors, Weight, Tensor | None], Tensor]
    rotate_and_write: Callable[..., Tensor]
    """Norm and turn queries and keys, store keys and values: arguments of `reference_rotate_and_write`.
    The queries given may be overwritten."""
    silu_mul: Callable[[Tensor, Tensor], Tensor]
    paged_attention: Callable[[Tensor, PagedCache, Any, int | None], Tensor]


def reference_rows(
    query_starts: npt.NDArray[np.int32],
    context_lens: npt.NDArray[np.int32],
    page_table: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int64],
    device: torch.device,
) -> PagedRows:
    """Rows as plain torch takes them; arguments as in `PagedRows`."""
    return PagedRows(
        query_starts=query_starts.tolist(),
        context_lens=context_lens.tolist(),
        page_table=torch.from_numpy(page_table).to(device, torch.int64),
        slots=torch.from_numpy(slots).to(device),
    )


def reference_add_rms_norm(
    x: Tensor | None, residual: Tensor, weight: Tensor, eps: float, codes: torch.dtype | None
) -> tuple[Vectors, Tensor]:
    """[T, N] each, weight [N]."""
    if x is not None:
        residual = residual + x
    normed = reference.rms_norm(residual, weight, eps)
    return normed if codes is None else QuantizedRows.of(normed, codes), residual


def reference_rotate_and_write(
    projected: tuple[Tensor, Tensor, Tensor],
    angles: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor, float] | None,
    cache: PagedCache,
    rows: PagedRows,
) -> Tensor:
    """Between projections and attention.

    Args:
        projected: queries [T, num_heads, head_dim], keys and values [T, kv_heads, head_dim].
        angles: cosines and sines, float32 [T, rotary_dim / 2].
        norms: weights [head_dim] of the norms of query and key heads, and epsilon; None: no such norms.
        cache: the layer's pages, which take the keys and values at the rows' slots.

    Returns:
        The queries.
    """
    query, key, value = projected
    if norms is not None:
        query_weight, key_weight, eps = norms
        query = reference.rms_norm(query, query_weight, eps)
        key = reference.rms_norm(key, key_weight, eps)
    reference.kv_write(reference.rotate(key, *angles), value, cache, rows)
    return reference.rotate(query, *angles)


def _cpu() -> Operations:
    return Operations(
        rows=reference_rows,
        add_rms_norm=reference_add_rms_norm,
        linear=reference.linear,
        rotate_and_write=reference_rotate_and_write,
        silu_mul=reference.silu_mul,
        paged_attention=reference.paged_attention,
    )


def _cuda() -> Operations:
    from kernels.gpu import step  # noqa: PLC0415  # imports Triton, which a CPU does without

    return Operations(
        rows=step.StepRows,
        add_rms_norm=step.add_rms_norm,
        linear=step.linear,
        rotate_and_write=step.rotate_and_write,
        silu_mul=step.silu_mul,
        paged_attention=step.paged_attention,
    )


_TABLE: Final = {"cpu": _cpu, "cuda": _cuda}


def operations(device: torch.device) -> Operations:
    """The operations of a device.

    Raises:
        ValueError: no row of the table is for this type of device.
    """
    if device.type not in _TABLE:
        raise ValueError(f"no kernels for device {device.type!r}; there are some for {', '.join(_TABLE)}")
    return _TABLE[device.type]()
