"""The step loop on a fake runner with scripted tokens: exact texts, exact accounts, nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.batch import Batch, SampleRow
from engine.engine import Engine
from engine.errors import EngineStoppedError, InvalidRequestError, QueueFullError
from engine.request import Request
from tests.fakes import (
    HANGS_S,
    IM_END,
    VOCAB_SIZE,
    FakeRunner,
    assert_quiet,
    collect,
    fake_engine,
    generate_request,
    hashed_tokens,
    say,
)


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[Engine, FakeRunner]]:
    """A started fake engine that must be quiet at the end."""
    engine, runner = fake_engine(**settings)
    await engine.start()
    try:
        yield engine, runner
        assert_quiet(engine)
    finally:
        runner.resume()
        await engine.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Give the loop turns until `condition` holds."""
    async with asyncio.timeout(HANGS_S):
        while not condition():  # noqa: ASYNC110  (the conditions watched here have no event)
            await asyncio.sleep(0)


def hashed_text(prompt: str, count: int) -> str:
    return bytes(hashed_tokens(prompt.encode(), count)).decode()


async def test_gives_the_scripted_text_and_counts_every_token() -> None:
    async with running(script=say("Hello, world")) as (engine, _):
        request = engine.submit(generate_request("hi", max_tokens=100), request_id="r")
        (output,) = await collect(request)
        assert (output.text, output.finish_reason, output.stop_reason) == ("Hello, world", "stop", None)
        assert output.token_ids == [*b"Hello, world", IM_END]
        assert (request.prompt_tokens, request.completion_tokens) == (2, 13)
        assert (engine.stats.prompt_tokens, engine.stats.generation_tokens) == (2, 13)
        assert engine.stats.finished["stop"] == 1


async def test_the_next_step_is_launched_before_the_last_one_is_read() -> None:
    async with running(script=say("abcd")) as (engine, runner):
        await collect(engine.submit(generate_request("hi", max_tokens=100), request_id="r"))
        await until(lambda: engine.stats.discarded_tokens > 0)
        carried = [len(batch.pending_at) for batch in runner.batches]
        assert carried == [0, 1, 1, 1, 1, 1], "each id went from step to step without the host"
        assert engine.stats.discarded_tokens == 1, "the end was learned one step late"


async def test_a_known_last_token_costs_no_extra_step() -> None:
    async with running(script=say("abcdefgh")) as (engine, runner):
        (output,) = await collect(engine.submit(generate_request("hi", max_tokens=4), request_id="r"))
        assert (output.text, output.finish_reason) == ("abcd", "length")
        assert len(runner.batches) == 4


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ({"stop": ("def",)}, "def"),
        ({"stop": ("zzz", "e")}, "e"),
        ({"stop_token_ids": frozenset(b"d")}, ord("d")),
        ({}, None),
    ],
)
async def test_finish_reasons(ending: dict[str, Any], reason: str | int | None) -> None:
    async with running(script=say("abcdef")) as (engine, _):
        (output,) = await collect(engine.submit(generate_request("hi", **ending), request_id="r"))
        assert (output.finish_reason, output.stop_reason) == ("stop", reason)
        assert output.text == {"def": "abc", "e": "abcd", ord("d"): "abc", None: "abcdef"}[reason]


async def test_ignore_eos_and_min_tokens() -> None:
    def early_end(row: SampleRow) -> int:
        return ord("x") if IM_END in row.forbidden else IM_END

    async with running(script=early_end) as (engine, _):
        (output,) = await collect(engine.submit(generate_request("hi", min_tokens=5), request_id="a"))
        assert output.text == "xxxxx"
        ignoring = generate_request("hi", max_tokens=7, ignore_eos=True)
        (output,) = await collect(engine.submit(ignoring, request_id="b"))
        assert (output.finish_reason, output.token_ids) == ("length", [IM_END] * 7)


async def test_stop_strings_count_after_min_tokens() -> None:
    async with running(script=say("a.b.c.d.e")) as (engine, _):
        wanted = generate_request("hi", stop=(".",), min_tokens=4)
        (output,) = await collect(engine.submit(wanted, request_id="r"))
        assert (output.text, output.stop_reason) == ("a.b.c", ".")


@pytest.mark.parametrize(
    "fields",
    [
        {"min_tokens": 2, "allowed_token_ids": frozenset({IM_END})},
        {"min_tokens": 2, "allowed_token_ids": frozenset({7, IM_END}), "stop_token_ids": frozenset({7})},
        {"min_tokens": 2, "allowed_token_ids": frozenset({7, IM_END}), "bad_words": ((7,), (8,))},
        {"allowed_token_ids": frozenset({7, 8}), "bad_words": ((7,), (8,))},
    ],
)
async def test_some_allowed_token_must_be_possible(fields: dict[str, Any]) -> None:
    """And one that is possible is enough."""
    async with running(script=lambda row: 9) as (engine, _):
        with pytest.raises(InvalidRequestError, match="None of the allowed tokens may begin") as refused:
            engine.submit(generate_request("hi", **fields), request_id="r")
        assert refused.value.param == "allowed_token_ids"
        fields["allowed_token_ids"] |= {9}
        (output,) = await collect(
            engine.submit(generate_request("hi", max_tokens=3, **fields), request_id="r")
        )
        assert output.token_ids == [9, 9, 9]


