"""Times of every kernel, against what the GPU can copy and multiply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from timing import median_us
from torch import Tensor

from kernels.gpu.activation import silu_mul
from kernels.gpu.attention_decode import decode_attention
from kernels.gpu.attention_plan import AttentionPlan, plan_attention
from kernels.gpu.attention_prefill import prefill_attention
from kernels.gpu.kv_write import rotate_and_write
from kernels.gpu.linear_8bit import linear_8bit
from kernels.gpu.linear_int4 import linear_int4
from kernels.gpu.mask import apply_mask
from kernels.gpu.norm import add_rms_norm
from kernels.gpu.sampling import SamplingRows, sample
from kernels.gpu.tiles import architecture, attention_tiles
from kernels.paged import PagedCache
from kernels.quantize import PackedRows

DEVICE = torch.device("cuda")
HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16
_TOKEN_BYTES = 2 * KV_HEADS * DIM * 2
_ALONE = 1 << 30
"""More rows than share anything: no cascade."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement."""

    kernel: str
    shape: str
    us: float
    bytes: float = 0.0
    """Least traffic with memory; 0: not what limits it."""
    flops: float = 0.0
    """Operations of matrix products; 0: not what limits it."""
    beside: str = ""
    """Another implementation's time, or a ratio."""


def all_times() -> Iterator[Row]:
    """Every kernel, at the sizes the goals are set for."""
    yield from decode_times()
    yield from cascade_times()
    yield from prefill_times()
    yield from step_times()
    yield from sampling_times()
    yield from linear_times()


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device=DEVICE)


def cache_of(num_pages: int) -> PagedCache:
    pages = numbers(2, num_pages, PAGE, KV_HEADS, DIM)
    return PagedCache(pages[0], pages[1])


def plan(counts: list[int], contexts: list[int], table: np.ndarray, share_from: int = 4) -> AttentionPlan:
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return plan_attention(
        query_starts=starts,
        context_lens=np.array(contexts, np.int32),
        page_table=table.astype(np.int32),
        slots=np.zeros(starts[-1], np.int64),
        page_size=PAGE,
        group=HEADS // KV_HEADS,
        tiles=attention_tiles(architecture(DEVICE), DIM, torch.bfloat16, torch.bfloat16),
        device=DEVICE,
        share_from=share_from,
    )


