"""Log-probabilities of chosen tokens and of the likeliest ones."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK: Final = 4096


@triton.jit
def logprobs_kernel(
    logits, chosen, normalizers, chosen_logprobs, top_ids, top_logprobs, stride_logits,
    TOP: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows). Each pass over the row finds the next of its likeliest; ties go by id."""
    row = tl.program_id(0).to(tl.int64)
    x_row = logits + row * stride_logits
    highest = float("-inf")
    total = 0.0
    for start in tl.range(0, VOCAB, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(x_row + token, mask=token < VOCAB, other=float("-inf"))
        raised = tl.maximum(highest, tl.max(x, 0))
        shift = tl.where(raised == float("-inf"), 0.0, raised)
        total = total * tl.exp(highest - shift) + tl.sum(tl.exp(x - shift), 0)
        highest = raised
    normalizer = highest + tl.log(total)
    tl.store(normalizers + row, normalizer)
    tl.store(chosen_logprobs + row, tl.load(x_row + tl.load(chosen + row)) - normalizer)
    last = float("inf")
    last_id = tl.full([], -1, tl.int32)
    for place in tl.range(0, TOP):
        best = float("-inf")
        best_id = tl.full([], VOCAB, tl.int32)
        for start in tl.range(0, VOCAB, BLOCK):
            token = start + tl.arange(0, BLOCK)
            x = tl.load(x_row + token, mask=token < VOCAB, other=float("-inf"))
            is_left = (token < VOCAB) & ((x < last) | ((x == last) & (token > last_id)))
            x = tl.where(is_left, x, float("-inf"))
            in_block = tl.max(x, 0)
            first = tl.min(tl.where(is_left & (x == in_block), token, VOCAB), 0)
            best_id = tl.where((in_block > best) | (best_id == VOCAB), first, best_id)
            best = tl.maximum(best, in_block)
        tl.store(top_ids + row * TOP + place, best_id.to(tl.int64))
        tl.store(top_logprobs + row * TOP + place, best - normalizer)
        last, last_id = best, best_id


def logprobs(logits: Tensor, chosen: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-softmax where it is wanted.

    Args:
        logits: float32 [S, V] with at least one finite number a row and no NaN.
        chosen: int64 [S], ids within [0, V).
        top: how many of the likeliest, at most V.

    Returns:
        float32 [S] of the chosen ids; int64 [S, top] likeliest ids, and float32 [S, top] theirs.
    """
    rows, vocab = logits.shape
    normalizers, chosen_logprobs = torch.empty((2, rows), dtype=torch.float32, device=logits.device)
    top_ids = torch.empty((rows, top), dtype=torch.int64, device=logits.device)
    top_logprobs = torch.empty((rows, top), dtype=torch.float32, device=logits.device)
    if rows:
        logprobs_kernel[(rows,)](
            logits, chosen, normalizers, chosen_logprobs, top_ids, top_logprobs, logits.stride(0),
            TOP=top, VOCAB=vocab, BLOCK=_BLOCK, num_warps=8,
        )  # fmt: skip
    return chosen_logprobs, top_ids, top_logprobs
