"""The benchmark against a scripted server, and its figures against numpy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
import msgspec
import numpy as np
import pytest
from jsonschema import Draft202012Validator

from app.__main__ import main
from app.bench_client import Answer, Client, RequestFailedError
from app.bench_report import Level, Run
from app.bench_workload import KINDS, Job, Kind, Workload, schema_of

Body = dict[str, Any]


class ScriptedServer:
    """Speaks HTTP/1.1 over asyncio streams; `answer` gives the bytes that follow each request."""

    def __init__(self, answer: Callable[[str, Body], bytes]) -> None:
        self.answer = answer
        self.connections = 0
        self.together: dict[int, int] = {}
        """From which request on (counted from 1), how many must be here before any is answered."""
        self.bodies: list[Body] = []
        self.headers: list[str] = []
        self._meeting = asyncio.Barrier(1)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._exchange(head.decode(), reader, writer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def _exchange(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
        content = await reader.readexactly(length)
        body = json.loads(content) if content else {}
        self.bodies.append(body)
        self.headers.append(head)
        if parties := self.together.get(len(self.bodies)):
            self._meeting = asyncio.Barrier(parties)
        async with asyncio.timeout(20):
            await self._meeting.wait()
        answer = self.answer(head.split()[1], body)
        # In pieces that respect neither chunks nor events.
        for at in range(0, len(answer), 7):
            writer.write(answer[at : at + 7])
        await writer.drain()
        if not answer:
            writer.close()


@asynccontextmanager
async def serving(answer: Callable[[str, Body], bytes]) -> AsyncIterator[tuple[ScriptedServer, str]]:
    scripted = ScriptedServer(answer)
    server = await asyncio.start_server(scripted.handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield scripted, f"http://127.0.0.1:{port}"


def respond(status: int, content: bytes, *, chunked: bool = False) -> bytes:
    if not chunked:
        return f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
    pieces = [content[at : at + 11] for at in range(0, len(content), 11)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return f"HTTP/1.1 {status} X\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n\r\n"


def events(*payloads: Body) -> bytes:
    lines = b"".join(b"data: %b\n\n" % msgspec.json.encode(payload) for payload in payloads)
    return respond(200, b": a comment\n\n" + lines + b"data: [DONE]\n\n", chunked=True)


def chat_answer(*texts: str, prompt: int = 10, cached: int = 4, output: int = 3) -> bytes:
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    said = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return events(role, *said, end, {"choices": [], "usage": usage})


LIST = '["first item","second item"]'


def script(path: str, body: Body) -> bytes:
    """A model that lists two strings whatever it is asked for, and says "hë llo" to plain questions."""
    if path == "/v1/models":
        return respond(200, b'{"object": "list", "data": [{"id": "the-model"}, {"id": "other"}]}')
    return chat_answer(LIST, output=9) if "response_format" in body else chat_answer("hë", " llo")


def client(base_url: str) -> Client:
    return Client(base_url, api_key="secret", timeout_s=5)


async def test_an_answer_is_read_whatever_pieces_it_comes_in() -> None:
    async with serving(script) as (server, url):
        connection = client(url + "/v1/")
        assert await connection.first_model() == "the-model"
        answers = [await connection.chat({"n": n}) for n in range(3)]
        connection.close()
    for answer in answers:
        assert answer.text == "hë llo"
        assert len(answer.arrivals) == 2
        assert answer.sent <= answer.arrivals[0] <= answer.arrivals[1] <= answer.ended
        assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == (10, 4, 3)
    assert server.bodies == [{}, {"n": 0}, {"n": 1}, {"n": 2}]
    assert server.connections == 1
    assert all("\r\nAuthorization: Bearer secret\r\n" in head for head in server.headers)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (respond(400, b'{"error": {"message": "no such thing"}}'), "answered 400: no such thing"),
        (respond(502, b"<html>bad gateway", chunked=True), "answered 502: <html>bad gateway"),
        (events({"error": {"message": "out of pages"}}), "out of pages"),
        (respond(200, b"data: {nonsense\n\n"), "malformed"),
        (b"no HTTP at all\r\n\r\n", "HTTP"),
        (b"", "closed the connection"),
    ],
)
async def test_a_failure_says_what_happened_and_the_client_goes_on(answer: bytes, message: str) -> None:
    async with serving(lambda path, body: answer if body == {"fail": True} else chat_answer("ok")) as (
        _,
        url,
    ):
        connection = client(url)
        with pytest.raises(RequestFailedError, match=message):
            await connection.chat({"fail": True})
        assert (await connection.chat({})).text == "ok"
        connection.close()


async def test_a_connection_that_was_closed_between_requests_is_made_anew() -> None:
    answers = iter([chat_answer("first"), b"", chat_answer("second")])
    async with serving(lambda path, body: next(answers)) as (_, url):
        connection = client(url)
        assert [(await connection.chat({})).text for _ in range(2)] == ["first", "second"]
        connection.close()
    assert next(answers, None) is None


async def test_a_silent_server_is_given_up() -> None:
    never = asyncio.Event()

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await never.wait()
        writer.close()

    server = await asyncio.start_server(ignore, "127.0.0.1", 0)
    async with server:
        connection = Client(
            f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", api_key=None, timeout_s=0.05
        )
        with pytest.raises(RequestFailedError, match=r"no answer within 0\.05 s"):
            await connection.chat({})
        never.set()


async def bench_command(url: str, *options: str) -> int:
    """The whole command, on a loop of its own in another thread."""
    return await anyio.to_thread.run_sync(main, ["bench", "--base-url", url, *options])


async def test_each_level_runs_that_many_clients(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(script) as (server, url):
        # After the list of models, a warm-up and the two requests of one client come four at a time.
        server.together = {5: 4}
        options = "--concurrency 1,4 --requests-per 2 --max-tokens 9 --seed 5 --json"
        assert await bench_command(url, *options.split()) == 0
    levels = [msgspec.json.decode(line, type=Level) for line in capsys.readouterr().out.splitlines()]
    assert [level.concurrency for level in levels] == [1, 4]
    assert [level.requests for level in levels] == [2, 8]
    assert [level.output_tokens for level in levels] == [6, 24]
    for level in levels:
        assert level.failed == 0
        assert level.cached_share == 0.4
        assert level.valid_json_share is None
    models, warm_up, *measured = server.bodies
    assert models == {}
    assert warm_up["max_tokens"] == 4
    assert len(measured) == 10
    for body in measured:
        assert (body["model"], body["max_tokens"], body["temperature"]) == ("the-model", 9, 0.0)
        assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
        assert body["ignore_eos"] is True
    assert server.connections == 1 + 1 + 4


async def test_kinds_of_answers_take_turns_on_the_same_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--concurrency 2 --requests-per 4 --max-tokens 16 --schema --json"
    async with serving(script) as (server, url):
        assert await bench_command(url, *options.split()) == 0
    levels = [msgspec.json.decode(line, type=Level) for line in capsys.readouterr().out.splitlines()]
    assert [level.kind for level in levels] == list(KINDS)
    assert [level.output_tokens for level in levels] == [8 * 3, 8 * 9, 8 * 9]
    assert [level.valid_json_share for level in levels] == [None, 1.0, 0.0]
    for level in levels:
        assert level.requests == 8
        assert level.of_free == pytest.approx(level.tokens_per_s / levels[0].tokens_per_s, rel=0.01)

    # A warm-up of each kind, then rounds: a request that only fills the cache, and one of each kind.
    measured = server.bodies[2 + len(KINDS) :]
    turns = []
    for start in range(0, len(measured), 8):
        cached, *kinds = ([measured[start + at], measured[start + at + 1]] for at in (0, 2, 4, 6))
        prompts = sorted(json.dumps(body["messages"]) for body in cached)
        assert all(body["max_tokens"] == 1 for body in cached)
        for pair in kinds:
            assert sorted(json.dumps(body["messages"]) for body in pair) == prompts
            assert all(body["max_tokens"] == 16 for body in pair)
        turns.append([kind_of(pair[0]) for pair in kinds])
        assert turns[-1] == [kind_of(pair[1]) for pair in kinds]
    first, second, third = KINDS
    assert turns == [
        [first, second, third],
        [second, third, first],
        [third, first, second],
        [first, second, third],
    ]


def kind_of(body: Body) -> str:
    if "response_format" not in body:
        assert body["ignore_eos"] is True
        return "free"
    assert "ignore_eos" not in body
    schema = body["response_format"]["json_schema"]["schema"]
    return next(kind for kind in KINDS if schema_of(kind, 16) == schema)


async def test_failed_requests_are_counted_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    def full(path: str, body: Body) -> bytes:
        refused = body.get("seed", 1) % 2 == 0
        return respond(429, b'{"error": {"message": "full"}}') if refused else script(path, body)

    async with serving(full) as (_, url):
        assert await bench_command(url, "--concurrency", "1", "--requests-per", "3", "--json") == 1
    shown = capsys.readouterr()
    level = msgspec.json.decode(shown.out, type=Level)
    assert (level.requests, level.failed) == (1, 2)
    assert shown.err == "2 requests failed: /v1/chat/completions answered 429: full\n"


async def test_the_table_shows_the_levels(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(script) as (_, url):
        options = "--concurrency 1,2 --requests-per 4 --max-tokens 16 --schema"
        assert await bench_command(url, *options.split()) == 0
    shown = capsys.readouterr().out
    header, _, *rows = [line.split() for line in shown.splitlines() if line.strip()]
    assert header[:4] == ["clients", "answers", "tokens", "tokens/s"]
    assert [row[:3] for row in rows[:6]] == [
        [clients, kind, tokens]
        for clients, of in (("1", ("12", "36", "36")), ("2", ("24", "72", "72")))
        for kind, tokens in zip(KINDS, of, strict=True)
    ]
    assert [row[-1] for row in rows[1:3]] == ["100%", "0%"]
    assert all(len(line) <= 80 for line in shown.splitlines())


async def test_the_table_without_schemas(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(script) as (_, url):
        assert await bench_command(url, "--concurrency", "1,2", "--requests-per", "2") == 0
    header, _, *rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert header == ["clients", "tokens/s", "TTFT", "p50", "p99", "ITL", "p50", "p99", "cached"]
    assert [(row[0], row[-1]) for row in rows[:2]] == [("1", "40%"), ("2", "40%")]


def test_figures_are_numpys() -> None:
    rng = np.random.default_rng(3)
    jobs = [Job(messages=[], seed=n) for n in range(40)]
    answers = []
    for n in range(40):
        arrivals = 5.0 + n + np.cumsum(rng.random(1 + n % 7))
        answers.append(
            Answer(
                sent=5.0 + n,
                ended=100.0,
                arrivals=arrivals.tolist(),
                text="x",
                prompt_tokens=10 + n,
                cached_tokens=n,
                output_tokens=2 * n,
            )
        )
    level = Run(list(zip(jobs, answers, strict=True)), ["full"] * 3, 12.5).level(8)
    first = 1e3 * np.array([answer.arrivals[0] - answer.sent for answer in answers])
    gaps = 1e3 * np.concatenate([np.diff(answer.arrivals) for answer in answers])
    assert level.ttft_p50_ms == pytest.approx(np.percentile(first, 50), abs=0.01)
    assert level.ttft_p99_ms == pytest.approx(np.percentile(first, 99), abs=0.01)
    assert level.inter_token_p50_ms == pytest.approx(np.percentile(gaps, 50), abs=0.01)
    assert level.inter_token_p99_ms == pytest.approx(np.percentile(gaps, 99), abs=0.01)
    assert (level.concurrency, level.requests, level.failed) == (8, 40, 3)
    assert level.output_tokens == 2 * 780
    assert level.tokens_per_s == 124.8
    assert level.cached_share == pytest.approx(780 / 1180, abs=1e-4)


def workload(**options: Any) -> Workload:
    return Workload(**{"prompts": "shared", "prompt_words": 50, "seed": "1", **options})


def test_prompts_are_shared_or_distinct_and_fixed_by_the_seed() -> None:
    shared, distinct, again, other = (
        [load.next() for _ in range(8)]
        for load in (workload(), workload(prompts="distinct"), workload(), workload(seed="2"))
    )
    assert shared == again
    assert len({job.messages[0]["content"] for job in shared}) == 1
    assert len({job.messages[0]["content"] for job in distinct}) == 8
    assert shared[0].messages[0] != other[0].messages[0]
    for jobs in (shared, distinct):
        assert len({job.messages[1]["content"] for job in jobs}) == 8
        assert all(len(job.messages[0]["content"].split()) == 50 for job in jobs)


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("max_tokens", [1, 128, 1000])
def test_schemas_are_schemas(kind: Kind, max_tokens: int) -> None:
    schema = schema_of(kind, max_tokens)
    assert schema is not None
    Draft202012Validator.check_schema(schema)
