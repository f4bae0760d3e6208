"""Rates and percentiles of the last seconds, from the engine's cumulative counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from engine.stats import Histogram, Stats

RATE_S = 2.0
"""Rates are means over this time."""
PERCENTILES_S = 30.0
"""Percentiles are of what was observed in this time."""


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the server started; see `Stats` for their meanings."""

    started: int
    finished: dict[str, int]
    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    computed_tokens: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    evicted_pages: int
    steps: int

    @classmethod
    def of(cls, stats: Stats) -> Counters:
        values = {name: getattr(stats, name) for name in cls.__struct_fields__}
        return cls(**{**values, "finished": dict(stats.finished)})


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Per second."""

    generation_tokens: float
    prompt_tokens: float
    computed_tokens: float
    steps: float
    finished: float


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, interpolated within the histogram's buckets."""

    count: int
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    counters: Counters
    ttft: list[int]
    inter_token: list[int]


class Window:
    """Remembers samples of the counters, the newest last; the oldest is as old as the longest window asks."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def add(self, stats: Stats, now: float) -> Counters:
        """Take a sample at `now` (`time.monotonic()` seconds)."""
        counters = Counters.of(stats)
        self._samples.append(_Sample(now, counters, list(stats.ttft.counts), list(stats.inter_token.counts)))
        while len(self._samples) > 2 and self._samples[1].at <= now - PERCENTILES_S:
            self._samples.popleft()
        return counters

    def rates(self) -> Rates | None:
        """None until there are two samples."""
        new = self._samples[-1]
        old = self._before(RATE_S)
        seconds = new.at - old.at
        if seconds <= 0:
            return None

        def rate(name: str) -> float:
            return float(getattr(new.counters, name) - getattr(old.counters, name)) / seconds

        ended = sum(new.counters.finished.values()) - sum(old.counters.finished.values())
        return Rates(
            generation_tokens=rate("generation_tokens"),
            prompt_tokens=rate("prompt_tokens"),
            computed_tokens=rate("computed_tokens"),
            steps=rate("steps"),
            finished=ended / seconds,
        )

    def ttft(self, stats: Stats) -> Percentiles | None:
        """Of the time to the first token; None if nothing was observed."""
        return _percentiles(stats.ttft, self._samples[0].ttft)

    def inter_token(self, stats: Stats) -> Percentiles | None:
        """Of the time between two tokens; None if nothing was observed."""
        return _percentiles(stats.inter_token, self._samples[0].inter_token)

    def _before(self, seconds: float) -> _Sample:
        """The newest sample that is at least so old, or else the oldest one."""
        limit = self._samples[-1].at - seconds
        return next((sample for sample in reversed(self._samples) if sample.at <= limit), self._samples[0])


def quantile(bounds: Sequence[float], counts: Sequence[int], q: float) -> float:
    """The q-quantile of a histogram, linear within a bucket, as Prometheus' `histogram_quantile` computes it.

    Args:
        bounds: inclusive upper ends of the buckets, ascending.
        counts: observations in each bucket, and above all of them in one more; not all are 0.
    """
    wanted = q * sum(counts)
    for index, reached in enumerate(accumulate(counts)):
        if reached >= wanted and counts[index]:
            if index == len(bounds):
                break
            low = bounds[index - 1] if index else 0.0
            return low + (bounds[index] - low) * (1 - (reached - wanted) / counts[index])
    return bounds[-1]


def _percentiles(histogram: Histogram, before: list[int]) -> Percentiles | None:
    counts = [new - old for new, old in zip(histogram.counts, before, strict=True)]
    if not any(counts):
        return None
    p50, p90, p99 = (quantile(histogram.bounds, counts, q) for q in (0.5, 0.9, 0.99))
    return Percentiles(count=sum(counts), p50=p50, p90=p90, p99=p99)
