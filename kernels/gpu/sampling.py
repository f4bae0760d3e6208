"""From logits to tokens: one program a row, nothing sorted.

The semantics, and the noise, are those of `engine.drawing`: temperature, then top-k, top-p and min-p, each
over what the one before left, ties at a cut all kept; then inverse CDF with a number that is a function of
the row's seed and position. Cuts are found by searching for a pivot (as in Qrita, arXiv:2602.01518): weights
lie in [0, 1], where the bits of a float are ordered like the floats, so a search over bits is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK: Final = 4096
_HIGHEST: tl.constexpr = tl.constexpr(0x3F800001)
"""The bits of the float after 1.0."""


@triton.jit
def mixed(x):
    """The output function of SplitMix64 (doi:10.1145/2714064.2660195)."""
    x = (x ^ (x >> 30)) * tl.full([], 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full([], 0x94D049BB133111EB, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def uniform(seed, position):
    """float64 in [0, 1), one of 2**52, of int64 seed and position."""
    gamma = tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    start = mixed(seed.to(tl.uint64, bitcast=True) + gamma)
    drawn = mixed(start + (position + 1).to(tl.uint64, bitcast=True) * gamma)
    return (drawn >> 12).to(tl.int64, bitcast=True).to(tl.float64) * 2.220446049250313e-16


@triton.jit
def highest_logit(logits, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The greatest of a row and its first place; NaN if there is one in the row."""
    highest = float("-inf")
    place = 0
    broken = 0
    for start in tl.range(0, VOCAB, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(logits + token, mask=token < VOCAB, other=float("-inf"))
        broken += tl.sum((x != x).to(tl.int32), 0)
        x = tl.where(x != x, float("-inf"), x)
        in_block = tl.max(x, 0)
        first = tl.min(tl.where(x == in_block, token, VOCAB), 0)
        place = tl.where(in_block > highest, first, place)
        highest = tl.maximum(highest, in_block)
    return tl.where(broken > 0, float("nan"), highest), place


@triton.jit
def amount(weights, least, BY_MASS: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """How many tokens have weights of at least these bits, or what they weigh together; float64."""
    total = tl.full([], 0.0, tl.float64)
    for start in tl.range(0, VOCAB, BLOCK):
        token = start + tl.arange(0, BLOCK)
        weight = tl.load(weights + token, mask=token < VOCAB, other=-1.0)
        measure = weight.to(tl.float64) if BY_MASS else tl.full([BLOCK], 1.0, tl.float64)
        total += tl.sum(tl.where(weight.to(tl.int32, bitcast=True) >= least, measure, 0.0), 0)
    return total


@triton.jit
def cut_at(weights, goal, floor, BY_MASS: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The greatest bits that tokens which reach `goal` together all have, of those at or above `floor`."""
    low = floor
    high = tl.full([], _HIGHEST, tl.int32)
    while high - low > 1:
        step = (high - low + 3) // 4
        first = low + step
        second = tl.minimum(first + step, high)
        third = tl.minimum(second + step, high)
        reached_first = tl.full([], 0.0, tl.float64)
        reached_second = tl.full([], 0.0, tl.float64)
        reached_third = tl.full([], 0.0, tl.float64)
        for start in tl.range(0, VOCAB, BLOCK):
            token = start + tl.arange(0, BLOCK)
            weight = tl.load(weights + token, mask=token < VOCAB, other=-1.0)
            bits = weight.to(tl.int32, bitcast=True)
            measure = weight.to(tl.float64) if BY_MASS else tl.full([BLOCK], 1.0, tl.float64)
            reached_first += tl.sum(tl.where(bits >= first, measure, 0.0), 0)
            reached_second += tl.sum(tl.where(bits >= second, measure, 0.0), 0)
            reached_third += tl.sum(tl.where(bits >= third, measure, 0.0), 0)
        if reached_third >= goal:
            low = third
        elif reached_second >= goal:
            low, high = second, third
        elif reached_first >= goal:
            low, high = first, second
        else:
            high = first
    return low


@triton.jit
def drawn(weights, least, noise, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Of tokens at or above `least`, the first whose cumulative weight exceeds `noise` times the total."""
    target = amount(weights, least, True, VOCAB, BLOCK) * noise
    before = tl.full([], 0.0, tl.float64)
    chosen = tl.full([], VOCAB, tl.int32)
    last = tl.full([], 0, tl.int32)
    for start in tl.range(0, VOCAB, BLOCK):
        token = start + tl.arange(0, BLOCK)
        weight = tl.load(weights + token, mask=token < VOCAB, other=-1.0)
        is_kept = (weight.to(tl.int32, bitcast=True) >= least) & (weight > 0.0)
        cumulative = before + tl.cumsum(tl.where(is_kept, weight.to(tl.float64), 0.0), 0)
        chosen = tl.minimum(chosen, tl.min(tl.where(is_kept & (cumulative > target), token, VOCAB), 0))
        last = tl.maximum(last, tl.max(tl.where(is_kept, token, 0), 0))
        before = tl.max(cumulative, 0)
    # Sums in another order can end a last bit below the target.
    return tl.minimum(chosen, last)


@triton.jit
def sample_kernel(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    positions,
    output,
    stride_logits,
    greedy_below,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (rows). Logits of rows that are drawn become weights."""
    row = tl.program_id(0).to(tl.int64)
    weights = logits + row * stride_logits
    highest, place = highest_logit(weights, VOCAB, BLOCK)
    temperature = tl.load(temperatures + row)
    if (highest != highest) | (tl.abs(highest) == float("inf")):
        tl.store(output + row, tl.full([], -1, tl.int64))
    elif temperature < greedy_below:
        tl.store(output + row, place.to(tl.int64))
    else:
        for start in tl.range(0, VOCAB, BLOCK):
            token = start + tl.arange(0, BLOCK)
            x = tl.load(weights + token, mask=token < VOCAB, other=float("-inf"))
            tl.store(weights + token, tl.exp((x - highest) / temperature), mask=token < VOCAB)
        tl.debug_barrier()  # what one thread stored, others load
        least = tl.full([], 0, tl.int32)
        top_k = tl.load(top_ks + row)
        if (top_k > 0) & (top_k < VOCAB):
            least = cut_at(weights, top_k.to(tl.float64), least, False, VOCAB, BLOCK)
        top_p = tl.load(top_ps + row)
        if top_p < 1.0:
            goal = amount(weights, least, True, VOCAB, BLOCK) * top_p
            least = cut_at(weights, goal, least, True, VOCAB, BLOCK)
        min_p = tl.load(min_ps + row)
        least = tl.maximum(least, min_p.to(tl.int32, bitcast=True))
        noise = uniform(tl.load(seeds + row), tl.load(positions + row))
        tl.store(output + row, drawn(weights, least, noise, VOCAB, BLOCK).to(tl.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """What each of S rows asks for, on the device."""

    temperatures: Tensor
    """float32 [S]"""
    top_ks: Tensor
    """int32 [S]; 0: all"""
    top_ps: Tensor
    """float64 [S], above 0"""
    min_ps: Tensor
    """float32 [S]"""
    seeds: Tensor
    """int64 [S], the seed's low 64 bits"""
    positions: Tensor
    """int64 [S] index of the token to be sampled within its sequence"""


def sample(logits: Tensor, rows: SamplingRows, *, greedy_below: float) -> Tensor:
    """Choose a token of each row.

    Args:
        logits: float32 [S, V], after penalties, bias and masks; overwritten.
        greedy_below: temperatures under it take the likeliest token.

    Returns:
        int64 [S]; -1 for a row with a NaN, or whose maximum is infinite.
    """
    output = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    if len(logits):
        sample_kernel[(len(logits),)](
            logits,
            rows.temperatures,
            rows.top_ks,
            rows.top_ps,
            rows.min_ps,
            rows.seeds,
            rows.positions,
            output,
            logits.stride(0),
            greedy_below,
            VOCAB=logits.shape[-1],
            BLOCK=_BLOCK,
            num_warps=8,
        )
    return output
