"""A real browser in front of a real server on a fake model."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, async_playwright

from tests.app.harness import Served, serving, until

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", action="store_true", help="write ops/pictures anew, on the real model")


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium: ops/test-tools installs it on Debian")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=Path(CHROMIUM), args=FLAGS, headless=True)
        yield browser
        await browser.close()


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Served]:
    async with serving(num_pages=256, max_context=1000) as served:
        yield served


@pytest.fixture
async def served(server: Served) -> AsyncIterator[Served]:
    """The module's server, idle, with an empty cache and the hash's own letters."""
    server.engine.flush_cache()
    server.runner.script = lambda row: None
    yield server
    server.runner.resume()
    await until(lambda: server.engine.load().running + server.engine.load().waiting == 0)


@pytest.fixture
def complaints() -> list[str]:
    """What the page's console says. Empty after every test."""
    return []


@pytest.fixture
async def page(browser: Browser, served: Served, complaints: list[str]) -> AsyncIterator[Page]:
    """The page, loaded and connected. It must stay silent on the console and ask nobody else."""
    async with await browser.new_context(viewport={"width": 1440, "height": 1000}) as context:
        page = await context.new_page()
        elsewhere: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        context.on(
            "request",
            lambda request: None if request.url.startswith(served.url) else elsewhere.append(request.url),
        )
        page.set_default_timeout(10_000)
        await page.goto(served.url)
        await page.locator("#connection[data-state=on]").wait_for()
        await page.locator("#model:not(:empty)").wait_for()
        yield page
        assert complaints == []
        assert elsewhere == []
