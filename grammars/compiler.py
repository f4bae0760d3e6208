"""The way from a constraint to a compiled grammar: off the event loop, bounded, cached."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from functools import partial
from hashlib import sha256

import msgspec

from grammars.base import Grammar, GrammarError
from grammars.blame import ENDLESS
from grammars.cache import GrammarCache, Outcome
from grammars.llg import LlgGrammar
from grammars.lower import Lowered
from grammars.pool import WorkerPool
from grammars.rows import RowCache
from grammars.schema.tables import Tables
from grammars.spec import Constraint
from grammars.thought import AfterThought, ThoughtTokens
from grammars.turns import Turns
from grammars.vocab import Vocabulary

_THREADS = 2
_MOST_WAITING = 128
"""Constraints of one owner."""
_ROW_SHARE = 4
"""One part in so many of the cache's bytes is for masks."""


class CompilerClosedError(RuntimeError):
    """The compiler was closed before it had compiled a constraint, which says nothing of the constraint."""


class Compiler:
    """Compiles constraints for one vocabulary.

    A constraint is first lowered and tried out in a worker process, which is killed at the time limit
    and dies at its memory ceiling; what came through is compiled here, in a thread, without the
    interpreter's lock. Two constraints are worked on at a time, so one that runs into the limit does
    not hold up all others.

    Attributes:
        num_compiled, num_hits, num_refused: constraints compiled, found in the cache, refused.
        compile_seconds: time spent compiling, refused ones included.
    """

    def __init__(self, vocabulary: Vocabulary, *, timeout_s: float, cache_bytes: int) -> None:
        self.num_compiled = 0
        self.num_hits = 0
        self.num_refused = 0
        self.compile_seconds = 0.0
        self._lock = threading.Lock()
        self._vocabulary = vocabulary
        self._thoughts = ThoughtTokens(vocabulary)
        self._timeout_s = timeout_s
        row_bytes = cache_bytes // _ROW_SHARE
        self._rows = RowCache(row_bytes)
        self._cache = GrammarCache(cache_bytes - row_bytes)
        self._workers = WorkerPool(vocabulary)
        self._closed = False
        self._turns = Turns[Outcome](_THREADS, _MOST_WAITING, "grammar")

    @property
    def cached_bytes(self) -> int:
        """Memory of the cached grammars, estimated, and masks."""
        return self._cache.nbytes + self._rows.nbytes

    async def compile(self, constraint: Constraint, *, namespace: str = "", owner: str = "") -> Grammar:
        """The grammar of a constraint. Cancelling a call leaves others alone.

        Args:
            namespace: equal constraints of one namespace share a grammar; no time tells what others have.
            owner: whose work it is; owners take turns.

        Raises:
            TooMuchWaitsError: too many constraints of the owner wait already.
            GrammarError: it cannot be enforced exactly, or not within the limits of time and memory.
            CompilerClosedError: it was not compiled before `close` was called.
        """
        if self._closed:
            raise CompilerClosedError
        # With the text as it came: two schemas that differ in the order of properties are two grammars.
        key = sha256(msgspec.msgpack.encode((namespace, constraint))).digest()
        future, hit = self._cache.get(key, partial(self._turns.submit, owner, self._compile, constraint))
        self.num_hits += hit
        try:
            outcome = await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            if future.cancelled():  # by `close`, not the call by its caller
                raise CompilerClosedError from None
            raise
        if isinstance(outcome, GrammarError):
            if self._closed:  # its process was ended, for whatever reason the error gives
                raise CompilerClosedError
            raise type(outcome)(outcome.message, pointer=outcome.pointer, keyword=outcome.keyword)
        return outcome

    def after_thought(self, grammar: Grammar, *, begun: bool) -> Grammar:
        """A grammar for output that may begin with a thought, or that goes on with one."""
        return AfterThought(grammar, self._thoughts, begun=begun)

    def warm_up(self) -> None:
        """Start a worker process in the background, so that the first request does not wait for it."""
        self._turns.submit("", self._compile, Constraint(kind="json_object"))

    def close(self) -> None:
        """End the worker processes; compilations in progress fail."""
        self._closed = True
        self._workers.close()
        self._turns.shutdown()

    def _compile(self, constraint: Constraint) -> Outcome:
        started = time.monotonic()
        outcome: Outcome
        try:
            checked = self._workers.check(constraint, self._timeout_s)
            lowered = Lowered(checked.source, pickle.loads(checked.sentences))
            grammar = LlgGrammar(
                self._vocabulary, lowered, heavy=checked.heavy, rows=self._rows, way=checked.way
            )
            # Worked out here, not on the event loop.
            if grammar.min_tokens is None and isinstance(lowered.sentences, Tables):
                raise self._workers.blame(GrammarError(ENDLESS), constraint, self._timeout_s)
            outcome = grammar
        except GrammarError as error:
            outcome = error
        with self._lock:
            self.compile_seconds += time.monotonic() - started
            if isinstance(outcome, GrammarError):
                self.num_refused += 1
            else:
                self.num_compiled += 1
        return outcome
