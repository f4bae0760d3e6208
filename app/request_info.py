"""What is known of one HTTP request, for logs and traces: filled in on its way, read when it is over."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # logs are set up before torch, which this brings along, is imported
    from app.generation import Generation


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
