"""The device these tests are about: a GPU where there is one, else Triton's interpreter.

Tests make their tensors on the default device; what comes from a generator or from NumPy is moved there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") == "1":
    from tests.kernels.triton import interpreter

    interpreter.install()
    torch.set_num_threads(1)
    DEVICE = torch.device("cpu")
    collect_ignore: list[str] = []
else:
    DEVICE = torch.device("cuda")
    collect_ignore = ["test_interpreter.py"]


@pytest.fixture(autouse=True)
def device() -> Iterator[torch.device]:
    """The device; uninitialised tensors hold NaN, so that what is read before it is written shows."""
    with torch.device(DEVICE):
        torch.use_deterministic_algorithms(True)
        yield DEVICE
        torch.use_deterministic_algorithms(False)
