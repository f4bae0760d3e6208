"""Worker processes that check grammars, one to each thread that asks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from multiprocessing import Pipe
from pathlib import Path

import msgspec

from grammars.base import GrammarError, GrammarTooComplexError
from grammars.blame import has_parts
from grammars.spec import Constraint
from grammars.vocab import Vocabulary
from grammars.worker import Blame, Checked, Refused, Setup, Task

_START_TIMEOUT_S = 60.0
_MEMORY_BYTES = 2 << 30
_WAIT = 2
"""A constraint may take so many times its processor time by the clock, where others compute too."""
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
"""Threads beside the one that compiles would only take address space, which has a ceiling."""


class WorkerPool:
    """Runs `grammars.worker` in processes that are started when first needed and after a kill.

    Thread-safe; a thread keeps its process to itself, so as many run as threads call.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._setup = msgspec.msgpack.encode(
            Setup(
                list(vocabulary.token_bytes),
                sorted(vocabulary.eos_ids),
                sorted(vocabulary.special_ids),
                vocabulary.width,
                _MEMORY_BYTES,
            )
        )
        self._memory = f"{_MEMORY_BYTES >> 20} MiB"
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._workers: set[_Worker] = set()
        self._closed = False

    def check(self, constraint: Constraint, timeout_s: float) -> Checked:
        """Have a constraint lowered and tried out in so much processor time; blocks.

        Raises:
            GrammarError: refused, too slow, or it took the process down.
        """
        try:
            answer = self._check(constraint, timeout_s)
        except GrammarTooComplexError as error:
            if not has_parts(constraint):
                raise
            raise self.blame(error, constraint, timeout_s) from error
        if isinstance(answer, Checked):
            return answer
        refusal = GrammarError(answer.message, pointer=answer.pointer, keyword=answer.keyword)
        raise self.blame(refusal, constraint, timeout_s) if answer.slowly else refusal

    def blame(self, error: GrammarError, constraint: Constraint, timeout_s: float) -> GrammarError:
        """The same refusal, for the part at fault if that is found in a third of the time; blocks."""
        task = Blame(constraint, error.message, error.pointer, timeout_s)
        worker = None
        try:
            worker = self._worker()
            answer = worker.ask(msgspec.msgpack.encode(task), _WAIT * timeout_s)
        except (GrammarError, TimeoutError, EOFError, OSError):
            if worker is not None:
                self._discard(worker)
            return error
        found = msgspec.msgpack.decode(answer, type=Refused)
        return type(error)(error.message, pointer=found.pointer, keyword=found.keyword)

    def close(self) -> None:
        """End every process; calls in progress fail."""
        with self._lock:
            self._closed = True
            workers = list(self._workers)
            self._workers.clear()
        for worker in workers:
            worker.end()

    def _check(self, constraint: Constraint, timeout_s: float) -> Checked | Refused:
        worker = self._worker()
        too_slow = f"grammar too complex: not compiled within {timeout_s:g} s"
        try:
            answer = worker.ask(msgspec.msgpack.encode(Task(constraint, timeout_s)), _WAIT * timeout_s)
        except TimeoutError as error:
            self._discard(worker)
            raise GrammarTooComplexError(too_slow) from error
        except (EOFError, OSError) as error:
            if self._discard(worker) == -signal.SIGPROF:
                raise GrammarTooComplexError(too_slow) from error
            # Native code that is refused memory ends its process; whatever else did, this may be the reason.
            raise GrammarTooComplexError(
                f"grammar too complex: compiling it ended the process, which has {self._memory}"
            ) from error
        result = msgspec.msgpack.decode(answer, type=Checked | Refused)
        if isinstance(result, Refused) and result.too_complex:
            self._discard(worker)
            raise GrammarTooComplexError(f"grammar too complex: not compiled within {self._memory}")
        return result

    def _worker(self) -> _Worker:
        worker: _Worker | None = getattr(self._mine, "worker", None)
        if worker is None:
            worker = _Worker()
            with self._lock:
                if self._closed:
                    worker.kill()
                    raise GrammarError("the server is stopping")
                self._workers.add(worker)
            self._mine.worker = worker
            try:
                worker.ask(self._setup, _START_TIMEOUT_S)
            except (TimeoutError, EOFError, OSError) as error:
                self._discard(worker)
                raise GrammarTooComplexError("the process that compiles grammars did not start") from error
        return worker

    def _discard(self, worker: _Worker) -> int:
        """Let go of a worker; gives its exit code."""
        self._mine.worker = None
        with self._lock:
            self._workers.discard(worker)
        return worker.kill()


class _Worker:
    """One process and the pipe to it."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        root = str(Path(__file__).parents[1])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "grammars.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Not interrupted with the server by its terminal, but of its session: where a kernel shares
                # out processors by session (autogroup), a nice process gives way to its own session alone.
                process_group=0,
                env={**os.environ, "PYTHONPATH": path, **_ONE_THREAD},
            )

    def ask(self, request: bytes, timeout_s: float) -> bytes:
        """Send and wait for the answer; EOFError when the process died."""
        self._connection.send_bytes(request)
        if not self._connection.poll(timeout_s):
            raise TimeoutError
        return self._connection.recv_bytes()

    def kill(self) -> int:
        """End the process if it has not ended, and close the pipe to it; gives its exit code."""
        status = self.end()
        self._connection.close()
        return status

    def end(self) -> int:
        """End the process only: that wakes a thread that waits for its answer, a closed pipe may not."""
        self._process.kill()
        return self._process.wait()
