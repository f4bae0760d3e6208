"""Deadlines and priorities as a client asks for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.app.harness import Served, error_of, events, serving, until


@pytest.mark.parametrize("header", ["X-Request-Timeout", "X-Queue-Timeout"])
async def test_a_header_sets_a_deadline(header: str) -> None:
    async with serving(max_running=1) as served:
        served.runner.pause()
        first = asyncio.create_task(served.complete(max_tokens=2))
        await until(lambda: served.engine.load().running == 1)
        body = {"model": "fake", "prompt": "x", "max_tokens": 2}
        response = await served.http.post("/v1/completions", json=body, headers={header: "0.01"})
        error = error_of(response)
        assert response.status_code == 504
        assert (error["type"], error["code"]) == ("server_error", "deadline_exceeded")
        assert "0.01 s" in error["message"]
        assert response.headers["retry-after"] == "1"
        served.runner.resume()
        assert (await first).status_code == 200


async def test_a_stream_is_told_of_its_deadline_by_an_event(served: Served) -> None:
    served.runner.pause()
    body = {"model": "fake", "prompt": "x", "max_tokens": 2, "stream": True}
    response = await served.http.post("/v1/completions", json=body, headers={"X-Request-Timeout": "0.01"})
    assert response.status_code == 200
    assert events(response.text)[-1]["error"]["code"] == "deadline_exceeded"


@pytest.mark.parametrize("value", ["", "0", "-1", "nan", "inf", "1_0", "soon"])
async def test_a_deadline_is_a_positive_number(served: Served, value: str) -> None:
    body = {"model": "fake", "prompt": "x"}
    response = await served.http.post("/v1/completions", json=body, headers={"X-Request-Timeout": value})
    assert (response.status_code, error_of(response)["param"]) == (400, "x-request-timeout")


async def test_a_header_can_only_shorten_the_servers_deadline() -> None:
    async with serving(request_timeout=0.01) as served:
        served.runner.pause()
        body = {"model": "fake", "prompt": "x"}
        for headers in ({}, {"X-Request-Timeout": "1000"}):
            response = await served.http.post("/v1/completions", json=body, headers=headers)
            assert response.status_code == 504


async def order_of(served: Served, asked: list[tuple[dict[str, str], dict[str, Any]]]) -> list[int]:
    """In which order requests that wait together are served, one at a time."""
    served.runner.pause()
    ended: list[int] = []

    async def ask(number: int, headers: dict[str, str], fields: dict[str, Any]) -> None:
        body = {"model": "fake", "prompt": f"{number}", "max_tokens": 3, **fields}
        response = await served.http.post("/v1/completions", json=body, headers=headers)
        assert response.status_code == 200
        ended.append(number)

    async with asyncio.TaskGroup() as group:
        for number, (headers, fields) in enumerate(asked):
            group.create_task(ask(number, headers, fields))
            await until(lambda n=number: served.engine.stats.started == n + 1)
        served.runner.resume()
    return ended


async def test_the_lower_priority_number_is_served_first() -> None:
    async with serving(max_running=1) as served:
        priorities = [0, 0, 5, -1, -2]
        order = await order_of(served, [({}, {"priority": priority}) for priority in priorities])
        assert order == [0, 4, 3, 1, 2]


async def test_a_key_has_a_highest_priority(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("modest priority=0\n")
    async with serving(max_running=1, api_key_file=str(file)) as served:
        key = {"Authorization": "Bearer modest"}
        assert await order_of(served, [(key, {"priority": p}) for p in (0, 0, -9, 0)]) == [0, 1, 2, 3]


async def test_a_flood_of_one_key_does_not_hold_up_another() -> None:
    async with serving(max_running=1, api_key=("a", "b")) as served:
        flood: list[tuple[dict[str, str], dict[str, Any]]] = [({"Authorization": "Bearer a"}, {})] * 6
        order = await order_of(served, [*flood, ({"Authorization": "Bearer b"}, {})])
        assert order.index(6) <= 2
