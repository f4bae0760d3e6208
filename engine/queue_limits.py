"""What may wait: so many sequences and tokens, a key's share of them, and nothing in vain."""

from __future__ import annotations

import time

from engine.config import Config
from engine.drain_rate import DrainRate
from engine.errors import QueueFullError
from engine.request import GenerateRequest, Sequence
from engine.scheduler import Scheduler
from engine.stats import Stats

_SHARE = 4
"""A tenant may hold so many times what is left of the queue: four fifths alone, and there is always some for
another (dynamic thresholds, Choudhury and Hahne 1998)."""
_SURE = 0.7
"""Share of a queue deadline that an expected wait may take: it is a mean."""
_LEAST_WAIT_S, _LONGEST_WAIT_S = 1.0, 120.0


class QueueLimits:
    """Decides on new requests; learns from those that end."""

    def __init__(self, config: Config, scheduler: Scheduler, stats: Stats) -> None:
        self._config = config
        self._scheduler = scheduler
        self._stats = stats
        self.drain_rate = DrainRate(time.monotonic())

    def check(self, request: GenerateRequest) -> None:
        """Raises QueueFullError, counted by reason, where a request may not wait."""
        self.drain_rate.watch(time.monotonic(), full=self._scheduler.is_full)
        config, waiting = self._config, list(self._scheduler.waiting)
        own = [sequence for sequence in waiting if sequence.request.tenant == request.tenant]
        room = config.max_waiting - len(waiting)
        if request.choices > room or _beyond_share(own, len(own), request, request.choices, room):
            self._refuse("queue_full", f"{len(waiting)} requests are waiting already", len(waiting))
        tokens, new_tokens = _tokens(waiting), request.choices * len(request.prompt)
        room = config.max_waiting_tokens - tokens
        # Whatever may run at all may wait alone.
        over = waiting and new_tokens > room
        if over or _beyond_share(own, _tokens(own), request, new_tokens, room):
            self._refuse("queue_tokens", f"{tokens} tokens are waiting already", len(waiting))
        self._check_deadline(request)

    def ends(self, sequence: Sequence) -> None:
        """A sequence is about to leave the scheduler."""
        full = self._scheduler.is_full
        self.drain_rate.watch(time.monotonic(), full=full)
        if full and sequence.timing.admitted:
            self.drain_rate.ended()

    def _check_deadline(self, request: GenerateRequest) -> None:
        """Refuse at once what would wait for longer than it may, as far as that can be told."""
        waiting = self._scheduler.waiting
        if request.queue_timeout_s is None or not waiting or not self.drain_rate.is_known:
            return
        order = (time.monotonic() + request.priority * self._config.priority_aging, 0)
        places = waiting.ahead(request.tenant, order) + request.choices
        late_s = self.drain_rate.wait_s(places) - _SURE * request.queue_timeout_s
        if late_s > 0:
            wait_s = self.drain_rate.wait_s(places)
            self._refuse(
                "queue_deadline", f"a new request would wait for about {wait_s:.0f} s", places, late_s
            )

    def _refuse(self, reason: str, message: str, places: int, wait_s: float | None = None) -> None:
        """Ask to come back in `wait_s`, or when `places` in the queue should be done."""
        self._stats.rejected[reason] += 1
        if wait_s is None:
            wait_s = self.drain_rate.wait_s(places)
        raise QueueFullError(message, retry_after_s=min(_LONGEST_WAIT_S, max(_LEAST_WAIT_S, wait_s)))


def _beyond_share(own: list[Sequence], used: int, request: GenerateRequest, new: int, room: int) -> bool:
    """Whether a key that uses `used` of the queue, by its sequences `own`, may not have `new` more of what
    is left. Where there are no keys there is nobody to share with."""
    return bool(own) and bool(request.tenant) and used + new > _SHARE * (room - new)


def _tokens(sequences: list[Sequence]) -> int:
    return sum(sequence.length for sequence in sequences)
