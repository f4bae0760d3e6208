"""Compiles grammars in a process of its own, which may be killed and has a memory ceiling.

The parent sends a `Setup`, waits for an empty answer, then sends one `Task` after another and gets a
`Checked` or a `Refused` for each. A schema is untrusted input and native code cannot be interrupted:
whatever it does to this process, the server stays up. Nor do streams wait for it: who asks for much
gets what processor time others leave.
"""

from __future__ import annotations

import gc
import os
import pickle
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

import msgspec
from llguidance import LLMatcher

from grammars.base import GrammarError
from grammars.llg import complaint, limits
from grammars.lower import lower
from grammars.schema.fault import find_fault
from grammars.spec import Constraint, check_limits
from grammars.vocab import Vocabulary

_PROBE_STEPS = 64
_QUICK_S = 0.5
"""What is refused in less processor time is tried again without some parts, to tell what it is about."""
_NICE = 19
_ALLOWANCE_S = 0.25
"""So long a worker may compile as everybody else computes; then it is nice."""
_EARNED = 0.05
"""Seconds of that it earns a second."""


class Task(msgspec.Struct, frozen=True):
    """A constraint, and the processor time it may take; this process ends when it takes more."""

    constraint: Constraint
    timeout_s: float


class Setup(msgspec.Struct, frozen=True):
    """What a worker needs before its first constraint."""

    token_bytes: list[bytes]
    eos_ids: list[int]
    special_ids: list[int]
    width: int
    memory_bytes: int


class Checked(msgspec.Struct, frozen=True, tag=True):
    """A grammar that compiled, had a first mask and survived a random walk.

    `sentences` is pickled, by this process for the one that started it.
    """

    source: str
    sentences: bytes
    heavy: bool


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The parts of a `GrammarError`; `too_complex`: it is a `GrammarTooComplexError`."""

    message: str
    pointer: str = ""
    keyword: str | None = None
    too_complex: bool = False


def check(constraint: Constraint, vocabulary: Vocabulary) -> Checked:
    """Lower a constraint and try the grammar out.

    Raises:
        GrammarError: it cannot be enforced, or needs more room than a grammar gets.
    """
    started = time.thread_time()
    try:
        return _try_out(constraint, vocabulary)
    except GrammarError as error:
        fault = None
        was_quick = time.thread_time() - started < _QUICK_S
        if constraint.kind == "json_schema" and error.keyword is None and was_quick:
            fault = _fault(constraint, vocabulary)
        if fault is None:
            raise
        raise GrammarError(error.message, pointer=fault[0], keyword=fault[1]) from error


def _fault(constraint: Constraint, vocabulary: Vocabulary) -> tuple[str, str] | None:
    """The part of a schema without which it would be taken, if there is one."""

    def is_taken(schema: str) -> bool:
        try:
            _try_out(msgspec.structs.replace(constraint, spec=schema), vocabulary)
        except (GrammarError, RecursionError):
            return False
        return True

    try:
        check_limits(constraint)
        return find_fault(constraint.spec, is_taken)
    except (GrammarError, ValueError):
        # Too large to look at, or no JSON.
        return None


def _try_out(constraint: Constraint, vocabulary: Vocabulary) -> Checked:
    lowered = lower(constraint)
    error = ""
    for heavy in (False, True):
        error = _walk(lowered.source, vocabulary, heavy=heavy)
        if not error:
            return Checked(lowered.source, pickle.dumps(lowered.sentences), heavy)
    raise GrammarError(error)


def _walk(source: str, vocabulary: Vocabulary, *, heavy: bool) -> str:
    """Follow random legal tokens; the engine's complaint, or "" when there is none."""
    matcher = LLMatcher(vocabulary.tokenizer, source, log_level=0, limits=limits(heavy=heavy))
    rng = random.Random(0)
    for step in range(_PROBE_STEPS):
        if matcher.is_error() or matcher.is_stopped():
            break
        mask = matcher.compute_bitmask()
        token = _random_token(mask, rng)
        if token is None:
            place = "no text satisfies the grammar" if step == 0 else "the grammar has a dead end"
            return complaint(matcher) or place
        if token in vocabulary.eos_ids:
            break
        matcher.consume_token(token)
    return complaint(matcher)


