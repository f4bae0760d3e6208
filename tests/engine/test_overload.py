"""More than the engine can do: what is refused, what is ended, and whom a flood cannot hold up."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest

from engine.batch import Batch
from engine.drain_rate import DrainRate
from engine.engine import Engine
from engine.errors import QueueFullError
from engine.queue_limits import Claim
from tests.engine.test_engine import hashed_text, running, until
from tests.fakes import collect, generate_request


async def test_the_queue_is_bounded_by_tokens() -> None:
    async with running(max_running=1, max_waiting_tokens=20, num_pages=64) as (engine, runner):
        runner.pause()
        first = engine.submit(generate_request("x" * 40, max_tokens=2), request_id="a")
        await until(lambda: engine.load().running == 1)
        waiting = engine.submit(generate_request("y" * 40, max_tokens=2), request_id="b")
        with pytest.raises(QueueFullError, match="40 tokens are waiting") as full:
            engine.submit(generate_request("z", max_tokens=2), request_id="c")
        assert 1 <= full.value.retry_after_s <= 120
        runner.resume()
        await asyncio.gather(collect(first), collect(waiting))
        assert dict(engine.stats.rejected) == {"queue_tokens": 1}


@pytest.mark.parametrize(
    ("limits", "prompt", "reason"),
    [
        ({"max_waiting": 50}, "x", "queue_full"),
        ({"max_waiting_tokens": 1000}, "x" * 20, "queue_tokens"),
    ],
)
async def test_a_flood_of_one_key_leaves_room_in_the_queue(
    limits: dict[str, int], prompt: str, reason: str
) -> None:
    """Each further one gets a part of what is left; where there are no keys one gets all."""
    async with running(max_running=1, num_pages=512, **limits) as (engine, runner):
        runner.pause()
        requests = [engine.submit(generate_request("x", max_tokens=1), request_id="first")]
        await until(lambda: engine.load().running == 1)
        counts = Counter[str]()
        for tenant in ("a", "b", "c", ""):
            with suppress(QueueFullError):
                while True:
                    wanted = generate_request(prompt, max_tokens=1, tenant=tenant)
                    requests.append(engine.submit(wanted, request_id="r"))
                    counts[tenant] += 1
        assert counts == {"a": 40, "b": 8, "c": 1, "": 1}
        assert dict(engine.stats.rejected) == {reason: 4}
        runner.resume()
        await asyncio.gather(*map(collect, requests))


async def test_choices_count_their_prompt_each() -> None:
    async with running(max_running=1, max_waiting_tokens=20) as (engine, runner):
        runner.pause()
        running_ = engine.submit(generate_request("x", max_tokens=2), request_id="a")
        await until(lambda: engine.load().running == 1)
        waiting = engine.submit(generate_request("yyyy", max_tokens=2), request_id="b")
        with pytest.raises(QueueFullError):
            engine.submit(generate_request("zzzz", max_tokens=2, choices=5), request_id="c")
        more = engine.submit(generate_request("zzzz", max_tokens=2, choices=4), request_id="d")
        runner.resume()
        await asyncio.gather(*map(collect, (running_, waiting, more)))


async def test_what_waits_too_long_is_ended_and_what_runs_is_not() -> None:
    async with running(max_running=1) as (engine, runner):
        runner.pause()
        first = engine.submit(generate_request("x", max_tokens=4, queue_timeout_s=0.01), request_id="a")
        await until(lambda: engine.load().running == 1)
        late = engine.submit(generate_request("y", max_tokens=4, queue_timeout_s=0.01), request_id="b")
        (ended,) = await collect(late)
        assert (ended.finish_reason, ended.error) == ("timeout", "it waited in the queue for 0.01 s")
        runner.resume()
        assert (await collect(first))[0].text == hashed_text("x", 4)
        assert engine.stats.finished["timeout"] == 1


async def test_what_takes_too_long_is_ended_with_what_it_has() -> None:
    async with running(num_pages=64) as (engine, runner):
        runner.pause()
        request = engine.submit(
            generate_request("x", max_tokens=100, timeout_s=0.05, choices=2), request_id="a"
        )
        outputs = await collect(request)
        assert [(output.finish_reason, output.error) for output in outputs] == [
            ("timeout", "it was not done after 0.05 s")
        ] * 2
        assert engine.load().pages.private == 0
        runner.resume()
        control = engine.submit(generate_request("control", max_tokens=9), request_id="c")
        assert (await collect(control))[0].text == hashed_text("control", 9)


async def test_no_timer_outlives_its_request() -> None:
    async with running() as (engine, _):
        wanted = generate_request("x", max_tokens=4, timeout_s=1000, queue_timeout_s=1000, choices=3)
        request = engine.submit(wanted, request_id="a")
        assert len(request.deadlines) == 2
        timers = list(request.deadlines)
        await collect(request)
        assert all(timer.cancelled() for timer in timers)
        assert request.deadlines == []


async def test_a_flood_of_long_prompts_does_not_hold_up_short_ones() -> None:
    """Fairness without keys: whoever floods, the short ones start in the next steps."""
    async with running(num_pages=2048, max_batch_tokens=32, max_running=16) as (engine, runner):
        flood = [
            engine.submit(generate_request(chr(65 + n) * 800, max_tokens=1), request_id="f") for n in range(8)
        ]
        await until(lambda: engine.stats.steps > 2)
        for number in range(10):
            before = len(runner.batches)
            short = engine.submit(generate_request(f"s{number}", max_tokens=1), request_id="s")
            await collect(short)
            since = [[bytes(row.tokens[:2]) for row in batch.samples] for batch in runner.batches[before:]]
            # Two steps may have been planned before it came.
            assert [f"s{number}".encode() in samples for samples in since].index(True) <= 2
        assert flood[-1].sequences[0].timing.admitted == 0.0
        for request in flood:
            engine.abort(request)


def test_the_drain_rate_is_that_of_queues() -> None:
    """Ten a second while all is full, whatever happens at other times."""
    rate = DrainRate(0.0, 1)
    now = 0.0
    for _ in range(20):
        for _ in range(50):
            now += 0.1
            rate.watch(now, full=True)
            rate.ended()
        now += 1000.0
        rate.watch(now, full=False)
    assert rate.wait_s(30) == pytest.approx(3.0, rel=0.02)
    for _ in range(20):
        now += 1.0
        rate.watch(now, full=True)
        rate.ended()
    assert rate.wait_s(2) == pytest.approx(2.0, rel=0.4), "it notices soon what became slower"
    for _ in range(100):
        now += 0.1
        rate.watch(now, full=True)
        rate.ended()
    assert rate.wait_s(30) > 4.0, "and later what became faster"


@pytest.mark.parametrize("places", [1, 8, 64])
def test_a_wait_is_known_before_anything_ended(places: int) -> None:
    """Of so many that began together, and all end after 2 s, none has."""
    rate = DrainRate(0.0, places)
    guesses = []
    for tenth in range(1, 20):
        rate.watch(tenth / 10, full=True)
        guesses.append(rate.wait_s(places))
    assert guesses == sorted(guesses)
    assert guesses[0] < 0.5
    assert 2.0 <= guesses[-1] <= 4.1
    for _ in range(places):
        rate.ended()
    assert 0.6 * 2.0 <= rate.wait_s(places) <= 2.0


async def test_what_would_wait_too_long_is_refused_at_once() -> None:
    """Known from how fast others ended; a flood of another tenant lengthens nobody's wait by much."""
    async with running(max_running=1, num_pages=256) as (engine, runner):
        runner.pause()
        requests = [engine.submit(generate_request("x", max_tokens=1), request_id="a") for _ in range(40)]
        late = generate_request("x", max_tokens=1, queue_timeout_s=16.0)
        await until(lambda: engine.load().running == 1)
        engine._queue_limits.drain_rate = rate = DrainRate(time.monotonic(), 1)
        rate._long.seconds, rate._long.ended = 4.0, 10.0
        with pytest.raises(QueueFullError, match="would wait for about 16 s") as full:
            engine.submit(late, request_id="c")
        assert full.value.retry_after_s == pytest.approx(8.0, abs=0.5)
        patient = generate_request("x", max_tokens=1, queue_timeout_s=60.0)
        other = generate_request("x", max_tokens=1, queue_timeout_s=10.0, tenant="other")
        requests += [engine.submit(wanted, request_id="d") for wanted in (patient, other)]
        assert dict(engine.stats.rejected) == {"queue_deadline": 1}
        runner.resume()
        outputs = await asyncio.gather(*map(collect, requests))
        assert {output.text for (output,) in outputs} == {hashed_text("x", 1)}


