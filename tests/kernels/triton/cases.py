"""Attention cases for the interpreter, the compiler and a GPU alike, and the exact answer in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kernels.gpu.attention_decode import decode_attention
from kernels.gpu.attention_plan import AttentionPlan, plan_attention
from kernels.gpu.attention_prefill import prefill_attention
from kernels.gpu.tiles import AttentionTiles, attention_tiles
from kernels.paged import PagedCache
from kernels.quantize import dequantize_pages, quantize_pages

TOLERANCE: Final = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Absolute, for queries, keys and values of unit variance."""


@dataclass(frozen=True, kw_only=True)
class AttentionCase:
    """Rows of (new tokens, context) over a cache of one layer."""

    name: str
    rows: tuple[tuple[int, int], ...]
    heads: tuple[int, int] = (6, 2)
    """Query heads and KV heads."""
    head_dim: int = 64
    page_size: int = 16
    dtype: torch.dtype = torch.float32
    window: int | None = None
    cap: float | None = None
    quantized: str | None = None
    """Pages in "int8" or "fp8"."""
    shared: tuple[int, ...] = ()
    """Leading tokens, of whole pages, that each row shares with the row before it; () none."""


_RAGGED: Final = (
    *((1, context) for context in (1, 2, 17, 130, 63, 16, 15, 128, 129, 64, 65)),
    (0, 0),
)
_MIXED: Final = ((1, 30), (17, 17), (5, 40), (8, 8), (9, 140), (64, 80), (0, 20), (2, 2))
_DRAFTS: Final = ((2, 2), (8, 150), (3, 129), (4, 64))
_SHARED: Final = tuple((1, context) for context in (400, 513, 396, 385, 300, 257, 64))
_TREE: Final = (0, 384, 384, 384, 256, 256, 0)


_DECODE: Final = AttentionCase(name="decode", rows=_RAGGED)
_PREFILL: Final = AttentionCase(name="mixed", rows=_MIXED)
_VERIFY: Final = AttentionCase(name="drafts", rows=_DRAFTS)
_CASCADE: Final = AttentionCase(name="shared", rows=_SHARED, shared=_TREE)
_SHAPES: Final = (
    ((4, 4), 64, 16),
    ((9, 3), 64, 1),
    ((14, 2), 128, 16),
    ((8, 1), 80, 64),
    ((16, 1), 96, 16),
    ((6, 2), 256, 64),
    ((32, 1), 64, 16),
)


def attention_cases() -> list[AttentionCase]:
    """Each value of each dimension, most of them in pairs: what a test run has time for."""
    half, brain = torch.float16, torch.bfloat16
    return [
        *(_with_shape(_DECODE, *shape) for shape in _SHAPES),
        *(_with_shape(_PREFILL, *shape) for shape in _SHAPES[:6]),
        *(_with_shape(_CASCADE, *shape) for shape in _SHAPES[1:4:2]),
        *(_with_dtype(base, brain) for base in (_DECODE, _PREFILL, _VERIFY, _CASCADE)),
        *(_with_dtype(base, half) for base in (_DECODE, _PREFILL)),
        *(_with_window(_DECODE, *window) for window in ((1, 16), (20, 1))),
        *(_with_window(_PREFILL, *window) for window in ((20, 16), (150, 64))),
        *(_with_window(base, 150, 16) for base in (_VERIFY, _CASCADE)),
        *(_with_cap(base) for base in (_DECODE, _PREFILL)),
        *(_with_pages(base, "int8", brain) for base in (_DECODE, _PREFILL)),
        *(_with_pages(base, "fp8", half) for base in (_CASCADE, _PREFILL)),
        replace(_PREFILL, name="mixed-window-cap-bfloat16", window=33, cap=3.0, dtype=brain),
    ]


