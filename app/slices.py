"""Long work on the event loop in slices, between which all others have their turn.

To write the log-probabilities of a prompt, or a thousand embeddings, takes up to a second. A thread for it
would hold the interpreter for longer at a time than a step of the engine takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Generic, TypeVar, cast

import msgspec

_T = TypeVar("_T")

_SLICE_S = 0.001
_ENCODER = msgspec.json.Encoder()


async def in_slices(items: Iterable[_T]) -> AsyncIterator[_T]:
    """The items one by one, with time for others whenever a millisecond went into them."""
    began = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - began >= _SLICE_S:
            await asyncio.sleep(0)
            began = time.perf_counter()


class JsonList(Generic[_T]):
    """A list that is encoded as it grows, so that nothing has to encode all of it at once."""

    def __init__(self) -> None:
        self._json = bytearray(b"[")

    def __bool__(self) -> bool:
        return len(self._json) > 1

    def append(self, item: _T) -> None:
        if self:
            self._json += b","
        _ENCODER.encode_into(item, self._json, -1)

    def taken(self) -> list[_T]:
        """What stands for the list in an answer that is only to be encoded; empties it."""
        whole, self._json = self._json, bytearray(b"[")
        whole += b"]"
        return cast("list[_T]", msgspec.Raw(whole))


async def json_list(items: Iterable[_T]) -> list[_T]:
    """What stands for a list of items in an answer; they are made while it is encoded, in slices."""
    encoded = JsonList[_T]()
    async for item in in_slices(items):
        encoded.append(item)
    return encoded.taken()
