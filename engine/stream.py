"""What a request's consumer receives, and the coalescing channel that carries it.

The engine never waits for a consumer: it puts at most one update a choice a step, and updates that
were not taken yet are merged, so a slow reader costs memory for its text only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error", "timeout"]

_TOKEN_BYTES, _LOGPROB_BYTES, _TOP_BYTES = 36, 104, 120
"""Of an id in a list, of the log-probability of a token, and of each likely token beside it."""


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """Natural log-probabilities at one sampled position, before temperature and truncation."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability) of the likeliest tokens, likeliest first."""


class Update(msgspec.Struct):
    """New output of one choice since the last update."""

    index: int
    """Which of the request's choices, from 0."""
    text: str = ""
    token_ids: list[int] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprob] = msgspec.field(default_factory=list)
    """One entry a token of `token_ids` when the request asked for logprobs, else empty."""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended the choice, if one did."""
    error: str | None = None
    """What went wrong when `finish_reason` is "error" or "timeout"."""

    @property
    def nbytes(self) -> int:
        """Memory it takes, estimated."""
        top = len(self.logprobs[-1].top) if self.logprobs else 0
        return (
            len(self.text)
            + _TOKEN_BYTES * len(self.token_ids)
            + (_LOGPROB_BYTES + _TOP_BYTES * top) * len(self.logprobs)
        )

    def merge(self, later: Update) -> None:
        """Append `later`, an update of the same choice."""
        self.text += later.text
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.finish_reason = later.finish_reason
        self.stop_reason = later.stop_reason
        self.error = later.error


class UpdateStream:
    """Single-producer, single-consumer channel of updates for `choices` choices.

    Iterating yields non-empty lists of updates, at most one a choice, and ends once every choice
    has finished and its last update was taken.
    """

    __slots__ = ("_buffered", "_notify", "_unfinished")

    def __init__(self, choices: int) -> None:
        self._unfinished = choices
        self._buffered: dict[int, Update] = {}
        self._notify: Callable[[], object] | None = None
        """Called when there is something to take; None while nobody waits for that."""

    @property
    def nbytes(self) -> int:
        """Memory of what was not taken yet, estimated."""
        return sum(update.nbytes for update in self._buffered.values())

    def put(self, update: Update) -> None:
        """Add an update; never blocks. To be called on the event loop's thread."""
        if update.finish_reason is not None:
            self._unfinished -= 1
        if not self._buffered and self._notify is not None:
            self._notify()
        earlier = self._buffered.get(update.index)
        if earlier is None:
            self._buffered[update.index] = update
        else:
            earlier.merge(update)

    @property
    def is_over(self) -> bool:
        """Whether everything was taken and nothing will come."""
        return not (self._buffered or self._unfinished)

    def take(self) -> list[Update]:
        """What came since the last time, at most one update a choice, in their order."""
        taken, self._buffered = self._buffered, {}
        return [taken[index] for index in sorted(taken)] if len(taken) > 1 else [*taken.values()]

    @contextmanager
    def listening(self, listener: Callable[[], object]) -> Iterator[None]:
        """Have `listener` called, soon and in this context, whenever there is something to take again."""
        call_soon = asyncio.get_running_loop().call_soon
        self._notify = partial(call_soon, listener, context=copy_context())
        try:
            yield
        finally:
            self._notify = None

    async def __aiter__(self) -> AsyncIterator[list[Update]]:
        while not self.is_over:
            if not self._buffered:
                awaited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._notify = partial(_settle, awaited)
                await awaited
                self._notify = None
            yield self.take()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
