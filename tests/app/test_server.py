"""The routes for whoever runs the server, and its life from start to SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.server import create_app, listen, serve, url_of
from engine.config import Config
from engine.engine import Engine
from engine.tokenizer import Tokenizer
from tests.app.harness import CONTROL_PROMPT, CONTROL_TEXT, Served, events, raw_client, until
from tests.fakes import HANGS_S, FakeRunner, assert_quiet, fake_engine, hashed_tokens


async def test_models(served: Served) -> None:
    listed = (await served.http.get("/v1/models")).json()
    (model,) = listed["data"]
    assert listed["object"] == "list"
    assert (model["id"], model["object"], model["max_model_len"]) == ("fake", "model", 4096)
    assert isinstance(model["created"], int)
    assert (await served.http.get("/v1/models/fake")).json() == model


async def test_health_and_readiness(served: Served) -> None:
    assert (await served.http.get("/health")).json() == {"status": "ok"}
    assert (await served.http.get("/ready")).json() == {"status": "ready"}
    assert (await served.http.head("/health")).status_code == 200


async def test_metrics_follow_the_requests(served: Served) -> None:
    """A47: read when they are asked for; started = finished + running + waiting."""
    before = await scrape(served.http)
    await served.complete("x" * 7, max_tokens=5, n=2)
    async with raw_client(served) as client:
        body = {"model": "fake", "prompt": "y", "ignore_eos": True, "max_tokens": 2000, "stream": True}
        client.post("completions", body)
        await client.read_events(2)
        served.runner.pause()
        assert (await scrape(served.http))["vllm:num_requests_running"] == 1
        await client.hang_up()
        await until(lambda: served.engine.load().running == 0)
    after = await scrape(served.http)
    served.runner.resume()
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0
    changed = {name: after[name] - before.get(name, 0) for name in after}
    assert changed["vllm:request_success_total length"] == 2
    assert changed["vllm:request_success_total abort"] == 1
    assert changed["radish:requests_started_total"] == 3


async def scrape(http: httpx.AsyncClient) -> dict[str, float]:
    response = await http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        " ".join(filter(None, (sample.name, sample.labels.get("finished_reason")))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


async def test_small_writes_are_sent_at_once(served: Served) -> None:
    """Nagle's algorithm is off: no event waits for the acknowledgement of the one before."""
    async with raw_client(served) as client:
        client.writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.reader.readline()
        for connection in served.server.server_state.connections:
            transport: Any = connection.transport
            accepted = transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_kept_connections_outlive_the_pools_of_clients(served: Served) -> None:
    """A50: a client that thinks its connection is open while the server closes it gets a reset."""
    assert served.server.config.timeout_keep_alive == served.state.config.keep_alive >= 75


