"""Attention kernels against float64, on the shared cases."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.gpu.tiles import architecture
from kernels.paged import PagedCache
from tests.kernels.triton.cases import (
    TOLERANCE,
    AttentionCase,
    all_attention_cases,
    attention_cases,
    attention_problem,
)

EVERYTHING = os.environ.get("TRITON_INTERPRET") != "1" or "ALL_KERNEL_CASES" in os.environ
CASES = all_attention_cases() if EVERYTHING else attention_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_attention(case: AttentionCase, device: torch.device) -> None:
    problem = attention_problem(case, architecture=architecture(device), device=device)
    difference = (problem.solve().cpu().double() - problem.expected()).abs()
    assert difference.max() < TOLERANCE[case.dtype]


def test_row_is_bitwise_the_same_whatever_shares_its_batch(device: torch.device) -> None:
    """Splits are fixed, so a row's sums have one order."""
    case = AttentionCase(name="batch", rows=((1, 300), (1, 40), (20, 150), (1, 129), (3, 200)))
    together = attention_problem(case, architecture=architecture(device), device=device)
    answers = together.solve()
    for row in range(len(case.rows)):
        start, stop = together.query_starts[row : row + 2]
        assert torch.equal(together.alone(row).solve(), answers[start:stop])


def test_pages_beyond_two_billion_numbers(device: torch.device) -> None:
    """Offsets that do not fit 32 bits, in a cache of 8 GiB of which three pages are touched."""
    case = AttentionCase(name="far", rows=((1, 40),), heads=(2, 1), dtype=torch.float16)
    near = attention_problem(case, architecture=architecture(device), device=device)
    first = (1 << 31) // (case.page_size * case.head_dim) + 1
    shape = (first + 8, case.page_size, 1, case.head_dim)
    far = [torch.from_numpy(np.zeros(shape, np.float16)).to(device) for _ in range(2)]
    pages = near.page_table[0].astype(np.int64)
    for pool, known in zip(far, (near.cache.keys, near.cache.values), strict=True):
        pool[first : first + len(pages)] = known[pages]
    table = np.arange(first, first + len(pages), dtype=np.int32)[None]
    moved = replace(near, cache=PagedCache(*far), page_table=table)
    assert torch.equal(moved.alone(0).solve(), near.solve())
