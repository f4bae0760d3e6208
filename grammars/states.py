"""The places that the output of a grammar has been at, each once, and what was found out about it there.

Sequences under one grammar come through the same places again and again: a place's successors, and its way
to the end, are worked out the first time only. A place also says all that its mask depends on, so masks are
kept by it (`grammars.rows`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Generic, TypeVar

from grammars.base import MaskRow
from grammars.tracking import Tracker

P = TypeVar("P")

_MOST_STATES = 1024
_MOST_STEPS = 8192
STATES_BYTES = 1 << 21
"""Memory of as many states, steps and allowed tokens, estimated."""


class State(Generic[P]):
    """A place; equal places are one object for as long as they are remembered."""

    __slots__ = (
        "forced",
        "is_explored",
        "left",
        "may_end",
        "most_counted",
        "must_end",
        "onward",
        "point",
        "size",
    )

    def __init__(self, point: P, size: float, *, most_counted: int = 0) -> None:
        self.point = point
        self.most_counted = most_counted
        """As `Tracker.most_counted`."""
        self.size = size
        """Bytes of a shortest end; infinite when that must be looked for."""
        self.is_explored = False
        """Whether the engine was asked for the three that follow."""
        self.forced: list[int] = []
        """The tokens that must come next; not to be changed."""
        self.may_end = False
        self.must_end = False
        self.left: float | None = None
        """Tokens of the known way to the end; infinite if there is none, None if none was looked for."""
        self.onward: Step[P] | None = None
        """That way's first step. It leads to a state with at least one token less left, for ever: a better
        way may be found there, but none that is longer takes the place of one that is known."""

    def explored(self, forced: list[int], *, may_end: bool, must_end: bool) -> None:
        """Note what the engine says."""
        self.forced, self.may_end, self.must_end = forced, may_end, must_end
        self.is_explored = True

    def way(self) -> Iterator[int]:
        """The tokens of the known way to the end."""
        step = self.onward
        while step is not None:
            yield step.token_id
            step = step.state.onward


def nowhere() -> State[None]:
    """The place of one sequence alone, in a grammar of which no tracker knows."""
    return State(None, math.inf)


class Step(Generic[P]):
    """A token, and the state after it."""

    __slots__ = ("data", "state", "token_id")

    def __init__(self, token_id: int, data: bytes, state: State[P]) -> None:
        self.token_id = token_id
        self.data = data
        self.state = state


class States(Generic[P]):
    """The states of one grammar, from what its tracker says. Thread-safe: it only ever adds what is true."""

    def __init__(self, tracker: Tracker[P]) -> None:
        self._tracker = tracker
        self._known: dict[P, State[P]] = {}
        self._steps: dict[tuple[State[P], bytes], State[P]] = {}
        self._allowed: dict[tuple[State[P], int], State[P]] = {}
        self._most = _MOST_STATES
        self.start = self._state(tracker.start)

    def after(self, state: State[P], data: bytes, *, ends: bool = False) -> State[P]:
        """The state after `data`; see `Tracker.advance`."""
        onward = state.onward
        if onward is not None and onward.data == data:
            # Others of its place may have been forgotten, and their ways with them.
            return onward.state
        known = self._steps.get((state, data))
        if known is not None:
            return known
        point = self._tracker.advance(state.point, data, ends=ends)
        if point is state.point:
            return state
        after = self._state(point, on_way=ends)
        if len(self._steps) >= _MOST_STEPS:
            self._steps.clear()
        self._steps[state, data] = after
        return after

    def after_allowed(self, state: State[P], alike: int) -> State[P] | None:
        """The state after tokens that are known to be allowed; None if that is not known.

        Args:
            alike: stands for tokens that are allowed or not together, and have one state after them.
        """
        return self._allowed.get((state, alike))

    def allow(self, state: State[P], alike: int, after: State[P]) -> None:
        """Note that tokens are allowed, and the state after them."""
        if len(self._allowed) >= _MOST_STEPS:
            self._allowed.clear()
        self._allowed[state, alike] = after

    def close(self, state: State[P]) -> bytes:
        """As `Tracker.close`."""
        return self._tracker.close(state.point)

    def forbid(self, row: MaskRow, state: State[P]) -> None:
        """As `Tracker.forbid`."""
        self._tracker.forbid(row, state.point)

    def _state(self, point: P, *, on_way: bool = False) -> State[P]:
        known = self._known.get(point)
        if known is None:
            # Those in use live on in their matchers.
            if len(self._known) >= self._most:
                self.forget()
            # On a way to the end the tokens that are left get known.
            size = math.inf if on_way else self._tracker.size(point)
            most_counted = self._tracker.most_counted(point)
            known = self._known[point] = State(point, size, most_counted=most_counted)
        return known

    def forget(self) -> None:
        """Let go of all places but those on the way from the start, which others join."""
        self._known.clear()
        self._steps.clear()
        self._allowed.clear()
        state = self.start
        while state.onward is not None:
            state = state.onward.state
            self._known[state.point] = state
        self._most = _MOST_STATES + len(self._known)


def note_end(state: State[P]) -> None:
    """Note that the text may end at a state."""
    state.left, state.onward = 0, None


def note_way(steps: list[tuple[State[P], Step[P]]]) -> None:
    """Note the way that these steps make, one after the other, to a state whose own way is known."""
    for state, step in reversed(steps):
        assert step.state.left is not None
        if state.left is None or state.left > step.state.left + 1:
            state.onward = step
            state.left = step.state.left + 1


def note_dead_end(state: State[P]) -> None:
    """Note that no way to the end is found from a state."""
    state.left = math.inf
