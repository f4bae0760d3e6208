"""What a client sees when the server fails it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import openai
import pytest

from engine.batch import SampleRow
from engine.tokenizer import Tokenizer
from tests.app.harness import Served, chat_body, error_of, events, raw_client, serving, until
from tests.fakes import hashed_tokens

DOOMED = 13
"""Seed of requests whose fourth token cannot be sampled."""


def fails_when_doomed(row: SampleRow) -> int | None:
    return -1 if row.params.seed == DOOMED and row.position - row.num_prompt == 3 else None


async def test_a_failure_in_a_stream_is_one_event_before_the_end(served: Served) -> None:
    """A06: and other requests go on."""
    served.runner.script = fails_when_doomed
    fields: dict[str, Any] = {"stream": True, "max_tokens": 30}
    failed, fine = await asyncio.gather(
        served.chat(seed=DOOMED, **fields), served.complete("fine", **fields | {"seed": 1})
    )
    assert failed.status_code == 200
    *chunks, last = events(failed.text)
    assert len("".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)) <= 3
    assert not any(chunk["choices"][0]["finish_reason"] for chunk in chunks)
    assert list(last) == ["error"]
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert last["error"]["type"] == "server_error"
    assert failed.text.count('"error"') == 1
    text = "".join(chunk["choices"][0]["text"] for chunk in events(fine.text))
    assert text == bytes(hashed_tokens(b"fine", 30)).decode()


async def test_the_connection_is_closed_after_it(served: Served) -> None:
    """A06: as a client that knows no error events has to notice, too."""
    served.runner.script = fails_when_doomed
    async with raw_client(served) as client:
        client.post("completions", {"model": "fake", "prompt": "fine", "stream": True, "max_tokens": 2})
        await client.reader.readuntil(b"[DONE]\n\n\r\n0\r\n\r\n")
        client.post("chat/completions", chat_body(seed=DOOMED, stream=True, max_tokens=30))
        rest = await client.reader.read()
    assert rest.count(b'"error"') == 1
    assert rest.endswith(b"[DONE]\n\n\r\n0\r\n\r\n")


async def test_the_official_client_raises_on_it(served: Served) -> None:
    """A06"""
    served.runner.script = fails_when_doomed
    async with served.openai() as client:
        stream = await client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "x"}], seed=DOOMED, stream=True
        )
        with pytest.raises(openai.APIError, match="generation failed"):
            async for _ in stream:
                pass
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": "x"}], seed=DOOMED
            )


async def test_a_failed_whole_answer_is_a_500(served: Served) -> None:
    served.runner.script = fails_when_doomed
    response = await served.chat(seed=DOOMED)
    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"


async def test_one_failed_choice_ends_all_of_the_request(served: Served) -> None:
    before = served.engine.stats.finished["abort"]
    served.runner.script = lambda row: -1 if row.seed == 6 and row.position > 60 else None
    response = await served.complete("x" * 50, n=3, seed=5, max_tokens=500)
    assert response.status_code == 500
    await until(lambda: served.engine.stats.finished["abort"] == before + 2)


async def test_a_failed_forward_pass_ends_its_requests_only(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "radish.engine")
    served.runner.fails = lambda batch: len(served.runner.batches) % 50 == 0
    answers = await asyncio.gather(*(served.complete(f"{i}", max_tokens=60) for i in range(4)))
    assert {answer.status_code for answer in answers} <= {200, 500}
    served.runner.fails = lambda batch: False
    assert (await served.complete("again", max_tokens=5)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unforeseen_error_before_the_answer_is_a_logged_500(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, stream: bool
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("app.chat_generation.sampling_params", lambda *args, **kwargs: 1 // 0)
        response = await served.chat(stream=stream)
    assert response.status_code == 500
    assert error_of(response)["message"] == "Internal error."
    assert "ZeroDivisionError" in caplog.text
    assert response.headers["x-request-id"] in caplog.text


async def test_an_unforeseen_error_within_a_stream_is_an_event(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("app.chat.pieces_of", lambda splitter, update: 1 // 0)
        response = await served.chat(stream=True, max_tokens=300)
    assert response.status_code == 200
    assert events(response.text)[-1]["error"]["message"] == "Internal error."
    assert "ZeroDivisionError" in caplog.text


async def test_a_full_queue_is_a_429_with_a_time_to_wait() -> None:
    """A50"""
    async with serving(max_running=1, max_waiting=2) as served:
        served.runner.pause()
        async with asyncio.TaskGroup() as group:
            for index in range(3):
                group.create_task(served.complete(f"{index}", max_tokens=2))
                await until(lambda count=index: sum(_load(served)) == count + 1)
            response = await served.chat(stream=True)
            assert response.status_code == 429
            assert error_of(response)["type"] == "rate_limit_error"
            assert 1 <= int(response.headers["retry-after"]) <= 120
            assert served.engine.stats.rejected["queue_full"] == 1
            # Nothing is done for what will be refused: nobody learns that it is too long as well.
            for refused in (
                await served.chat("x" * 5000),
                await served.complete("x" * 5000),
                await served.post("embeddings", {"model": "fake", "input": "x" * 5000}),
                await served.post("score", {"query": "x" * 5000, "items": "y", "labels": ["z"]}),
            ):
                assert refused.status_code == 429
            assert served.engine.stats.rejected == {"queue_full": 5}
            served.runner.resume()
        assert (await served.chat(max_tokens=1)).status_code == 200
        assert (await served.chat("x" * 5000)).status_code == 400


def _load(served: Served) -> tuple[int, int]:
    load = served.engine.load()
    return load.running, load.waiting


async def test_too_many_constraints_that_wait_are_a_429(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    rejected = served.engine.stats.rejected["compiler_full"]
    monkeypatch.setattr(served.engine.compiler._turns, "_most", 0)
    for refused in (
        await served.chat(guided_choice=["not compiled yet"]),
        await served.post("schema/check", {"schema": {"const": "not compiled yet"}}),
    ):
        assert (refused.status_code, error_of(refused)["code"]) == (429, "queue_full")
        assert refused.headers["retry-after"] == "1"
    assert served.engine.stats.rejected["compiler_full"] == rejected + 2
    monkeypatch.undo()
    choice = (await served.chat(guided_choice=["not compiled yet"])).json()["choices"][0]
    assert choice["message"]["content"] == "not compiled yet"


async def test_silence_is_filled_with_comments() -> None:
    async with serving(heartbeat=0.01) as served, raw_client(served) as client:
        served.runner.pause()
        client.post("chat/completions", chat_body(stream=True, max_tokens=4))
        comments = 0
        while comments < 3:
            comments += await client.reader.readline() == b": keep-alive\n"
        served.runner.resume()
        text = ""
        while "finish_reason" not in text or "length" not in text:
            text = (await client.reader.readline()).decode()
        assert (await client.reader.readuntil(b"[DONE]")).count(b"data:") == 1


async def test_a_draining_server_finishes_what_runs_and_refuses_what_comes(served: Served) -> None:
    """A50"""
    served.runner.pause()
    running = asyncio.create_task(served.chat(max_tokens=20, stream=True))
    await until(lambda: served.engine.load().running == 1)
    served.state.draining.set()
    try:
        for response in (await served.chat(), await served.complete(), await served.http.get("/ready")):
            assert response.status_code == 503
            assert error_of(response)["type"] == "server_error"
            assert 1 <= int(response.headers["retry-after"]) <= 120
        assert (await served.http.get("/health")).status_code == 200
        served.runner.resume()
        assert events((await running).text)[-1]["choices"][0]["finish_reason"] == "length"
    finally:
        served.state.draining.clear()


async def test_a_tokenizer_that_raises_fails_its_request_only(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = Tokenizer.encode

    def faulty(self: Tokenizer, text: str, **flags: bool) -> list[int]:
        if text == "bad":
            raise ZeroDivisionError
        return encode(self, text, **flags)

    with monkeypatch.context() as patch:
        patch.setattr(Tokenizer, "encode", faulty)
        bad, good = await asyncio.gather(served.complete("bad"), served.complete("good", max_tokens=3))
    assert (bad.status_code, error_of(bad)["code"]) == (500, "internal_error")
    assert good.status_code == 200


async def test_a_stuck_step_is_told_by_readiness() -> None:
    async with serving(step_timeout=0.05) as served:
        served.runner.pause()
        stuck = asyncio.create_task(served.complete(max_tokens=3))
        await until(lambda: served.engine.is_stuck)
        for response in (await served.http.get("/ready"), await served.complete()):
            assert response.status_code == 503
            assert error_of(response)["message"] == "A step of the engine hangs."
        served.runner.resume()
        assert (await stuck).status_code == 200
        await until(lambda: served.engine.is_ready)
        assert (await served.http.get("/ready")).status_code == 200
