"""The page without a pointer, and for those whom movement disturbs."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.app.harness import Served
from tests.fakes import say

ANSWER = "A radish is a root."


async def tab_to(page: Page, selector: str) -> None:
    """Press Tab until what `selector` names has the focus; it has to come before the page's end."""
    target = page.locator(selector)
    for _ in range(40):
        await page.keyboard.press("Tab")
        if await target.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"{selector} is not in the tab order")


async def test_a_chat_is_sent_stopped_and_given_a_schema(page: Page, served: Served) -> None:
    served.runner.script = say(ANSWER)
    await page.keyboard.press("Tab")
    await expect(page.get_by_text("Skip to the prompt")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("#prompt")).to_be_focused()
    await page.keyboard.type("What is a radish?")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("Be short.")
    served.runner.pause()
    await page.keyboard.press("Enter")
    await expect(page.locator(".message.user")).to_have_text("What is a radish?\nBe short.")
    served.runner.allow(4)
    await expect(page.locator(".message.assistant")).to_contain_text("A r")
    # The next message can be written meanwhile; it is not sent before there is an end.
    await page.keyboard.type("And then?")
    await page.keyboard.press("Enter")
    await expect(page.locator(".message.user")).to_have_count(1)
    await page.keyboard.press("Escape")
    await expect(page.locator(".message.assistant")).to_contain_text("stopped")
    served.runner.resume()
    await page.keyboard.press("Enter")
    await expect(page.locator(".message.assistant").nth(1)).to_have_text(ANSWER)

    await tab_to(page, "#structured > summary")
    await page.keyboard.press("Enter")
    await tab_to(page, "#format")
    await page.keyboard.type("JSON that")
    await expect(page.locator("#format")).to_have_value("json_schema")
    await tab_to(page, "#schema")
    await page.keyboard.press("Control+A")
    await page.keyboard.type('{"type": "boolean"}')
    await expect(page.locator("#schema-light")).to_have_attribute("data-state", "good")
    await tab_to(page, '#tree [tabindex="0"]')  # one bar is in the tab order, however many there are


async def test_the_end_of_an_answer_leaves_the_focus_where_it_is(page: Page, served: Served) -> None:
    served.runner.pause()
    await page.get_by_label("Message", exact=True).fill("What is a radish?")
    await tab_to(page, "#send")
    await page.keyboard.press("Enter")
    await expect(page.locator("#stop")).to_be_focused()
    await tab_to(page, "#sampling > summary")
    served.runner.resume()
    await page.locator(".message.assistant[aria-busy=false]").wait_for()
    await expect(page.locator("#send")).to_be_visible()
    await expect(page.locator("#sampling > summary")).to_be_focused()


@pytest.mark.parametrize(("motion", "moving"), [("no-preference", 1), ("reduce", 0)])
async def test_nothing_moves_for_those_who_ask_for_that(page: Page, motion: str, moving: int) -> None:
    await page.emulate_media(reduced_motion=motion)  # type: ignore[arg-type]  # one of its literals
    assert await page.evaluate("document.getAnimations().length") == moving
