"""What constrained answers cost the free ones beside them: figures for README.md.

    ops/neighbours --rounds 4 --seconds 15

The watched clients ask for free text, one answer after another, and others beside them: nobody, as many
clients that ask for free text, too (the control: company costs something, whatever it asks for), or for
lists or records that follow a schema. These take turns, each in every place of a round, for machines change
their speed. Exits with 1 where the watched get fewer tokens a second beside constrained answers than beside
free ones.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, Literal

from app.bench_client import Answer, Client
from app.bench_workload import KINDS, Kind, Workload, schema_of
from ops.own_server import own_server

_MAX_TOKENS = 128
_WARM_UP_S = 2.0
_LEAST_SHARE = 0.97

Company = Literal["nobody"] | Kind
_COMPANY: tuple[Company, ...] = ("nobody", *KINDS)


@dataclass
class Watched:
    """What the watched clients got beside one sort of company."""

    rates: list[float] = field(default_factory=list)
    """Tokens a second, of each turn."""
    gaps_ms: list[float] = field(default_factory=list)
    """Between two tokens of one answer."""

    def add(self, answers: list[Answer], begin: float, end: float) -> None:
        """Take in what came of these answers in a stretch of time."""
        arrivals = [[at for at in answer.arrivals if begin <= at < end] for answer in answers]
        self.rates.append(sum(map(len, arrivals)) / (end - begin))
        self.gaps_ms += [1000 * (after - before) for times in arrivals for before, after in pairwise(times)]

    def gap_ms(self, percent: int) -> float:
        ordered = sorted(self.gaps_ms)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


class Clients:
    """Clients of one server."""

    def __init__(self, url: str, model: str, count: int) -> None:
        self._url = url
        self._model = model
        self._count = count
        self._workload = Workload(prompts="shared", prompt_words=60, seed="neighbours")

    async def ask(self, client: Client, kind: Kind) -> Answer:
        """Have one answer."""
        job, schema = self._workload.next(), schema_of(kind, _MAX_TOKENS)
        body: dict[str, Any] = {"model": self._model, "messages": job.messages, "max_tokens": _MAX_TOKENS}
        body |= {"temperature": 0.0, "stream": True, "stream_options": {"include_usage": True}}
        if schema is None:
            return await client.chat(body | {"ignore_eos": True})
        wanted = {"name": "answer", "schema": schema, "strict": True}
        return await client.chat(body | {"response_format": {"type": "json_schema", "json_schema": wanted}})

    async def work(self, kind: Kind, until: float) -> list[Answer]:
        """Let all of them ask until it is time; the answers of those that began in it."""

        async def one() -> list[Answer]:
            answers = []
            with closing(Client(self._url, api_key=None, timeout_s=600)) as client:
                while time.perf_counter() < until:
                    answers.append(await self.ask(client, kind))
            return answers

        found = await asyncio.gather(*(one() for _ in range(self._count)))
        return [answer for answers in found for answer in answers]


async def measure(clients: Clients, *, rounds: int, seconds: float) -> dict[Company, Watched]:
    """The watched clients' figures beside each sort of company."""
    # Compiles the schemas.
    for kind in KINDS:
        await clients.work(kind, time.perf_counter() + 0.1)
    found: dict[Company, Watched] = {company: Watched() for company in _COMPANY}
    for number in range(rounds):
        first = number % len(_COMPANY)
        for company in (*_COMPANY[first:], *_COMPANY[:first]):
            begin = time.perf_counter() + _WARM_UP_S
            end = begin + seconds
            others = [] if company == "nobody" else [clients.work(company, end)]
            answers, *_ = await asyncio.gather(clients.work("free", end), *others)
            found[company].add(answers, begin, end)
    return found


async def main(options: argparse.Namespace) -> int:
    async with own_server("--log-level", "error", *options.serve) as server:
        with closing(Client(server.url, api_key=None, timeout_s=60)) as client:
            clients = Clients(server.url, await client.first_model(), options.clients)
        found = await measure(clients, rounds=options.rounds, seconds=options.seconds)
    control = found["free"]
    print(f"{options.clients} clients that get free text, beside as many that get")
    kept = True
    for company, watched in found.items():
        # Turn by turn, as neighbours in time are alike.
        share = median(rate / base for rate, base in zip(watched.rates, control.rates, strict=True))
        print(
            f"{company:8} {median(watched.rates):7.1f} tokens/s ({share:6.1%} of beside free text), gap "
            f"between tokens p50 {watched.gap_ms(50):5.1f} ms, p99 {watched.gap_ms(99):5.1f} ms"
        )
        kept = kept and (company == "nobody" or share >= _LEAST_SHARE)
    return 0 if kept else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15, help="of each turn")
    parser.add_argument("--serve", type=shlex.split, default=[], help="options of radish serve, quoted")
    sys.exit(asyncio.run(main(parser.parse_args())))
