"""How long a place in the queue takes, from how fast sequences ended while there was no room for more."""

from __future__ import annotations

import math

_MEMORY_S = 30.0
"""What ended that long ago, by full time, counts for a third."""
_ENOUGH = 4.0
"""Ends, those long ago for less, that say something."""


class DrainRate:
    """An exponentially weighted mean over the time in which all was full; other times say nothing about how
    fast a queue drains. Moments are `time.monotonic()` seconds."""

    def __init__(self, now: float) -> None:
        self._at = now
        self._ended = 1.0
        self._seconds = 0.05

    def watch(self, now: float, *, full: bool) -> None:
        """Time passed in which there was no room for another sequence, or some."""
        if full:
            kept = math.exp((self._at - now) / _MEMORY_S)
            self._ended *= kept
            self._seconds = self._seconds * kept + _MEMORY_S * (1 - kept)
        self._at = now

    def ended(self) -> None:
        """A sequence that ran has ended in such a time."""
        self._ended += 1

    def wait_s(self, places: int) -> float:
        """When a sequence at that place in the queue should start."""
        return places * self._seconds / self._ended

    @property
    def is_known(self) -> bool:
        """Whether that is measured rather than a guess."""
        return self._ended >= _ENOUGH