async def test_choices_have_their_own_texts_and_share_the_prompt() -> None:
    async with running(script=say("first", "second", "third")) as (engine, _):
        request = engine.submit(generate_request("a prompt of two pages", choices=3), request_id="r")
        outputs = await collect(request)
        assert [output.text for output in outputs] == ["first", "second", "third"]
        assert [s.cached_tokens for s in request.sequences] == [0, 20, 20]
        assert request.completion_tokens == sum(len(output.token_ids) for output in outputs)


async def test_alone_batched_cold_warm_and_preempted_give_the_same_text() -> None:
    prompts = [f"shared system prompt; question {n}" for n in range(12)]
    expected = [hashed_text(prompt, 40) for prompt in prompts]
    async with running(num_pages=60, max_running=12, max_batch_tokens=32) as (engine, _):
        for _ in range(2):  # cold, then warm
            requests = [
                engine.submit(generate_request(prompt, max_tokens=40), request_id="r") for prompt in prompts
            ]
            outputs = await asyncio.gather(*map(collect, requests))
            assert [output.text for (output,) in outputs] == expected
            assert [request.completion_tokens for request in requests] == [40] * 12
        assert engine.stats.preemptions > 0


async def test_a_request_as_large_as_the_pool_waits_for_it_and_holds_up_nobody() -> None:
    """A40: what can never fit is refused at once; what fits an empty pool runs in its turn."""
    async with running(num_pages=16, max_running=4) as (engine, _):
        with pytest.raises(InvalidRequestError, match="length is 64 tokens"):
            engine.submit(generate_request("x" * 60, max_tokens=5), request_id="never")
        before = [engine.submit(generate_request(f"{n}", max_tokens=20), request_id="b") for n in range(3)]
        large = engine.submit(generate_request("x" * 60, max_tokens=4), request_id="large")
        after = [engine.submit(generate_request(f"a{n}", max_tokens=20), request_id="a") for n in range(3)]
        outputs = [(await collect(request))[0].text for request in (*before, large, *after)]
        assert outputs == [
            *(hashed_text(f"{n}", 20) for n in range(3)),
            hashed_text("x" * 60, 4),
            *(hashed_text(f"a{n}", 20) for n in range(3)),
        ]


async def test_characters_split_over_tokens_arrive_whole() -> None:
    text = "🔥ďábelské 你好 👩‍👩‍👧"
    async with running(script=say(text), max_context=400, num_pages=100) as (engine, _):
        request = engine.submit(generate_request("hi", max_tokens=100), request_id="r")
        deltas = [update.text async for updates in request.stream for update in updates]
        assert "".join(deltas) == text
        assert not any("\ufffd" in delta for delta in deltas)


async def test_an_abort_frees_everything_at_once() -> None:
    async with running(num_pages=32, max_running=1) as (engine, runner):
        runner.pause()
        doomed = engine.submit(generate_request("x" * 20, max_tokens=50, ignore_eos=True), request_id="a")
        waiting = engine.submit(generate_request("y", max_tokens=50, ignore_eos=True), request_id="b")
        runner.allow(3)
        await until(lambda: doomed.completion_tokens == 3)
        assert (engine.load().running, engine.load().waiting) == (1, 1)
        engine.abort(doomed)
        engine.abort(doomed)
        engine.abort(waiting)
        assert (engine.load().running, engine.load().waiting) == (0, 0)
        assert engine.load().pages.private == 0
        runner.resume()
        for request in (doomed, waiting):
            assert (await collect(request))[0].finish_reason == "abort"
        assert engine.stats.finished["abort"] == 2


async def test_random_aborts_leave_the_pool_exact() -> None:
    """A03, A05, A37: aborts at every stage, racing with finishes."""
    async with running(num_pages=80, max_running=8) as (engine, _):

        async def one(number: int) -> None:
            wanted = generate_request(f"prompt {number % 7} " * 3, max_tokens=8, choices=1 + number % 3)
            request = engine.submit(wanted, request_id=str(number))
            for _ in range(number % 23):
                await asyncio.sleep(0)
            engine.abort(request)
            await collect(request)

        for start in range(0, 600, 50):
            await asyncio.gather(*(one(number) for number in range(start, start + 50)))
        control = engine.submit(generate_request("control", max_tokens=20), request_id="c")
        assert (await collect(control))[0].text == hashed_text("control", 20)


