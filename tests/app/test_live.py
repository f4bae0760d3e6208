"""The live feed: what it says is what the engine is, and nobody's looking changes anything."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from app.live import Frame, Live, Reader
from app.live_window import PERCENTILES_S, Window, quantile
from engine.engine import Engine
from engine.history import KEPT_SEQUENCES, KEPT_STEPS, History
from engine.page_pool import PagePool
from engine.prefix_tree import PrefixTree
from engine.snapshot import MAX_CELLS, MAX_NODES, page_map, take
from engine.stats import Stats
from engine.timeline import MAX_SPANS, Timeline
from tests.app.harness import Served, error_of, serving, until
from tests.fakes import collect, fake_engine, generate_request

PREFIX = "all of them begin with these words: "  # 36 tokens are 9 pages of 4


def snapshot(engine: Engine) -> dict[str, Any]:
    """The wire's picture of this very moment; the server's own may be a tenth of a second old."""
    picture: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode(Live(engine, show_text=False).picture())
    )
    return picture


async def test_the_picture_is_the_engines_state(served: Served) -> None:
    served.engine.flush_cache()
    served.runner.pause()
    tasks = [
        asyncio.create_task(served.complete(PREFIX + end, max_tokens=200, temperature=0))
        for end in ("left", "right", "right angle")
    ]
    await until(lambda: served.engine.load().running + served.engine.load().waiting == 3)
    served.runner.allow(12)
    await until(lambda: served.engine.stats.generation_tokens >= 20)
    picture = snapshot(served.engine)
    load = served.engine.load()
    assert (picture["running"], picture["waiting"]) == (load.running, load.waiting) == (3, 0)
    cells = Counter(picture["page_map"]["cells"])
    assert picture["page_map"]["pages_per_cell"] == 1
    pages = picture["pages"]
    assert cells == {
        letter: pages[state]
        for letter, state in ((".", "free"), ("c", "evictable"), ("s", "protected"), ("p", "private"))
        if pages[state]
    }
    assert pages["protected"] >= 9
    assert sum(cells.values()) == pages["total"] == 1024
    for sequence in picture["sequences"]:
        assert sequence["state"] == "running"
        assert sequence["prompt_tokens"] in {len(PREFIX + end) for end in ("left", "right", "right angle")}
        assert sequence["pages"] > sequence["shared_pages"] >= 9
    served.runner.resume()
    for task in tasks:
        assert (await task).status_code == 200


async def test_the_tree_shows_shared_prefixes_and_their_users(served: Served) -> None:
    served.engine.flush_cache()
    other = "a second family of prompts, told apart from the first"[:48]
    for prompt in (PREFIX + "one more", PREFIX + "two more", other + "one more", other + "two more"):
        await served.complete(prompt, max_tokens=1)
    served.runner.pause()
    user = asyncio.create_task(served.complete(PREFIX + "one more time", max_tokens=50))
    await until(lambda: served.engine.load().running == 1)
    picture = snapshot(served.engine)
    nodes = {node["id"]: node for node in picture["nodes"]}
    assert len(nodes) == picture["num_nodes"] == served.engine.load().tree_nodes
    tops = sorted((node for node in nodes.values() if node["parent"] == 0), key=lambda node: node["pages"])
    assert [(node["pages"], node["tokens"]) for node in tops] == [(9, 36), (12, 48)]
    for top in tops:
        ends = [node for node in nodes.values() if node["parent"] == top["id"]]
        assert [(node["pages"], node["hidden"]) for node in ends] == [(2, 0), (2, 0)]
    (sequence,) = picture["sequences"]
    used = {node_id for node_id, node in nodes.items() if node["requests"] == [sequence["request"]]}
    assert {node_id for node_id, node in nodes.items() if node["users"] == 1} == used
    assert [nodes[node_id]["pages"] for node_id in sorted(used, key=lambda i: nodes[i]["parent"])] == [9, 2]
    assert all(node["text"] is None for node in nodes.values())
    served.runner.resume()
    await user


async def test_texts_are_shown_only_where_that_was_asked_for() -> None:
    async with serving(show_prompts=True) as served:
        await served.complete(PREFIX, max_tokens=1)
        frame = (await served.http.get("/live/snapshot")).json()
        (node,) = frame["picture"]["nodes"]
        assert node["text"] == PREFIX[:24]


async def test_the_feed_tells_all_news_once(served: Served) -> None:
    served.engine.flush_cache()
    reader = Reader(Live(served.engine, show_text=False))
    reader.frame()
    steps = served.engine.stats.steps
    response = await served.complete("something new to say", max_tokens=5)
    news = reader.frame().news
    (ended,) = news.ended
    assert response.json()["id"] in ended.request
    assert (ended.state, ended.prompt_tokens, ended.output_tokens) == ("length", 20, 5)
    assert ended.arrived < ended.first_token < ended.finished
    assert len(news.steps) == served.engine.stats.steps - steps
    assert sum(step.prefill for step in news.steps) == 20
    assert sum(step.decode for step in news.steps) == 4
    again = reader.frame().news
    assert (again.steps, again.ended) == ([], [])


async def test_a_viewer_that_leaves_is_forgotten(served: Served) -> None:
    async with served.http.stream("GET", "/live", params={"period": 0.1}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        frames = frames_of(response)
        first, second = await anext(frames), await anext(frames)
    assert first["picture"]["model"] == "fake"
    assert second["picture"]["now"] > first["picture"]["now"]
    # The quiet state after the case says that the feed's task is gone.


async def test_a_feed_ends_with_the_engine() -> None:
    async with serving() as served, served.http.stream("GET", "/live?period=0.1") as response:
        frames = frames_of(response)
        await anext(frames)
        await served.engine.stop()
        async for frame in frames:
            assert frame["picture"]["running"] == 0
        assert response.is_closed  # read to a proper end: httpx raises where a response breaks off


@pytest.mark.parametrize("period", ["0", "5", "nan", "x"])
async def test_an_impossible_period_is_refused(served: Served, period: str) -> None:
    response = await served.http.get("/live", params={"period": period})
    assert response.status_code == 400
    assert error_of(response)["param"] == "period"


async def test_the_page_comes_from_here_and_asks_nobody_else(served: Served) -> None:
    page = await served.http.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/static/none.js"):
        assert (await served.http.get(path)).status_code == 404


async def test_the_schema_light_is_the_compilers_word(served: Served) -> None:
    good = await served.http.post("/page/schema", json={"schema": {"type": "integer", "minimum": 3}})
    assert (good.status_code, good.json()) == (200, {"refusal": None})
    bad = {"type": "object", "properties": {"x": {"type": "no such type"}}}
    response = await served.http.post("/page/schema", json={"schema": bad})
    refused = await served.complete(
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": bad}}
    )
    assert (response.status_code, refused.status_code) == (200, 400)
    assert response.json() == {"refusal": error_of(refused)["message"]}


async def frames_of(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


# -- timelines -----------------------------------------------------------------------------------------


async def test_a_timeline_tells_queue_chunks_and_decode() -> None:
    engine, _ = fake_engine(max_batch_tokens=16)
    await engine.start()
    await collect(engine.submit(generate_request("x" * 40, max_tokens=6), request_id="a"))
    (ended,) = engine.history.ended
    assert [(span.kind, span.tokens, span.steps) for span in ended.spans] == [
        ("queued", 0, 0),
        ("prefill", 16, 1),
        ("prefill", 16, 1),
        ("prefill", 8, 1),
        ("decode", 5, 5),
    ]
    assert ended.spans[0].start == ended.arrived
    for before, after in pairwise(ended.spans):
        assert before.end == after.start < after.end
    assert ended.spans[-1].end <= ended.finished
    await engine.stop()


async def test_a_preempted_sequence_is_stalled_and_computes_again() -> None:
    engine, _ = fake_engine(num_pages=60, max_batch_tokens=32, prefix_cache=False)
    await engine.start()
    requests = [
        engine.submit(generate_request(letter * 30, max_tokens=40), request_id=letter)
        for letter in "abcdefghijkl"
    ]
    for request in requests:
        await collect(request)
    assert engine.stats.preemptions > 0
    hit = [ended for ended in engine.history.ended if ended.preemptions]
    assert hit
    for ended in hit:
        kinds = [span.kind for span in ended.spans]
        assert kinds.index("stalled") < kinds.index("recompute")
        assert sum(span.tokens for span in ended.spans if span.kind == "prefill") == 30
    spans = [span for ended in engine.history.ended for span in ended.spans]
    assert sum(span.tokens for span in spans) == engine.stats.computed_tokens
    recomputed = sum(span.tokens for span in spans if span.kind == "recompute")
    once = engine.stats.computed_tokens - recomputed
    # What is computed again may run on into what never was, by the two tokens that can be in flight.
    assert 0 <= 12 * (30 + 40 - 1) - once <= 2 * engine.stats.preemptions
    await engine.stop()


def test_a_long_timeline_is_coarsened_and_keeps_its_sums() -> None:
    timeline = Timeline()
    for turn in range(500):
        # It runs in every second step only: decode, stalled, decode, ...
        timeline.ran(
            step=2 * turn + 1, arrived=-5.0, start=2 * turn, end=2 * turn + 1,
            tokens=range(turn, turn + 1), num_prompt=0,
        )  # fmt: skip
        assert len(timeline.spans) <= MAX_SPANS
    spans = timeline.spans
    assert (spans[0].kind, spans[0].start, spans[0].end) == ("queued", -5.0, 0.0)
    assert all(before.end == after.start for before, after in pairwise(spans))
    assert spans[-1].end == 999
    assert sum(span.tokens for span in spans) == sum(span.steps for span in spans) == 500


async def test_history_is_bounded() -> None:
    engine, _ = fake_engine()
    await engine.start()
    for _ in range(KEPT_SEQUENCES + 10):
        await collect(engine.submit(generate_request("abc", max_tokens=3), request_id="r"))
    history: History = engine.history
    assert (len(history.ended), history.num_ended) == (KEPT_SEQUENCES, KEPT_SEQUENCES + 10)
    assert len(history.steps) == KEPT_STEPS
    assert history.steps[-1].number == engine.stats.steps
    frame = Reader(Live(engine, show_text=False)).frame()
    assert isinstance(frame, Frame)
    assert len(frame.news.ended) == KEPT_SEQUENCES
    await engine.stop()


# -- bounds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [1, 5, MAX_CELLS, MAX_CELLS + 1, 100_003])
def test_the_page_map_stands_for_every_page(total: int) -> None:
    states = np.random.default_rng(total).choice(4, total, p=[0.7, 0.1, 0.1, 0.1]).astype(np.uint8)
    found = page_map(states)
    step = found.pages_per_cell
    assert len(found.cells) <= MAX_CELLS
    assert len(found.cells) * step >= total > (len(found.cells) - 1) * step
    for index, cell in enumerate(found.cells):
        counts = Counter(states[index * step : (index + 1) * step].tolist())
        most = max(counts, key=lambda state: (counts[state], state))
        assert cell == ".csp"[most]


def test_a_large_tree_is_cut_and_says_so() -> None:
    pool, tree = PagePool(3000, 1), PrefixTree(1)
    for leaf in range(1000):
        tree.insert("", [7, leaf], pool.allocate(2) if leaf == 0 else [0, *pool.allocate(1)])
    found = take([], [], pool, tree, None)
    assert len(found.nodes) == MAX_NODES
    shown = {node.id for node in found.nodes}
    assert all(node.parent in shown | {0} for node in found.nodes)
    assert found.nodes[0].hidden == tree.num_nodes - MAX_NODES


async def test_a_prefix_in_use_is_in_the_picture_however_many_others_there_are() -> None:
    engine, runner = fake_engine(num_pages=1024)
    await engine.start()
    for number in range(MAX_NODES + 50):
        await collect(engine.submit(generate_request(f"{number:04}....", max_tokens=1), request_id="old"))
    runner.pause()
    user = engine.submit(generate_request("0000....more", max_tokens=20), request_id="user")
    await until(lambda: engine.load().running == 1)
    nodes = snapshot(engine)["nodes"]
    assert len(nodes) == MAX_NODES < engine.load().tree_nodes
    assert [(node["pages"], node["requests"]) for node in nodes if node["users"]] == [(2, ["user"])]
    runner.resume()
    await collect(user)
    await engine.stop()


# -- windows -------------------------------------------------------------------------------------------


def test_rates_are_of_the_last_seconds() -> None:
    stats, window = Stats(), Window()
    window.add(stats, 100.0)
    assert window.rates() is None
    for second in range(1, 11):
        stats.generation_tokens += 10 * second
        stats.finished["stop"] += 1
        window.add(stats, 100.0 + second)
    rates = window.rates()
    assert rates is not None
    assert (rates.generation_tokens, rates.finished, rates.steps) == (95.0, 1.0, 0.0)


def test_percentiles_forget() -> None:
    stats, window = Stats(), Window()
    window.add(stats, 0.0)
    assert window.ttft(stats) is None
    stats.ttft.observe(30.0)
    window.add(stats, 1.0)
    old = window.ttft(stats)
    assert old is not None
    assert old.count == 1
    assert 20.0 < old.p50 <= 40.0
    stats.ttft.observe(0.03)
    window.add(stats, 1.0 + PERCENTILES_S)
    new = window.ttft(stats)
    assert new is not None
    assert new.count == 1
    assert 0.02 < new.p50 <= new.p99 <= 0.04


@pytest.mark.parametrize("q", [0.0, 0.1, 0.5, 0.9, 0.99, 1.0])
def test_quantiles_are_within_a_bucket_of_the_true_ones(q: float) -> None:
    bounds = [0.1 * n for n in range(1, 30)]
    values = np.random.default_rng(3).gamma(2.0, 0.4, 5000)
    counts = np.histogram(values, [0.0, *bounds, np.inf])[0].tolist()
    true = min(float(np.quantile(values, q)), bounds[-1])
    assert abs(quantile(bounds, counts, q) - true) <= 0.1


async def test_looking_costs_one_picture_in_a_tenth_of_a_second() -> None:
    engine, _ = fake_engine()
    live = Live(engine, show_text=False)
    assert live.picture() is live.picture()
