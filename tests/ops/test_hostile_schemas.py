"""When `ops/hostile_schemas` says that a promise is broken."""

from __future__ import annotations

from collections import Counter

import pytest

from app.bench_client import Answer
from ops.hostile_schemas import Fate, broken, read_cases
from ops.overload_traffic import Phase

REFUSED = Fate(Counter({"taken": 2, "400: pattern: nothing to repeat": 1}), [0.1, 0.2, 3.0])


def phase(gap_s: float, failures: dict[str, int] | None = None) -> Phase:
    arrivals = [number * gap_s for number in range(round(10 / gap_s))]
    return Phase("", 0.0, 10.0, [Answer(sent=0.0, arrivals=arrivals)], Counter(failures))


def test_what_keeps_the_promises() -> None:
    """The 99th percentile counts, of both calm phases together."""
    assert broken([phase(0.01), phase(0.02)], phase(0.04), {"a": REFUSED}) == []


@pytest.mark.parametrize(
    ("hostile", "fate", "promise"),
    [
        (phase(0.05), REFUSED, "the gap grew"),
        (phase(0.01, {"503": 2}), REFUSED, "others failed: {'503': 2}"),
        (
            phase(0.01),
            Fate(Counter({"500: it broke": 1}), [0.1]),
            "neither taken nor a 400: ['500: it broke']",
        ),
        (phase(0.01), Fate(Counter({"400: grammar too complex": 1}), [99.0]), "an answer took too long"),
    ],
)
def test_what_breaks_one(hostile: Phase, fate: Fate, promise: str) -> None:
    assert broken([phase(0.01), phase(0.02)], hostile, {"a": REFUSED, "b": fate}) == [promise]


def test_each_request_asks_for_something_else() -> None:
    for name, constraint in read_cases():
        assert constraint(1) != constraint(2), name
