"""Keys: nothing answers without one, each has its limits and its own cache, and the file may change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.routing import Mount, Route

from app.bench_client import Client
from app.key_limits import Bucket
from app.keys import KeyRing
from app.server import create_app
from app.terminal_chat import ChatConfig, Conversation
from app.top import frames
from engine.errors import ConfigError
from tests.app.harness import Served, become_quiet, error_of, raw_client, server_tasks, serving, until
from tests.fakes import HANGS_S, assert_quiet, fake_engine

ALICE, BOB = "alice-1", "bob-1"
ASKED = {"model": "fake", "prompt": "asked", "max_tokens": 3}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
async def locked_server() -> AsyncIterator[Served]:
    async with serving(api_key=(ALICE, BOB)) as server:
        yield server


@pytest.fixture
async def locked(locked_server: Served) -> AsyncIterator[Served]:
    """A server that wants a key; its client sends none but at the end."""
    locked_server.http.headers.pop("authorization", None)
    known = server_tasks()
    yield locked_server
    locked_server.http.headers.update(bearer(ALICE))
    await become_quiet(locked_server, known)


def assert_refused(response: httpx.Response) -> None:
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    error = error_of(response)
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")


async def test_open_paths_answer_without_a_key(locked: Served) -> None:
    for path in ("/health", "/ready", "/", "/static/main.js"):
        assert (await locked.http.get(path)).status_code == 200


async def test_every_route_by_every_method_wants_a_key(locked: Served) -> None:
    """A48: the routes are asked for, so a new one is in this test on the day it is made."""
    engine, _ = fake_engine()
    routes = create_app(engine, engine.config).routes
    await engine.stop()
    paths = {route.path.replace("{model:path}", "fake") for route in routes if isinstance(route, Route)}
    assert {route.path for route in routes if isinstance(route, Mount)} == {"/static"}
    for path in sorted(paths - {"/health", "/ready", "/"}):
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
            response = await locked.http.request(method, path)
            assert response.status_code == 401, (method, path)


@pytest.mark.parametrize(
    "target",
    [
        "//v1/models",
        "/v1//models",
        "/v1/models/",
        "/V1/models",
        "/./v1/models",
        "/health/../v1/models",
        "/health%2f..%2fv1/models",
        "/%76%31/models",
        "/v1/models?x=/health",
        "/v1/models#/health",
        "/v1/models;/health",
        "/health;/../v1/models",
        "/ready%0a",
        "/metrics",
        "/live",
        "/live/snapshot",
        "http://localhost/v1/models",
        "http://localhost/v1/models?/health",
        "/nowhere",
    ],
)
async def test_no_spelling_of_a_path_gets_past(locked: Served, target: str) -> None:
    async with raw_client(locked) as client:
        client.writer.write(f"GET {target} HTTP/1.1\r\nHost: /health\r\n\r\n".encode())
        assert b" 401 " in await client.reader.readline()


async def test_dots_in_the_open_folder_stay_in_it(locked: Served) -> None:
    for target in ("/static/../v1/models", "/static/%2e%2e/%2e%2e/v1/models", "/static//v1/models"):
        async with raw_client(locked) as client:
            client.writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert b" 404 " in await client.reader.readline()


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "")],
        [("Authorization", "Bearer")],
        [("Authorization", ALICE)],
        [("Authorization", f"Basic {ALICE}")],
        [("Authorization", f"Bearer {ALICE}x")],
        [("Authorization", f"Bearer {ALICE[:-1]}")],
        [("Authorization", f"Bearer {ALICE.upper()}")],
        [("Authorization", f"Bearer {ALICE},{BOB}")],
        [("Authorization", "Bearer no"), ("Authorization", f"Bearer {ALICE}")],
        [("Authorization", f"Bearer {ALICE}"), ("X-Api-Key", BOB)],
        [("X-Api-Key", "no")],
        [("Cookie", f"key={ALICE}")],
        [("X-Original-Url", "/health"), ("X-Rewrite-Url", "/health")],
        [("X-Forwarded-Prefix", "/health"), ("X-Http-Method-Override", "OPTIONS")],
    ],
)
async def test_no_other_header_is_a_key(locked: Served, headers: list[tuple[str, str]]) -> None:
    assert_refused(await locked.http.get("/v1/models", headers=headers))
    body = b'{"model": "fake", "prompt": "x"}'
    started = locked.engine.stats.started
    assert_refused(await locked.http.post("/v1/completions", headers=headers, content=body))
    assert locked.engine.stats.started == started


async def test_a_key_opens_by_either_header(locked: Served) -> None:
    for headers in (bearer(ALICE), bearer(BOB), {"X-Api-Key": BOB}, {"authorization": f"bearer   {ALICE}"}):
        assert (await locked.http.get("/v1/models", headers=headers)).status_code == 200
    locked.http.headers.update(bearer(ALICE))
    assert (await locked.complete(max_tokens=2)).status_code == 200


async def test_the_official_client_knows_the_error(locked: Served) -> None:
    import openai  # noqa: PLC0415  # slow to import, and needed here only

    async with locked.openai() as client:
        with pytest.raises(openai.AuthenticationError, match="valid API key"):
            await client.models.list()
        assert (await client.with_options(api_key=BOB).models.list()).data[0].id == "fake"


async def test_the_terminal_commands_send_the_key(locked: Served) -> None:
    client = Client(locked.url, api_key=ALICE, timeout_s=10)
    assert await client.first_model() == "fake"
    client.close()

    def in_thread() -> None:
        with httpx.Client(base_url=locked.url, headers=bearer(ALICE)) as http:
            assert next(frames(http, 0.1)).picture.model == "fake"
            conversation = Conversation(ChatConfig(max_tokens=4), http)
            assert len("".join(conversation.ask("hi"))) == 4

    await asyncio.to_thread(in_thread)


@pytest.mark.parametrize("share", [False, True])
async def test_cached_prefixes_stay_with_their_key(*, share: bool) -> None:
    async with serving(api_key=(ALICE, BOB), share_prefixes=share) as served:
        cached = []
        for key in (ALICE, BOB, ALICE):
            served.http.headers.update(bearer(key))
            answer = await served.complete("the same prompt of some pages", max_tokens=3)
            cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached == [0, 28 if share else 0, 28]


async def test_a_salt_cannot_name_another_keys_cache() -> None:
    async with serving(api_key=(ALICE, BOB)) as served:
        ring = KeyRing((ALICE, BOB), None)
        alice = ring.find(ALICE.encode())
        assert alice is not None
        prompt = "the same prompt of some pages"
        served.http.headers.update(bearer(ALICE))
        await served.complete(prompt, cache_salt="s", max_tokens=1)
        served.http.headers.update(bearer(BOB))
        for salt in ("s", f"{alice.id}/s", f"../{alice.id}/s"):
            answer = await served.complete(prompt, cache_salt=salt, max_tokens=1)
            assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_stored_response_is_its_keys_own() -> None:
    async with serving(api_key=(ALICE, BOB)) as served:
        body = {"model": "fake", "input": "a secret", "max_output_tokens": 3}
        made = await served.http.post("/v1/responses", json=body, headers=bearer(ALICE))
        path = f"/v1/responses/{made.json()['id']}"
        for response in (
            await served.http.get(path, headers=bearer(BOB)),
            await served.http.delete(path, headers=bearer(BOB)),
            await served.http.post(f"{path}/cancel", headers=bearer(BOB)),
            await served.http.post(
                "/v1/responses",
                json={**body, "previous_response_id": made.json()["id"]},
                headers=bearer(BOB),
            ),
        ):
            assert (response.status_code, error_of(response)["code"]) == (404, "response_not_found")
        assert (await served.http.get(path, headers=bearer(ALICE))).json()["id"] == made.json()["id"]


async def test_who_keeps_many_responses_loses_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(api_key=(ALICE, BOB)) as served:
        monkeypatch.setattr(served.state.responses, "_capacity", 3)
        body = {"model": "fake", "input": "x", "max_output_tokens": 1}
        paths: list[tuple[str, str]] = []
        for key in (ALICE, BOB, BOB, BOB, BOB):
            made = await served.http.post("/v1/responses", json=body, headers=bearer(key))
            paths.append((key, f"/v1/responses/{made.json()['id']}"))
        found = [(await served.http.get(path, headers=bearer(key))).status_code for key, path in paths]
        assert found == [200, 404, 404, 200, 200]


async def test_what_happened_to_a_request_is_its_keys_own() -> None:
    """While it runs and afterwards; the ids of all are on the live page."""
    async with serving(api_key=(ALICE, BOB)) as served:
        served.runner.pause()
        asking = asyncio.create_task(served.http.post("/v1/completions", json=ASKED, headers=bearer(ALICE)))
        await until(lambda: served.engine.load().running == 1)
        alice = KeyRing((ALICE,), None).find(ALICE.encode())
        assert alice is not None
        (running,) = served.engine.views(alice.id)
        id_ = running.request.rpartition("-")[0]
        for _ in ("running", "ended"):
            told = await served.http.get(f"/v1/requests/{id_}", headers=bearer(ALICE))
            assert told.json()["choices"][0]["prompt_tokens"] == len("asked")
            hidden = await served.http.get(f"/v1/requests/{id_}", headers=bearer(BOB))
            assert (hidden.status_code, error_of(hidden)["code"]) == (404, "request_not_found")
            served.runner.resume()
            assert (await asking).json()["id"] == id_


async def test_metrics_are_open_by_option() -> None:
    async with serving(api_key=(ALICE,), open_metrics=True) as served:
        assert (await served.http.get("/metrics")).status_code == 200
        assert (await served.http.get("/metrics/")).status_code == 401


async def test_limits_of_a_key(tmp_path: Path) -> None:
    """429 that names the limit; concurrency is given back whatever became of the request."""
    file = tmp_path / "keys"
    file.write_text(
        f"{ALICE} concurrency=1  # one at a time\nrate requests_per_minute=2\nsum tokens_per_minute=8\n"
    )
    async with serving(api_key_file=str(file)) as served:
        served.http.headers.update(bearer(ALICE))
        served.runner.pause()
        first = asyncio.create_task(served.complete(max_tokens=2))
        await until(lambda: served.engine.load().running == 1)
        refused = await served.complete()
        assert (refused.status_code, error_of(refused)["code"]) == (429, "key_concurrency")
        served.runner.resume()
        assert (await first).status_code == 200
        assert (await served.complete(max_tokens=0.5)).status_code == 400
        assert (await served.complete(max_tokens=2)).status_code == 200

        served.http.headers.update(bearer("rate"))
        statuses = [(await served.complete(max_tokens=1)).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]

        served.http.headers.update(bearer("sum"))
        assert (await served.complete("xxxxx", max_tokens=5)).status_code == 200
        refused = await served.complete("xxxxx", max_tokens=5)
        assert (refused.status_code, error_of(refused)["code"]) == (429, "key_tokens_per_minute")
        assert 1 <= int(refused.headers["retry-after"]) <= 120
        rejected = served.engine.stats.rejected
        assert (rejected["key_concurrency"], rejected["key_requests_per_minute"]) == (1, 1)
        assert rejected["key_tokens_per_minute"] == 1
    assert_quiet(served.engine)


async def test_a_response_in_the_background_counts_until_it_is_made(tmp_path: Path) -> None:
    """As a request at the same time, and with its tokens."""
    file = tmp_path / "keys"
    file.write_text(f"{ALICE} concurrency=1 tokens_per_minute=12\n")
    async with serving(api_key_file=str(file)) as served:
        served.http.headers.update(bearer(ALICE))
        served.runner.pause()
        body = {"model": "fake", "input": "x", "background": True, "max_output_tokens": 100}
        made = (await served.post("responses", body)).json()
        assert made["status"] == "in_progress"
        await until(lambda: served.engine.load().running == 1)
        refused = await served.complete()
        assert (refused.status_code, error_of(refused)["code"]) == (429, "key_concurrency")
        served.runner.resume()
        async with asyncio.timeout(HANGS_S):
            while (code := error_of(await served.complete())["code"]) == "key_concurrency":
                pass
        assert code == "key_tokens_per_minute"
        assert (await served.http.get(f"/v1/responses/{made['id']}")).json()["status"] == "incomplete"


async def test_a_response_in_the_background_may_be_cancelled_at_the_limit(tmp_path: Path) -> None:
    """It is what the limit is reached with."""
    file = tmp_path / "keys"
    file.write_text(f"{ALICE} concurrency=1 requests_per_minute=1\n")
    async with serving(api_key_file=str(file)) as served:
        served.http.headers.update(bearer(ALICE))
        served.runner.pause()
        body = {"model": "fake", "input": "x", "background": True, "max_output_tokens": 100}
        path = f"responses/{(await served.post('responses', body)).json()['id']}/cancel"
        cancelled = await served.post(path, {})
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
        served.runner.resume()
        await until(lambda: served.engine.stats.finished["abort"] == 1)
        assert error_of(await served.complete())["code"] == "key_requests_per_minute"


@pytest.mark.parametrize("share", [False, True])
async def test_compiled_grammars_stay_with_their_key(*, share: bool) -> None:
    """Whether a schema was compiled before is told by time alone, so only its own key's use may tell."""
    schema = {"const": "radish"}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with serving(api_key=(ALICE, BOB), share_prefixes=share) as served:
        hits = []
        for key in (ALICE, BOB, BOB, ALICE):
            served.http.headers.update(bearer(key))
            response = await served.chat(response_format=form, max_tokens=50)
            assert response.json()["choices"][0]["message"]["content"] == '"radish"'
            hits.append(served.engine.compiler.num_hits)
        assert hits == ([0, 1, 2, 3] if share else [0, 0, 1, 2])


