"""Whose call runs next."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future

import pytest

from grammars.turns import TooMuchWaitsError, Turns


def test_owners_take_turns_and_each_has_its_order() -> None:
    turns = Turns[None](1, 8, "test")
    gate, running, done = threading.Event(), threading.Event(), list[str]()

    def wait() -> None:
        running.set()
        gate.wait()

    first = turns.submit("much", wait)
    assert running.wait(10)
    calls = [
        turns.submit(owner, done.append, f"{owner} {n}") for owner in ("much", "little") for n in range(3)
    ]
    calls.append(turns.submit("third", done.append, "third 0"))
    gate.set()
    for call in (first, *calls):
        call.result(timeout=10)
    assert done == ["much 0", "little 0", "third 0", "much 1", "little 1", "much 2", "little 2"]
    turns.shutdown()


def test_an_owner_may_have_so_many_waiting() -> None:
    turns = Turns[bool](1, 3, "test")
    gate = threading.Event()
    running = threading.Event()

    def wait() -> bool:
        running.set()
        return gate.wait()

    calls: list[Future[bool]] = [turns.submit("much", wait)]
    assert running.wait(10)
    calls += [turns.submit("much", wait) for _ in range(3)]
    with pytest.raises(TooMuchWaitsError, match="3 constraints wait"):
        turns.submit("much", wait)
    calls.append(turns.submit("little", wait))
    gate.set()
    assert all(call.result(timeout=10) for call in calls)
    turns.shutdown()


def test_a_failure_is_its_callers_and_what_waits_at_the_end_is_cancelled() -> None:
    turns = Turns[float](1, 8, "test")
    failed = turns.submit("a", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(timeout=10)
    gate, running = threading.Event(), threading.Event()

    def wait() -> float:
        running.set()
        gate.wait()
        return 1.0

    runs = turns.submit("a", wait)
    assert running.wait(10)
    waits = turns.submit("b", wait)
    waits.add_done_callback(lambda _: gate.set())
    turns.shutdown()
    assert runs.result(timeout=10) == 1.0
    with pytest.raises(CancelledError):
        waits.result(timeout=10)
