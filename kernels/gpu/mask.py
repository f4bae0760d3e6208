"""Grammar masks applied to logits."""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

_WORDS: Final = 128
"""Mask words of one program: 4096 tokens."""


@triton.jit
def apply_mask_kernel(
    logits, bits, rows, stride_logits, stride_bits, VOCAB: tl.constexpr, WORDS: tl.constexpr
):
    """Grid (masked rows, blocks of words). Logits are stored to, never read; words of ones cost nothing."""
    index = tl.program_id(0)
    row = tl.load(rows + index).to(tl.int64)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    allowed = tl.load(bits + index.to(tl.int64) * stride_bits + word, mask=word * 32 < VOCAB, other=-1)
    bit = tl.arange(0, 32)[None, :]
    token = word[:, None] * 32 + bit
    is_forbidden = ((allowed[:, None] >> bit) & 1) == 0
    minus_infinity = tl.full([WORDS, 32], float("-inf"), tl.float32)
    tl.store(logits + row * stride_logits + token, minus_infinity, mask=is_forbidden & (token < VOCAB))


def apply_mask(logits: Tensor, bits: Tensor, rows: Tensor) -> None:
    """Set to -inf what a mask forbids.

    Args:
        logits: float32 [S, V], changed in place.
        bits: int32 [n, ceil(V / 32)]; bit t % 32 of word t // 32 allows token t.
        rows: int [n], the row of `logits` that each mask is for; distinct.
    """
    vocab = logits.shape[-1]
    if len(rows):
        apply_mask_kernel[(len(rows), triton.cdiv(triton.cdiv(vocab, 32), _WORDS))](
            logits, bits, rows, logits.stride(0), bits.stride(0), VOCAB=vocab, WORDS=_WORDS, num_warps=4
        )
