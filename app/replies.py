"""What the generating endpoints have in common on the way back to the client."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from app.errors import ApiError
from app.generation import Generation, Usage
from app.protocol import SamplingFields, StreamOptions
from app.sse import DONE, event
from engine.stream import Update


@dataclass(frozen=True, slots=True)
class Identity:
    """What every chunk of an answer says about itself."""

    id: str
    created: int
    model: str

    @classmethod
    def new(cls, prefix: str, model: str) -> Identity:
        return cls(f"{prefix}{secrets.token_hex(16)}", int(time.time()), model)


ChunkUsage = Usage | UnsetType | None
Prepare = Callable[[Sequence[Update]], Awaitable[None]]


class Reply(Protocol):
    """Turns one generation's updates into the wire's objects."""

    def opening(self, usage: ChunkUsage) -> Iterable[msgspec.Struct]:
        """Chunks that come before any output."""
        ...

    def chunks(self, update: Update, usage: ChunkUsage) -> Iterable[msgspec.Struct]:
        """Chunks for one choice's new output."""
        ...

    def closing(self, usage: ChunkUsage) -> Iterable[msgspec.Struct]:
        """What comes after all choices, where the client asked for the usage or for timings."""
        ...

    def whole(self, updates: list[Update], usage: Usage) -> msgspec.Struct:
        """The answer in one piece; `updates` holds everything of each choice, in order of their indices."""
        ...


class Wire(Protocol):
    """How an API frames the events of a stream."""

    done: bytes
    """What comes last."""

    def frame(self, chunk: msgspec.Struct) -> bytes:
        """The event of one chunk."""
        ...

    def failure(self, error: ApiError) -> tuple[bytes, ...]:
        """The events that say why a stream ends early."""
        ...


class UnnamedEvents:
    """Chat and completions: events without names, and `[DONE]`."""

    done = DONE

    def frame(self, chunk: msgspec.Struct) -> bytes:
        return event(msgspec.json.encode(chunk))

    def failure(self, error: ApiError) -> tuple[bytes, ...]:
        return (event(error.encode()),)


OPENAI_WIRE = UnnamedEvents()


@dataclass(frozen=True, slots=True)
class Reading:
    """Prompts that were submitted to be read, not to be gone on with."""

    generation: Generation
    answer: Callable[[], Awaitable[msgspec.Struct]]
    """Makes the answer once all of them were run."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that was accepted, and how it is to be answered."""

    generation: Generation
    reply: Reply
    stream: bool
    options: StreamOptions
    wire: Wire = OPENAI_WIRE
    timings: bool = False
    """Whether they are asked for."""
    prepare: Prepare | None = None
    """Called with updates before the reply is: writes their log-probabilities, which may take long."""

    @classmethod
    def of(
        cls, request: SamplingFields, generation: Generation, reply: Reply, prepare: Prepare | None
    ) -> Exchange:
        return cls(
            generation,
            reply,
            request.stream or False,
            request.stream_options or StreamOptions(),
            timings=request.timings or False,
            prepare=prepare,
        )

    def chunk_usage(self) -> ChunkUsage:
        """What a chunk sent now says about usage."""
        if self.options.continuous_usage_stats:
            return self.generation.usage()
        return None if self.options.include_usage else UNSET