def shuffled_table(rows: int, context: int) -> np.ndarray:
    width = -(-context // PAGE)
    return np.random.default_rng(0).permutation(rows * width).reshape(rows, width)


def decode_times() -> Iterator[Row]:
    for batch, context in (
        (1, 1024),
        (1, 16384),
        (1, 65536),
        (8, 32768),
        (16, 32768),
        (32, 4096),
        (128, 2048),
    ):
        table = shuffled_table(batch, context)
        cache, query = cache_of(table.size), numbers(batch, HEADS, DIM)
        work, output = plan([1] * batch, [context] * batch, table), torch.empty_like(query)
        us = median_us(partial(decode_attention, query, cache, work, output))
        yield Row("decode", f"batch {batch}, context {context}", us, bytes=batch * context * _TOKEN_BYTES)


def cascade_times() -> Iterator[Row]:
    batch, prefix, own = 64, 4096, 256
    table = shuffled_table(batch, prefix + own)
    contexts = [prefix + own] * batch
    query, cache = numbers(batch, HEADS, DIM), cache_of(table.size)
    output = torch.empty_like(query)
    shared_table = table.copy()
    shared_table[:, : prefix // PAGE] = table[0, : prefix // PAGE]
    times = {}
    for name, pages, share_from in (
        ("flat", shared_table, _ALONE),
        ("cascade", shared_table, 4),
        ("nothing shared, planned flat", table, 4),
    ):
        work = plan([1] * batch, contexts, pages, share_from)
        times[name] = median_us(partial(decode_attention, query, cache, work, output))
        ratio = f"{times['flat'] / times[name]:.2f} times as fast as flat"
        yield Row(name, f"batch {batch}, {prefix} shared, {own} own", times[name], beside=ratio)


def prefill_times() -> Iterator[Row]:
    for new, before in ((2048, 0), (8192, 0), (512, 16384)):
        context = new + before
        table = shuffled_table(1, context)
        cache, query = cache_of(table.size), numbers(new, HEADS, DIM)
        work, output = plan([new], [context], table), torch.empty_like(query)
        us = median_us(partial(prefill_attention, query, cache, work, output))
        pairs = new * before + new * (new + 1) / 2
        beside = ""
        if before == 0:
            dense_query, dense = query.transpose(0, 1)[None], numbers(2, 1, KV_HEADS, new, DIM)
            attend = partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=True)
            other = median_us(partial(attend, dense_query, dense[0], dense[1]))
            beside = f"torch SDPA, not paged: {other:.0f} µs"
        yield Row("prefill", f"{new} new, {before} before", us, flops=4 * pairs * HEADS * DIM, beside=beside)


def step_times() -> Iterator[Row]:
    tokens, hidden, inner = 4096, 4096, 14336
    x, residual, weight = numbers(tokens, hidden), numbers(tokens, hidden), numbers(hidden)
    us = median_us(lambda: add_rms_norm(x, residual, weight, 1e-6))
    yield Row("add + RMSNorm", f"{tokens} x {hidden}", us, bytes=4 * x.nbytes)
    gate, up = numbers(2, tokens, inner)
    us = median_us(lambda: silu_mul(gate, up))
    yield Row("SiLU · mul", f"{tokens} x {inner}", us, bytes=3 * gate.nbytes)
    query, key, value = numbers(tokens, HEADS + 2 * KV_HEADS, DIM).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    angles = torch.rand(2, tokens, DIM // 2, device=DEVICE)
    slots = torch.randperm(tokens, device=DEVICE).to(torch.int32)
    cache = cache_of(tokens // PAGE)
    us = median_us(lambda: rotate_and_write((query, key, value), (angles[0], angles[1]), cache, slots, None))
    moved = 2 * tokens * (HEADS + 2 * KV_HEADS) * DIM * 2 + angles.nbytes
    yield Row("RoPE + KV write", f"{tokens} tokens", us, bytes=moved)


def sampling_times() -> Iterator[Row]:
    vocab = 151_936
    logits = torch.randn(32, vocab, device=DEVICE) * 3
    bits = torch.randint(-(2**31), 2**31 - 1, (16, vocab // 32), dtype=torch.int32, device=DEVICE)
    rows = torch.arange(16, device=DEVICE)
    us = median_us(lambda: apply_mask(logits, bits, rows))
    yield Row("grammar mask", f"16 of {vocab}", us)
    wanted = SamplingRows(
        temperatures=torch.full((32,), 0.8, device=DEVICE),
        top_ks=torch.full((32,), 50, dtype=torch.int32, device=DEVICE),
        top_ps=torch.full((32,), 0.9, dtype=torch.float64, device=DEVICE),
        min_ps=torch.full((32,), 0.01, device=DEVICE),
        seeds=torch.arange(32, device=DEVICE),
        positions=torch.arange(32, device=DEVICE),
    )
    copy = logits.clone()
    us = median_us(lambda: sample(copy.copy_(logits), wanted, greedy_below=1e-5))
    yield Row("sample", f"32 of {vocab}, all truncations (and a copy)", us)


def linear_times() -> Iterator[Row]:
    for rows in (16, 4096):
        x, weight = numbers(rows, 4096), numbers(4096, 4096)
        beside = f"bfloat16: {median_us(partial(F.linear, x, weight)):.0f} µs"
        shape, flops = f"{rows} x 4096 x 4096", 2 * rows * 4096 * 4096
        scales = torch.ones(rows, device=DEVICE), torch.ones(4096, device=DEVICE)
        for name, dtype in (("int8", torch.int8), ("fp8", torch.uint8)):
            codes = torch.randint(0, 100, (rows, 4096), device=DEVICE).to(dtype)
            kept = torch.randint(0, 100, (4096, 4096), device=DEVICE).to(dtype)
            us = median_us(partial(linear_8bit, codes, scales[0], kept, scales[1], dtype=torch.bfloat16))
            yield Row(f"linear {name}", shape, us, flops=flops, beside=beside)
        us = median_us(partial(linear_int4, x, PackedRows.of(weight)))
        yield Row("linear int4", shape, us, flops=flops, beside=beside)
