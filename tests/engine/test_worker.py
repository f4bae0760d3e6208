"""Calls that are made beside the event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from engine.worker import Worker


async def test_calls_are_made_in_their_order_on_the_thread_of_that_name() -> None:
    worker = Worker("beside")
    made: list[tuple[int, str]] = []

    def call(number: int, text: str) -> str:
        made.append((number, threading.current_thread().name))
        return text * number

    worker.start()
    calls = [worker.call(call, number, "ab") for number in range(1, 4)]
    await worker.stop()
    assert made == [(1, "beside"), (2, "beside"), (3, "beside")]
    assert [call.result() for call in calls] == ["ab", "abab", "ababab"]


async def test_what_a_call_raises_is_its_callers_and_the_next_is_made() -> None:
    worker = Worker("beside")
    worker.start()
    with pytest.raises(ZeroDivisionError):
        await worker.call(divmod, 1, 0)
    assert await worker.call(divmod, 7, 2) == (3, 1)
    await worker.stop()


async def test_a_call_that_was_cancelled_before_its_turn_is_not_made() -> None:
    worker = Worker("beside")
    made: list[int] = []
    first, second = worker.call(made.append, 1), worker.call(made.append, 2)
    second.cancel()
    worker.start()
    await worker.stop()
    assert made == [1]
    assert first.done()


async def test_a_result_that_nobody_waits_for_any_more_is_dropped() -> None:
    worker, gate = Worker("beside"), threading.Event()
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def call() -> int:
        loop.call_soon_threadsafe(begun.set)
        gate.wait()
        return 1

    worker.start()
    result = worker.call(call)
    await begun.wait()
    result.cancel()
    gate.set()
    await worker.stop()
    assert result.cancelled()


def test_a_call_may_outlive_its_loop() -> None:
    worker, gate = Worker("beside"), threading.Event()
    worker.start()

    async def ask() -> None:
        worker.call(gate.wait)
        worker.stop()

    asyncio.run(ask())
    gate.set()
    worker._thread.join()
