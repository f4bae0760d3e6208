"""What one key may use, and what it has used."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec

from app.errors import ApiError, retry_after

_Meta = msgspec.Meta
_MINUTE_S = 60.0


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """None: as much as it likes."""

    concurrency: Annotated[int, _Meta(ge=1)] | None = None
    """Requests at the same time."""
    requests_per_minute: Annotated[int, _Meta(ge=1)] | None = None
    tokens_per_minute: Annotated[int, _Meta(ge=1)] | None = None
    """Of prompts and answers. They are counted when a request ends, so those that run then may go beyond;
    `concurrency` bounds them."""
    priority: int | None = None
    """The most urgent priority it can ask for (the lowest number)."""


class Bucket:
    """Refills evenly, `per_minute` a minute, up to that many (the token bucket of RFC 2697)."""

    def __init__(self) -> None:
        self._level: float | None = None
        self._at = 0.0

    def take(self, amount: float, per_minute: int, now: float) -> None:
        """Take `amount`, even beyond what is there."""
        self._level = self._refilled(per_minute, now) - amount
        self._at = now

    def wait_s(self, amount: float, per_minute: int, now: float) -> float:
        """Seconds until `amount` is there; 0.0 if it is."""
        missing = amount - self._refilled(per_minute, now)
        return max(0.0, missing * _MINUTE_S / per_minute)

    def _refilled(self, per_minute: int, now: float) -> float:
        if self._level is None:
            return per_minute
        return min(per_minute, self._level + (now - self._at) * per_minute / _MINUTE_S)


class Account:
    """The use of one key."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._requests = Bucket()
        self._tokens = Bucket()

    def begin(self, limits: Limits) -> None:
        """Count a request that begins; `end` must follow.

        Raises:
            ApiError: 429 with the limit's name as its code; nothing was counted.
        """
        now = time.monotonic()
        if limits.concurrency is not None and self.in_flight >= limits.concurrency:
            raise _exceeded("concurrency", limits.concurrency, 1.0)
        if limits.requests_per_minute is not None:
            wait_s = self._requests.wait_s(1, limits.requests_per_minute, now)
            if wait_s:
                raise _exceeded("requests_per_minute", limits.requests_per_minute, wait_s)
        if limits.tokens_per_minute is not None:
            wait_s = self._tokens.wait_s(1, limits.tokens_per_minute, now)
            if wait_s:
                raise _exceeded("tokens_per_minute", limits.tokens_per_minute, wait_s)
        if limits.requests_per_minute is not None:
            self._requests.take(1, limits.requests_per_minute, now)
        self.in_flight += 1

    def end(self, limits: Limits, tokens: int) -> None:
        """A request that was begun is over and used `tokens`."""
        self.in_flight -= 1
        if limits.tokens_per_minute is not None:
            self._tokens.take(tokens, limits.tokens_per_minute, time.monotonic())


def _exceeded(name: str, limit: int, wait_s: float) -> ApiError:
    return ApiError(
        429,
        f"This key's limit {name} is {limit}.",
        type="rate_limit_error",
        code=f"key_{name}",
        headers=retry_after(wait_s),
    )
