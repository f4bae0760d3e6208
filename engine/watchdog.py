"""Notices that a step does not end, and says where everything is. Looks on from a thread of its own, because
what hangs may be the event loop."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

_log = logging.getLogger("radish.engine")


class Watchdog:
    """Times one step after another.

    Args:
        limit_s: a step that takes longer is stuck (seconds).
        describe: tells the state of the engine, in words; called from the thread, so it only reads.
    """

    def __init__(self, limit_s: float, describe: Callable[[], str]) -> None:
        self._limit_s = limit_s
        self._describe = describe
        self._since: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="radish-watchdog", daemon=True)

    @property
    def is_stuck(self) -> bool:
        """Whether the present step takes longer than it may. Ends by itself when the step does."""
        since = self._since
        return since is not None and time.monotonic() - since > self._limit_s

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def begin(self) -> None:
        """A step begins."""
        self._since = time.monotonic()

    def end(self) -> None:
        """It ended, and no other one runs."""
        self._since = None

    def _look_on(self) -> None:
        told: float | None = None
        while not self._stopped.wait(self._limit_s / 4):
            since = self._since
            if self.is_stuck and since != told:
                told = since
                _log.critical(
                    "a step is stuck: it takes more than %g s. %s\n%s",
                    self._limit_s,
                    self._state(),
                    stacks(),
                )

    def _state(self) -> str:
        try:
            return self._describe()
        except RuntimeError:  # it goes on after all, and changes while it is read
            return "Its state is changing."


def stacks() -> str:
    """Where every thread is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, '?')}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
