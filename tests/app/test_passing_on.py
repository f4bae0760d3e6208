"""Updates that are told as they come, past the task that waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from app.errors import ApiError
from app.generation import Generation
from engine.params import SamplingParams
from engine.request import GenerateRequest
from engine.stream import Update, UpdateStream
from tests.app.harness import Served


async def begun(served: Served) -> tuple[Generation, UpdateStream]:
    """A generation that the engine has forgotten: its updates are put by the test."""
    prompt = GenerateRequest(prompt=[1], params=SamplingParams(max_tokens=1))
    generation = await Generation.submitted(served.engine, [prompt], request_id="test", prompt_field="prompt")
    generation.abort()
    stream = UpdateStream(1)
    generation.requests[0].stream = stream
    return generation, stream


def telling(told: list[str], goes_on: Callable[[], bool] = lambda: True) -> Callable[[list[Update]], bool]:
    def tell(updates: list[Update]) -> bool:
        told.extend(update.text for update in updates)
        return goes_on()

    return tell


async def test_updates_are_told_until_the_last(served: Served) -> None:
    generation, stream = await begun(served)
    told: list[str] = []
    stream.put(Update(index=0, text="before "))
    passing = asyncio.create_task(generation.pass_on(telling(told)))
    await asyncio.sleep(0)
    assert told == ["before "]
    stream.put(Update(index=0, text="two "))
    stream.put(Update(index=0, text="in one "))
    assert told == ["before "], "nothing is told within the step"
    await asyncio.sleep(0)
    stream.put(Update(index=0, text="end", finish_reason="stop"))
    await passing
    assert told == ["before ", "two in one ", "end"]
    assert stream.is_over


async def test_what_a_slow_client_has_not_been_told_waits(served: Served) -> None:
    generation, stream = await begun(served)
    told: list[str] = []
    stream.put(Update(index=0, text="a"))
    await generation.pass_on(telling(told, lambda: False))
    stream.put(Update(index=0, text="b"))
    stream.put(Update(index=0, text="c", finish_reason="length"))
    await asyncio.sleep(0)
    assert told == ["a"]
    assert [update.text async for updates in generation.updates() for update in updates] == ["bc"]


async def test_what_fails_is_raised_where_it_is_waited_for(served: Served) -> None:
    generation, stream = await begun(served)

    def fail(updates: list[Update]) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await generation.pass_on(fail)
    told: list[str] = []
    passing = asyncio.create_task(generation.pass_on(telling(told)))
    await asyncio.sleep(0)
    stream.put(Update(index=0, text="lost", finish_reason="error", error="the forward pass failed"))
    with pytest.raises(ApiError, match="the forward pass failed") as caught:
        await passing
    assert (caught.value.status, told) == (500, [])


async def test_who_has_left_is_told_nothing(served: Served) -> None:
    generation, stream = await begun(served)
    told: list[str] = []
    passing = asyncio.create_task(generation.pass_on(telling(told)))
    await asyncio.sleep(0)
    stream.put(Update(index=0, text="too late"))
    passing.cancel()
    await asyncio.wait((passing,))
    await asyncio.sleep(0)
    assert told == []
