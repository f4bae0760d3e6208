"""Penalties and biases of the tokens that have one, the rest of the vocabulary left alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

_BLOCK: Final = 1024


@triton.jit
def penalties_kernel(
    logits,
    starts,
    tokens,
    counts,
    biases,
    repetitions,
    presences,
    frequencies,
    stride_logits,
    BLOCK: tl.constexpr,
):
    """Grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    repetition = tl.load(repetitions + row)
    presence = tl.load(presences + row)
    frequency = tl.load(frequencies + row)
    stop = tl.load(starts + row + 1)
    for start in tl.range(tl.load(starts + row), stop, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        is_entry = entry < stop
        at = logits + row * stride_logits + tl.load(tokens + entry, mask=is_entry, other=0)
        count = tl.load(counts + entry, mask=is_entry, other=-1.0)
        x = tl.load(at, mask=is_entry, other=0.0)
        repeated = tl.where(x > 0.0, x / repetition, x * repetition)
        repeated -= frequency * count + tl.where(count > 0.0, presence, 0.0)
        x = tl.where(count >= 0.0, repeated, x)
        tl.store(at, x + tl.load(biases + entry, mask=is_entry, other=0.0), mask=is_entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustments:
    """Row s's tokens are entries [starts[s], starts[s + 1]), each token once."""

    starts: Tensor
    """int32 [S + 1]"""
    tokens: Tensor
    """int32 [E]"""
    counts: Tensor
    """float32 [E] occurrences in the output; 0: in the prompt only; -1: not penalised."""
    biases: Tensor
    """float32 [E], added last; -inf forbids."""
    repetitions: Tensor
    """float32 [S] divides positive logits, multiplies negative ones (arXiv:1909.05858)."""
    presences: Tensor
    """float32 [S]"""
    frequencies: Tensor
    """float32 [S]"""


def adjust(logits: Tensor, adjustments: Adjustments) -> None:
    """Apply to `logits`, float32 [S, V], in place; in the order of `engine.penalties`."""
    if len(adjustments.tokens):
        penalties_kernel[(len(logits),)](
            logits,
            adjustments.starts,
            adjustments.tokens,
            adjustments.counts,
            adjustments.biases,
            adjustments.repetitions,
            adjustments.presences,
            adjustments.frequencies,
            logits.stride(0),
            BLOCK=_BLOCK,
            num_warps=4,
        )
