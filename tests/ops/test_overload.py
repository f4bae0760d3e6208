"""When `ops/overload` says that a promise is broken, and that its exit status says so too."""

from __future__ import annotations

import argparse
from collections import Counter
from contextlib import closing

import pytest

from app.bench_client import Answer, Client, RequestFailedError
from ops import overload
from ops.overload_traffic import Phase
from ops.own_server import own_process


def phase(*arrivals: list[float], failures: dict[str, int] | None = None, seconds: float = 10.0) -> Phase:
    """One in which those answers came, each asked for at 0.0."""
    answers = [Answer(sent=0.0, arrivals=times) for times in arrivals]
    return Phase("", 0.0, seconds, answers=answers, failures=Counter(failures))


def steady(gap_s: float, seconds: float = 10.0) -> list[float]:
    return [number * gap_s for number in range(round(seconds / gap_s))]


def test_an_overload_that_keeps_the_promises() -> None:
    capacity = [phase(steady(0.01)), phase(steady(0.02))]
    assert overload.broken_by_overload(phase(steady(0.014), failures={"429": 9}), capacity, [700, 716]) == []


@pytest.mark.parametrize(
    ("over", "memory", "promise"),
    [
        (phase(steady(0.015)), 700, "the goodput fell"),
        (phase(steady(0.01), failures={"429": 1, "504": 2}), 700, "not only 429: {'429': 1, '504': 2}"),
        (phase(steady(0.01), [10.5]), 700, "an accepted request waited beyond its deadline"),
        (phase(steady(0.01)), 717, "the memory grew"),
    ],
)
def test_an_overload_that_breaks_one(over: Phase, memory: int, promise: str) -> None:
    capacity = [phase(steady(0.01)), phase(steady(0.02))]
    assert overload.broken_by_overload(over, capacity, [700, memory]) == [promise]


def test_a_flood() -> None:
    """The 99th percentile counts, of both calm phases together."""
    calm = [phase(steady(0.01)), phase(steady(0.02))]
    assert overload.broken_by_flood(calm[0], phase(steady(0.02)), calm[1]) == []
    assert overload.broken_by_flood(calm[0], phase(steady(0.01), steady(0.04)), calm[1]) == []
    assert overload.broken_by_flood(calm[0], phase(steady(0.01), steady(0.05)), calm[1]) == ["the gap grew"]
    failed = phase(steady(0.01), failures={"503": 1})
    assert overload.broken_by_flood(calm[0], failed, calm[1]) == ["others failed: {'503': 1}"]


@pytest.mark.parametrize(("broken", "status"), [([], 0), (["the gap grew"], 1)])
def test_the_exit_status_tells(
    broken: list[str], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measure(options: argparse.Namespace) -> list[str]:
        given = options.what, options.seconds, options.cached, options.serve
        assert given == ("flood", 3.0, True, ["--threads", "1"])
        return broken

    monkeypatch.setattr(overload, "measure", measure)
    assert overload.main(["flood", "--seconds", "3", "--cached", "--serve=--threads 1"]) == status
    assert capsys.readouterr().out == "".join(f"BROKEN: {promise}\n" for promise in broken)


async def test_the_refusing_server_refuses_on_a_kept_connection() -> None:
    async with own_process("ops.refusing_server") as server:
        with closing(Client(server.url, api_key=None, timeout_s=10)) as client:
            for _ in range(3):
                with pytest.raises(RequestFailedError, match="answered 429: refused") as refused:
                    await client.chat({"model": "any", "messages": []})
                assert refused.value.status == 429
