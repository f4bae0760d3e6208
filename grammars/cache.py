"""Compiled grammars by content: one compilation however many ask, least recently used out first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from weakref import WeakValueDictionary

from grammars.base import Grammar, GrammarError, GrammarTooComplexError

Outcome = Grammar | GrammarError

_ERROR_BYTES = 1024


class GrammarCache:
    """Outcomes under keys, bounded by the bytes of the grammars. Thread-safe.

    Work in progress is never dropped, so nothing is compiled twice at a time. Nor is a grammar lost that
    is in use: once dropped it lives on in whoever uses it, and is found for as long.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, Future[Outcome]] = OrderedDict()
        self._sizes: dict[bytes, int] = {}
        self._nbytes = 0
        self._alive: WeakValueDictionary[bytes, Grammar] = WeakValueDictionary()

    @property
    def nbytes(self) -> int:
        """Bytes of the grammars held."""
        return self._nbytes

    def get(self, key: bytes, start: Callable[[], Future[Outcome]]) -> tuple[Future[Outcome], bool]:
        """The future outcome under `key`, and whether it was there; `start` begins the work."""
        with self._lock:
            future = self._entries.get(key)
            if future is not None:
                self._entries.move_to_end(key)
                return future, True
            grammar = self._alive.get(key)
            if grammar is not None:
                future = self._entries[key] = Future()
                future.set_result(grammar)
                self._hold(key, grammar)
                return future, True
            future = self._entries[key] = start()
        future.add_done_callback(lambda done: self._settle(key, done))
        return future, False

    def _settle(self, key: bytes, future: Future[Outcome]) -> None:
        """Count a finished outcome, or forget one that another try might better."""
        with self._lock:
            outcome = None if future.cancelled() or future.exception() else future.result()
            if outcome is None or isinstance(outcome, GrammarTooComplexError):
                self._entries.pop(key, None)
                return
            self._hold(key, outcome)

    def _hold(self, key: bytes, outcome: Outcome) -> None:
        """Count an outcome, and drop others for it."""
        self._nbytes -= self._sizes.get(key, 0)
        if isinstance(outcome, GrammarError):
            self._sizes[key] = _ERROR_BYTES
        else:
            self._sizes[key] = outcome.nbytes
            self._alive[key] = outcome
        self._nbytes += self._sizes[key]
        # Under the lock, for which the event loop may wait: only what is dropped is gone through.
        while self._nbytes > self._max_bytes:
            old = next(k for k in self._entries if k in self._sizes)
            self._nbytes -= self._sizes.pop(old)
            del self._entries[old]
