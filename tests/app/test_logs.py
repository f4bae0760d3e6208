"""One line for each API request, with its id and without its text."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from app.logs import formatter
from tests.app.harness import Served, serving, until


class Lines(logging.Handler):
    """Keeps what would be written."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(formatter("json"))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    async def next(self) -> dict[str, Any]:
        await until(lambda: bool(self.lines))
        line: dict[str, Any] = json.loads(self.lines.pop(0))
        return line


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, logger = Lines(), logging.getLogger("radish")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


async def test_a_path_writes_no_lines(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "radish.request"):
        await served.http.get("/v1/responses/a%0d%0a2026-01-01 INFO%00%1b[2J%e2%80%a8é")
        await until(lambda: bool(caplog.messages))
    (line,) = caplog.messages
    assert line.startswith(r"GET /v1/responses/a\r\n2026-01-01 INFO\x00\x1b[2J\u2028é 404 ")


async def test_a_request_is_one_line(served: Served, lines: Lines) -> None:
    served.engine.flush_cache()
    response = await served.http.post(
        "/v1/completions",
        json={"model": "fake", "prompt": "private", "max_tokens": 3, "n": 2},
        headers={"x-request-id": "mine"},
    )
    line = await lines.next()
    assert 0 < line.pop("seconds") < 30
    assert line.pop("time").endswith("+00:00")
    usage = response.json()["usage"]
    assert line == {
        "level": "info",
        "logger": "radish.request",
        "message": line["message"],
        "request_id": "mine",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "response_id": response.json()["id"],
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "completion_tokens": 6,
        "finish_reasons": ["length", "length"],
    }
    assert "private" not in json.dumps(line)
    assert line["message"].endswith(f"{usage['prompt_tokens']} + 6 tokens, 2 x length")


async def test_prompts_are_logged_when_that_is_asked_for(lines: Lines) -> None:
    async with serving(log_prompts=True) as served:
        await served.complete(["first prompt", "second"], max_tokens=1)
        line = await lines.next()
    assert line["prompts"] == ["first prompt", "second"]
    assert line["message"].endswith(", 2 x length 'first prompt' 'second'")
    assert line["request_id"]


async def test_a_refusal_has_its_id(served: Served, lines: Lines) -> None:
    response = await served.complete("x", max_tokens=-1)
    line = await lines.next()
    assert (line["status"], line["request_id"]) == (400, response.headers["x-request-id"])
    assert "response_id" not in line


async def test_a_client_that_leaves_is_told(served: Served, lines: Lines) -> None:
    served.runner.pause()
    asking = asyncio.create_task(served.complete("x", max_tokens=50))
    await until(lambda: served.engine.load().running == 1)
    asking.cancel()
    line = await lines.next()
    assert (line["status"], line["finish_reasons"]) == (None, ["abort"])
    assert " gone " in line["message"]


async def test_scrapes_and_looks_are_not_told(served: Served, lines: Lines) -> None:
    for path in ("/metrics", "/health", "/live/snapshot", "/"):
        assert (await served.http.get(path)).status_code == 200
    await served.http.get("/v1/models")
    assert (await lines.next())["path"] == "/v1/models"
    assert lines.lines == []


def test_an_exception_is_one_line_too() -> None:
    try:
        raise ValueError("no\ngood")
    except ValueError:
        record = logging.getLogger("radish").makeRecord(
            "radish", logging.ERROR, __file__, 1, "it %s", ("failed",), sys.exc_info()
        )
    line = formatter("json").format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "it failed"
    assert "ValueError: no\ngood" in json.loads(line)["exception"]
