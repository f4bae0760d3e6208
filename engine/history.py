"""What happened last: bounded rings of steps and of ended sequences, for whoever looks on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from engine.plan import Row
from engine.request import Sequence
from engine.snapshot import SequenceView, view

KEPT_STEPS = 128
KEPT_SEQUENCES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One step: when it ran (`time.monotonic()` seconds) and what its tokens were."""

    number: int
    """Counts from 1."""
    start: float
    end: float
    rows: int
    decode: int
    prefill: int
    recompute: int
    """Tokens computed again after a preemption."""
    cached: int
    """Tokens that need not be computed: found in the prefix tree for sequences that started here."""


class History:
    """The last steps and the last sequences that ended, oldest first."""

    def __init__(self) -> None:
        self.steps: deque[StepRecord] = deque(maxlen=KEPT_STEPS)
        self.ended: deque[SequenceView] = deque(maxlen=KEPT_SEQUENCES)
        self._tenants: deque[str] = deque(maxlen=KEPT_SEQUENCES)
        """Whose they were; views are shown to everyone."""
        self.num_ended = 0
        """All there ever were."""
        self._number = 0
        self._last_end = 0.0

    def record_step(self, rows: Iterable[Row], *, cached: int, launched: float, landed: float) -> None:
        """A step was read back. It was launched while the one before it ran, and started when that ended."""
        start = max(launched, self._last_end)
        self._number += 1
        tokens = dict.fromkeys(("decode", "prefill", "recompute"), 0)
        num_rows = 0
        for row in rows:
            sequence = row.sequence
            num_rows += 1
            if sequence.finish_reason is not None:  # its end was not known when the step was planned
                tokens["decode"] += row.end - row.start
                continue
            kind = sequence.timeline.ran(
                step=self._number,
                arrived=sequence.timing.arrived,
                start=start,
                end=landed,
                tokens=range(row.start, row.stop),
                num_prompt=sequence.num_prompt,
                guesses=len(row.draft),
            )
            tokens[kind] += row.end - row.start
        self._last_end = landed
        self.steps.append(
            StepRecord(number=self._number, start=start, end=landed, rows=num_rows, cached=cached, **tokens)
        )

    def record_end(self, sequence: Sequence) -> None:
        """A sequence ended, whatever the reason."""
        self.num_ended += 1
        self.ended.append(view(sequence))
        self._tenants.append(sequence.request.tenant)

    def ended_of(self, tenant: str) -> list[SequenceView]:
        """Those of `ended` that were a tenant's."""
        return [view for view, owner in zip(self.ended, self._tenants, strict=True) if owner == tenant]
