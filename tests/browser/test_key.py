"""The page of a server that wants a key."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, BrowserContext, expect

from tests.app.harness import Served, serving
from tests.browser.wcag import fulfils_wcag
from tests.fakes import say

KEY = "rettich-редис"
ANSWER = "A radish is a root."


@pytest.fixture
async def locked() -> AsyncIterator[Served]:
    async with serving(api_key=(KEY,), num_pages=256, max_context=1000) as served:
        served.runner.script = say(ANSWER)
        yield served


@pytest.fixture
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    async with await browser.new_context(viewport={"width": 1440, "height": 1000}) as context:
        context.set_default_timeout(10_000)
        yield context


async def test_a_wrong_key_is_asked_for_again_and_a_right_one_opens_everything(
    locked: Served, context: BrowserContext
) -> None:
    page = await context.new_page()
    addresses: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    await page.goto(locked.url)
    dialog = page.get_by_role("dialog", name="This server needs a key")
    field = dialog.get_by_label("API key")
    await expect(field).to_be_focused()
    await fulfils_wcag(page)

    await field.fill("turnip")
    await page.keyboard.press("Enter")
    await expect(dialog.get_by_role("alert")).to_have_text("The server does not know that key.")
    await expect(field).to_be_focused()
    await expect(field).to_have_value("")
    await fulfils_wcag(page)
    await page.keyboard.press("Escape")  # there is nothing to see without a key
    await expect(field).to_be_focused()
    await expect(page.locator("#model")).to_be_empty()

    await field.fill(f" {KEY} ")
    await dialog.get_by_role("button", name="Continue").click()
    await expect(dialog).to_be_hidden()
    await expect(page.locator("#connection")).to_have_text("connected")
    await expect(page.locator("#model")).to_have_text("fake")
    await page.get_by_label("Message", exact=True).fill("What is a radish?")
    await page.keyboard.press("Enter")
    await expect(page.locator(".message.assistant")).to_have_text(ANSWER)
    await expect(page.locator("#waterfall li[data-state=stop]")).to_have_count(1)
    await page.get_by_text("Structured output").click()
    await page.get_by_label("Answer is").select_option("json_schema")
    await expect(page.locator("#schema-light")).to_have_attribute("data-state", "good")
    await page.get_by_text("The request as code").click()
    await expect(page.locator("#snippet")).to_contain_text("'Authorization: Bearer YOUR_KEY'")

    assert not any("rettich" in address for address in addresses)
    # Chromium itself reports refusals on the console; the page says nothing there.
    assert all("status of 401" in complaint for complaint in complaints), complaints


async def test_the_key_is_kept_for_the_tab_only(locked: Served, context: BrowserContext) -> None:
    page = await context.new_page()
    await page.goto(locked.url)
    await page.get_by_label("API key").fill(KEY)
    await page.keyboard.press("Enter")
    await expect(page.locator("#connection")).to_have_text("connected")
    kept = await page.evaluate(
        "[Object.values(sessionStorage), Object.values(localStorage), document.cookie]"
    )
    assert kept == [[KEY], [], ""]
    await page.reload()
    await expect(page.locator("#connection")).to_have_text("connected")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    another = await context.new_page()
    await another.goto(locked.url)
    await expect(another.get_by_label("API key")).to_be_focused()
