"""Real clients, each a process of its own, get from a server of the shipped model what it says."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.config import Config
from engine.load import load_engine
from tests.app.harness import serving_engine
from tests.fakes import assert_quiet

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    config = Config(kv_memory=256, port=0, max_context=2048)
    async with serving_engine(load_engine(config, lambda stage, fraction: None)) as served:
        yield served.url
        assert_quiet(served.engine)


async def run(*command: str) -> list[str]:
    """The lines that a command prints; it must succeed."""
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    lines = output.decode().splitlines()
    assert process.returncode == 0, lines
    return lines


@pytest.mark.parametrize("client", ["openai", "anthropic"])
async def test_clients_that_the_tests_have(url: str, client: str) -> None:
    (line,) = await run(sys.executable, "-m", f"ops.clients.with_{client}", url)
    assert line.endswith("errors")


async def test_clients_that_install_in_seconds(url: str) -> None:
    lines = await run("ops/clients/run", "--together", url, "langchain", "llm", "pydantic-ai")
    assert [line.split()[0] for line in lines] == ["langchain-openai", "llm", "pydantic-ai-slim"]
