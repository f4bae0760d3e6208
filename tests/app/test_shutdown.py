"""SIGTERM at every stage, on the whole process loop with a fake model."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from app.serve import EXIT_HANGS
from app.server import create_app, serve
from app.state import AppState
from engine.engine import Engine
from tests.app.harness import chat_body, error_of, events, until
from tests.app.test_compile_limits import ENDLESS
from tests.fakes import HANGS_S, FakeRunner, assert_quiet, fake_engine, hashed_tokens


@dataclass
class Process:
    """What `radish serve` runs, in this event loop."""

    engine: Engine
    runner: FakeRunner
    state: AppState
    http: httpx.AsyncClient
    serving: asyncio.Task[None]

    def stream(self) -> asyncio.Task[httpx.Response]:
        """A stream of 20 tokens."""
        body = {"model": "fake", "prompt": "x", "max_tokens": 20, "stream": True}
        return asyncio.create_task(self.http.post("/v1/completions", json=body))


@asynccontextmanager
async def process(**settings: Any) -> AsyncIterator[Process]:
    """Must have ended, quiet and without an error, when the test is done."""
    engine, runner = fake_engine(**{"port": 0, "num_pages": 256, **settings})
    app = create_app(engine, engine.config)
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(app, engine.config, url.set_result))
    async with httpx.AsyncClient(base_url=await url, timeout=HANGS_S) as http:
        try:
            yield Process(engine, runner, app.state.radish, http, serving)
            async with asyncio.timeout(HANGS_S):
                await serving
        finally:
            runner.resume()
            serving.cancel()
    assert_quiet(engine)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def last_error(stream: httpx.Response) -> str:
    message: str = events(stream.text)[-1]["error"]["message"]
    return message


async def test_running_streams_finish_and_new_requests_are_refused() -> None:
    async with process() as server:
        server.runner.pause()
        stream = server.stream()
        await until(lambda: server.engine.load().running == 1)
        assert (await server.http.get("/ready")).status_code == 200
        terminate()
        await until(server.state.draining.is_set)
        for refused in (
            await server.http.get("/ready"),
            await server.http.post("/v1/chat/completions", json=chat_body()),
            await server.http.post("/v1/completions", json={"model": "fake", "prompt": "x"}),
        ):
            assert refused.status_code == 503
            assert error_of(refused)["message"] == "The server is shutting down."
            assert 1 <= int(refused.headers["retry-after"]) <= 120
        assert (await server.http.get("/health")).status_code == 200
        server.runner.resume()
        said = "".join(chunk["choices"][0]["text"] for chunk in events((await stream).text))
        assert said == bytes(hashed_tokens(b"x", 20)).decode()


async def test_what_takes_longer_than_the_drain_timeout_is_ended_and_told() -> None:
    async with process(drain_timeout=0.05) as server:
        server.runner.pause()
        stream = server.stream()
        await until(lambda: server.engine.load().running == 1)
        terminate()
        await until(lambda: server.engine.stats.finished["abort"] == 1)
        server.runner.resume()
        assert last_error(await stream) == "The server ended the request to shut down."


async def test_a_second_sigterm_ends_what_runs() -> None:
    async with process(drain_timeout=1000) as server:
        server.runner.pause()
        stream = server.stream()
        await until(lambda: server.engine.load().running == 1)
        terminate()
        await until(server.state.draining.is_set)
        assert server.engine.load().running == 1
        terminate()
        await until(lambda: server.engine.stats.finished["abort"] == 1)
        server.runner.resume()
        assert last_error(await stream) == "The server ended the request to shut down."


@pytest.mark.parametrize("signals", [1, 2])
async def test_a_step_that_never_ends_does_not_keep_the_server(signals: int) -> None:
    async with process(step_timeout=0.1, drain_timeout=0.1 if signals == 1 else 1000) as server:
        server.runner.pause()
        stream = server.stream()
        await until(lambda: server.engine.is_stuck)
        terminate()
        if signals == 2:
            await until(server.state.draining.is_set)
            terminate()
        assert last_error(await stream) == "The server ended the request to shut down."
        await server.serving
        assert server.engine.hangs


_HANGING = """
from engine import load
from app.serve import run
from tests.fakes import fake_engine

engine, runner = fake_engine(port=0, step_timeout=0.1, drain_timeout=1000)
runner.pause()
load.load_engine = lambda config, progress: engine
run(engine.config)
"""


async def test_the_process_ends_though_a_step_does_not() -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _HANGING, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        url = (await child.stdout.readline()).decode().split()[-1]
        async with httpx.AsyncClient(base_url=url, timeout=HANGS_S) as http:
            body = {"model": "fake", "prompt": "x", "stream": True}
            stream = asyncio.create_task(http.post("/v1/completions", json=body))
            while (await http.get("/ready")).status_code == 200:  # noqa: ASYNC110  nothing tells when
                await asyncio.sleep(0.01)
            child.terminate()
            while not stream.done():  # a stuck server does not say that it drains
                child.terminate()
                await asyncio.sleep(0.05)
            assert last_error(await stream) == "The server ended the request to shut down."
        async with asyncio.timeout(HANGS_S):
            assert await child.wait() == EXIT_HANGS
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


_PAUSED = """
import sys
import threading