def all_attention_cases() -> list[AttentionCase]:
    """Every kind of batch with every shape, dtype, window and page format, one at a time."""
    bases = (_DECODE, _PREFILL, _VERIFY, _CASCADE)
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    windows = ((1, 16), (20, 1), (150, 64), (1000, 16))
    return [
        *(
            _with_dtype(_with_shape(base, *shape), each)
            for base in bases
            for shape in _SHAPES
            for each in dtypes
        ),
        *(
            _with_dtype(_with_window(base, *each), dtype)
            for base in bases
            for each in windows
            for dtype in dtypes
        ),
        *(_with_dtype(_with_cap(base), dtype) for base in bases for dtype in dtypes),
        *(_with_pages(base, kind, dtype) for base in bases for kind in ("int8", "fp8") for dtype in dtypes),
        replace(_DECODE, name="one-long-row", rows=((1, 5000),), head_dim=128),
        replace(_PREFILL, name="one-long-prompt", rows=((700, 1500),), head_dim=128),
    ]


def _with_shape(case: AttentionCase, heads: tuple[int, int], head_dim: int, page_size: int) -> AttentionCase:
    name = f"{case.name}-{heads[0]}over{heads[1]}-d{head_dim}-page{page_size}"
    return replace(case, name=name, heads=heads, head_dim=head_dim, page_size=page_size)


def _with_dtype(case: AttentionCase, dtype: torch.dtype) -> AttentionCase:
    return replace(case, name=f"{case.name}-{dtype}".replace("torch.", ""), dtype=dtype)


def _with_window(case: AttentionCase, window: int, page_size: int) -> AttentionCase:
    return replace(case, name=f"{case.name}-window{window}", window=window, page_size=page_size)


def _with_cap(case: AttentionCase) -> AttentionCase:
    return replace(case, name=f"{case.name}-cap", cap=5.0)


def _with_pages(case: AttentionCase, kind: str, dtype: torch.dtype) -> AttentionCase:
    return replace(_with_dtype(case, dtype), name=f"{case.name}-{kind}", quantized=kind, head_dim=128)


@dataclass(frozen=True, kw_only=True)
class AttentionProblem:
    """A case with random numbers; what no row owns is NaN (in 8 bits: a large number)."""

    case: AttentionCase
    query: Tensor
    cache: PagedCache
    keys: Tensor
    """float32 [num_pages, page_size, kv_heads, head_dim], what the cache stands for."""
    values: Tensor
    page_table: np.ndarray
    query_starts: np.ndarray
    context_lens: np.ndarray
    plan: AttentionPlan

    def solve(self) -> Tensor:
        """The kernels' answer, over an output full of NaN."""
        output = torch.full_like(self.query, torch.nan)
        for attention in (decode_attention, prefill_attention):
            attention(self.query, self.cache, self.plan, output, window=self.case.window, cap=self.case.cap)
        return output

    def alone(self, row: int) -> AttentionProblem:
        """One row of this problem, over the same cache."""
        start, stop = self.query_starts[row : row + 2]
        starts, contexts = np.array([0, stop - start], np.int32), self.context_lens[row : row + 1]
        table = self.page_table[row : row + 1]
        return replace(
            self,
            case=replace(self.case, rows=self.case.rows[row : row + 1]),
            query=self.query[start:stop],
            page_table=table,
            query_starts=starts,
            context_lens=contexts,
            plan=_plan(self.case, (starts, contexts, table), self.plan.tiles, self.query.device),
        )

    def expected(self) -> Tensor:
        """The exact answer, float64 on the CPU."""
        answers = []
        for row, (count, context) in enumerate(self.case.rows):
            start = int(self.query_starts[row])
            pages = torch.from_numpy(self.page_table[row].astype(np.int64))
            keys, values = (
                each.cpu()[pages.clamp(min=0)].flatten(0, 1)[:context].double()
                for each in (self.keys, self.values)
            )
            answers.append(
                exact_attention(
                    self.query[start : start + count].cpu(), keys, values, self.case.window, self.case.cap
                )
            )
        return torch.cat(answers)


