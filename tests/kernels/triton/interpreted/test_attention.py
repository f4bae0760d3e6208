"""Attention kernels against float64, on the shared cases."""

from __future__ import annotations

import pytest

from kernels.gpu.tiles import INTERPRETER
from tests.kernels.triton.cases import TOLERANCE, AttentionCase, attention_cases, attention_problem


@pytest.mark.parametrize("case", attention_cases(), ids=lambda case: case.name)
def test_attention(case: AttentionCase) -> None:
    problem = attention_problem(case, architecture=INTERPRETER)
    difference = (problem.solve().double() - problem.expected()).abs()
    assert difference.max() < TOLERANCE[case.dtype]
