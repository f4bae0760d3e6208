"""The events of one stream, numbered and kept so that a client can go on where its connection broke off."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from app.errors import ApiError

_OVERHEAD = 64
"""Bytes that keeping an event takes beside its own."""


class Recording:
    """One writer, one reader at a time. An event's id is its number, counted from 1.

    Of events that were read, the last are kept, as they may have been lost on their way. The writer waits
    while those that nobody has read are more than that, so none is ever lost unread: what the engine has
    to say meanwhile is merged where it comes from. A writer that was released waits for nobody.

    Args:
        limit: bytes of events that are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._events: deque[bytes] = deque()
        self.nbytes = 0
        """Of the events that are kept."""
        self._last = 0
        """Number of the newest event."""
        self._read = 0
        """Number of the newest event that the reader was given."""
        self._reader: object | None = None
        self._waits = True
        self._changed = asyncio.Event()
        self.is_complete = False

    async def write(self, *events: bytes) -> None:
        """Add events; waits while too many are unread."""
        for event in events:
            self._last += 1
            self._events.append(b"id: %d\n%b" % (self._last, event))
            self.nbytes += len(self._events[-1]) + _OVERHEAD
        self._changed.set()
        self._trim()
        while self._waits and self.nbytes > self._limit:
            await self._next_change()
            self._trim()

    def complete(self) -> None:
        """No event will follow."""
        self.is_complete = True
        self._changed.set()

    def release(self) -> None:
        """Until someone reads again, the writer does not wait, and what nobody has read may be lost."""
        self._waits = False
        self._trim()
        self._changed.set()

    def is_over(self, after: int) -> bool:
        """Whether nothing comes after event number `after`, now or later."""
        return self.is_complete and after == self._last

    def read(self, after: int) -> AsyncGenerator[bytes, None]:
        """What follows event number `after`, as it comes, in pieces of whole events.

        Iterating raises ApiError 409 once another reader has begun.

        Raises:
            ApiError: 400, there is no such event; 410, what follows it is no longer kept.
        """
        if after > self._last:
            raise ApiError(400, f"The stream has no event {after} yet.", param="Last-Event-ID")
        if after < self._last - len(self._events):
            message = f"The events after {after} are no longer kept."
            raise ApiError(410, message, param="Last-Event-ID", code="events_lost")
        self._waits = True
        self._reader = object()
        self._read = after
        self._changed.set()
        return self._unread(self._reader)

    async def _unread(self, reader: object) -> AsyncGenerator[bytes, None]:
        while True:
            if self._reader is not reader:
                raise ApiError(409, "The stream is read by another connection now.", code="stream_taken_over")
            if self._read < self._last:
                unread = self._last - self._read
                piece = b"".join(self._events[index] for index in range(-unread, 0))
                newest = self._last
                yield piece
                if self._reader is reader:
                    self._read = newest
                    self._trim()
                    self._changed.set()
            elif self.is_complete:
                return
            else:
                await self._next_change()

    def _trim(self) -> None:
        """Forget the oldest of the events that were read, until the rest is within the limit."""
        while self.nbytes > self._limit and (not self._waits or self._last - len(self._events) < self._read):
            self.nbytes -= len(self._events.popleft()) + _OVERHEAD

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
