"""`radish bench`: closed-loop load on any OpenAI-compatible server.

At each level of concurrency that many clients send one request after another; what a level gives is one
line of the table, or of JSON. Inter-token times are the gaps between the pieces of text of one answer.

With `--schema` a level has a line for each kind of answer: free text, a list of strings, and records that
are half names and punctuation, which a grammar dictates. All kinds get the same prompts, which are in the
server's cache beforehand, and as many tokens; they take turns, so that whatever else the machine does meets
them alike. What they are compared by is their tokens per second.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from app.bench_client import Client, RequestFailedError
from app.bench_report import Level, Run, table
from app.bench_workload import KINDS, Job, Kind, Workload, schema_of
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
    schema: Annotated[
        bool, _Meta(description="Compare free text with JSON that follows a schema, and validate it.")
    ] = False
    ignore_eos: Annotated[
        bool,
        _Meta(description="Ask for free text of full length; some servers refuse that."),
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
    levels: list[Level] = []
    failures: list[str] = []
    with _progress() as progress:
        for concurrency in config.concurrency:
            workload = Workload(
                prompts=config.prompts, prompt_words=config.prompt_words, seed=f"{seed}/{concurrency}"
            )
            jobs = [workload.next() for _ in range(concurrency * config.requests_per)]
            total = len(jobs) * (1 + len(KINDS)) + len(KINDS) if config.schema else len(jobs)
            bar = progress.add_task(f"{concurrency} at a time", total=total)
            load = _Load(config, model, concurrency, partial(progress.advance, bar))
            runs: dict[Kind | None, Run]
            runs = await _compare(load, jobs) if config.schema else {None: await load.run(jobs)}
            measured = [run.level(concurrency, kind, runs.get("free")) for kind, run in runs.items()]
            levels += measured
            failures += [message for run in runs.values() for message in run.failed]
            if config.json:
                for level in measured:
                    print(msgspec.json.encode(level).decode(), flush=True)
    return levels, failures


async def _compare(load: _Load, jobs: Sequence[Job]) -> dict[Kind | None, Run]:
    """Run every kind of answer on the jobs: in rounds of one job a client, the kinds taking turns."""
    kinds = {kind: schema_of(kind, load.config.max_tokens) for kind in KINDS}
    runs: dict[Kind | None, Run] = {kind: Run() for kind in KINDS}
    # Compiles the schemas.
    await load.run([replace(jobs[0], schema=schema) for schema in kinds.values()])
    for number, start in enumerate(range(0, len(jobs), load.concurrency)):
        batch = jobs[start : start + load.concurrency]
        await load.run(batch, max_tokens=1)
        first = number % len(KINDS)
        for kind in (*KINDS[first:], *KINDS[:first]):
            runs[kind].add(await load.run([replace(job, schema=kinds[kind]) for job in batch]))
    return runs


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


@dataclass(frozen=True, slots=True)
class _Load:
    """So many clients that ask a server."""

    config: BenchConfig
    model: str
    concurrency: int
    advance: Callable[[], None]
    """Called after each answer."""

    async def run(self, jobs: Sequence[Job], *, max_tokens: int | None = None) -> Run:
        """Let the clients work through the jobs."""
        config, pending, run = self.config, iter(jobs), Run()

        async def work() -> None:
            client = Client(config.base_url, api_key=config.api_key, timeout_s=config.timeout)
            for job in pending:
                body = _body(config, self.model, job, max_tokens or config.max_tokens)
                try:
                    run.done.append((job, await client.chat(body)))
                except RequestFailedError as error:
                    run.failed.append(str(error))
                self.advance()
            client.close()

        started = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(self.concurrency)))
        run.wall_s = time.perf_counter() - started
        return run


def _body(config: BenchConfig, model: str, job: Job, max_tokens: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": job.messages,
        "max_tokens": max_tokens,
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
