"""When a sequence waited, was prefilled, decoded and stood still: spans without gaps, from its arrival on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SpanKind = Literal["queued", "prefill", "recompute", "decode", "stalled"]

MAX_SPANS = 48
"""A timeline that grows longer is coarsened to half its spans, so any request takes bounded memory."""


@dataclass(slots=True)
class Span:
    """One stretch of a sequence's life; `start` and `end` are `time.monotonic()` seconds."""

    kind: SpanKind
    start: float
    end: float
    tokens: int = 0
    """Tokens run through the model."""
    steps: int = 0
    slowest: float = 0.0
    """Longest of its steps (s)."""


class Timeline:
    """Spans of one sequence. Each chunk of a prompt is its own; decoding steps in a row are one.

    A sequence that sat out a step while others ran was stalled: preempted, or out of budget.
    """

    __slots__ = ("_last_step", "_reached", "spans")

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._last_step = 0
        self._reached = 0
        """Tokens computed at least once."""

    def ran(
        self,
        *,
        step: int,
        arrived: float,
        start: float,
        end: float,
        tokens: range,
        num_prompt: int,
        guesses: int = 0,
    ) -> SpanKind:
        """Tokens at positions `tokens` ran in step number `step`, and guesses at those after them; says what
        kind of work that was."""
        count = len(tokens) + guesses
        last = self.spans[-1] if self.spans else None
        if last is None:
            self.spans.append(Span("queued", arrived, start))
        elif step != self._last_step + 1:
            self.spans.append(Span("stalled", last.end, start))
        else:
            start = last.end
        kind: SpanKind = "decode"
        if tokens.start < self._reached:
            kind = "recompute"
        elif tokens.start < num_prompt:
            kind = "prefill"
        self._reached = max(self._reached, tokens.stop)
        self._last_step = step
        last = self.spans[-1]
        if kind == last.kind == "decode":
            last.end = end
            last.tokens += count
            last.steps += 1
            last.slowest = max(last.slowest, end - start)
        else:
            self.spans.append(Span(kind, start, end, count, 1, end - start))
        if len(self.spans) > MAX_SPANS:
            self._coarsen()
        return kind

    def _coarsen(self) -> None:
        """Merge the spans two by two; the wait in the queue stays apart."""
        queued, *rest = self.spans
        pairs = zip(rest[::2], rest[1::2], strict=False)
        left = rest[-1:] if len(rest) % 2 else []
        self.spans = [queued, *(_merge(first, second) for first, second in pairs), *left]


def _merge(first: Span, second: Span) -> Span:
    longer = max(first, second, key=lambda span: span.end - span.start)
    return Span(
        longer.kind,
        first.start,
        second.end,
        first.tokens + second.tokens,
        first.steps + second.steps,
        max(first.slowest, second.slowest),
    )
