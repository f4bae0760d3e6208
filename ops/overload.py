"""What a server of its own does with more than it can: figures for README.md.

    ops/overload goodput --seconds 60     # four times the requests it has the capacity for
    ops/overload flood --seconds 60       # one client that sends prompts of 8,000 tokens, again and again
    ops/overload flood --cached           # prompts that are mostly cached, of which nothing is promised

Both put calm phases before and after, for machines change their speed, and exit with 1 where a promise was
not kept. The clients run on the machine that they measure. So goodput is compared with that at capacity while
as many more clients as in the overload ask another server, which refuses them for next to nothing; the share
of what it is without them is printed too.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, closing
from statistics import mean, median

import psutil

from app.bench_client import Client
from ops.overload_traffic import MAX_TOKENS, Phase, Traffic, percentile
from ops.own_server import own_process, own_server

_OVERLOAD = 4
_QUEUE_DEADLINE_S = 10.0
_MAX_RUNNING = 8
_PERCENTILES = (50, 99)
"""Of gaps: most have nothing but answers and the flood in them, the longest others' prompts as well. The
promise is of the last."""
_LENGTHS = range(MAX_TOKENS // 2, MAX_TOKENS * 3 // 2 + 1)
"""Tokens of answers beside a flood. Clients whose answers are all as long fall into step, at times, and send
their prompts together: then it is chance whether one gap in a hundred has another's prompt in it."""
_SERVE = {
    # So small a pool is full before anything is measured.
    "goodput": ("--kv-memory", "64", "--max-waiting", "64", "--queue-timeout", str(_QUEUE_DEADLINE_S)),
    "flood": ("--kv-memory", "1200"),
}


async def goodput(traffic: Traffic, elsewhere: Traffic, seconds: float, pid: int) -> list[str]:
    """Four times the capacity; returns the promises that were broken.

    Args:
        elsewhere: what asks the server that refuses everything.
        pid: of the server under test.
    """
    alone = [Phase("at capacity"), Phase("at capacity again")]
    beside = [Phase("beside clients of another"), Phase("beside them again")]
    over = Phase(f"at {_OVERLOAD} times that")
    surplus: list[Phase] = []

    async def at_capacity(phase: Phase) -> None:
        await traffic.closed(_MAX_RUNNING, phase, seconds / 3)

    async def beside_others(phase: Phase) -> None:
        surplus.append(Phase("refused elsewhere"))
        await asyncio.gather(
            traffic.closed(_MAX_RUNNING, phase, seconds / 2),
            elsewhere.open((_OVERLOAD - 1) * rate, surplus[-1], seconds / 2),
        )

    await at_capacity(alone[0])
    rate = alone[0].goodput / MAX_TOKENS
    await beside_others(beside[0])
    async with _memory_of(pid) as memory:
        await traffic.open(_OVERLOAD * rate, over, seconds)
    await beside_others(beside[1])
    await at_capacity(alone[1])
    for phase in (alone[0], beside[0], over, beside[1], alone[1]):
        refused = ", ".join(f"{count} x {what}" for what, count in phase.failures.items())
        print(
            f"{phase.name:26} goodput {phase.goodput:7.1f} tokens/s, {len(phase.answers)} answers, longest "
            f"wait {phase.longest_wait_s:.1f} s{'; refused: ' if refused else ''}{refused}"
        )
    print(
        f"goodput {_share(over, beside):.0%} of that beside clients of another server, "
        f"{_share(over, alone):.0%} of that without them; memory {memory[0]} MiB, "
        f"at most {max(memory) - memory[0]} MiB more"
    )
    return broken_by_overload(over, beside, memory)


def broken_by_overload(over: Phase, capacity: Sequence[Phase], memory: list[int]) -> list[str]:
    """The promises that an overload broke.

    Args:
        capacity: what it is compared with.
        memory: of the server, meanwhile (MiB).
    """
    return _broken(
        (_share(over, capacity) >= 0.95, "the goodput fell"),
        (set(over.failures) <= {"429"}, f"not only 429: {dict(over.failures)}"),
        (over.longest_wait_s <= _QUEUE_DEADLINE_S, "an accepted request waited beyond its deadline"),
        (max(memory) - memory[0] <= 16, "the memory grew"),
    )


