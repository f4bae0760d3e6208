"""A server for one measurement: started with the options it needs, ended with it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass
class OwnServer:
    """A `radish serve` that answers."""

    url: str
    pid: int
    exit_code: int | None = None
    """Known once it has ended."""


@asynccontextmanager
async def own_server(*options: str) -> AsyncIterator[OwnServer]:
    """Start a server on a free port; SIGTERM ends it.

    Args:
        options: of `radish serve`.

    Raises:
        RuntimeError: it did not start; what it said is on stderr.
    """
    async with own_process("app", "serve", "--port", "0", *options) as server:
        yield server


@asynccontextmanager
async def own_process(module: str, *arguments: str) -> AsyncIterator[OwnServer]:
    """Likewise any module that serves, and says where as the last word of its first line."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        first = (await process.stdout.readline()).decode().split()
        if not first:
            raise RuntimeError("the server did not start")
        server = OwnServer(first[-1], process.pid)
        yield server
    finally:
        if process.returncode is None:
            process.terminate()
        code = await process.wait()
    server.exit_code = code
