"""The streams that outlive their connection: a bounded number of them, for a bounded time.

generation → events → Recording     one task, which ends with the generation, whoever listens
Recording → connection              the request that began the stream, or later ones with Last-Event-ID
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from starlette.types import Send

from app.caller import current_caller
from app.errors import ApiError, retry_after
from app.generation import Generation
from app.recording import Recording
from app.sse import EventStream, event

_KEPT_BYTES = 256 * 1024
"""Of the events of one stream."""


@dataclass(slots=True, kw_only=True)
class Stream:
    """One that can be gone on with."""

    id: str
    generation: Generation
    recording: Recording
    task: asyncio.Task[None]
    tenant: str
    """Whose it is: for others it does not exist."""
    in_background: bool
    """Its generation goes on without readers too."""
    readers: int = 0
    expiry: asyncio.TimerHandle | None = None
    """While nobody reads."""


Record = Callable[[Recording], Awaitable[object]]
"""Writes all events of an answer."""


class StreamStore:
    """Of one server; lost when it ends.

    Args:
        capacity: most streams that are kept.
        retention_s: how long one is kept that nobody reads, ended or not.
    """

    def __init__(self, *, capacity: int, retention_s: float) -> None:
        self._capacity = capacity
        self._retention_s = retention_s
        self._streams: dict[str, Stream] = {}

    @property
    def ids(self) -> list[str]:
        """Of all that are kept, the oldest first."""
        return list(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, generation: Generation, record: Record, *, in_background: bool = False) -> Stream:
        """Begin a stream that is kept. Its generation goes on until it ends, or the stream is forgotten.

        Args:
            in_background: whether it is not forgotten before its end, whoever reads.

        Raises:
            ApiError: 429; too many streams are kept, and all of them go on. The generation is aborted.
        """
        if len(self._streams) >= self._capacity:
            self._make_room(generation)
        recording = Recording(_KEPT_BYTES)
        stream = Stream(
            id=generation.request_id,
            generation=generation,
            recording=recording,
            task=asyncio.create_task(_record(generation, recording, record)),
            tenant=current_caller.get().tenant,
            in_background=in_background,
        )
        self._streams[stream.id] = stream
        return stream

    def get(self, id_: str) -> Stream:
        """Raises ApiError 404 where it is not, or no longer, kept."""
        stream = self._streams.get(id_)
        if stream is None or stream.tenant != current_caller.get().tenant:
            raise ApiError(404, f"There is no stream {id_!r}.", param="id", code="stream_not_found")
        return stream

    def forget(self, stream: Stream) -> None:
        """End a stream and drop what is kept of it. Does nothing twice."""
        stream.generation.abort()
        stream.task.cancel()
        if stream.expiry is not None:
            stream.expiry.cancel()
        self._streams.pop(stream.id, None)

    def unread(self) -> list[tuple[int, Stream]]:
        """How many bytes of each stream are kept or wait for a reader, estimated."""
        streams = self._streams.values()
        return [(stream.generation.unread + stream.recording.nbytes, stream) for stream in streams]

    def close(self) -> None:
        for stream in list(self._streams.values()):
            self.forget(stream)

    async def send(self, stream: Stream, after: int, send: Send, *, heartbeat_s: float) -> None:
        """Send what follows event number `after`, as it comes, to the stream's end.

        Raises:
            ApiError: as `Recording.read`; nothing was sent.
        """
        pieces = stream.recording.read(after)
        self._begin_reading(stream)
        try:
            async with (
                EventStream(send, heartbeat_s=heartbeat_s, location=f"/v1/streams/{stream.id}") as events,
                aclosing(pieces),
            ):
                try:
                    async for piece in pieces:
                        await events.write(piece)
                except ApiError as error:
                    await events.write(event(error.encode()))
        finally:
            self._end_reading(stream)

    def _begin_reading(self, stream: Stream) -> None:
        stream.readers += 1
        if stream.expiry is not None:
            stream.expiry.cancel()
            stream.expiry = None

    def _end_reading(self, stream: Stream) -> None:
        stream.readers -= 1
        if not stream.readers and stream.in_background and not stream.task.done():
            stream.recording.release()
            stream.task.add_done_callback(lambda _: self._begin_to_expire(stream))
        else:
            self._begin_to_expire(stream)

    def _begin_to_expire(self, stream: Stream) -> None:
        if not stream.readers and stream.expiry is None and stream.id in self._streams:
            loop = asyncio.get_running_loop()
            stream.expiry = loop.call_later(self._retention_s, self.forget, stream)

    def _make_room(self, generation: Generation) -> None:
        """Forget the oldest ended stream of whoever keeps the most of them."""
        ended = [s for s in self._streams.values() if s.task.done() and not s.readers]
        if not ended:
            generation.abort()
            raise ApiError(
                429,
                f"{self._capacity} resumable streams are kept already.",
                type="rate_limit_error",
                code="streams_full",
                headers=retry_after(self._retention_s),
            )
        ((greediest, _),) = Counter(stream.tenant for stream in ended).most_common(1)
        self.forget(next(stream for stream in ended if stream.tenant == greediest))


async def _record(generation: Generation, recording: Recording, record: Record) -> None:
    with generation:
        try:
            await record(recording)
        finally:
            recording.complete()
