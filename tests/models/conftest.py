"""What tests of the model share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tiny models run faster without handing work between threads; a module may set THREADS."""
    before = torch.get_num_threads()
    torch.set_num_threads(getattr(request.module, "THREADS", 1))
    yield
    torch.set_num_threads(before)
