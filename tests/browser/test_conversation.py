"""What the playground sends is what its fields and the conversation say, and nothing else."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.app.harness import Served, until
from tests.browser.test_page import ANSWER, ask
from tests.fakes import say


def chat_bodies(page: Page) -> list[dict[str, Any]]:
    """The bodies of the chat requests that are sent from now on."""
    bodies: list[dict[str, Any]] = []

    def note(request: Any) -> None:
        if request.url.endswith("/v1/chat/completions"):
            bodies.append(json.loads(request.post_data))

    page.on("request", note)
    return bodies


async def test_clearing_while_an_answer_comes_begins_anew(page: Page, served: Served) -> None:
    bodies = chat_bodies(page)
    served.runner.pause()
    await ask(page, "first")
    served.runner.allow(6)
    await page.locator(".message .token").first.wait_for()
    await page.get_by_role("button", name="Clear").click()
    await until(lambda: served.engine.load().running == 0)
    served.runner.resume()
    served.runner.script = say(ANSWER)
    await ask(page, "second")
    await expect(page.locator(".message.assistant")).to_have_text(ANSWER)
    assert bodies[-1]["messages"] == [{"role": "user", "content": "second"}]


async def test_a_value_between_the_steps_of_its_field_is_sent(page: Page) -> None:
    bodies = chat_bodies(page)
    await page.get_by_text("Sampling").click()
    await page.get_by_label("Temperature").fill("0.123")
    await page.get_by_label("Top p").fill("0.955")
    await ask(page, "hello")
    await page.locator(".message.assistant[aria-busy=false]").wait_for()
    assert (bodies[0]["temperature"], bodies[0]["top_p"]) == (0.123, 0.955)


async def test_a_value_out_of_bounds_is_refused_and_not_left_out(page: Page, complaints: list[str]) -> None:
    await page.get_by_text("Sampling").click()
    await page.get_by_label("Top p").fill("7")
    await ask(page, "hello")
    await expect(page.locator(".message .failed")).to_contain_text("top_p")
    assert "status of 400" in complaints.pop()


@pytest.mark.parametrize("editor", ["schema", "tools"])
async def test_nothing_is_sent_while_an_editor_holds_no_json(page: Page, editor: str) -> None:
    bodies = chat_bodies(page)
    if editor == "schema":
        await page.get_by_text("Structured output").click()
        await page.get_by_label("Answer is").select_option("json_schema")
    else:
        await page.locator("#tools-card > summary").click()
    await page.locator(f"#{editor}").fill('{"type": ')
    await expect(page.locator(f"#{editor}-light")).to_have_attribute("data-state", "bad")
    await ask(page, "hello")
    await expect(page.locator(".message .failed")).to_contain_text("Not JSON")
    assert bodies == []
    await page.get_by_text("The request as code").click()
    await expect(page.locator("#snippet")).to_contain_text("Not JSON")


async def test_the_request_as_python_prints_the_calls_of_tools(page: Page) -> None:
    await page.locator("#tools-card > summary").click()
    await page.get_by_role("button", name="Insert an example").click()
    await page.get_by_text("The request as code").click()
    await page.get_by_role("button", name="Python").click()
    code = await page.locator("#snippet").inner_text()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, error = await process.communicate()
    assert error == b""
    name, brace, rest = out.decode().partition("{")
    arguments, _ = json.JSONDecoder().raw_decode(brace + rest)
    assert (name, set(arguments)) == ("get_weather", {"city", "unit"})


async def test_thoughts_are_shown_before_the_answer(
    page: Page, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.state, "thinks", True)
    served.runner.script = say("<think>hm, 2</think>Yes.")
    bodies = chat_bodies(page)
    await ask(page, "Is it?")
    answer = page.locator(".message.assistant[aria-busy=false]")
    await expect(answer.locator(".thought")).to_have_text("hm, 2")
    await expect(answer).to_have_text("hm, 2Yes.")
    await ask(page, "Really?")
    await expect(answer).to_have_count(2)
    assert bodies[1]["messages"][1] == {"role": "assistant", "content": "Yes."}


async def test_a_question_longer_than_the_view_leaves_its_answer_in_sight(page: Page, served: Served) -> None:
    served.runner.script = say(ANSWER)
    await ask(page, "a line\n" * 60)
    answer = page.locator(".message.assistant[aria-busy=false]")
    await expect(answer).to_have_text(ANSWER)
    await expect(answer).to_be_in_viewport()


async def test_a_new_connection_asks_which_model_is_served(
    page: Page, served: Served, complaints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = chat_bodies(page)
    await page.context.set_offline(True)
    monkeypatch.setattr(served.state, "model_name", "another")
    await page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true, configurable: true})")
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await page.context.set_offline(False)
    await page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    await expect(page.locator("#model")).to_have_text("another")
    await ask(page, "hello")
    await page.locator(".message.assistant[aria-busy=false]").wait_for()
    assert bodies[0]["model"] == "another"


async def test_a_feed_that_falls_silent_is_a_lost_connection(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as silent:
        silent.setattr("app.live._period_s", lambda request: 60)
        await page.reload()
        connection = page.locator("#connection")
        await expect(connection).to_have_text("connected")
        await expect(connection).to_have_text("no connection", timeout=20_000)
    await expect(connection).to_have_text("connected", timeout=20_000)


async def test_a_shared_prefix_and_what_continues_it_fit_a_phone(page: Page, served: Served) -> None:
    await page.set_viewport_size({"width": 360, "height": 800})
    for end in ("one", "two more times"):
        await served.complete("a common beginning, and then " + end, max_tokens=1)
    await page.get_by_role("tab", name="Live").click()
    await expect(page.locator("#tree [aria-level='2']")).to_have_count(2)
    assert await page.locator("#tree-scroll").evaluate("node => node.scrollWidth <= node.clientWidth")
