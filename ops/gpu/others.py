"""The same attention by other libraries, those that are installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from device import DEVICE
from timing import median_us
from torch import Tensor

from kernels.paged import PagedCache

_WORKSPACE_BYTES = 256 << 20
_MOST_DENSE_BYTES = 16 << 30
"""Keys and values that are copied out of their pages for a library that knows none."""


@dataclass(frozen=True)
class Problem:
    """Rows of new tokens over their contexts."""

    query: Tensor
    cache: PagedCache
    table: np.ndarray
    counts: list[int]
    contexts: list[int]

    @property
    def rows(self) -> int:
        return len(self.counts)


def beside(problem: Problem) -> str:
    """What others take for it, as text; a library that refuses says why."""
    said = []
    for name, library, make in (
        ("torch SDPA, not paged", "torch", of_torch),
        ("FlashInfer", "flashinfer", of_flashinfer),
        ("vLLM", "vllm", of_vllm),
    ):
        if importlib.util.find_spec(library) is None:
            continue
        try:
            launch = make(problem)
            said.append(f"{name}: {median_us(launch):.1f} µs" if launch else f"{name}: none")
        except Exception as error:  # noqa: BLE001  # any version of a library is welcome; its failure is a result
            said.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[:1]}".replace("|", "/"))
    return "; ".join(said)


def of_torch(problem: Problem) -> Callable[[], object] | None:
    """SDPA over dense keys and values."""
    count, context = problem.counts[0], problem.contexts[0]
    cache = problem.cache
    is_large = problem.rows * context * cache.keys[0, 0].nbytes * 2 > _MOST_DENSE_BYTES
    if is_large or 1 < count < context:  # its causal mask knows no prefix
        return None
    heads, dim = problem.query.shape[1:]
    query = problem.query.view(problem.rows, count, heads, dim).transpose(1, 2)
    shape = (2, problem.rows, cache.num_heads, context, dim)
    keys, values = torch.randn(shape, dtype=query.dtype, device=DEVICE)
    attend: Any = F.scaled_dot_product_attention
    return partial(attend, query, keys, values, is_causal=count > 1, enable_gqa=True)


def of_flashinfer(problem: Problem) -> Callable[[], object]:
    """Its paged wrappers, planned beforehand."""
    flashinfer: Any = importlib.import_module("flashinfer")
    cache, table = problem.cache, problem.table
    heads, dim = problem.query.shape[1:]
    starts = torch.arange(problem.rows + 1, dtype=torch.int32, device=DEVICE) * table.shape[1]
    pages = torch.from_numpy(table.astype(np.int32).ravel()).to(DEVICE)
    last = [(context - 1) % cache.page_size + 1 for context in problem.contexts]
    filled = torch.tensor(last, dtype=torch.int32, device=DEVICE)
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=DEVICE)
    shape = (heads, cache.num_heads, dim, cache.page_size)
    dtypes = {"q_data_type": problem.query.dtype, "kv_data_type": cache.keys.dtype}
    wrapper: Any
    if max(problem.counts) == 1:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        wrapper.plan(starts, pages, filled, *shape, **dtypes)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        queries = torch.tensor(np.cumsum([0, *problem.counts]), dtype=torch.int32, device=DEVICE)
        wrapper.plan(queries, starts, pages, filled, *shape, causal=True, **dtypes)
    return partial(wrapper.run, problem.query, (cache.keys, cache.values))


def of_vllm(problem: Problem) -> Callable[[], object]:
    """Its FlashAttention over pages."""
    launch: Callable[[], object] = partial(
        importlib.import_module("vllm.vllm_flash_attn").flash_attn_varlen_func,
        q=problem.query,
        k=problem.cache.keys,
        v=problem.cache.values,
        max_seqlen_q=max(problem.counts),
        cu_seqlens_q=torch.tensor(np.cumsum([0, *problem.counts]), dtype=torch.int32, device=DEVICE),
        max_seqlen_k=max(problem.contexts),
        seqused_k=torch.tensor(problem.contexts, dtype=torch.int32, device=DEVICE),
        block_table=torch.from_numpy(problem.table.astype(np.int32)).to(DEVICE),
        causal=True,
    )
    return launch
