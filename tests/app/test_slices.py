"""Long answers are written in slices, between which all others have their turn."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from app import embeddings, score
from app.completions import Completion
from app.connection import Connection
from app.slices import JsonList, in_slices, json_list
from engine.errors import QueueFullError
from engine.request import GenerateRequest, Request
from tests.app.harness import Served, error_of, events, raw_client, until
from tests.fakes import hashed_state, hashed_tokens

LABELS = [[1] * 999 + [n] for n in range(256)]
PROMPT = list(b"a prompt of many tokens " * 100)


class Clock:
    """Time is work that was done, and it is noted how much was done between two turns of the event loop."""

    def __init__(self) -> None:
        self.work = 0
        self.longest = 0
        self.turns = 0

    def perf_counter(self) -> float:
        return self.work / 100_000

    def watch(self) -> asyncio.Task[None]:
        async def turn() -> None:
            while True:
                before = self.work
                await asyncio.sleep(0)
                self.longest = max(self.longest, self.work - before)
                self.turns += 1

        return asyncio.create_task(turn())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("app.slices.time", SimpleNamespace(perf_counter=clock.perf_counter))
    return clock


async def test_a_millisecond_is_a_slice(clock: Clock) -> None:
    watcher = clock.watch()
    taken = []
    async for item in in_slices(range(1000)):
        clock.work += 30  # 0.3 ms
        taken.append(item)
    watcher.cancel()
    assert taken == [*range(1000)]
    assert (clock.longest, clock.turns) == (4 * 30, 1000 // 4 - 1)


async def test_a_list_is_encoded_as_json_has_it() -> None:
    items: list[Any] = [None, 1.5, "é\n", {3: [1, 2]}, []]
    for some in (items, items[:1], []):
        assert msgspec.json.encode({"list": await json_list(some)}) == msgspec.json.encode({"list": some})
    growing = JsonList[int]()
    for number in (1, 2):
        growing.append(number)
    assert msgspec.json.encode(growing.taken()) == b"[1,2]"
    assert not growing


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_with_logprobs(
    served: Served, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, stream: bool
) -> None:
    _count_spellings(served, clock, monkeypatch)
    watcher = clock.watch()
    response = await served.complete([PROMPT], echo=True, logprobs=5, max_tokens=1, stream=stream)
    watcher.cancel()
    body = events(response.text)[0] if stream else response.json()
    logprobs = body["choices"][0]["logprobs"]
    states = [hashed_state(PROMPT[:end]) for end in range(1, 40)]
    assert logprobs["token_logprobs"][1:40] == [-(state % 1000) / 64 for state in states]
    assert {len(values) for values in logprobs.values()} == {len(PROMPT) + 1}
    assert clock.work > 5000
    assert clock.longest < 130


async def test_prompt_logprobs(served: Served, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all choices, which are told the same, written once; and of conversations."""
    _count_spellings(served, clock, monkeypatch)
    watcher = clock.watch()
    choices = (await served.complete([PROMPT], prompt_logprobs=2, n=2, max_tokens=1)).json()["choices"]
    assert choices[0]["prompt_logprobs"] == choices[1]["prompt_logprobs"]
    assert len(choices[0]["prompt_logprobs"]) == len(PROMPT)
    assert clock.work < 3 * len(PROMPT)
    told = (await served.chat(bytes(PROMPT).decode(), prompt_logprobs=2, max_tokens=1)).json()
    watcher.cancel()
    assert [*told["prompt_logprobs"][40]] == [str(PROMPT[40 - len("<|im_start|>user\n") + 11])]
    assert clock.longest < 130


def _count_spellings(served: Served, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that is spelt is work."""
    tokenizer = served.engine.tokenizer
    spell = tokenizer.bytes_of

    def counted(token_id: int, *, skip_special: bool) -> bytes:
        clock.work += 1
        return spell(token_id, skip_special=skip_special)

    monkeypatch.setattr(tokenizer, "bytes_of", counted)


async def test_prompts_are_submitted_in_slices_and_all_or_none(
    served: Served, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the queue is full for the last, or its client is gone, when the first run already."""
    engine = served.engine
    submit = engine.submit

    def counted(request: GenerateRequest, *, request_id: str) -> Request:
        clock.work += 10
        return submit(request, request_id=request_id)

    monkeypatch.setattr(engine, "submit", counted)
    watcher = clock.watch()
    texts = [f"text {number}" for number in range(200)]
    choices = (await served.complete(texts, max_tokens=2)).json()["choices"]
    assert [choice["text"] for choice in choices] == [
        bytes(hashed_tokens(text.encode(), 2)).decode() for text in texts
    ]
    assert clock.longest <= 110

    def full(request: GenerateRequest, *, request_id: str) -> Request:
        if request_id.endswith("-150"):
            raise QueueFullError("full", retry_after_s=1.0)
        return counted(request, request_id=request_id)

    monkeypatch.setattr(engine, "submit", full)
    assert (await served.complete(texts, max_tokens=2)).status_code == 429
    assert engine.load().running + engine.load().waiting == 0
    assert engine.stats.finished["abort"] >= 1
    async with raw_client(served) as client:
        client.post("completions", {"model": "fake", "prompt": texts, "max_tokens": 2})
        began = engine.stats.started
        await until(lambda: engine.stats.started > began)
        await client.hang_up()
    await until(lambda: engine.load().running + engine.load().waiting == 0)
    watcher.cancel()


async def test_embeddings_and_scores(served: Served, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(function: Any, work: int) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            clock.work += work
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(embeddings, "_vector", counted(embeddings._vector, 10))
    monkeypatch.setattr(score, "LabelScore", counted(score.LabelScore, 5))
    watcher = clock.watch()
    texts = [f"text {number}" for number in range(200)]
    answer = (await served.post("embeddings", {"model": "fake", "input": texts})).json()
    assert [item["index"] for item in answer["data"]] == [*range(200)]
    answer = (await served.post("score", {"query": "q", "items": texts, "label_token_ids": [1, 2]})).json()
    watcher.cancel()
    assert [len(item) for item in answer["scores"]] == [2] * 200
    assert clock.work == 2 * 200 * 10
    assert clock.longest <= 110


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        ("completions", {"prompt": "x" * 4000, "echo": True, "logprobs": 5, "n": 64}, "logprobs"),
        ("completions", {"prompt": ["x" * 4000] * 16, "prompt_logprobs": 20}, "prompt_logprobs"),
        ("score", {"query": "q", "items": ["a"] * 8, "labels": LABELS}, "labels"),
    ],
)
async def test_the_log_probabilities_of_an_answer_are_bounded(
    served: Served, path: str, fields: dict[str, Any], field: str
) -> None:
    started = served.engine.stats.started
    response = await served.post(path, {"model": "fake", "max_tokens": 1, **fields})
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"] == field
    assert "1048576" in error["message"]
    assert served.engine.stats.started == started


async def test_nothing_of_an_answer_is_kept_twice_while_it_is_sent(served: Served) -> None:
    """Its reader may be slow, and has tens of megabytes to take."""
    body = {"model": "fake", "prompt": PROMPT, "max_tokens": 1, "n": 16, "echo": True, "logprobs": 20}
    async with raw_client(served, receive_buffer=4096) as client:
        client.post("completions", body)
        assert b" 200 " in await client.reader.readline()
        connections = served.server.server_state.connections
        await until(lambda: any(isinstance(one, Connection) and one._writing for one in connections))
        assert not [thing for thing in gc.get_objects() if type(thing) is Completion]