async def test_preparing_a_prompt_holds_up_nobody(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A45: tokenising runs in a thread, and nothing waits for it but its own request."""
    entered, leave = threading.Event(), threading.Event()
    encode = Tokenizer.encode

    def slow(self: Tokenizer, text: str, **flags: bool) -> list[int]:
        if text == "slow":
            entered.set()
            leave.wait()
        return encode(self, text, **flags)

    monkeypatch.setattr(Tokenizer, "encode", slow)
    slow_answer = asyncio.create_task(served.complete("slow", max_tokens=3))
    try:
        await until(entered.is_set)
        assert (await served.http.get("/health")).status_code == 200
        assert (await served.complete([1, 2, 3], max_tokens=30)).status_code == 200
    finally:
        leave.set()
    assert (await slow_answer).status_code == 200
    monkeypatch.undo()


async def test_many_prompts_are_tokenised_at_once(served: Served) -> None:
    """A46"""
    prompts = [f"{n} {'ünï ' * n}" for n in range(64)]
    answers = await asyncio.gather(
        *(served.complete(prompt, max_tokens=6) for prompt in prompts),
        *(served.chat(prompt, max_tokens=6, stop=["\0"], bad_words=[prompt]) for prompt in prompts),
        *(served.http.post("/tokenize", json={"prompt": prompt}) for prompt in prompts),
    )
    assert {answer.status_code for answer in answers} == {200}
    assert [answer.json()["choices"][0]["text"] for answer in answers[:64]] == [
        bytes(hashed_tokens(prompt.encode(), 6)).decode() for prompt in prompts
    ]
    tokens = [list(prompt.encode()) for prompt in prompts]
    assert [answer.json()["tokens"] for answer in answers[128:]] == tokens


@asynccontextmanager
async def serving_until_told(**settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Engine, FakeRunner]]:
    """`serve` in this event loop; the body has to end it by a signal."""
    engine, runner = fake_engine(port=0, num_pages=1024, **settings)
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(create_app(engine, engine.config), engine.config, url.set_result))
    try:
        async with httpx.AsyncClient(base_url=await url, timeout=HANGS_S) as http:
            yield http, engine, runner
        await asyncio.wait_for(serving, 10)
    finally:
        runner.resume()
        serving.cancel()
    assert_quiet(engine)


def tell_to_stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def ask(http: httpx.AsyncClient, **fields: Any) -> asyncio.Task[httpx.Response]:
    body = {"model": "fake", "prompt": "x", **fields}
    return asyncio.create_task(http.post("/v1/completions", json=body))


async def test_running_streams_finish_after_sigterm() -> None:
    """A50: readiness is off, what comes new is refused, what runs finishes."""
    async with serving_until_told() as (http, engine, runner):
        runner.pause()
        stream = ask(http, max_tokens=50, stream=True)
        await until(lambda: engine.load().running == 1)
        tell_to_stop()
        ready = await http.get("/ready")
        while ready.status_code == 200:
            ready = await http.get("/ready")
        refused = await ask(http)
        assert (ready.status_code, refused.status_code) == (503, 503)
        assert int(refused.headers["retry-after"]) >= 1
        runner.resume()
        chunks = events((await stream).text)
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert len("".join(chunk["choices"][0]["text"] for chunk in chunks)) == 50


@pytest.mark.parametrize("drain_timeout", [0.01, 60])
async def test_what_does_not_finish_in_time_is_told_so(drain_timeout: float) -> None:
    """A50: after the timeout, or at a second signal."""
    async with serving_until_told(drain_timeout=drain_timeout) as (http, engine, _):
        stream = ask(http, ignore_eos=True, max_tokens=4000, stream=True)
        whole = ask(http, ignore_eos=True, max_tokens=4000)
        await until(lambda: engine.load().running == 2)
        tell_to_stop()
        if drain_timeout > 1:
            while (await http.get("/ready")).status_code == 200:
                pass
            tell_to_stop()
        assert events((await stream).text)[-1]["error"]["code"] == "service_unavailable"
        assert (await whole).status_code == 503


async def test_an_address_in_use_is_an_error() -> None:
    with listen(Config(port=0)) as taken:
        port = int(url_of(taken).rpartition(":")[2])
        engine, _ = fake_engine(port=port)
        with pytest.raises(OSError, match="in use"):
            await serve(create_app(engine, engine.config), engine.config, lambda url: None)
        await engine.stop()


def test_addresses_are_written_as_urls() -> None:
    with listen(Config(port=0, host="::1")) as listener:
        assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"


_PROGRAM = """
import uvloop
from app.server import create_app, serve
from tests.fakes import fake_engine
engine, _ = fake_engine(port=0)
uvloop.run(serve(create_app(engine, engine.config), engine.config, lambda url: print(url, flush=True)))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_process_exits_with_zero(number: signal.Signals) -> None:
    """A50"""
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        body = {"model": "fake", "prompt": "x", "max_tokens": 3}
        assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200
        process.send_signal(number)
        assert process.wait(20) == 0


def test_a_killed_process_can_be_started_again_at_once() -> None:
    """The next one takes the same address and has the same texts."""
    with listen(Config(port=0)) as free:
        port = int(url_of(free).rpartition(":")[2])
    program = _PROGRAM.replace("port=0", f"port={port}")
    body = {"model": "fake", "prompt": CONTROL_PROMPT, "max_tokens": 12}
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.endswith(f":{port}")
            answer = httpx.post(f"{url}/v1/completions", json=body).json()
            assert answer["choices"][0]["text"] == CONTROL_TEXT
            long = {**body, "max_tokens": 4000, "stream": True}
            with httpx.stream("POST", f"{url}/v1/completions", json=long):
                process.kill()
                assert process.wait(20) == -signal.SIGKILL