def _random_token(mask: bytes, rng: random.Random) -> int | None:
    start = rng.randrange(len(mask))
    order: tuple[int, ...] = (*range(start, len(mask)), *range(start))
    index = next((i for i in order if mask[i]), None)
    if index is None:
        return None
    bits: list[int] = [bit for bit in range(8) if mask[index] & 1 << bit]
    return index * 8 + bits[rng.randrange(len(bits))]


def serve(connection: Connection) -> None:
    """Answer until the parent closes the connection."""
    setup = msgspec.msgpack.decode(connection.recv_bytes(), type=Setup)
    resource.setrlimit(resource.RLIMIT_AS, (setup.memory_bytes, setup.memory_bytes))
    vocabulary = Vocabulary(
        setup.token_bytes,
        frozenset(setup.eos_ids),
        frozenset(setup.special_ids),
        setup.width,
        _greedy(setup.token_bytes),
    )
    vocabulary.tokenizer  # noqa: B018 (built before the first constraint's clock runs)
    gc.freeze()  # what is there stays, so no collection need go through it
    connection.send_bytes(b"")
    allowance = _Allowance()
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            return
        task = msgspec.msgpack.decode(request, type=Task)
        # Where nobody handles its signal, the timer ends the process, whatever native code is at.
        signal.setitimer(signal.ITIMER_PROF, task.timeout_s)
        answer = allowance.run(lambda task=task: _answer(task.constraint, vocabulary))  # type: ignore[misc]
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send_bytes(msgspec.msgpack.encode(answer))


class _Allowance:
    """Runs one piece of work after another, each in a thread that becomes nice when it takes too long.

    The steps of the model come to a halt when one of their threads waits for a processor; a thread that
    became nice cannot take it back, so each piece gets a new one.
    A new worker has earned nothing: else whoever has workers ended would have that of each.
    """

    def __init__(self) -> None:
        self._left = 0.0
        self._since = time.monotonic()

    def run(self, work: Callable[[], Checked | Refused]) -> Checked | Refused:
        answers: list[Checked | Refused] = []
        started = time.monotonic()
        self._left = min(_ALLOWANCE_S, self._left + _EARNED * (started - self._since))
        thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
        thread.start()
        thread.join(self._left)
        if thread.is_alive() and thread.native_id is not None:
            with suppress(ProcessLookupError):  # it has just ended
                os.setpriority(os.PRIO_PROCESS, thread.native_id, _NICE)
        thread.join()
        self._since = time.monotonic()
        self._left = max(0.0, self._left - (self._since - started))
        return answers[0]


def _answer(constraint: Constraint, vocabulary: Vocabulary) -> Checked | Refused:
    try:
        return check(constraint, vocabulary)
    except GrammarError as error:
        return Refused(error.message, error.pointer, error.keyword)
    except RecursionError:
        return Refused("grammar too complex: it nests too deeply")
    except MemoryError:
        return Refused("", too_complex=True)


def _greedy(token_bytes: list[bytes]) -> Callable[[str], list[int]]:
    """Longest piece first: not how the model's tokenizer splits, but enough to try a grammar out."""
    ids = {text: token_id for token_id, text in enumerate(token_bytes) if text}
    longest = max(map(len, ids))

    def encode(text: str) -> list[int]:
        rest = text.encode()
        tokens = []
        while rest:
            piece = next((rest[:n] for n in range(longest, 0, -1) if rest[:n] in ids), None)
            if piece is None:
                break
            tokens.append(ids[piece])
            rest = rest[len(piece) :]
        return tokens

    return encode


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