def exact_attention(
    query: Tensor, keys: Tensor, values: Tensor, window: int | None, cap: float | None
) -> Tensor:
    """Dense float64 attention of the last tokens of a context."""
    count, num_heads, head_dim = query.shape
    group = num_heads // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * head_dim**-0.5
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    context = len(keys)
    at = torch.arange(context, device="cpu")
    distance = at[context - count :, None] - at
    hidden = (distance < 0) | (distance >= (window or context))
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


def attention_problem(
    case: AttentionCase, *, architecture: str, device: torch.device | str = "cpu", seed: int = 0
) -> AttentionProblem:
    """Fill a case: pages in a shuffled order, those of a shared prefix once."""
    generator = torch.Generator("cpu").manual_seed(seed)
    num_heads, kv_heads = case.heads
    counts = np.array([count for count, _ in case.rows], np.int32)
    contexts = np.array([context for _, context in case.rows], np.int32)
    page_table, num_pages = _page_table(case, contexts, np.random.default_rng(seed))
    shape = (num_pages, case.page_size, kv_heads, case.head_dim)
    dense = torch.randn((2, *shape), generator=generator, device="cpu")
    used = torch.zeros(shape[:2], dtype=torch.bool, device="cpu")
    for row, context in enumerate(contexts):
        at = np.arange(context)
        used[page_table[row, at // case.page_size], at % case.page_size] = True
    if case.quantized:
        cache = quantize_pages(dense[0], dense[1], case.quantized)
        for codes in (cache.keys, cache.values):
            codes[~used] = 120
        keys, values = dequantize_pages(cache)
    else:
        dense = dense.to(case.dtype)
        dense[:, ~used] = torch.nan
        cache, (keys, values) = PagedCache(dense[0], dense[1]), dense.float()
    cache = replace(
        cache,
        keys=cache.keys.to(device),
        values=cache.values.to(device),
        key_scales=None if cache.key_scales is None else cache.key_scales.to(device),
        value_scales=None if cache.value_scales is None else cache.value_scales.to(device),
    )
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    # A slice of a wider projection: tokens are not dense.
    tokens_shape = (int(starts[-1]), num_heads + 2 * kv_heads, case.head_dim)
    projected = torch.randn(tokens_shape, generator=generator, device="cpu")
    return AttentionProblem(
        case=case,
        query=projected.to(case.dtype).to(device)[:, :num_heads],
        cache=cache,
        keys=keys,
        values=values,
        page_table=page_table,
        query_starts=starts,
        context_lens=contexts,
        plan=_plan(
            case,
            (starts, contexts, page_table),
            attention_tiles(architecture, case.head_dim, case.dtype, cache.keys.dtype),
            torch.device(device),
        ),
    )


def _plan(
    case: AttentionCase,
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
    tiles: AttentionTiles,
    device: torch.device,
) -> AttentionPlan:
    query_starts, context_lens, page_table = rows
    num_heads, kv_heads = case.heads
    return plan_attention(
        query_starts=query_starts,
        context_lens=context_lens,
        page_table=page_table,
        slots=np.zeros(query_starts[-1], np.int64),
        page_size=case.page_size,
        group=num_heads // kv_heads,
        tiles=tiles,
        device=device,
    )


def _page_table(
    case: AttentionCase, contexts: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, int]:
    """Page ids, -1 beyond a row's context, and how many pages there are."""
    widths = -(-contexts // case.page_size)
    table = np.full((len(contexts), int(widths.max())), -1, np.int32)
    free = random.permutation(int(widths.sum()) + 3).tolist()
    for row, width in enumerate(widths):
        common = case.shared[row] // case.page_size if case.shared else 0
        table[row, :common] = table[row - 1, :common]
        table[row, common:width] = [free.pop() for _ in range(width - common)]
    return table, int(widths.sum()) + 3
