"""What schemas made to exhaust time or memory cost the answers of others: figures for README.md.

    ops/hostile_schemas --seconds 20

Clients stream free text, one answer after another, while others ask for answers that follow a schema of
`tests/cases/hostile.jsonl`, or a grammar that never compiles, each time with another remark in it, so that
none is found in a cache. Calm phases stand before and after, for machines change their speed. Printed are
the gaps between tokens in each, and what became of each schema. Exits with 1 where a promise was not kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any

from app.bench_client import Client, RequestFailedError
from ops.overload_traffic import Phase, Traffic, percentile
from ops.own_server import own_server

_CASES = Path(__file__).parents[1] / "tests" / "cases" / "hostile.jsonl"
_ENDLESS = 'start: %json {"type": "integer", "multipleOf": 123456789}  // '
"""An automaton with as many states, built by code that nothing can interrupt: its process is ended."""
_WATCHED = 4
_HOSTILE = 4
_LONGEST_S = 40.0
"""Four times what a grammar may take by the clock: two are compiled at a time, two wait."""


Constraint = Callable[[int], dict[str, Any]]
"""The fields of a request that ask for it, with a number to tell it from others."""


@dataclass
class Fate:
    """What became of one schema, however often it was asked for."""

    answers: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def note(self, answer: str, seconds: float) -> None:
        self.answers[answer] += 1
        self.seconds.append(seconds)


class Attack:
    """Clients that ask for one hostile schema after another."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url
        self._model = model
        self._numbers = count()
        self._cases = cycle(read_cases())
        self.fates: dict[str, Fate] = {}

    async def run(self) -> None:
        """Go on until cancelled."""
        await asyncio.gather(*(self._one() for _ in range(_HOSTILE)))

    async def _one(self) -> None:
        with closing(Client(self._url, api_key=None, timeout_s=60)) as client:
            while True:
                name, constraint = next(self._cases)
                started = time.perf_counter()
                answer = await self._ask(client, constraint(next(self._numbers)))
                self.fates.setdefault(name, Fate()).note(answer, time.perf_counter() - started)

    async def _ask(self, client: Client, constraint: dict[str, Any]) -> str:
        body = {
            **constraint,
            "model": self._model,
            "messages": [{"role": "user", "content": "Go on."}],
            "max_tokens": 1,
            "ensure_complete": False,
            "stream": True,
        }
        try:
            await client.chat(body)
        except RequestFailedError as error:
            return str(error).partition(" answered ")[2] or str(error)
        return "taken"


def read_cases() -> list[tuple[str, Constraint]]:
    """The names of what is asked for, and that itself."""
    cases = map(json.loads, _CASES.read_text().splitlines())
    schemas = [(case["name"], partial(_schema, case["schema"])) for case in cases]
    return [
        ("never compiles", lambda number: {"structured_outputs": {"grammar": f"{_ENDLESS}{number}"}}),
        *schemas,
    ]


def _schema(schema: dict[str, Any], number: int) -> dict[str, Any]:
    described = {**schema, "description": f"number {number}"}
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "hostile", "schema": described}}
    }


def broken(calm: list[Phase], hostile: Phase, fates: dict[str, Fate]) -> list[str]:
    """The promises that were not kept."""
    answers = Counter(answer for fate in fates.values() for answer in fate.answers)
    others = [answer for answer in answers if answer != "taken" and not answer.startswith("400")]
    failed = sum((phase.failures for phase in (*calm, hostile)), Counter[str]())
    longest = max((seconds for fate in fates.values() for seconds in fate.seconds), default=0.0)
    ordered = sorted(gap for phase in calm for gap in phase.gaps_ms)
    promises = (
        (hostile.gap_ms(99) <= 2 * percentile(ordered, 99), "the gap grew"),
        (not failed, f"others failed: {dict(failed)}"),
        (not others, f"neither taken nor a 400: {others}"),
        (longest <= _LONGEST_S, "an answer took too long"),
    )
    return [what for kept, what in promises if not kept]


async def measure(seconds: float, serve: list[str]) -> list[str]:
    """Print the figures; returns the promises that were not kept."""
    async with own_server("--log-level", "error", *serve) as server:
        with closing(Client(server.url, api_key=None, timeout_s=60)) as client:
            model = await client.first_model()
        traffic = Traffic(server.url, model)
        attack = Attack(server.url, model)
        before, during, after = Phase("calm"), Phase("hostile"), Phase("calm again")
        await traffic.closed(_WATCHED, before, seconds / 2)
        attacking = asyncio.create_task(attack.run())
        await traffic.closed(_WATCHED, during, seconds)
        attacking.cancel()
        await asyncio.wait((attacking,))
        await traffic.closed(_WATCHED, after, seconds / 2)
    for phase in (before, during, after):
        print(
            f"{phase.name:11} gap between tokens p50 {phase.gap_ms(50):6.1f} ms, p99 {phase.gap_ms(99):6.1f} "
            f"ms, largest {phase.gaps_ms[-1]:6.1f} ms, {phase.goodput:.1f} tokens/s"
        )
    for name, fate in attack.fates.items():
        answers = "; ".join(f"{number} x {answer}" for answer, number in fate.answers.items())
        print(f"  {name}, longest {max(fate.seconds):.1f} s: {answers}")
    return broken([before, after], during, attack.fates)


def main(arguments: list[str]) -> int:
    """Returns the exit status: 1 where a promise was not kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--serve", type=shlex.split, default=[], help="options of radish serve, quoted")
    options = parser.parse_args(arguments)
    promises = asyncio.run(measure(options.seconds, options.serve))
    for promise in promises:
        print(f"BROKEN: {promise}")
    return int(bool(promises))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
