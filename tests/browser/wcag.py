"""What axe-core, an accessibility checker, finds on a page."""

from __future__ import annotations

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


async def fulfils_wcag(page: Page) -> None:
    """axe-core finds no violation of WCAG 2.2 A and AA, nor of its own advice."""
    found = await Axe().run(page, options={"runOnly": _RULES, "resultTypes": ["violations"]})
    told = [
        (violation["id"], [node["html"] for node in violation["nodes"]][:3])
        for violation in found.response["violations"]
    ]
    assert told == [], told
