"""What every test shares."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# `ops/fuzz` chooses it; without it every test has its own fixed number of examples.
settings.register_profile("fuzz", max_examples=int(os.environ.get("FUZZ_EXAMPLES", "20000")), deadline=None)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, the one event loop the server runs on."""
    return "asyncio"
