"""Attention kernels against float64, on the shared cases."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu.tiles import architecture
from tests.kernels.triton.cases import TOLERANCE, AttentionCase, attention_cases, attention_problem


@pytest.mark.parametrize("case", attention_cases(), ids=lambda case: case.name)
def test_attention(case: AttentionCase, device: torch.device) -> None:
    problem = attention_problem(case, architecture=architecture(device), device=device)
    difference = (problem.solve().cpu().double() - problem.expected()).abs()
    assert difference.max() < TOLERANCE[case.dtype]
