"""What is known of one HTTP request, for logs and traces: filled in on its way, read when it is over."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # logs are set up before torch, which this brings along, is imported
    from app.generation import Generation
    from app.sse import EventStream


@dataclass(slots=True)
class RequestInfo:
    """In the ASGI scope under "radish" from the outermost middleware on."""

    id: str
    method: str
    path: str
    started: float = field(default_factory=time.monotonic)
    """`time.monotonic()` seconds."""
    status: int | None = None
    """None: the client left before it was answered."""
    trace_id: str | None = None
    generation: Generation | None = None
    """Once its prompts were submitted."""
    recording: asyncio.Task[None] | None = None
    """What goes on when the client has left; the request is not over before."""
    unsent: int = 0
    """Bytes of a body that is being sent."""
    events: EventStream | None = None
    """What its answer is sent by, if as events and not from a recording."""

    @property
    def unread(self) -> int:
        """Bytes of the answer that wait for its client to read, estimated; without those of a recording."""
        if self.generation is None or self.recording is not None:
            return self.unsent
        return self.unsent + self.generation.unread + (self.events.unsent if self.events else 0)
