"""Times of every kernel, against what the GPU can copy and multiply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from device import DEVICE, IS_TRIAL, sized
from others import Problem, beside
from timing import Peaks, median_us
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
from kernels.quantize import CODES, PackedRows, QuantizedRows

HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16
_TOKEN_BYTES = 2 * KV_HEADS * DIM * 2
_ALONE = 1 << 30
"""More rows than share anything: no cascade."""
_OF_COPY = 0.75
"""Share of the copy bandwidth that what only moves memory has to reach."""


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
    goal_us: float = 0.0
    """Time it is to stay under; 0: there is no goal."""
    beside: str = ""
    """Another implementation's time, or a ratio."""


def times(family: str, peaks: Peaks) -> Iterator[Row]:
    """Every kernel of a family, at the sizes the goals are set for."""
    return {
        "decode": decode_times,
        "cascade": cascade_times,
        "prefill": prefill_times,
        "step": step_times,
        "sampling": sampling_times,
        "linear": linear_times,
    }[family](peaks)


def moving(kernel: str, shape: str, us: float, moved: float, peaks: Peaks) -> Row:
    """A kernel that only moves memory."""
    return Row(kernel, shape, us, bytes=moved, goal_us=moved / (_OF_COPY * peaks.copy) * 1e6)


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


def decode_times(peaks: Peaks) -> Iterator[Row]:
    limits = {1024: 20.0, 16384: 35.0, 65536: 90.0}  # µs for one row, where latency counts
    for batch, context in (
        (1, 1024),
        (1, 16384),
        (1, 65536),
        (8, 32768),
        (16, 32768),
        (32, 4096),
        (128, 2048),
    ):
        context_here = sized(context)
        table = shuffled_table(batch, context_here)
        cache, query = cache_of(table.size), numbers(batch, HEADS, DIM)
        work, output = plan([1] * batch, [context_here] * batch, table), torch.empty_like(query)
        us = median_us(partial(decode_attention, query, cache, work, output))
        problem = Problem(query, cache, table, [1] * batch, [context_here] * batch)
        moved, shape = batch * context * _TOKEN_BYTES, f"batch {batch}, context {context}"
        row = moving("decode", shape, us, moved, peaks)
        goal = limits[context] if batch == 1 else row.goal_us
        yield replace(row, goal_us=goal, beside=beside(problem))


