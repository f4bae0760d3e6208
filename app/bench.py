"""`radish bench`: closed-loop load on any OpenAI-compatible server.

At each level of concurrency that many clients send one request after another; what a level gives is one
line of the table, or of JSON. Inter-token times are the gaps between the pieces of text of one answer.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from app.bench_client import Answer, Client, RequestFailedError
from app.bench_report import Level, summarise, table
from app.bench_workload import Job, Workload
from app.cli import CommandFailedError

_Meta = msgspec.Meta


class BenchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `radish bench`."""

    base_url: Annotated[str, _Meta(description="Server to measure.")] = "http://127.0.0.1:8000"
    model: Annotated[str | None, _Meta(description="Without it: the first one the server lists.")] = None
    api_key: Annotated[str | None, _Meta(description="Key to send, where the server wants one.")] = None
    concurrency: Annotated[
        tuple[Annotated[int, _Meta(ge=1)], ...], _Meta(description="Levels: clients at the same time.")
    ] = (1, 8, 32)
    requests_per: Annotated[int, _Meta(ge=1, description="Requests of each client at each level.")] = 3
    max_tokens: Annotated[int, _Meta(ge=1, description="Length of an answer.", extra={"unit": "TOKENS"})] = (
        128
    )
    prompts: Annotated[
        Literal["shared", "distinct"],
        _Meta(description="Whether the requests of a level begin with the same text."),
    ] = "shared"
    prompt_words: Annotated[int, _Meta(ge=1, description="Length of that text.", extra={"unit": "WORDS"})] = (
        300
    )
    schema: Annotated[bool, _Meta(description="Ask for JSON that follows a schema, and validate it.")] = False
    ignore_eos: Annotated[
        bool,
        _Meta(description="Without a schema, ask for answers of full length; some servers refuse that."),
    ] = True
    temperature: Annotated[float, _Meta(ge=0, description="0 is greedy.")] = 0.0
    seed: Annotated[
        int, _Meta(ge=0, description="Fixes the prompts; 0 draws new ones, which no cache has seen.")
    ] = 0
    timeout: Annotated[
        float, _Meta(gt=0, description="Longest wait for one answer.", extra={"unit": "S"})
    ] = 600.0
    json: Annotated[bool, _Meta(description="Print one JSON object a level instead of the table.")] = False


OPTIONS = BenchConfig


def run(config: BenchConfig) -> int:
    """Measure, print, and return the exit code: 1 if any request failed."""
    try:
        levels, failures = asyncio.run(measure(config))
    except RequestFailedError as error:
        raise CommandFailedError(str(error)) from error
    if not config.json:
        Console().print(table(levels))
    for message in sorted(set(failures)):
        print(f"{failures.count(message)} requests failed: {message}", file=sys.stderr)
    return 1 if failures else 0


async def measure(config: BenchConfig) -> tuple[list[Level], list[str]]:
    """Run every level; the results and the messages of the requests that failed."""
    seed = config.seed or random.randrange(1, 2**32)
    model = await _warm_up(config)
    levels, failures = [], []
    with _progress() as progress:
        for concurrency in config.concurrency:
            workload = Workload(
                prompts=config.prompts,
                schema=config.schema,
                prompt_words=config.prompt_words,
                seed=f"{seed}/{concurrency}",
            )
            jobs = [workload.next() for _ in range(concurrency * config.requests_per)]
            bar = progress.add_task(f"{concurrency} at a time", total=len(jobs))
            started = time.perf_counter()
            done, failed = await _run_level(config, model, concurrency, jobs, partial(progress.advance, bar))
            levels.append(summarise(concurrency, done, len(failed), time.perf_counter() - started))
            failures += failed
            if config.json:
                print(msgspec.json.encode(levels[-1]).decode(), flush=True)
    return levels, failures


async def _warm_up(config: BenchConfig) -> str:
    """The model's name, after one short request that is not measured."""
    client = Client(config.base_url, api_key=config.api_key, timeout_s=config.timeout)
    try:
        model = config.model or await client.first_model()
        await client.chat(
            {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": True}
        )
        return model
    finally:
        client.close()


async def _run_level(
    config: BenchConfig, model: str, concurrency: int, jobs: Sequence[Job], advance: Callable[[], None]
) -> tuple[list[tuple[Job, Answer]], list[str]]:
    """Let `concurrency` clients work through the jobs."""
    pending = iter(jobs)
    done: list[tuple[Job, Answer]] = []
    failed: list[str] = []

    async def work() -> None:
        client = Client(config.base_url, api_key=config.api_key, timeout_s=config.timeout)
        for job in pending:
            try:
                done.append((job, await client.chat(_body(config, model, job))))
            except RequestFailedError as error:
                failed.append(str(error))
            advance()
        client.close()

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return done, failed


def _body(config: BenchConfig, model: str, job: Job) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": job.messages,
        "max_tokens": config.max_tokens,
        "temperature": config.temperature,
        "seed": job.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if job.schema is not None:
        schema = {"name": "answer", "schema": job.schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif config.ignore_eos:
        body["ignore_eos"] = True
    return body


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