async def test_a_failing_step_ends_its_own_sequences_only() -> None:
    async with running(num_pages=64, script=say("a long enough text to be hit")) as (engine, runner):
        runner.fails = lambda batch: any(row.tokens[0] == ord("!") for row in batch.samples)
        healthy = engine.submit(generate_request("fine", max_tokens=100), request_id="a")
        await until(lambda: healthy.completion_tokens > 1)
        runner.pause()
        doomed = engine.submit(generate_request("!", max_tokens=100), request_id="b")
        engine.abort(healthy)
        runner.resume()
        (output,) = await collect(doomed)
        assert (output.finish_reason, output.error) == ("error", "the forward pass failed")
        again = engine.submit(generate_request("fine", max_tokens=100), request_id="c")
        assert (await collect(again))[0].text == "a long enough text to be hit"


async def test_a_row_without_numbers_ends_alone() -> None:
    def script(row: SampleRow) -> int | None:
        return -1 if row.tokens[0] == ord("!") and row.position == 3 else None

    async with running(script=script) as (engine, _):
        requests = [engine.submit(generate_request(text, max_tokens=9), request_id=text) for text in "!?"]
        bad, good = [(await collect(request))[0] for request in requests]
        assert (bad.finish_reason, len(bad.token_ids)) == ("error", 2)
        assert good.text == hashed_text("?", 9)


async def test_refusals_name_the_field_and_leave_no_trace() -> None:
    async with running(num_pages=8, max_waiting=2, max_running=1) as (engine, runner):
        with pytest.raises(InvalidRequestError, match="empty") as empty:
            engine.submit(generate_request([]), request_id="r")
        assert empty.value.param == "prompt"
        for token_id in (-1, VOCAB_SIZE):
            with pytest.raises(InvalidRequestError, match=r"\[0, 272\)"):
                engine.submit(generate_request([token_id]), request_id="r")
        with pytest.raises(
            InvalidRequestError, match=r"length is 32 tokens.*33 tokens.*20 in the prompt"
        ) as long:
            engine.submit(generate_request("x" * 20, max_tokens=13), request_id="r")
        assert long.value.code == "context_length_exceeded"
        runner.pause()
        waiting = [engine.submit(generate_request("x", max_tokens=2), request_id="r") for _ in range(2)]
        with pytest.raises(QueueFullError) as full:
            engine.submit(generate_request("x"), request_id="r")
        assert 1 <= full.value.retry_after_s <= 120
        runner.resume()
        await asyncio.gather(*map(collect, waiting))
        assert engine.stats.started == 2
        assert dict(engine.stats.rejected) == {"invalid": 4, "queue_full": 1}


async def test_drain_lets_running_requests_finish_and_takes_no_new_ones() -> None:
    async with running(script=say("done")) as (engine, runner):
        runner.pause()
        request = engine.submit(generate_request("x"), request_id="r")
        draining = asyncio.create_task(engine.drain(10))
        await until(lambda: not engine.is_ready)
        with pytest.raises(EngineStoppedError):
            engine.submit(generate_request("x"), request_id="r")
        runner.resume()
        await draining
        assert (await collect(request))[0].text == "done"


async def test_stop_ends_what_runs() -> None:
    engine, runner = fake_engine()
    await engine.start()
    runner.pause()
    request: Request = engine.submit(generate_request("x"), request_id="r")
    runner.allow(1)
    await until(lambda: request.completion_tokens == 1)
    runner.resume()
    await engine.stop()
    assert (await collect(request))[0].finish_reason == "abort"
    assert_quiet(engine)


async def test_a_slow_reader_gets_one_merged_update() -> None:
    async with running(script=say("word " * 8), num_pages=64) as (engine, _):
        request = engine.submit(generate_request("x", max_tokens=100), request_id="r")
        await until(lambda: request.sequences[0].finish_reason is not None)
        updates = [updates async for updates in request.stream]
        assert [[update.text for update in group] for group in updates] == [["word " * 8]]


async def test_long_prompts_do_not_stall_a_running_stream() -> None:
    """A38: every step that computes prompt also decodes the stream."""
    async with running(num_pages=512, max_batch_tokens=16) as (engine, runner):
        stream = engine.submit(generate_request("s", max_tokens=120), request_id="s")
        await until(lambda: stream.completion_tokens > 1)
        runner.pause()
        prompts = [
            engine.submit(generate_request(str(n) * 150, max_tokens=1), request_id=str(n)) for n in range(4)
        ]
        before = len(runner.batches)
        runner.resume()
        await asyncio.gather(*map(collect, prompts))
        await collect(stream)

        def decodes_stream(batch: Batch) -> bool:
            return any(row.tokens[0] == ord("s") for row in batch.samples)

        prefills = [batch for batch in runner.batches[before + 2 :] if len(batch.token_ids) > 2]
        assert len(prefills) > 30
        assert all(decodes_stream(batch) for batch in prefills)