def test_a_bucket_refills_evenly() -> None:
    bucket = Bucket()
    bucket.take(60, 60, now=100.0)
    assert bucket.wait_s(1, 60, now=100.0) == 1.0
    assert bucket.wait_s(1, 60, now=101.0) == 0.0
    bucket.take(31, 60, now=101.0)
    assert bucket.wait_s(1, 60, now=101.0) == 31.0
    assert bucket.wait_s(60, 60, now=1000.0) == 0.0


def test_the_key_file_may_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """New keys are taken and old ones refused at once; a fault changes nothing."""
    file = tmp_path / "keys"
    file.write_text("# keys\n\none\n")
    ring = KeyRing((), file)
    assert ring.find(b"one")
    assert ring.find(b"") is ring.find(b"# keys") is None
    file.write_text("second concurrency=3\n")
    assert ring.find(b"one") is None
    second = ring.find(b"second")
    assert second is not None
    assert second.limits.concurrency == 3
    for fault in ("third concurrency=none\n", "third burst=2\n", "third concurrency\n"):
        file.write_text(fault)
        assert ring.find(b"second")
        assert ring.find(b"third") is None
    assert "line 1" in caplog.text
    file.unlink()
    assert ring.find(b"second")
    file.write_bytes(b"\xef\xbb\xbffourth\r\nfifth\r\n")  # as editors on Windows save it
    assert ring.find(b"second") is None
    assert ring.find(b"fourth")
    assert ring.find(b"fifth")


def test_keys_that_cannot_be_read_are_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        KeyRing((), tmp_path / "missing")
    empty = tmp_path / "empty"
    empty.write_text("# none yet\n")
    with pytest.raises(ConfigError, match="holds no key"):
        KeyRing((), empty)
    with pytest.raises(ConfigError, match="a key is empty"):
        KeyRing(("",), None)
