"""Attention kernels against float64, on the shared cases."""

from __future__ import annotations

import os

import pytest
import torch

from kernels.gpu.tiles import architecture
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
