"""Threads whose callers take turns: one who asks for much work holds up nobody who asks for little."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class TooMuchWaitsError(Exception):
    """A caller has as many calls waiting as it may."""


class Turns(Generic[T]):
    """Runs calls in `threads` threads: those of one owner in their order, owners round robin. Thread-safe.

    Args:
        most: calls of one owner that may wait.
        name: of the threads.
    """

    def __init__(self, threads: int, most: int, name: str) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[tuple[Future[T], Callable[[], T]]]] = {}
        """By owner, whose turn comes first first."""
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def submit(self, owner: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Raises TooMuchWaitsError; the call is not made then."""
        future: Future[T] = Future()
        with self._lock:
            calls = self._waiting.setdefault(owner, deque())
            if len(calls) >= self._most:
                raise TooMuchWaitsError(f"{self._most} constraints wait to be compiled already")
            calls.append((future, partial(function, *args, **kwargs)))
        self._threads.submit(self._run_next)
        return future

    def shutdown(self) -> None:
        """Take no more calls; those that wait are cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            waiting = [future for calls in self._waiting.values() for future, _ in calls]
            self._waiting.clear()
        for future in waiting:
            future.cancel()
        self._threads.shutdown()

    def _run_next(self) -> None:
        with self._lock:
            if not self._waiting:  # it was shut down
                return
            owner = next(iter(self._waiting))
            calls = self._waiting.pop(owner)
            future, call = calls.popleft()
            if calls:
                self._waiting[owner] = calls  # behind all others
        if not future.set_running_or_notify_cancel():
            return
        try:
            result: Any = call()
        except BaseException as error:  # noqa: BLE001  whoever waits is told
            future.set_exception(error)
        else:
            future.set_result(result)
