"""How much processor time work may take as everybody else does, before it has to leave it to others."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

NICE = 19
_MOST_S = 0.25
"""So long work may compute as everybody else; then it is nice."""
_EARNED = 0.05
"""Seconds of that it earns a second."""

T = TypeVar("T")


class Allowance:
    """Runs one piece of work after another, each in a thread that becomes nice when it takes too long.

    The steps of the model come to a halt when one of their threads waits for a processor; a thread that
    became nice cannot take it back, so each piece gets a new one.
    A new process has earned nothing: else whoever has processes ended would have that of each.
    """

    def __init__(self) -> None:
        self._left = 0.0
        self._since = time.monotonic()

    def run(self, work: Callable[[], T]) -> T:
        """What work, which must not raise, returns."""
        answers: list[T] = []
        started = time.monotonic()
        self._left = min(_MOST_S, self._left + _EARNED * (started - self._since))
        thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
        thread.start()
        thread.join(self._left)
        if thread.is_alive() and thread.native_id is not None:
            with suppress(ProcessLookupError):  # it has just ended
                os.setpriority(os.PRIO_PROCESS, thread.native_id, NICE)
        thread.join()
        self._since = time.monotonic()
        self._left = max(0.0, self._left - (self._since - started))
        return answers[0]