from engine import load
from app.serve import run
from tests.fakes import fake_engine

engine, runner = fake_engine(port=0, drain_timeout=1000)
runner.pause()
threading.Thread(target=lambda: (sys.stdin.readline(), runner.resume()), daemon=True).start()
load.load_engine = lambda config, progress: engine
run(engine.config)
"""


@pytest.mark.parametrize("signals", [1, 2])
async def test_the_process_ends_with_0(signals: int) -> None:
    """After one SIGTERM amid a stream when that is done, after two when it was told."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PAUSED, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        url = (await child.stdout.readline()).decode().split()[-1]
        async with asyncio.timeout(HANGS_S), httpx.AsyncClient(base_url=url, timeout=HANGS_S) as http:
            body = {"model": "fake", "prompt": "x", "max_tokens": 20, "stream": True}
            stream = asyncio.create_task(http.post("/v1/completions", json=body))
            running = re.compile(r"^vllm:num_requests_running{.*} 1\.0$", re.MULTILINE)
            while not running.search((await http.get("/metrics")).text):  # noqa: ASYNC110  nothing tells when
                await asyncio.sleep(0.01)
            child.terminate()
            while (await http.get("/ready")).status_code == 200:  # noqa: ASYNC110  nothing tells when
                await asyncio.sleep(0.01)
            refused = await http.post("/v1/completions", json=body)
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
            if signals == 2:
                child.terminate()
                assert last_error(await stream) == "The server ended the request to shut down."
            child.stdin.write(b"\n")
            if signals == 1:
                said = "".join(chunk["choices"][0]["text"] for chunk in events((await stream).text))
                assert said == bytes(hashed_tokens(b"x", 20)).decode()
        async with asyncio.timeout(HANGS_S):
            assert await child.wait() == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def test_the_live_feed_does_not_wait_for_its_next_frame() -> None:
    """It ends while a stream that is let finish still runs."""
    async with process() as server:
        server.runner.pause()
        stream = server.stream()
        await until(lambda: server.engine.load().running == 1)
        async with server.http.stream("GET", "/live?period=2") as feed:
            lines = feed.aiter_lines()
            assert (await anext(lines)).startswith("data: {")
            terminate()
            rest = [line async for line in lines if line]
        assert len(rest) <= 1
        assert server.engine.load().running == 1
        server.runner.resume()
        assert (await stream).status_code == 200


async def test_idle_and_unfinished_connections_hold_up_nothing() -> None:
    async with process() as server:
        assert (await server.http.get("/health")).status_code == 200
        port = server.http.base_url.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
        await writer.drain()
        terminate()
        await server.serving
        assert await reader.read() == b""
        writer.close()


_BODY_BEGUN = b"\r\n".join(
    [
        b"POST /v1/completions HTTP/1.1",
        b"Host: x",
        b"Content-Type: application/json",
        b"Content-Length: 99",
        b"",
        b"{",
    ]
)


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
async def test_a_request_that_is_cut_off_is_refused_when_nothing_runs_any_more(path: str) -> None:
    """At once, not when connections that do not end are given up: that is an error in the log."""
    async with process() as server:
        server.runner.pause()
        stream = server.stream()
        await until(lambda: server.engine.load().running == 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.http.base_url.port)
        writer.write(_BODY_BEGUN.replace(b"/v1/completions", path.encode()))
        await writer.drain()
        terminate()
        await until(server.state.draining.is_set)
        server.runner.resume()
        assert (await stream).status_code == 200
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in head
        assert b"\r\nconnection: close\r\n" in head
        assert rest == b""
        writer.close()


async def test_requests_before_one_that_is_cut_off_get_their_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Though their client reads them only when the server has begun to close connections."""
    async with process() as server:
        port = server.http.base_url.port
        one = (await server.http.get("/openapi.json")).content
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=connection)
        writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 8 + _BODY_BEGUN)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        terminate()
        with suppress(ConnectionRefusedError):
            while True:
                _, probe = await asyncio.open_connection("127.0.0.1", port)
                probe.close()
                await probe.wait_closed()
        assert (await reader.read()).count(one) == 8
        writer.close()
        await server.serving
    assert caplog.records == []  # no connection was waited for in vain


async def test_requests_whose_grammars_are_not_compiled_yet_are_told() -> None:
    """Neither that their grammars are at fault, nor nothing: two are being compiled, two wait."""
    async with process(grammar_timeout=1000.0) as server:
        bodies = [
            {"model": "fake", "prompt": "x", "guided_grammar": f"{ENDLESS['guided_grammar']}  // {number}"}
            for number in range(4)
        ]
        answers = [asyncio.create_task(server.http.post("/v1/completions", json=body)) for body in bodies]
        await until(lambda: len(server.engine.compiler._cache._entries) == len(bodies))
        terminate()
        for answer in await asyncio.gather(*answers):
            assert answer.status_code == 503
            assert error_of(answer)["message"] == "The server is shutting down."
