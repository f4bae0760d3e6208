"""The places that the output of a grammar has been at, each once, and what was found out about it there.

Sequences under one grammar come through the same places again and again: a place's successors, and its
distance to the end, are worked out the first time only. A place also says all that its mask depends on, so
masks are kept by it (`grammars.rows`).
"""

from __future__ import annotations

from typing import Generic, TypeVar

from grammars.base import MaskRow
from grammars.tracking import NoCloseError, Tracker

P = TypeVar("P")

_MOST_STATES = 1024
_MOST_STEPS = 8192
STATES_BYTES = 1 << 20
"""Memory of as many states and steps, estimated."""


class State(Generic[P]):
    """A place; equal places are one object for as long as they are remembered."""

    __slots__ = ("close", "point", "size")

    def __init__(self, point: P, size: float) -> None:
        self.point = point
        self.size = size
        """Bytes of a shortest end; infinite when that must be looked for."""
        self.close: bytes | NoCloseError | None = None
        """The end, or why there is none, once it was looked for."""


class States(Generic[P]):
    """The states of one grammar, from what its tracker says. Thread-safe: it only ever adds what is true."""

    def __init__(self, tracker: Tracker[P]) -> None:
        self._tracker = tracker
        self._known: dict[P, State[P]] = {}
        self._steps: dict[tuple[State[P], bytes], State[P]] = {}
        self.start = self._state(tracker.start)

    def after(self, state: State[P], data: bytes) -> State[P]:
        """The state after `data`; raises what `Tracker.advance` does."""
        known = self._steps.get((state, data))
        if known is not None:
            return known
        point = self._tracker.advance(state.point, data)
        if point is state.point:
            return state
        after = self._state(point)
        if len(self._steps) >= _MOST_STEPS:
            self._steps.clear()
        self._steps[state, data] = after
        return after

    def close(self, state: State[P]) -> bytes:
        """A shortest end.

        Raises:
            NoCloseError: there is none, or none was found.
        """
        if state.close is None:
            try:
                state.close = self._tracker.close(state.point)
            except NoCloseError as error:
                state.close = error.with_traceback(None)
        if isinstance(state.close, NoCloseError):
            raise state.close
        return state.close

    def forbid(self, row: MaskRow, state: State[P]) -> None:
        """As `Tracker.forbid`."""
        self._tracker.forbid(row, state.point)

    def _state(self, point: P) -> State[P]:
        known = self._known.get(point)
        if known is None:
            # Those in use live on in their matchers.
            if len(self._known) >= _MOST_STATES:
                self._known.clear()
                self._steps.clear()
            known = self._known[point] = State(point, self._tracker.size(point))
        return known