async def test_what_starts_at_once_is_not_refused() -> None:
    """Where all end together, their successors wait for the next plan only, however slow the ends are."""
    async with running(max_running=4, num_pages=256) as (engine, runner):
        runner.pause()
        requests = [engine.submit(generate_request("x", max_tokens=1), request_id="a") for _ in range(5)]
        await until(lambda: engine.load().running == 4)
        engine._queue_limits.drain_rate = rate = DrainRate(time.monotonic(), 4)
        rate._long.seconds, rate._long.ended = 40.0, 10.0
        claim = Claim(tenant="", choices=1, priority=0, queue_timeout_s=10.0)
        with pytest.raises(QueueFullError, match="would wait for about 8 s"):
            engine.check_room(claim)
        for request in requests[:3]:
            engine.abort(request)
        engine.check_room(claim)
        engine.check_room(replace(claim, choices=3))
        with pytest.raises(QueueFullError, match="would wait for about 7 s"):
            engine.check_room(replace(claim, choices=4))
        runner.resume()
        await asyncio.gather(*map(collect, requests))


async def test_a_request_may_be_refused_before_its_prompt_is_known() -> None:
    """By what is sure of it: each reason counts once, and an urgent one is let in where others are not."""
    limits = {"max_running": 1, "max_waiting": 8, "max_waiting_tokens": 64, "num_pages": 256}
    async with running(**limits) as (engine, runner):
        runner.pause()
        requests = [engine.submit(generate_request("x", max_tokens=1), request_id="a") for _ in range(2)]
        await until(lambda: engine.load().running == 1)
        claim = Claim(tenant="", choices=1, priority=0, queue_timeout_s=1.0)
        engine.check_room(claim)
        requests += [engine.submit(generate_request("y" * 63, max_tokens=1), request_id="b")]
        engine._queue_limits.drain_rate = rate = DrainRate(time.monotonic(), 1)
        rate._long.seconds, rate._long.ended = 4.0, 10.0
        engine.check_room(replace(claim, priority=-1))
        for wanted, reason in [
            (claim, "1 s"),
            (replace(claim, tokens=1, priority=-1), "64 tokens"),
            (replace(claim, choices=7), "2 requests"),
        ]:
            with pytest.raises(QueueFullError, match=reason):
                engine.check_room(wanted)
        assert dict(engine.stats.rejected) == {"queue_deadline": 1, "queue_tokens": 1, "queue_full": 1}
        runner.resume()
        await asyncio.gather(*map(collect, requests))
        assert (len(engine._scheduler.waiting), engine._scheduler.waiting.tokens) == (0, 0)


