"""How long a place in the queue takes, from how fast sequences ended while there was no room for more."""

from __future__ import annotations

import math

_LONG_S, _SHORT_S = 30.0, 5.0
"""What ended that long ago, by full time, counts for a third. The short memory notices soon that all has
become slower; that it has become faster may be chance."""
_ENOUGH = 4.0
"""Ends in the short memory that say something."""
_BEGUN_S = 0.05


class DrainRate:
    """Exponentially weighted means over the time in which all was full; other times say nothing about how
    fast a queue drains. Moments are `time.monotonic()` seconds.

    Args:
        now: the present.
        places: sequences that run at most. They come to their ends together: until the first do, half of them
            count as if they had ended by now.
    """

    def __init__(self, now: float, places: int) -> None:
        self._at = now
        self._long = _Mean(_LONG_S, ended=places / 2, seconds=_BEGUN_S)
        self._short = _Mean(_SHORT_S)

    def watch(self, now: float, *, full: bool) -> None:
        """Time passed in which there was no room for another sequence, or some."""
        if full:
            self._long.pass_time(now - self._at)
            self._short.pass_time(now - self._at)
        self._at = now

    def ended(self) -> None:
        """A sequence that ran has ended in such a time."""
        self._long.ended += 1
        self._short.ended += 1

    def wait_s(self, places: int) -> float:
        """When a sequence at that place in the queue should start."""
        longest = self._long.seconds / self._long.ended
        if self._short.ended >= _ENOUGH:
            longest = max(longest, self._short.seconds / self._short.ended)
        return places * longest


class _Mean:
    """Ends and seconds, the older the less they weigh."""

    def __init__(self, memory_s: float, *, ended: float = 0.0, seconds: float = 0.0) -> None:
        self._memory_s = memory_s
        self.ended = ended
        self.seconds = seconds

    def pass_time(self, seconds: float) -> None:
        kept = math.exp(-seconds / self._memory_s)
        self.ended *= kept
        self.seconds = self.seconds * kept + self._memory_s * (1 - kept)
