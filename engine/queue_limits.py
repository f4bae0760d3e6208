"""What may wait: so many sequences and tokens, a key's share of them, and nothing in vain."""

from __future__ import annotations

import time
from dataclasses import dataclass

from engine.config import Config
from engine.drain_rate import DrainRate
from engine.errors import QueueFullError
from engine.request import GenerateRequest, Sequence
from engine.scheduler import Scheduler
from engine.stats import Stats

_SHARE = 4
"""A tenant may hold so many times what is left of the queue: four fifths alone, and there is always some for
another (dynamic thresholds, Choudhury and Hahne 1998)."""
_SURE = 0.5
"""Share of a queue deadline that an expected wait may take: everything may become twice as slow meanwhile."""
_LEAST_WAIT_S, _LONGEST_WAIT_S = 1.0, 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a request wants of the queue. Of one that was not tokenised yet, what is sure."""

    tenant: str
    choices: int
    tokens: int = 0
    """Of all choices' prompts."""
    priority: int
    queue_timeout_s: float | None

    @classmethod
    def of(cls, request: GenerateRequest) -> Claim:
        return cls(
            tenant=request.tenant,
            choices=request.choices,
            tokens=request.choices * len(request.prompt),
            priority=request.priority,
            queue_timeout_s=request.queue_timeout_s,
        )


class QueueLimits:
    """Decides on new requests, without a look at what waits one by one; learns from those that end."""

    def __init__(self, config: Config, scheduler: Scheduler, stats: Stats) -> None:
        self._config = config
        self._scheduler = scheduler
        self._stats = stats
        self.drain_rate = DrainRate(time.monotonic(), config.max_running)

    def check(self, claim: Claim) -> None:
        """Raises QueueFullError, counted by reason, where a request may not wait."""
        self.drain_rate.watch(time.monotonic(), full=self._scheduler.is_full)
        config, waiting = self._config, self._scheduler.waiting
        number, own = len(waiting), waiting.number_of(claim.tenant)
        room = config.max_waiting - number
        if claim.choices > room or _beyond_share(claim, own, claim.choices, room):
            self._refuse("queue_full", f"{number} requests are waiting already", number)
        room = config.max_waiting_tokens - waiting.tokens
        own = waiting.tokens_of(claim.tenant)
        # Whatever may run at all may wait alone.
        over = number and claim.tokens > room
        if over or _beyond_share(claim, own, claim.tokens, room):
            self._refuse("queue_tokens", f"{waiting.tokens} tokens are waiting already", number)
        self._check_deadline(claim)

    def ends(self, sequence: Sequence) -> None:
        """A sequence is about to leave the scheduler."""
        full = self._scheduler.is_full
        self.drain_rate.watch(time.monotonic(), full=full)
        if full and sequence.timing.admitted:
            self.drain_rate.ended()

    def _check_deadline(self, claim: Claim) -> None:
        """Refuse at once what would wait for longer than it may, as far as that can be told."""
        waiting = self._scheduler.waiting
        if claim.queue_timeout_s is None or not waiting:
            return
        order = (time.monotonic() + claim.priority * self._config.priority_aging, 0)
        places = waiting.ahead(claim.tenant, order) + claim.choices - self._scheduler.free_places
        wait_s = self.drain_rate.wait_s(max(0, places))
        late_s = wait_s - _SURE * claim.queue_timeout_s
        if late_s > 0:
            message = f"a new request would wait for about {wait_s:.0f} s"
            self._refuse("queue_deadline", message, places, late_s)

    def _refuse(self, reason: str, message: str, places: int, wait_s: float | None = None) -> None:
        """Ask to come back in `wait_s`, or when `places` in the queue should be done."""
        self._stats.rejected[reason] += 1
        if wait_s is None:
            wait_s = self.drain_rate.wait_s(places)
        raise QueueFullError(message, retry_after_s=min(_LONGEST_WAIT_S, max(_LEAST_WAIT_S, wait_s)))


def _beyond_share(claim: Claim, own: int, new: int, room: int) -> bool:
    """Whether a key that holds `own` of the queue may not have `new` more of what is left. Where there are no
    keys there is nobody to share with."""
    return own > 0 and bool(claim.tenant) and own + new > _SHARE * (room - new)