async def test_the_drain_rate_says_nothing_about_idle_times() -> None:
    async with running(max_running=1, max_waiting=4) as (engine, runner):
        await collect(engine.submit(generate_request("x", max_tokens=1), request_id="a"))
        engine._queue_limits.drain_rate._at -= 1000.0
        runner.pause()
        requests = [engine.submit(generate_request("x", max_tokens=1), request_id="b") for _ in range(4)]
        with pytest.raises(QueueFullError) as full:
            engine.submit(generate_request("x", max_tokens=1), request_id="c")
        assert full.value.retry_after_s < 2
        runner.resume()
        await asyncio.gather(*map(collect, requests))


async def test_whatever_prompts_arrive_a_stream_waits_for_one_step_budget_at_most() -> None:
    """Between two of its tokens no more than `max_batch_tokens` are run."""
    async with running(num_pages=4096, max_batch_tokens=32, max_running=16) as (engine, runner):
        chance = random.Random(3)
        stream = engine.submit(generate_request("stream", max_tokens=200), request_id="stream")
        others = []
        for number in range(40):
            length = chance.choice([2, 10, 30, 60, 500])
            text = chr(97 + number % 26) + str(number) * length
            wanted = generate_request(text, max_tokens=chance.randrange(1, 9))
            others.append(engine.submit(wanted, request_id="other"))
            await _another_step(engine)
        (whole,) = await collect(stream)
        assert whole.text == hashed_text("stream", 200)
        steps = [step for step, batch in enumerate(runner.batches) if _decodes(batch, b"stream")]
        assert steps == [*range(steps[0], steps[0] + 199)], "it gets a token by every step"
        assert max(len(batch.token_ids) for batch in runner.batches) == 32
        for request in others:
            engine.abort(request)


async def _another_step(engine: Engine) -> None:
    steps = engine.stats.steps
    await until(lambda: engine.stats.steps > steps)


def _decodes(batch: Batch, prompt: bytes) -> bool:
    """Whether an answer to `prompt` gets another token by the batch."""
    return any(
        bytes(row.tokens[: len(prompt)]) == prompt and row.position > len(prompt) for row in batch.samples
    )
