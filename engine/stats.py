"""What the engine counts. Plain numbers, written on the loop's thread, read when metrics are scraped.

Everything that counts requests counts sequences, as vLLM does: a request with three choices is three.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from typing import get_args

from engine.request import Sequence
from engine.stream import FinishReason

_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_S = (
    *(0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_SHORT_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_STEP_TOKENS = tuple(float(2**n) for n in (0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14))
_REQUEST_TOKENS = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))
_CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)


class Histogram:
    """Counts of observations by bucket; `bounds` are the buckets' inclusive upper ends."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Not cumulative; the last one counts what is above every bound."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass(frozen=True, kw_only=True)
class PageCounts:
    """Pages by state; the first four add up to `total`."""

    free: int
    evictable: int
    """Owned by the prefix tree and used by nobody now."""
    protected: int
    """Owned by the prefix tree and in use."""
    private: int
    """Owned by one running sequence."""
    total: int


@dataclass(frozen=True, kw_only=True)
class Load:
    """The engine's state at one moment, in sequences, pages and nodes."""

    running: int
    waiting: int
    pages: PageCounts
    tree_nodes: int


class Stats:
    """Counters since start. `started == sum(finished.values()) + running + waiting`, always."""

    def __init__(self) -> None:
        self.started = 0
        self.finished: dict[FinishReason, int] = dict.fromkeys(get_args(FinishReason), 0)
        self.rejected: Counter[str] = Counter()
        """Requests refused at submission, by reason; not in `started`."""
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.computed_tokens = 0
        """Tokens run through the model, recomputation included."""
        self.discarded_tokens = 0
        """Tokens sampled for sequences that had ended one step earlier."""
        self.draft_tokens = 0
        """Guessed tokens that were tried..."""
        self.accepted_tokens = 0
        """...and those that were right."""
        self.prefix_queries = 0
        """Tokens looked up in the prefix tree."""
        self.prefix_hits = 0
        """Tokens found there."""
        self.preemptions = 0
        self.evicted_pages = 0
        self.steps = 0
        self.iteration_tokens = Histogram(_STEP_TOKENS)
        self.step_plan = Histogram(_SHORT_S)
        self.step_forward = Histogram(_SHORT_S)
        self.step_sample = Histogram(_SHORT_S)
        self.step_mask = Histogram(_SHORT_S)
        self.step_commit = Histogram(_SHORT_S)
        self.loop_lag = Histogram(_SHORT_S)
        """How late the event loop ran a timer (s)."""
        self.ttft = Histogram(_FIRST_TOKEN_S)
        self.inter_token = Histogram(_TOKEN_S)
        self.time_per_output_token = Histogram(_TOKEN_S)
        self.e2e = Histogram(_REQUEST_S)
        self.queue = Histogram(_REQUEST_S)
        self.prefill = Histogram(_REQUEST_S)
        self.decode = Histogram(_REQUEST_S)
        self.inference = Histogram(_REQUEST_S)
        self.request_prompt_tokens = Histogram(_REQUEST_TOKENS)
        self.request_generation_tokens = Histogram(_REQUEST_TOKENS)
        self.request_max_tokens = Histogram(_REQUEST_TOKENS)
        self.request_choices = Histogram(_CHOICES)

    def record_prompt(self, sequence: Sequence) -> None:
        """The prompt of `sequence` was run to its end."""
        self.prompt_tokens += sequence.num_prompt
        self.cached_tokens += sequence.cached_tokens

    def record_tokens(self, sequence: Sequence, count: int, now: float) -> None:
        """`count` tokens of `sequence` were read at `now`, in one step."""
        timing = sequence.timing
        self.generation_tokens += count
        if timing.first_token:
            self.inter_token.observe(now - timing.last_token)
        else:
            timing.first_token = now
            self.record_prompt(sequence)
            self.ttft.observe(now - timing.arrived)
        timing.last_token = now

    def record_finish(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        """`sequence` ended at `now`; sequences that gave no token have no latencies to report."""
        timing = sequence.timing
        timing.finished = now
        self.finished[reason] += 1
        output = sequence.known - sequence.num_prompt
        self.request_prompt_tokens.observe(sequence.num_prompt)
        self.request_generation_tokens.observe(output)
        self.request_max_tokens.observe(sequence.params.max_tokens)
        self.e2e.observe(now - timing.arrived)
        if not timing.first_token:
            return
        self.queue.observe(timing.admitted - timing.arrived)
        self.prefill.observe(timing.first_token - timing.admitted)
        self.decode.observe(timing.last_token - timing.first_token)
        self.inference.observe(timing.last_token - timing.admitted)
        if output > 1:
            self.time_per_output_token.observe((timing.last_token - timing.first_token) / (output - 1))
