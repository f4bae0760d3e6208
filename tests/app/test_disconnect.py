"""A client that hangs up: noticed at every stage, and its pages are free within two steps."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from app.sse import DONE, EventStream
from tests.app.harness import Served, chat_body, raw_client, serving, until
from tests.fakes import HANGS_S, hashed_tokens

ENDLESS = {"ignore_eos": True, "max_tokens": 2000}


def pages_in_use(served: Served) -> int:
    pages = served.engine.load().pages
    return pages.private + pages.protected


def aborted(served: Served) -> int:
    return served.engine.stats.finished["abort"]


async def test_a_stream_is_aborted_within_two_steps(served: Served) -> None:
    """A01"""
    before = aborted(served)
    async with raw_client(served) as client:
        client.post("chat/completions", chat_body(**ENDLESS, stream=True))
        await client.read_events(4)
        served.runner.pause()
        await client.hang_up()
        await until(lambda: aborted(served) == before + 1)
    # No step ran since, so no more than the one in flight could.
    assert pages_in_use(served) == 0
    served.runner.resume()
    await until(lambda: served.engine.load().running == 0)
    tokens = served.engine.stats.generation_tokens
    steps = served.engine.stats.steps
    await served.complete("x", max_tokens=5)
    assert served.engine.stats.generation_tokens == tokens + 5
    assert served.engine.stats.steps > steps


async def test_a_whole_answer_is_aborted_too(served: Served) -> None:
    """A02: there is no write that could fail, so somebody has to listen."""
    before = aborted(served)
    async with raw_client(served) as client:
        client.post("chat/completions", chat_body(**ENDLESS))
        await until(lambda: served.engine.load().running == 1)
        await client.hang_up()
        await until(lambda: aborted(served) == before + 1)
    assert pages_in_use(served) == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_waiting_request_is_taken_out_of_the_queue(*, stream: bool) -> None:
    async with serving(max_running=1) as served:
        async with raw_client(served) as running:
            running.post("completions", {"model": "fake", "prompt": "a", **ENDLESS, "stream": True})
            await running.read_events(1)
            async with raw_client(served) as waiting:
                waiting.post("completions", {"model": "fake", "prompt": "b", **ENDLESS, "stream": stream})
                await until(lambda: served.engine.load().waiting == 1)
                await waiting.hang_up()
                await until(lambda: served.engine.load().waiting == 0)
            assert served.engine.load().running == 1
            await running.read_events(3)
        await until(lambda: aborted(served) == 2)


async def test_a_request_with_many_prompts_and_choices_is_aborted_whole(served: Served) -> None:
    before = aborted(served)
    async with raw_client(served) as client:
        client.post(
            "completions", {"model": "fake", "prompt": ["a", "b", "c"], "n": 3, **ENDLESS, "stream": True}
        )
        await client.read_events(20)
        await client.hang_up()
        await until(lambda: aborted(served) == before + 9)
    assert pages_in_use(served) == 0


async def test_a_client_may_leave_while_its_prompt_is_prepared(served: Served, monkeypatch: Any) -> None:
    """Nothing reaches the engine; the thread that prepares it is not waited for."""
    started = served.engine.stats.started
    entered, leave = asyncio.Event(), asyncio.Event()

    async def encode(*args: Any, **kwargs: Any) -> list[int]:
        entered.set()
        try:
            await leave.wait()
        except asyncio.CancelledError:
            leave.set()
            raise
        return [1]

    monkeypatch.setattr(served.state, "encode_chat", encode)
    async with raw_client(served) as client:
        client.post("chat/completions", chat_body())
        await entered.wait()
        await client.hang_up()
        await asyncio.wait_for(leave.wait(), 5)
    assert served.engine.stats.started == started
    monkeypatch.undo()


async def test_a_client_may_leave_before_its_body_is_complete(served: Served) -> None:
    started = served.engine.stats.started
    async with raw_client(served) as client:
        client.writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        await until(lambda: len(served.server.server_state.tasks) == 1)
        await client.hang_up()
        await until(lambda: len(served.server.server_state.tasks) == 0)
    assert served.engine.stats.started == started


async def test_a_half_prefilled_prompt_leaves_no_wrong_pages(served: Served) -> None:
    """A04: what is cached of it is whole pages of computed tokens."""
    prompt = "q" * 1500
    served.runner.pause()
    async with raw_client(served) as client:
        client.post("completions", {"model": "fake", "prompt": prompt, "stream": True})
        await until(lambda: served.engine.load().running == 1)
        served.runner.allow(3)
        await until(lambda: len(served.runner.batches) and served.engine.load().pages.private > 30)
        await client.hang_up()
        await until(lambda: served.engine.load().running == 0)
    served.runner.resume()
    text = (await served.complete(prompt, max_tokens=20, temperature=0)).json()["choices"][0]["text"]
    assert text == bytes(hashed_tokens(prompt.encode(), 20)).decode()


async def test_many_aborted_streams_leave_nothing(served: Served) -> None:
    """A03"""
    before = aborted(served)
    limit = asyncio.Semaphore(16)

    async def one(index: int) -> None:
        async with limit, raw_client(served) as client:
            client.post("chat/completions", chat_body(f"{index}", **ENDLESS, stream=True))
            await client.read_events(1 + index % 5)

    await asyncio.gather(*map(one, range(300)))
    await until(lambda: aborted(served) == before + 300)
    assert pages_in_use(served) == 0


async def test_an_abort_may_race_with_the_end(served: Served) -> None:
    """A05: hang-ups at random moments around the last token."""
    rng = random.Random(0)
    stats = served.engine.stats
    limit = asyncio.Semaphore(16)

    async def one(index: int) -> None:
        async with limit, raw_client(served) as client:
            client.post(
                "completions", {"model": "fake", "prompt": f"{index % 7}", "max_tokens": 8, "stream": True}
            )
            for _ in range(rng.randrange(12)):
                if not await client.reader.readline():
                    break

    await asyncio.gather(*map(one, range(300)))
    await until(lambda: sum(stats.finished.values()) == stats.started)


async def test_a_client_may_leave_between_the_last_token_and_the_end(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = EventStream.write
    cancelled: list[bytes] = []

    async def slow(self: EventStream, *events: bytes) -> None:
        if DONE not in events:
            await write(self, *events)
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.extend(events)
            raise

    monkeypatch.setattr(EventStream, "write", slow)
    finished = served.engine.stats.finished["length"]
    async with raw_client(served) as client:
        client.post("completions", {"model": "fake", "prompt": "x", "max_tokens": 3, "stream": True})
        async with asyncio.timeout(HANGS_S):
            while b'"finish_reason":"length"' not in await client.reader.readline():
                pass
        assert served.engine.stats.finished["length"] == finished + 1
        await client.hang_up()
    await until(lambda: not served.server.server_state.tasks)
    assert cancelled == [DONE]


async def test_a_mix_of_everything_leaves_nothing(served: Served) -> None:
    """A37: aborts, stop strings, full lengths, several choices and JSON, all at once."""
    limit = asyncio.Semaphore(24)
    before = aborted(served)
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    kinds: list[dict[str, Any]] = [
        {"stop": list("abc"), "max_tokens": 50},
        {"max_tokens": 20, "ignore_eos": True},
        {"n": 3, "max_tokens": 10},
        {"guided_json": schema | {"additionalProperties": False}, "max_tokens": 40},
    ]

    async def one(index: int) -> None:
        async with limit:
            kind, prompt = index % 5, f"prompt {index % 11} " * 4
            if kind < 4:
                response = await served.complete(prompt, **kinds[kind])
                reasons = {choice["finish_reason"] for choice in response.json()["choices"]}
                assert reasons <= {"stop", "length"}
                return
            async with raw_client(served) as client:
                client.post("completions", {"model": "fake", "prompt": prompt, **ENDLESS, "stream": True})
                await client.read_events(1 + index % 3)

    await asyncio.gather(*map(one, range(200)))
    await until(lambda: aborted(served) == before + 40)
    assert pages_in_use(served) == 0
    served.engine.flush_cache()
    assert served.engine.load().pages.free == served.engine.load().pages.total


async def test_a_slow_reader_holds_up_nobody() -> None:
    """What it does not take is merged in its stream; the engine and the others go on."""
    tokens = 1000
    fields = {"ignore_eos": True, "max_tokens": tokens, "n": 2, "stream": True}
    async with serving(num_pages=8192) as served, raw_client(served, receive_buffer=4096) as slow:
        slow.post("completions", {"model": "fake", "prompt": ["x"] * 8, **fields})
        await slow.read_events(1)
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a read transport, too
        for _ in range(3):
            assert (await served.complete("y", max_tokens=20)).status_code == 200
        await until(lambda: served.engine.load().running == 0)
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        text = b""
        while not text.endswith(b"0\r\n\r\n"):
            text += await slow.reader.read(1 << 16)
    assert text.count(b'"finish_reason":"length"') == 16
    assert text.count(b"data: ") < 16 * tokens / 2
    assert b"data: [DONE]" in text
