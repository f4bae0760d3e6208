"""`radish top` against a real server: what it prints is what the engine is doing."""

from __future__ import annotations

import asyncio
import io
import re

import httpx
import pytest
from rich.console import Console

from app.cli import CommandFailedError
from app.top import TopConfig, frames, render, run
from tests.app.harness import Served, until


def printed(url: str, width: int = 160) -> str:
    """One picture, as a terminal without colours shows it."""
    console = Console(file=io.StringIO(), width=width)
    with httpx.Client(base_url=url) as client:
        frame = next(frames(client, 0.1))
        console.print(render(frame.picture, frame.news.ended))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def test_it_shows_sequences_pages_and_shared_prefixes(served: Served) -> None:
    served.engine.flush_cache()
    prefix = "these begin alike, all of them: "
    for end in ("one more", "two more"):
        await served.complete(prefix + end, max_tokens=1)
    served.runner.pause()
    user = asyncio.create_task(served.complete(prefix + "one more time", max_tokens=30))
    await until(lambda: served.engine.load().running == 1)
    await asyncio.to_thread(printed, served.url)  # so that what was seen before is not fresh any more
    await until(lambda: served.engine.load().pages.private > 0)
    text = await asyncio.to_thread(_until_running, served.url)
    pages = served.engine.load().pages
    for name, count in (
        ("private", pages.private),
        ("cached, in use", pages.protected),
        ("cached", pages.evictable),
        ("free", pages.free),
    ):
        assert f"■ {name} {count} " in text
    assert f"radix tree, {served.engine.load().tree_nodes} nodes" in text
    shared, deeper = re.findall(r"(\d+) tokens  used by 1: (\w+)", text)
    assert (shared[0], deeper[0]) == ("32", "8")
    assert re.search(rf"{shared[1]} +running +45 +40 ", text)
    served.runner.resume()
    await user


def _until_running(url: str) -> str:
    """The first picture that is fresh enough to show the running request."""
    for _ in range(100):
        text = printed(url)
        if " running " in text.split("sequences", 1)[1]:
            return text
    raise AssertionError(text)


async def test_an_idle_server_is_shown_too(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert await asyncio.to_thread(run, TopConfig(base_url=f"{served.url}/v1", once=True)) == 0
    out = capsys.readouterr().out
    assert "fake" in out
    assert "tokens/s" in out


async def test_the_bar_of_pages_is_one_line_however_narrow(served: Served) -> None:
    for width, most in ((60, 56), (160, 80)):
        text = await asyncio.to_thread(printed, served.url, width)
        (bar,) = re.findall("█+", text.partition("radix tree")[0])
        assert most - 4 <= len(bar) <= most


async def test_it_ends_with_the_server(served: Served) -> None:
    with pytest.raises(CommandFailedError, match="404"):
        await asyncio.to_thread(run, TopConfig(base_url=f"{served.url}/nothing-here", once=True))
    with pytest.raises(CommandFailedError, match=r"http://127\.0\.0\.1:9"):
        await asyncio.to_thread(run, TopConfig(base_url="http://127.0.0.1:9", once=True))
