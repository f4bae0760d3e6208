"""Compares running servers under the load of `radish bench`, side by side in one run.

usage: .venv/bin/python ops/peers.py [OPTIONS] NAME=URL NAME=URL ...

Each round asks every server at every level, one server after the other, each time with prompts that no
cache has seen. Shown is the median of the rounds, and its ratio to the first server's. `ops/peers.md` tells
how to install and start the servers.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from app.bench import BenchConfig, measure
from app.bench_client import RequestFailedError
from app.bench_report import Level


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Compare servers side by side; ratios are to the first.")
    parser.add_argument("servers", nargs="+", metavar="NAME=URL", type=_server)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", default="1,8,32", help="levels, comma-separated")
    parser.add_argument("--requests-per", type=int, default=2, help="requests of each client in a round")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--prompts", choices=["shared", "distinct"], default="shared")
    parser.add_argument("--prompt-words", type=int, default=300)
    options = parser.parse_args()
    bench = BenchConfig(
        concurrency=tuple(int(level) for level in options.concurrency.split(",")),
        requests_per=options.requests_per,
        max_tokens=options.max_tokens,
        prompts=options.prompts,
        prompt_words=options.prompt_words,
    )
    measured: dict[tuple[str, int], list[Level]] = defaultdict(list)
    for number in range(options.rounds):
        for name, url in options.servers:
            for level in _ask(name, msgspec.structs.replace(bench, base_url=url)):
                measured[name, level.concurrency].append(level)
        print(f"round {number + 1} of {options.rounds} done", file=sys.stderr)
    Console().print(_table([name for name, _ in options.servers], bench.concurrency, measured))


def _server(text: str) -> tuple[str, str]:
    name, _, url = text.partition("=")
    if not url:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=URL")
    return name, url


def _ask(name: str, bench: BenchConfig) -> list[Level]:
    try:
        levels, failures = asyncio.run(measure(bench))
    except RequestFailedError as error:
        sys.exit(f"{name}: {error}")
    if failures:
        sys.exit(f"{name}: {len(failures)} requests failed: {failures[0]}")
    return levels


def _table(
    names: Sequence[str], levels: Sequence[int], measured: dict[tuple[str, int], list[Level]]
) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption="medians of the rounds; times: the first / this")
    for header in ("server", *(f"{level} clients: tokens/s, times, TTFT ms" for level in levels)):
        table.add_column(header, justify="left" if header == "server" else "right")
    for name in names:
        cells = []
        for level in levels:
            rate, first = (
                statistics.median(result.tokens_per_s for result in measured[server, level])
                for server in (name, names[0])
            )
            wait = statistics.median(result.ttft_p50_ms for result in measured[name, level])
            cells.append(f"{rate:.0f}  {first / rate:.2f}  {wait:.0f}")
        table.add_row(name, *cells)
    return table


if __name__ == "__main__":
    main()
