"""The traffic of `ops.overload`: clients that measure what they are answered, and phases of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from app.bench_client import Answer, Client, RequestFailedError
from app.bench_workload import Workload

MAX_TOKENS = 48
_WARM_UP_S = 5.0
_PAUSE_S = 1.0
"""A refused client asks again after that."""
_FLOOD_WORDS = 3960
"""Digits and the blanks between them are two tokens each."""


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

    def gap_ms(self, percent: float) -> float:
        """A percentile of them."""
        return percentile(self.gaps_ms, percent)

    @property
    def longest_wait_s(self) -> float:
        """From sending a request to the first token of its answer."""
        return max(answer.arrivals[0] - answer.sent for answer in self.answers if answer.arrivals)


def percentile(ordered: list[float], percent: float) -> float:
    """Of numbers in their order."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


class Traffic:
    """Requests for one server."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url
        self._model = model
        self._workload = Workload(prompts="distinct", prompt_words=60, seed="overload")
        self._chance = random.Random("overload")

    def client(self) -> Client:
        return Client(self._url, api_key=None, timeout_s=600)

    async def ask(self, client: Client, phase: Phase, messages: Any = None, **fields: Any) -> None:
        """Have one answer, or find out why not."""
        body = {
            "model": self._model,
            "messages": messages or self._workload.next().messages,
            "max_tokens": MAX_TOKENS,
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

    async def closed(
        self, clients: int, phase: Phase, seconds: float, lengths: Sequence[int] = (MAX_TOKENS,)
    ) -> None:
        """That many clients, each with one request after another.

        Args:
            lengths: of their answers, drawn from these.
        """
        phase.begin = time.perf_counter() + _WARM_UP_S
        phase.end = phase.begin + seconds

        async def one() -> None:
            with closing(self.client()) as client:
                while time.perf_counter() < phase.end:
                    await self.ask(client, phase, max_tokens=self._chance.choice(lengths))

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

    async def cached(self) -> list[str]:
        """The words of a prompt that is cached now, all but 200 tokens of those that flood."""
        words = _digits(random.Random("cached"), _FLOOD_WORDS - 100)
        with closing(self.client()) as client:
            await self.ask(client, Phase("cached"), _conversation(words), max_tokens=1)
        return words

    async def flood(self, phase: Phase, shared: list[str]) -> None:
        """One prompt of 8,000 tokens after another, four at a time, which begin with `shared` words."""
        numbers = random.Random("flood")

        async def one() -> None:
            with closing(self.client()) as client:
                while True:
                    words = shared + _digits(numbers, _FLOOD_WORDS - len(shared))
                    await self.ask(client, phase, _conversation(words), max_tokens=1)

        await asyncio.gather(*(one() for _ in range(4)))


def _digits(numbers: random.Random, count: int) -> list[str]:
    return [str(numbers.randrange(10)) for _ in range(count)]


def _conversation(words: list[str]) -> list[dict[str, str]]:
    return [{"role": "user", "content": " ".join(words)}]
