"""One fault at a time, injected from outside; afterwards the engine is quiet and has the known text."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import numpy as np
import psutil
import pytest
import torch

from engine.batch import Batch, SampleRow
from engine.detokenizer import Detokenizer
from engine.engine import Engine
from engine.errors import EngineStoppedError
from engine.stream import Update
from grammars.base import Grammar, GrammarError, MaskRow
from grammars.spec import Constraint
from tests.engine.test_engine import hashed_text, running, until
from tests.fakes import FakeRunner, assert_quiet, collect, generate_request


@asynccontextmanager
async def recovering(**settings: Any) -> AsyncIterator[tuple[Engine, FakeRunner]]:
    """An engine that says the known text once the faults are over."""
    async with running(**settings) as (engine, runner):
        yield engine, runner
        runner.resume()
        runner.fails = lambda batch: False
        runner.script = lambda row: None
        assert await say(engine, "the control prompt", max_tokens=12) == hashed_text("the control prompt", 12)
        assert_quiet(engine)


async def say(engine: Engine, prompt: str, **fields: Any) -> str:
    (output,) = await collect(engine.submit(generate_request(prompt, **fields), request_id=prompt))
    return output.text


async def ended(engine: Engine, prompt: str, **fields: Any) -> Update:
    (output,) = await collect(engine.submit(generate_request(prompt, **fields), request_id=prompt))
    return output


def has(letter: str) -> Callable[[Batch], bool]:
    """Whether a batch samples for a prompt that begins with `letter`."""
    return lambda batch: any(row.tokens[0] == ord(letter) for row in batch.samples)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "the forward pass failed"),
        (AssertionError(), "the forward pass failed"),
        (np.linalg.LinAlgError(), "the forward pass failed"),
        (MemoryError(), "the forward pass ran out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "the forward pass ran out of memory"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_forward_raises(fault: Exception, error: str) -> None:
    async with recovering() as (engine, runner):
        runner.fails = lambda batch: fault if has("!")(batch) else False
        output = await ended(engine, "!", max_tokens=9)
        assert (output.finish_reason, output.error) == ("error", error)
        assert await say(engine, "fine", max_tokens=9) == hashed_text("fine", 9)


async def test_every_step_raises() -> None:
    """Everyone ends with an error, and whoever waits has its turn."""
    async with recovering(max_running=2) as (engine, runner):
        runner.fails = lambda batch: True
        outputs = await asyncio.gather(*(ended(engine, f"{n}", max_tokens=2) for n in range(30)))
        assert {output.error for output in outputs} == {"the forward pass failed"}


async def test_a_row_of_nan_ends_alone() -> None:
    def script(row: SampleRow) -> int | None:
        return -1 if row.tokens[0] == ord("!") and row.position == 4 else None

    async with recovering(script=script) as (engine, _):
        bad, good = await asyncio.gather(*(ended(engine, text, max_tokens=9) for text in "!?"))
        assert (bad.finish_reason, bad.error) == ("error", "the model gave no usable probabilities")
        assert good.text == hashed_text("?", 9)


class FaultyGrammar:
    """Allows every byte; at its third token does what it is told to."""

    width = 272
    min_tokens = None
    is_complete = is_exhausted = is_terminated = False

    def __init__(self, *, accepts: Callable[[], bool], fills: Callable[[], None]) -> None:
        self.num_tokens = 0
        self._accepts = accepts
        self._fills = fills

    def matcher(self) -> FaultyGrammar:
        return self

    def kept_mask(self) -> None:
        return None

    def fill_mask(self, row: MaskRow) -> None:
        row[:8] = -1
        if self.num_tokens == 2:
            self._fills()

    def accept(self, token_id: int) -> bool:
        self.num_tokens += 1
        return self._accepts() if self.num_tokens == 3 else True

    def accept_within(self, token_id: int, budget: int) -> int | None:
        return token_id if self.accept(token_id) else None

    def shortest_close(self) -> list[int] | None:
        return None

    def forced_tokens(self) -> list[int]:
        return []


def breaks() -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("grammar", "error"),
    [
        (FaultyGrammar(accepts=lambda: False, fills=lambda: None), "the grammar refused the sampled token"),
        (FaultyGrammar(accepts=breaks, fills=lambda: None), "its output could not be read"),
        (FaultyGrammar(accepts=lambda: True, fills=breaks), "the grammar failed"),
    ],
    ids=["refuses", "accept raises", "mask raises"],
)
async def test_a_faulty_matcher_ends_its_own_request(grammar: FaultyGrammar, error: str) -> None:
    async with recovering() as (engine, _):
        bad, good = await asyncio.gather(
            ended(engine, "bad", max_tokens=9, grammar=cast("Grammar", grammar)),
            ended(engine, "good", max_tokens=9),
        )
        assert bad.finish_reason == "error"
        assert error in (bad.error or "")
        assert (good.finish_reason, good.text) == ("length", hashed_text("good", 9))


async def test_the_detokenizer_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Detokenizer.add
    count = iter(range(1 << 30))

    def faulty(self: Detokenizer, ids: Any, *, may_stop: bool) -> str:
        if next(count) == 3:
            raise ZeroDivisionError
        return add(self, ids, may_stop=may_stop)

    async with recovering() as (engine, _):
        with monkeypatch.context() as patch:
            patch.setattr(Detokenizer, "add", faulty)
            outputs = await asyncio.gather(*(ended(engine, text, max_tokens=9) for text in ("a", "b")))
        assert sorted(output.finish_reason or "" for output in outputs) == ["error", "length"]


async def test_a_choice_that_cannot_be_made_leaves_none_of_its_request() -> None:
    made = iter(range(3))

    class Grammar3(FaultyGrammar):
        def matcher(self) -> FaultyGrammar:
            return self if next(made) < 2 else breaks()

    grammar = cast("Grammar", Grammar3(accepts=lambda: True, fills=lambda: None))
    async with recovering() as (engine, _):
        with pytest.raises(ZeroDivisionError):
            engine.submit(generate_request("x", choices=3, grammar=grammar), request_id="r")
        assert engine.stats.started == 0


async def test_a_stuck_step_turns_readiness_off_and_says_where_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with recovering(step_timeout=0.05) as (engine, runner):
        runner.pause()
        request = engine.submit(generate_request("x", max_tokens=5), request_id="the-request")
        await until(lambda: not engine.is_ready)
        assert engine.is_stuck
        assert engine.is_alive
        with pytest.raises(EngineStoppedError, match="hangs"):
            engine.submit(generate_request("y"), request_id="r")
        await until(lambda: bool(caplog.records))
        (record,) = caplog.records
        assert record.levelno == logging.CRITICAL
        assert "the-request[0] 2/3" in record.message
        assert "Thread radish-forward" in record.message
        assert "self._gate.wait_for" in record.message
        runner.resume()
        assert (await collect(request))[0].text == hashed_text("x", 5)
        await until(lambda: engine.is_ready)
        caplog.clear()


async def test_an_idle_engine_is_not_stuck() -> None:
    async with recovering(step_timeout=0.02) as (engine, _):
        await say(engine, "x", max_tokens=3)
        await until(lambda: engine._loop._watchdog._since is None)
        assert engine.is_ready


async def test_ten_thousand_aborts_at_random_moments() -> None:
    """Waiting, in a chunk of the prompt, while decoding, in the same turn as the end: nothing is left."""
    async with recovering(num_pages=160, max_running=16, max_batch_tokens=48, max_waiting=4096) as (
        engine,
        _,
    ):
        chance = random.Random(7)

        async def one(number: int) -> None:
            prompt = f"prompt {number % 17} " * (1 + number % 4)
            request = engine.submit(generate_request(prompt, max_tokens=6), request_id=f"{number}")
            if number % 8:
                for _ in range(chance.randrange(60)):
                    await asyncio.sleep(0)
                engine.abort(request)
            await collect(request)

        for start in range(0, 10_000, 250):
            await asyncio.gather(*(one(number) for number in range(start, start + 250)))
        ended = engine.stats.finished
        assert ended["abort"] + ended["length"] == 10_000
        assert min(ended["abort"], ended["length"]) > 0


async def test_the_compile_worker_is_killed_from_outside() -> None:
    """Its constraint is refused, and the next one finds a new worker."""
    endless = Constraint(kind="lark", spec='start: %json {"type": "integer", "multipleOf": 123456789}')
    async with recovering(grammar_timeout=60.0) as (engine, _):
        others = set(psutil.Process().children())
        await engine.compiler.compile(Constraint.json_schema({"type": "integer"}))
        compiling = asyncio.create_task(engine.compiler.compile(endless))

        def at_work() -> list[psutil.Process]:
            """The process at the second constraint: perhaps another than that of the first."""
            children = set(psutil.Process().children()) - others
            return [child for child in children if sum(child.cpu_times()[:2]) > begun + 0.2]

        begun = max(sum(child.cpu_times()[:2]) for child in set(psutil.Process().children()) - others)
        await until(lambda: bool(at_work()))
        (worker,) = at_work()
        worker.kill()
        with pytest.raises(GrammarError):
            await compiling
        grammar = await engine.compiler.compile(Constraint.json_schema({"type": "boolean"}))
        assert await say(engine, "x", max_tokens=9, grammar=grammar) in ("true", "false")