def _share(over: Phase, capacity: Sequence[Phase]) -> float:
    return over.goodput / mean(phase.goodput for phase in capacity)


@asynccontextmanager
async def _memory_of(pid: int) -> AsyncIterator[list[int]]:
    """A list to which a process's memory is added every second (MiB)."""
    memory: list[int] = []

    async def watch() -> None:
        while True:
            memory.append(psutil.Process(pid).memory_info().rss >> 20)
            await asyncio.sleep(1)

    watching = asyncio.create_task(watch())
    try:
        yield memory
    finally:
        watching.cancel()


async def flood(traffic: Traffic, seconds: float, *, cached: bool) -> list[str]:
    """A flood of long prompts; returns the promises that were broken, of which there are none where they are
    mostly cached."""
    before, during, after = Phase("calm"), Phase("flooded"), Phase("calm again")
    shared = await traffic.cached() if cached else []
    flooding = Phase("flood")
    await traffic.closed(4, before, seconds / 2, _LENGTHS)
    task = asyncio.create_task(traffic.flood(flooding, shared))
    await traffic.closed(4, during, seconds, _LENGTHS)
    task.cancel()
    await asyncio.wait((task,))
    await traffic.closed(4, after, seconds / 2, _LENGTHS)
    for phase in (before, during, after):
        print(
            f"{phase.name:18} gap between tokens p50 {phase.gap_ms(50):6.1f} ms, "
            f"p99 {phase.gap_ms(99):6.1f} ms, {phase.goodput:.1f} tokens/s"
        )
    waits = [answer.ended - answer.sent for answer in flooding.answers]
    longest = max((answer.prompt_tokens for answer in flooding.answers), default=0)
    print(
        f"the flood: {len(waits)} prompts of up to {longest} tokens were run, "
        f"{median(waits or [0]):.1f} s each; {dict(flooding.failures) or 'none'} failed"
    )
    ratios = (f"p{percent} {_ratio(before, during, after, percent):.2f}" for percent in _PERCENTILES)
    print(f"the gap in times that of calm: {', '.join(ratios)}")
    return [] if cached else broken_by_flood(before, during, after)


def broken_by_flood(before: Phase, during: Phase, after: Phase) -> list[str]:
    """The promises to others that a flood broke."""
    others = before.failures + during.failures + after.failures
    return _broken(
        (_ratio(before, during, after, 99) <= 2, "the gap grew"),
        (not others, f"others failed: {dict(others)}"),
    )


def _ratio(before: Phase, during: Phase, after: Phase, percent: float) -> float:
    return during.gap_ms(percent) / percentile(sorted(before.gaps_ms + after.gaps_ms), percent)


def _broken(*promises: tuple[bool, str]) -> list[str]:
    return [what for kept, what in promises if not kept]


async def measure(options: argparse.Namespace) -> Iterable[str]:
    """Start what is needed and run what was chosen; returns the promises that were broken."""
    running = ("--log-level", "error", "--max-running", str(_MAX_RUNNING))
    async with own_server(*running, *_SERVE[options.what], *options.serve) as server:
        with closing(Client(server.url, api_key=None, timeout_s=60)) as client:
            model = await client.first_model()
        traffic = Traffic(server.url, model)
        if options.what == "flood":
            return await flood(traffic, options.seconds, cached=options.cached)
        async with own_process("ops.refusing_server") as refusing:
            return await goodput(traffic, Traffic(refusing.url, model), options.seconds, server.pid)


def main(arguments: list[str]) -> int:
    """Returns the exit status: 1 where a promise was not kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("goodput", "flood"))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--cached", action="store_true", help="flood: all but 200 tokens are cached")
    parser.add_argument("--serve", type=shlex.split, default=[], help="options of radish serve, quoted")
    broken = list(asyncio.run(measure(parser.parse_args(arguments))))
    for promise in broken:
        print(f"BROKEN: {promise}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
