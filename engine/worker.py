"""A thread beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
Value = TypeVar("Value")


class Worker:
    """Makes calls for the event loop, one after another on a thread of its own.

    An executor takes twice as long to hand over a call and its result, which every step would wait for: its
    futures may be waited for by any thread, and have to be translated into those of the event loop.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._make_calls, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def call(
        self, function: Callable[[*Arguments], Result], *arguments: *Arguments
    ) -> asyncio.Future[Result]:
        """Have a call made, unless what is returned is cancelled before its turn."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def make() -> None:
            if future.cancelled():
                return
            try:
                result = function(*arguments)
            except Exception as error:  # noqa: BLE001  whatever it is, it is the caller's
                _settle(future, future.set_exception, error)
            else:
                _settle(future, future.set_result, result)

        self._calls.put(make)
        return future

    def stop(self) -> asyncio.Future[None]:
        """Take no more calls; done when those that were taken are."""
        ended = self.call(lambda: None)
        self._calls.put(None)
        return ended

    def _make_calls(self) -> None:
        while (make := self._calls.get()) is not None:
            make()


def _settle(future: asyncio.Future[Result], set_: Callable[[Value], None], value: Value) -> None:
    """Give a future its outcome, from another thread than its loop's."""

    def settle() -> None:
        if not future.cancelled():
            set_(value)

    with suppress(RuntimeError):  # its loop is closed, so nobody waits any more
        future.get_loop().call_soon_threadsafe(settle)
