"""`radish selfcheck`: whether an answer depends on what else the server does.

A recorded mix of requests is answered alone with an empty cache, alone with a warm one, all at once, in
chunks of a few tokens, and all at once in a pool so small that they preempt one another. Every answer must
have the same tokens each time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from app.cli import CommandFailedError
from app.progress import progress_bar
from engine.config import Config
from engine.errors import ConfigError
from engine.models.errors import ModelError
from engine.params import SamplingParams
from engine.request import GenerateRequest

if TYPE_CHECKING:
    from engine.engine import Engine

OPTIONS = Config

_SHARED = "You are a helpful assistant. You answer in one short sentence, and you never repeat yourself. "
_MIX = (
    *(f"{_SHARED}The question is about {topic}: what is it?" for topic in ("tides", "bees", "moss", "bread")),
    "Once upon a time",
    "1 2 3 4 5",
)
_OUTPUT = 96
_CHUNK = 16

Tokens = list[list[int]]
Load = Callable[[Config], "Engine"]


def run(config: Config) -> int:
    """Check the configured model; returns the exit code."""
    try:
        with progress_bar() as progress:
            progress("Starting torch", 0.0)
            # Imported here because it imports torch: that takes seconds, and `--help` must not wait for it.
            from engine.load import load_engine  # noqa: PLC0415

            differences = asyncio.run(check(config, lambda config: load_engine(config, progress), progress))
    except ConfigError as error:
        raise CommandFailedError(str(error), status=2) from error
    except ModelError as error:
        raise CommandFailedError(str(error)) from error
    for way, count in differences.items():
        verdict = f"{count} of {2 * len(_MIX)} answers differ" if count else "the same"
        sys.stdout.write(f"{way:10} {verdict}\n")
    return 1 if any(differences.values()) else 0


async def check(config: Config, load: Load, progress: Callable[[str, float], None]) -> dict[str, int]:
    """How many answers differ from those given alone and cold, by way of asking.

    Args:
        progress: told how the mix is being asked.
    """
    async with _started(load(config)) as engine:
        progress("Asking with an empty cache", 0.0)
        cold = await _alone(engine, flush=True)
        progress("Asking with a warm cache", 0.0)
        ways = {"warm": await _alone(engine, flush=False)}
        progress("Asking all at once", 0.0)
        ways["batched"] = await _together(engine)
    async with _started(load(msgspec.structs.replace(config, max_batch_tokens=_CHUNK))) as engine:
        progress("Asking in chunks", 0.0)
        ways["chunked"] = await _together(engine)
    async with _started(await _with_small_pool(config, load)) as engine:
        progress("Asking in a small pool", 0.0)
        ways["preempted"] = await _together(engine)
        if not engine.stats.preemptions:
            raise CommandFailedError("nothing was preempted, so nothing is known of preemption")
    return {way: sum(a != b for a, b in zip(cold, tokens, strict=True)) for way, tokens in ways.items()}


async def _with_small_pool(config: Config, load: Load) -> Engine:
    """An engine with the smallest pool that holds every request of the mix by itself."""
    for exponent in range(16):
        small = msgspec.structs.replace(config, kv_memory=1 << exponent, prefix_cache=False)
        try:
            engine = load(small)
        except ConfigError:
            continue  # not even two pages
        if engine.max_context >= max(len(request.prompt) + _OUTPUT for request in _requests(engine)):
            return engine
        await engine.stop()
    raise CommandFailedError("the mix fits into no pool of this model")


@asynccontextmanager
async def _started(engine: Engine) -> AsyncIterator[Engine]:
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def _alone(engine: Engine, *, flush: bool) -> Tokens:
    answers: Tokens = []
    for request in _requests(engine):
        if flush:
            engine.flush_cache()
        answers.append(await _answer(engine, request))
    return answers


async def _together(engine: Engine) -> Tokens:
    return list(await asyncio.gather(*(_answer(engine, request) for request in _requests(engine))))


async def _answer(engine: Engine, request: GenerateRequest) -> list[int]:
    tokens: list[int] = []
    async for updates in engine.submit(request, request_id="selfcheck").stream:
        for update in updates:
            if update.error is not None:
                raise CommandFailedError(update.error)
            tokens += update.token_ids
    return tokens


def _requests(engine: Engine) -> list[GenerateRequest]:
    """Greedy and sampled ones."""
    return [
        GenerateRequest(
            prompt=engine.tokenizer.encode(text, add_special=True, parse_special=False),
            params=SamplingParams(max_tokens=_OUTPUT, temperature=temperature, seed=7, ignore_eos=True),
        )
        for text in _MIX
        for temperature in (0.0, 1.0)
    ]
