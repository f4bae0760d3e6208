"""What a server of its own does with more than it can: figures for README.md.

    ops/overload goodput --seconds 60     # four times the requests it has the capacity for
    ops/overload flood --seconds 60       # one client that sends prompts of 8,000 tokens, again and again

Both put a calm phase before and one after, for machines change their speed, and exit with 1 where a promise
was not kept.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import psutil

from app.bench_client import Answer, Client, RequestFailedError
from app.bench_workload import Workload
from ops.own_server import own_server

_MAX_TOKENS = 48
_WARM_UP_S = 5.0
_PAUSE_S = 1.0
"""A refused client asks again after that."""
_QUEUE_DEADLINE_S = 10.0
_MAX_RUNNING = 8
_SERVE = {
    # So small a pool is full before anything is measured.
    "goodput": ("--kv-memory", "64", "--max-waiting", "64", "--queue-timeout", str(_QUEUE_DEADLINE_S)),
    "flood": ("--kv-memory", "1200"),
}


@dataclass
class Phase:
    """A stretch of time, and what was answered in it."""

    name: str
    begin: float = 0.0
    end: float = 0.0
    answers: list[Answer] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    """By status, or by what went wrong."""

    @property
    def goodput(self) -> float:
        """Tokens a second of answers that came whole."""
        count = sum(self.begin <= at < self.end for answer in self.answers for at in answer.arrivals)
        return count / (self.end - self.begin)

    @property
    def gaps_ms(self) -> list[float]:
        """Between two tokens of one answer, sorted."""
        arrivals = [[at for at in answer.arrivals if self.begin <= at < self.end] for answer in self.answers]
        return sorted(1000 * (after - before) for times in arrivals for before, after in pairwise(times))

    @property
    def longest_wait_s(self) -> float:
        """From sending a request to the first token of its answer."""
        return max(answer.arrivals[0] - answer.sent for answer in self.answers if answer.arrivals)


class Traffic:
    """Requests for one server."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url
        self._model = model
        self._workload = Workload(prompts="distinct", prompt_words=60, seed="overload")

    def client(self) -> Client:
        return Client(self._url, api_key=None, timeout_s=600)

    async def ask(self, client: Client, phase: Phase, messages: Any = None, **fields: Any) -> None:
        """Have one answer, or find out why not."""
        body = {
            "model": self._model,
            "messages": messages or self._workload.next().messages,
            "max_tokens": _MAX_TOKENS,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        try:
            phase.answers.append(await client.chat(body))
        except RequestFailedError as error:
            phase.failures[str(error.status or error)] += 1
            await asyncio.sleep(_PAUSE_S)

    async def closed(self, clients: int, phase: Phase, seconds: float) -> None:
        """That many clients, each with one request after another."""
        phase.begin = time.perf_counter() + _WARM_UP_S
        phase.end = phase.begin + seconds

        async def one() -> None:
            with closing(self.client()) as client:
                while time.perf_counter() < phase.end:
                    await self.ask(client, phase)

        await asyncio.gather(*(one() for _ in range(clients)))

    async def open(self, rate: float, phase: Phase, seconds: float) -> None:
        """Requests at random moments, `rate` a second, whether others are answered or not."""
        phase.begin = time.perf_counter() + _WARM_UP_S
        phase.end = phase.begin + seconds
        idle: list[Client] = []

        async def one() -> None:
            client = idle.pop() if idle else self.client()
            await self.ask(client, phase)
            idle.append(client)

        async with asyncio.TaskGroup() as group:
            at = time.perf_counter()
            while at < phase.end:
                at += random.expovariate(rate)
                await asyncio.sleep(max(0.0, at - time.perf_counter()))
                group.create_task(one())
        for client in idle:
            client.close()

    async def flood(self, phase: Phase) -> None:
        """One prompt of 8,000 tokens after another, four at a time."""
        numbers = random.Random("flood")

        async def one() -> None:
            with closing(self.client()) as client:
                while True:
                    text = " ".join(str(numbers.randrange(10)) for _ in range(3960))
                    await self.ask(client, phase, [{"role": "user", "content": text}], max_tokens=1)

        await asyncio.gather(*(one() for _ in range(4)))


async def goodput(traffic: Traffic, seconds: float, pid: int) -> list[str]:
    """Four times the capacity; returns the promises that were broken."""
    before, over, after = Phase("at capacity"), Phase("at 4 times that"), Phase("at capacity again")
    memory: list[int] = []

    async def watch() -> None:
        while True:
            memory.append(psutil.Process(pid).memory_info().rss >> 20)
            await asyncio.sleep(1)

    async with AsyncExitStack() as stack:
        await traffic.closed(_MAX_RUNNING, before, seconds / 2)
        watching = asyncio.create_task(watch())
        stack.callback(watching.cancel)
        await traffic.open(4 * before.goodput / _MAX_TOKENS, over, seconds)
    await traffic.closed(_MAX_RUNNING, after, seconds / 2)
    for phase in (before, over, after):
        refused = ", ".join(f"{count} x {what}" for what, count in phase.failures.items())
        print(
            f"{phase.name:18} goodput {phase.goodput:7.1f} tokens/s, {len(phase.answers)} answers, longest "
            f"wait {phase.longest_wait_s:.1f} s{'; refused: ' if refused else ''}{refused}"
        )
    share = over.goodput / ((before.goodput + after.goodput) / 2)
    grown = max(memory) - memory[0]
    print(f"goodput {share:.0%} of that at capacity; memory {memory[0]} MiB, at most {grown} MiB more")
    return _broken(
        (share >= 0.95, "the goodput fell"),
        (set(over.failures) <= {"429"}, f"not only 429: {dict(over.failures)}"),
        (over.longest_wait_s <= _QUEUE_DEADLINE_S, "an accepted request waited beyond its deadline"),
        (grown <= 16, "the memory grew"),
    )


async def flood(traffic: Traffic, seconds: float) -> list[str]:
    """A flood of long prompts; returns the promises that were broken."""
    before, during, after = Phase("calm"), Phase("flooded"), Phase("calm again")
    flooding = Phase("flood")
    await traffic.closed(4, before, seconds / 2)
    task = asyncio.create_task(traffic.flood(flooding))
    await traffic.closed(4, during, seconds)
    task.cancel()
    await asyncio.wait((task,))
    await traffic.closed(4, after, seconds / 2)
    for phase in (before, during, after):
        gaps = phase.gaps_ms
        print(
            f"{phase.name:18} gap between tokens p50 {_percentile(gaps, 50):6.1f} ms, "
            f"p99 {_percentile(gaps, 99):6.1f} ms, {phase.goodput:.1f} tokens/s"
        )
    done, failed = flooding.answers, dict(flooding.failures)
    longest = max((answer.prompt_tokens for answer in done), default=0)
    print(f"the flood: {len(done)} prompts of up to {longest} tokens were run, {failed or 'none'} failed")
    calm = _percentile(sorted(before.gaps_ms + after.gaps_ms), 99)
    ratio = _percentile(during.gaps_ms, 99) / calm
    print(f"p99 of the gap {ratio:.2f} times that of calm")
    others = before.failures + during.failures + after.failures
    return _broken((ratio <= 2, "the gap grew"), (not others, f"others failed: {dict(others)}"))


def _broken(*promises: tuple[bool, str]) -> list[str]:
    return [what for kept, what in promises if not kept]


def _percentile(ordered: list[float], percent: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


async def main(options: argparse.Namespace) -> Iterable[str]:
    running = ("--log-level", "error", "--max-running", str(_MAX_RUNNING))
    async with own_server(*running, *_SERVE[options.what], *options.serve) as server:
        with closing(Client(server.url, api_key=None, timeout_s=60)) as client:
            traffic = Traffic(server.url, await client.first_model())
        if options.what == "goodput":
            return await goodput(traffic, options.seconds, server.pid)
        return await flood(traffic, options.seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("goodput", "flood"))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--serve", type=shlex.split, default=[], help="options of radish serve, quoted")
    broken = asyncio.run(main(parser.parse_args()))
    for promise in broken:
        print(f"BROKEN: {promise}")
    sys.exit(bool(broken))
