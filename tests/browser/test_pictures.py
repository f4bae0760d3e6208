"""Pictures of the page on the real model, for the README: `ops/test tests/browser --pictures` draws them."""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, Page

PICTURES = Path(__file__).parents[2] / "ops" / "pictures"
GARDENER = "You are a patient gardener who answers in short sentences and knows every vegetable by its name."
TRANSLATOR = (
    "Translate what the user says to French, word by word, and say nothing else at all, whatever happens."
)
QUESTIONS = ("How deep do I plant radishes?", "When do I harvest them?", "Tell me about good soil.")


@pytest.fixture(autouse=True)
def _only_when_asked(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--pictures", default=False):
        pytest.skip("pictures are drawn only with --pictures")


@asynccontextmanager
async def real_server() -> AsyncIterator[str]:
    command = (*("-m", "app", "serve", "--port", "0"), *("--show-prompts", "--kv-memory", "150"))
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE)
    assert process.stdout is not None
    said = re.search(r"http://\S+", (await process.stdout.readline()).decode())
    assert said
    yield said[0]
    process.terminate()
    await process.wait()


async def load(url: str, *, max_tokens: int) -> None:
    """Two families of requests, each with a common beginning, and one with a long prompt."""
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        asked = [(system, question) for system in (GARDENER, TRANSLATOR) for question in QUESTIONS]
        report = f"{max_tokens} weeks ago it rained. " + "The radishes grew by two centimetres a week. " * 60
        bodies = [
            {
                "model": model,
                "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
                "max_tokens": max_tokens,
                "ignore_eos": True,
            }
            for system, question in [*asked, (GARDENER, report)]
        ]
        await asyncio.gather(*(http.post("/v1/chat/completions", json=body) for body in bodies))


async def started(url: str) -> None:
    """Wait until all that was asked is running."""
    async with httpx.AsyncClient(base_url=url) as http:
        while True:
            picture = (await http.get("/live/snapshot")).json()["picture"]
            sequences = picture["sequences"]
            if len(sequences) == len(QUESTIONS) * 2 + 2 and all(
                sequence["output_tokens"] > 25 for sequence in sequences
            ):
                return
            await asyncio.sleep(0.2)


async def open_page(browser: Browser, url: str, *, width: int, height: int, theme: str) -> Page:
    page = await browser.new_page(
        viewport={"width": width, "height": height},
        color_scheme=theme,  # type: ignore[arg-type]  # one of its literals
        device_scale_factor=1.25,
    )
    await page.goto(url)
    await page.locator("#model:not(:empty)").wait_for()
    return page


async def test_pictures(browser: Browser) -> None:
    PICTURES.mkdir(exist_ok=True)
    async with real_server() as url:
        light = await open_page(browser, url, width=1360, height=1470, theme="light")
        dark = await open_page(browser, url, width=1360, height=1470, theme="dark")
        phone = await open_page(browser, url, width=390, height=844, theme="dark")
        await load(url, max_tokens=50)
        await light.get_by_label("Message", exact=True).fill("Why do radishes taste sharp?")
        await light.keyboard.press("Enter")
        others = asyncio.create_task(load(url, max_tokens=160))
        await started(url)
        await light.screenshot(path=PICTURES / "page.png")
        await phone.get_by_role("tab", name="Live").click()
        await phone.screenshot(path=PICTURES / "phone.png")
        await dark.locator("#structured > summary").click()
        await dark.get_by_label("Answer is").select_option("json_schema")
        await dark.locator("#schema-light[data-state=good]").wait_for()
        await dark.get_by_label("Message", exact=True).fill("Describe a radish.")
        await dark.keyboard.press("Enter")
        await dark.locator(".message.assistant[aria-busy=false]").wait_for(timeout=60_000)
        await dark.locator(".token").nth(8).hover()
        await dark.screenshot(path=PICTURES / "dark.png")
        await others
    assert all((PICTURES / name).stat().st_size > 20_000 for name in ("page.png", "dark.png", "phone.png"))