def cascade_times(_peaks: Peaks) -> Iterator[Row]:
    batch, prefix, own = sized(64, 4), sized(4096, 512), sized(256, 16)
    table = shuffled_table(batch, prefix + own)
    contexts = [prefix + own] * batch
    query, cache = numbers(batch, HEADS, DIM), cache_of(table.size)
    output = torch.empty_like(query)
    shared_table = table.copy()
    shared_table[:, : prefix // PAGE] = table[0, : prefix // PAGE]
    taken: dict[str, float] = {}
    goals = {"cascade": 1 / 3, "nothing shared, planned flat": 1.03}
    for name, pages, share_from in (
        ("flat", shared_table, _ALONE),
        ("cascade", shared_table, 4),
        ("nothing shared, planned flat", table, 4),
    ):
        work = plan([1] * batch, contexts, pages, share_from)
        taken[name] = median_us(partial(decode_attention, query, cache, work, output))
        ratio = f"{taken['flat'] / taken[name]:.2f} times as fast as flat"
        shape, goal = f"batch {batch}, {prefix} shared, {own} own", goals.get(name, 0.0) * taken["flat"]
        yield Row(name, shape, taken[name], goal_us=goal, beside=ratio)


def prefill_times(_peaks: Peaks) -> Iterator[Row]:
    rate = 0.0
    for new, before in ((2048, 0), (8192, 0), (512, 16384)):
        new_here, context = sized(new), sized(new) + sized(before, 0)
        table = shuffled_table(1, context)
        cache, query = cache_of(table.size), numbers(new_here, HEADS, DIM)
        work, output = plan([new_here], [context], table), torch.empty_like(query)
        us = median_us(partial(prefill_attention, query, cache, work, output))
        flops = 4 * (new * before + new * (new + 1) / 2) * HEADS * DIM
        # 400 TFLOP/s for a long prompt, and three fifths of its rate for a piece of one.
        goal = flops / 400e12 * 1e6 if new == 8192 else flops / (0.6 * rate) if before else 0.0
        rate = flops / us
        problem = Problem(query, cache, table, [new_here], [context])
        shape = f"{new} new, {before} before"
        yield Row("prefill", shape, us, flops=flops, goal_us=goal, beside=beside(problem))


def step_times(peaks: Peaks) -> Iterator[Row]:
    tokens, hidden, inner = sized(4096), 4096, 14336
    x, residual, weight = numbers(tokens, hidden), numbers(tokens, hidden), numbers(hidden)
    us = median_us(lambda: add_rms_norm(x, residual, weight, 1e-6))
    yield moving("add + RMSNorm", f"{tokens} x {hidden}", us, 4 * x.nbytes, peaks)
    gate, up = numbers(2, tokens, inner)
    us = median_us(lambda: silu_mul(gate, up))
    yield moving("SiLU · mul", f"{tokens} x {inner}", us, 3 * gate.nbytes, peaks)
    query, key, value = numbers(tokens, HEADS + 2 * KV_HEADS, DIM).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    angles = torch.rand(2, tokens, DIM // 2, device=DEVICE)
    slots = torch.randperm(tokens, device=DEVICE).to(torch.int32)
    cache = cache_of(-(-tokens // PAGE))
    us = median_us(lambda: rotate_and_write((query, key, value), (angles[0], angles[1]), cache, slots, None))
    moved = 2 * tokens * (HEADS + 2 * KV_HEADS) * DIM * 2 + angles.nbytes
    yield moving("RoPE + KV write", f"{tokens} tokens", us, moved, peaks)


def sampling_times(_peaks: Peaks) -> Iterator[Row]:
    vocab = 151_936 if not IS_TRIAL else 2048
    logits = torch.randn(32, vocab, device=DEVICE) * 3
    bits = torch.randint(-(2**31), 2**31 - 1, (16, vocab // 32), dtype=torch.int32, device=DEVICE)
    rows = torch.arange(16, device=DEVICE)
    us = median_us(lambda: apply_mask(logits, bits, rows))
    yield Row("grammar mask", f"16 of {vocab}", us, goal_us=12.0)
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
    yield Row("sample", f"32 of {vocab}, all truncations (and a copy)", us, goal_us=120.0)


def linear_times(_peaks: Peaks) -> Iterator[Row]:
    width = sized(4096, 64)
    for rows in (1, 16, 64, 4096):
        x, weight = numbers(sized(rows), width), numbers(width, width)
        other = f"bfloat16: {median_us(partial(F.linear, x, weight)):.1f} µs"
        shape, flops = f"{rows} x {width} x {width}", 2 * rows * width * width
        flops = flops if rows > 64 else 0  # fewer rows are limited by the weights that they read
        for kind in ("int8", "fp8"):
            rounded, kept = (QuantizedRows.of(each, CODES[kind]) for each in (x, weight))
            launch = partial(
                linear_8bit, rounded.codes, rounded.scales, kept.codes, kept.scales, dtype=torch.bfloat16
            )
            read = 0 if flops else kept.codes.nbytes
            yield Row(f"linear {kind}", shape, median_us(launch), bytes=read, flops=flops, beside=other)
        packed = PackedRows.of(weight)
        us = median_us(partial(linear_int4, x, packed))
        read = 0 if flops else sum(each.nbytes for each in (packed.codes, packed.scales, packed.offsets))
        yield Row("linear int4", shape, us, bytes=read, flops=flops, beside=other)
