"""The page, used as people use it."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shlex
import sys
from typing import Any

import jsonschema
import pytest
from playwright.async_api import Page, expect

from tests.app.harness import Served, until
from tests.browser.wcag import fulfils_wcag
from tests.fakes import say

ANSWER = "A radish is a root."


async def ask(page: Page, text: str) -> None:
    await page.get_by_label("Message", exact=True).fill(text)
    await page.keyboard.press("Enter")


async def test_an_answer_arrives_token_by_token(page: Page, served: Served) -> None:
    served.runner.script = say(ANSWER)
    served.runner.pause()
    await ask(page, "What is a radish?")
    answer = page.locator(".message.assistant")
    await expect(page.locator("#running")).to_have_text("1")
    served.runner.allow(6)
    await expect(answer).to_contain_text("A rad")
    assert ANSWER not in await answer.inner_text()
    await expect(answer).to_have_attribute("aria-busy", "true")
    served.runner.resume()
    await expect(answer).to_have_text(ANSWER)
    await expect(answer).to_have_attribute("aria-busy", "false")
    await expect(page.locator("#usage")).to_contain_text(f"{len(ANSWER) + 1} tokens in")
    # What was said goes along with the next question.
    await ask(page, "And then?")
    await expect(page.locator(".message.assistant").nth(1)).to_have_text(ANSWER)
    row = page.locator("#waterfall li[data-state=stop]").nth(1)
    await expect(row).to_have_count(1)
    label = await row.locator("svg").get_attribute("aria-label")
    assert label is not None
    assert "prefill" in label
    assert "decode" in label


async def test_stopping_a_stream_frees_its_pages(page: Page, served: Served) -> None:
    served.runner.pause()
    await page.get_by_text("Sampling").click()
    await page.get_by_label("Most tokens").fill("900")
    await ask(page, "Go on for ever")
    served.runner.allow(40)
    await expect(page.locator("#pages-private")).not_to_have_text("0")
    await expect(page.locator("#pages-protected")).not_to_have_text("0")
    assert served.engine.load().running == 1
    await page.get_by_role("button", name="Stop").click()
    await until(lambda: served.engine.load().running == 0)
    served.runner.resume()
    await expect(page.locator("#pages-private")).to_have_text("0")
    await expect(page.locator("#pages-protected")).to_have_text("0")
    pages = served.engine.load().pages
    assert (pages.private, pages.protected) == (0, 0)
    assert served.engine.stats.finished["abort"] >= 1
    await expect(page.locator("#pages-free")).to_have_text(str(pages.free))
    await expect(page.locator(".message.assistant")).to_contain_text("stopped")
    await expect(page.locator("#waterfall li[data-state=abort]")).to_have_count(1)


async def test_the_tree_shows_two_shared_prefixes_and_who_uses_them(page: Page, served: Served) -> None:
    first, second = "all of these begin alike: " * 2, "and these are quite another family: " * 2
    for prompt in (first + "one more", first + "two more", second + "one more", second + "two more"):
        await served.complete(prompt, max_tokens=1)
    shared = page.locator('#tree .branching[data-parent="0"]')
    await expect(shared).to_have_count(2)
    await expect(page.locator('#tree [role="treeitem"]')).to_have_count(6)
    await expect(page.locator("#tree .used")).to_have_count(0)
    served.runner.pause()
    users = [
        asyncio.create_task(served.complete(first + end, max_tokens=30))
        for end in ("one more time", "two more times")
    ]
    await until(lambda: served.engine.load().running + served.engine.load().waiting == 2)
    served.runner.allow(3)
    used = page.locator('#tree .used.branching[data-users="2"]')
    await expect(used).to_have_count(1)
    assert await used.locator("circle").count() == 2
    await expect(page.locator("#tree-note")).to_contain_text("3 in use, 1 by several")
    # By keyboard: the first node is in the tab order; right goes to what continues it, left back.
    await page.locator('#tree [tabindex="0"]').focus()
    await page.keyboard.press("Home")
    await page.keyboard.press("ArrowRight")
    focused = page.locator("#tree [role=treeitem]:focus")
    assert await focused.get_attribute("aria-level") == "2"
    await expect(page.locator("#tree-detail")).to_contain_text("12 tokens in 3 pages · used by")
    await page.keyboard.press("ArrowLeft")
    assert await focused.get_attribute("aria-level") == "1"
    served.runner.resume()
    await asyncio.gather(*users)
    await expect(page.locator("#tree .used")).to_have_count(0)


async def test_the_tiles_and_pictures_tell_the_engine_s_own_counts(page: Page, served: Served) -> None:
    engine = served.engine
    prompt = "a common beginning, and then "
    for end in ("one", "two"):
        await served.complete(prompt + end, max_tokens=5)
    started = engine.stats.started
    await expect(page.locator("#running-note")).to_have_text(f"{started} started")
    await expect(page.locator("#hit-note")).to_have_text(f"{engine.stats.prefix_hits} tokens")
    share = round(100 * engine.stats.prefix_hits / engine.stats.prefix_queries)
    await expect(page.locator("#hit-rate")).to_have_text(f"{share} %")
    pages = engine.load().pages
    await expect(page.locator("#pages-used-note")).to_have_text(f"0 of {pages.total}")
    await expect(page.locator("#page-map")).to_have_attribute(
        "aria-label",
        f"{pages.total} pages: 0 private to a sequence, 0 cached and in use, "
        f"{pages.evictable} cached, {pages.free} free",
    )
    await expect(page.locator("#steps-note")).to_contain_text(f" of {engine.history.steps[-1].number:,}, ")
    for tile in ("ttft", "inter-token"):
        await expect(page.locator(f"#{tile}")).to_have_text(re.compile(r"^[\d.]+ m?s$"))
        await expect(page.locator(f"#{tile}-note")).to_have_text(
            re.compile(r"^p90 [\d.]+ m?s · p99 [\d.]+ m?s$")
        )
    steps = list(engine.history.steps)
    label = await page.locator("#steps-chart").get_attribute("aria-label")
    assert label is not None
    shown = int(re.findall(r"last (\d+) steps", label)[0])
    sums = {
        kind: sum(getattr(step, kind) for step in steps[-shown:])
        for kind in ("decode", "prefill", "recompute", "cached")
    }
    assert shown <= len(steps)
    assert label.partition(": ")[2] == (
        f"{sums['decode']} decode, {sums['prefill']} prefill, {sums['recompute']} computed again, "
        f"{sums['cached']} cached, not computed"
    )


async def test_the_waterfall_shows_each_chunk_of_a_prompt(page: Page, served: Served) -> None:
    size = served.engine.config.max_batch_tokens
    length = 2 * size + size // 2
    await served.complete("x" * length, max_tokens=3)
    row = page.locator("#waterfall li[data-state=length]").last
    await expect(row).to_contain_text(f"{length} in · 3 out · at limit")
    for kind, count in {"queued": 1, "prefill": 3, "first-token": 1, "decode": 1, "stalled": 0}.items():
        await expect(row.locator(f"rect.{kind}")).to_have_count(count)
    titles = await row.locator("rect.prefill title").all_text_contents()
    assert [title.partition(", ")[2].partition(" in ")[0] for title in titles] == [
        *(f"{size} tokens", f"{size} tokens"),
        f"{size // 2} tokens",
    ]


async def test_the_light_tells_what_a_schema_is_worth(page: Page, served: Served) -> None:
    await page.get_by_text("Structured output").click()
    await page.get_by_label("Answer is").select_option("json_schema")
    light, verdict = page.locator("#schema-light"), page.locator("#schema-verdict")
    await expect(light).to_have_attribute("data-state", "good")
    editor = page.locator("#schema")
    await editor.fill('{"type": "object", ')
    await expect(light).to_have_attribute("data-state", "bad")
    await expect(verdict).to_contain_text("Not JSON")
    await editor.fill('{"type": "no such type"}')
    await expect(verdict).to_contain_text("type")
    await expect(light).to_have_attribute("data-state", "bad")
    schema = {
        "type": "object",
        "properties": {"ripe": {"type": "boolean"}, "count": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["ripe", "count"],
        "additionalProperties": False,
    }
    await editor.fill(json.dumps(schema))
    await expect(light).to_have_attribute("data-state", "good")
    await ask(page, "How many?")
    answer = page.locator(".message.assistant[aria-busy=false]")
    await answer.wait_for()
    jsonschema.validate(json.loads(await answer.inner_text()), schema)


async def test_a_tool_is_called(page: Page, served: Served) -> None:
    await page.locator("#tools-card > summary").click()
    await page.get_by_role("button", name="Insert an example").click()
    await expect(page.locator("#tools-light")).to_have_attribute("data-state", "good")
    await ask(page, "How is the weather?")
    await page.locator(".message.assistant[aria-busy=false]").wait_for()
    name, _, arguments = (await page.locator(".message .call").first.inner_text()).partition(" ")
    assert name == "get_weather"
    assert json.loads(arguments)["unit"] in {"celsius", "fahrenheit"}


async def test_tokens_tell_their_probabilities(page: Page, served: Served) -> None:
    served.runner.script = say("radish")
    await ask(page, "A root, please")
    answer = page.locator(".message.assistant[aria-busy=false]")
    await answer.wait_for()
    tooltip = page.get_by_role("tooltip")
    await page.locator(".token").nth(2).hover()
    await expect(tooltip.locator("tr.chosen")).to_contain_text("d")
    await expect(tooltip.locator("tr.chosen")).to_contain_text(f"{100 * math.exp(-0.25):.1f} %")
    await expect(tooltip.locator("tr")).to_have_count(5)
    await answer.focus()
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowRight")
    await expect(tooltip.locator("tr.chosen")).to_contain_text("a")
    assert await answer.get_attribute("aria-description") == f"a: {100 * math.exp(-0.25):.1f} %"


async def test_the_request_as_code_works(page: Page, served: Served) -> None:
    served.runner.script = say(ANSWER)
    await page.get_by_text("Sampling").click()
    await page.get_by_label("Top k").fill("7")
    await page.get_by_label("Stop at").fill("it's")
    await page.get_by_text("The request as code").click()
    await page.get_by_label("Message", exact=True).fill("It's \"quoted\"\nand 'long' 🥕")
    curl = shlex.split((await page.locator("#snippet").inner_text()).replace("\\\n", ""))
    assert curl[:2] == ["curl", f"{served.url}/v1/chat/completions"]
    body: dict[str, Any] = json.loads(curl[curl.index("-d") + 1])
    assert (body["top_k"], body["stop"]) == (7, ["it's"])
    assert body["messages"] == [{"role": "user", "content": "It's \"quoted\"\nand 'long' 🥕"}]
    assert (await served.post("chat/completions", body)).text.endswith("data: [DONE]\n\n")
    await page.get_by_role("button", name="Python").click()
    code = await page.locator("#snippet").inner_text()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, error = await process.communicate()
    assert (out.decode(), error.decode()) == (ANSWER, "")


async def test_a_refusal_is_told(page: Page, complaints: list[str]) -> None:
    await page.get_by_text("Sampling").click()
    await page.get_by_label("Most tokens").fill("1000")
    await ask(page, "Too much")
    await expect(page.locator(".message .failed")).to_contain_text("maximum context length is 1000")
    # Chromium itself reports the status on the console; the page says nothing there.
    (complaint,) = complaints
    assert "status of 400" in complaint
    complaints.clear()


@pytest.mark.parametrize(
    ("width", "theme"), [(360, "light"), (360, "dark"), (768, "light"), (1440, "light"), (1440, "dark")]
)
async def test_it_is_accessible_and_fits_the_screen(
    page: Page, served: Served, width: int, theme: str
) -> None:
    await page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]  # one of its literals
    await page.set_viewport_size({"width": width, "height": 800})
    served.runner.script = say(ANSWER)
    for prompt in ("a common beginning, one more", "a common beginning, two more"):
        await served.complete(prompt, max_tokens=1)
    await ask(page, "hello")
    await page.locator(".message.assistant[aria-busy=false]").wait_for()
    narrow = await page.locator("[role=tablist]").is_visible()
    assert narrow == (width < 1000)
    for tab in ("Playground", "Live") if narrow else ("",):
        if tab:
            await page.get_by_role("tab", name=tab).click()
        for card in await page.locator("details > summary:visible").all():
            await card.click()
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            await fulfils_wcag(page)
        if tab != "Playground":
            await expect(page.locator("#tree .branching")).to_have_count(1)
            await fulfils_wcag(page)


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_the_description_of_the_api_is_accessible(page: Page, served: Served, theme: str) -> None:
    await page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]  # one of its literals
    await page.goto(f"{served.url}/docs")
    await fulfils_wcag(page)
    assert await page.evaluate("document.documentElement.scrollWidth") <= 1440
    await page.set_viewport_size({"width": 360, "height": 800})
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    await fulfils_wcag(page)
