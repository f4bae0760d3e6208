"""One server a module, and the quiet state after every case."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.app.harness import Served, become_quiet, server_tasks, serving


@pytest.fixture(scope="module")
async def module_server() -> AsyncIterator[Served]:
    async with serving() as server:
        yield server


@pytest.fixture
async def served(module_server: Served) -> AsyncIterator[Served]:
    """The module's server, quiet before and after."""
    known = server_tasks()
    yield module_server
    await become_quiet(module_server, known)
