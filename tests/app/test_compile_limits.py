"""A constraint that takes too much to compile is a 400 that names the limit, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from typing import Any

import httpx
import jsonschema
import pytest

from grammars import pool
from tests.app.harness import Served, error_of, events, serving, until
from tests.fakes import hashed_tokens

# An automaton with as many states, built by code that nothing can interrupt.
ENDLESS = {"guided_grammar": 'start: %json {"type": "integer", "multipleOf": 123456789}'}
FREE_TEXT = bytes(hashed_tokens(b"free", 40)).decode()


async def refused_beside_others(
    served: Served, meanwhile: Callable[[], Any] = lambda: None
) -> httpx.Response:
    """Ask for something endless; others are answered until that ends, and a small grammar compiles behind."""
    refused = asyncio.create_task(served.chat(**ENDLESS))
    answered = 0
    while not refused.done():
        answer = await served.complete("free", max_tokens=40)
        assert answer.json()["choices"][0]["text"] == FREE_TEXT
        answered += 1
        meanwhile()
    assert answered > 1
    response = await refused
    assert response.status_code == 400
    assert error_of(response)["param"] == "guided_grammar"
    choice = (await served.chat(guided_choice=["only"])).json()["choices"][0]
    assert choice["message"]["content"] == "only"
    return response


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "boolean"}
    for _ in range(depth):
        properties = {"a": schema}
        inner = {
            "type": "object",
            "properties": properties,
            "required": ["a"],
            "additionalProperties": False,
        }
        schema = {"oneOf": [inner, {"type": "null"}, {"type": "integer"}]}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        nested(12),
        {"enum": [f"value {n}" for n in range(1000)]},
        {
            "type": "object",
            "properties": {f"name {n}": {"type": ["string", "null"], "maxLength": 9} for n in range(200)},
            "additionalProperties": False,
        },
    ],
    ids=["nested", "enum", "properties"],
)
async def test_large_schemas_compile_beside_others(served: Served, schema: dict[str, Any]) -> None:
    """A41: what is allowed of them is enforced, and a stream goes on meanwhile."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    whole, streamed, free = await asyncio.gather(
        served.chat(response_format=form, max_tokens=400),
        served.chat(response_format=form, max_tokens=400, stream=True),
        served.complete("free", max_tokens=40),
    )
    assert free.json()["choices"][0]["text"] == FREE_TEXT
    text = whole.json()["choices"][0]["message"]["content"]
    jsonschema.validate(json.loads(text), schema)
    deltas = [choice["delta"] for chunk in events(streamed.text) for choice in chunk["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == text


async def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_MEMORY_BYTES", 280 << 20)
    async with serving(grammar_timeout=120.0) as served:
        message = error_of(await refused_beside_others(served))["message"]
        assert message.startswith("grammar too complex: ")
        assert message.endswith("280 MiB")


async def test_time() -> None:
    async with serving(grammar_timeout=0.5) as served:
        message = error_of(await refused_beside_others(served))["message"]
        assert message == "grammar too complex: not compiled within 0.5 s"


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_worker_that_dies_or_hangs(sent: signal.Signals) -> None:
    timeout_s = 120.0 if sent == signal.SIGKILL else 2.0
    async with serving(grammar_timeout=timeout_s) as served:
        assert (await served.chat(guided_choice=["start"])).status_code == 200
        workers = served.engine.compiler._workers._workers
        hit: set[int] = set()

        def strike() -> None:
            for worker in workers:
                if not hit:
                    hit.add(worker._process.pid)
                    os.kill(worker._process.pid, sent)

        message = error_of(await refused_beside_others(served, strike))["message"]
        assert hit
        expected = "ended the process" if sent == signal.SIGKILL else "within 2 s"
        assert expected in message
        await until(lambda: not hit & {worker._process.pid for worker in workers})


async def test_a_worker_that_dies_before_it_is_set_up() -> None:
    async with serving() as served:
        workers = served.engine.compiler._workers._workers
        answer = asyncio.create_task(served.chat(guided_choice=["only"]))
        await until(lambda: workers)
        for worker in workers:
            os.kill(worker._process.pid, signal.SIGKILL)
        response = await answer
        assert response.status_code == 400
        assert "did not start" in error_of(response)["message"]
        again = (await served.chat(guided_choice=["only"])).json()["choices"][0]
        assert again["message"]["content"] == "only"


async def test_a_limit_is_no_verdict() -> None:
    """What ran into a limit is tried again when it is asked for again."""
    async with serving(grammar_timeout=0.5) as served:
        for tries in (1, 2):
            assert (await served.chat(**ENDLESS)).status_code == 400
            assert served.engine.compiler.num_refused == tries
