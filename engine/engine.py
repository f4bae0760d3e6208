"""The step loop: the only seam between asyncio and the device.

    loop thread     plan 2   land 1: accept, fill masks 2, deliver   plan 3   land 2 ...
    worker thread   [ forward 1 | sample 1 ][ forward 2 .......... | sample 2 ][ forward 3 ...

Step N+1 is planned and launched before step N's tokens are read; only its sampling waits for the
grammar masks, which are filled once N's tokens were accepted, while N+1's forward pass runs. That a
sequence ended is therefore learned one step late; its row of the step in flight is discarded.

Scheduler, tree, pool and requests are touched by the loop's thread only, so they need no lock.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from engine.assemble import assemble
from engine.batch import Batch, Masks, Runner, StepOutput
from engine.config import Config
from engine.detokenizer import Detokenizer
from engine.errors import EngineStoppedError, InvalidRequestError, QueueFullError
from engine.history import History
from engine.masks import fill_masks
from engine.outputs import accept_token, append_forced_tokens
from engine.page_pool import PagePool
from engine.prefix_tree import PrefixTree
from engine.request import GenerateRequest, Request, Sequence
from engine.scheduler import Plan, Row, Scheduler
from engine.snapshot import SequenceView, Snapshot, take, view
from engine.stats import Load, Stats
from engine.stream import TokenLogprob, Update, UpdateStream
from engine.tokenizer import Tokenizer
from engine.watchdog import Watchdog
from grammars.compiler import Compiler

_log = logging.getLogger("radish.engine")

_LAG_PERIOD_S = 0.1
_FEW = 4


@dataclass(frozen=True, slots=True)
class _Step:
    """A launched step."""

    plan: Plan
    batch: Batch
    sampling: list[Row]
    measuring: list[tuple[Sequence, int]]
    """Where log-probabilities of prompts are measured, as in `batch.prompt_next`."""
    launched: float
    """`time.monotonic()` seconds."""
    cached_tokens: int
    """Found in the prefix tree for sequences that start here."""
    output: asyncio.Future[StepOutput]


class Engine:
    """Takes requests and streams their outputs; owns the scheduler and the worker thread.

    `start` must be awaited on the event loop that all other methods are called on.
    """

    def __init__(
        self,
        *,
        config: Config,
        runner: Runner,
        compiler: Compiler,
        tokenizer: Tokenizer,
        model_name: str,
        vocab_size: int,
        num_pages: int,
        max_context: int,
    ) -> None:
        self.config = config
        self.compiler = compiler
        """Makes the grammars of requests; the engine only closes it."""
        self.tokenizer = tokenizer
        self.model_name = model_name
        self.vocab_size = vocab_size
        """Width of the logits."""
        self.max_context = min(max_context, num_pages * config.page_size)
        """Longest prompt plus output (tokens); what fits in it fits the pool."""
        self.stats = Stats()
        self.history = History()
        self._runner = runner
        self._tree = PrefixTree(config.page_size) if config.prefix_cache else None
        self._pool = PagePool(num_pages, config.page_size)
        self._scheduler = Scheduler(
            self._pool,
            self._tree,
            self.stats,
            max_batch_tokens=config.max_batch_tokens,
            max_running=config.max_running,
        )
        self._ids = itertools.count()
        self._released: list[int] = []
        self._live: dict[int, Sequence] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="radish-forward")
        self._masker = ThreadPoolExecutor(1, thread_name_prefix="radish-masks")
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._watchdog = Watchdog(config.step_timeout, self._describe)
        self._accepting = False
        self._finish_interval_s = 0.05
        """Running mean of the time between two finishes."""
        self._last_finish = time.monotonic()

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to take requests."""
        self._accepting = True
        self._watchdog.start()
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._measure_lag())]

    @property
    def is_ready(self) -> bool:
        """Whether new requests are taken."""
        return self._accepting and not self._tasks[0].done() and not self.is_stuck

    @property
    def is_stuck(self) -> bool:
        """Whether a step takes longer than `config.step_timeout`."""
        return self._watchdog.is_stuck

    @property
    def is_alive(self) -> bool:
        """Whether the step loop runs."""
        return bool(self._tasks) and not self._tasks[0].done()

    async def drain(self, timeout_s: float) -> None:
        """Take no new requests and let the running ones finish, for `timeout_s` seconds at most."""
        self._accepting = False
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)

    async def stop(self) -> None:
        """End everything now; unfinished sequences end with reason "abort"."""
        self._accepting = False
        for sequence in list(self._live.values()):
            self._finish(sequence, Update(index=sequence.index, finish_reason="abort"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._watchdog.stop()
        self._worker.shutdown()
        self._masker.shutdown()
        self.compiler.close()

    # -- requests ----------------------------------------------------------------------------------

    def submit(self, request: GenerateRequest, *, request_id: str) -> Request:
        """Queue a request; its outputs come from the returned handle's `stream`.

        Raises:
            InvalidRequestError: it can never be served.
            QueueFullError: too many sequences or tokens wait already.
            EngineStoppedError: no new requests are taken.
        """
        if not self.is_ready:
            self.stats.rejected["stopped"] += 1
            raise EngineStoppedError("a step hangs" if self.is_stuck else "the server is shutting down")
        try:
            self._check(request)
        except InvalidRequestError:
            self.stats.rejected["invalid"] += 1
            raise
        self._check_queue(request)
        if not self._live:
            self._last_finish = time.monotonic()  # the rate of finishes says nothing about idle times
        handle = Request(
            id=request_id,
            prompt=request.prompt,
            params=request.params,
            namespace=request.namespace,
            tenant=request.tenant,
            stream=UpdateStream(request.choices),
        )
        handle.sequences += [self._sequence(handle, request, index) for index in range(request.choices)]
        for sequence in handle.sequences:
            self._scheduler.add(sequence)
            self._live[sequence.id] = sequence
        self._idle.clear()
        self.stats.started += request.choices
        self._set_deadlines(handle, request)
        self.stats.request_choices.observe(request.choices)
        self._work.set()
        return handle

    def abort(self, request: Request) -> None:
        """End a request's unfinished choices; their pages are free at once. Does nothing twice."""
        for sequence in request.sequences:
            if sequence.finish_reason is None:
                self._finish(sequence, Update(index=sequence.index, finish_reason="abort"))

    def load(self) -> Load:
        """What is going on right now."""
        return Load(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            pages=self._scheduler.page_counts(),
            tree_nodes=self._tree.num_nodes if self._tree else 0,
        )

    def snapshot(self, *, show_text: bool) -> Snapshot:
        """A bounded picture of scheduler, pool and tree; `show_text` puts the beginnings of prompts in it."""
        return take(
            self._scheduler.running.values(),
            self._scheduler.waiting,
            self._pool,
            self._tree,
            self.tokenizer if show_text else None,
        )

    def views(self) -> list[SequenceView]:
        """Every sequence that waits or runs, and the last that ended."""
        return [*map(view, self._live.values()), *self.history.ended]

    def flush_cache(self) -> None:
        """Forget every cached prefix that no running sequence uses."""
        self._scheduler.flush()

    def _check(self, request: GenerateRequest) -> None:
        if not request.prompt:
            raise InvalidRequestError("the prompt is empty", param="prompt")
        wanted = len(request.prompt) + request.params.max_tokens
        if wanted > self.max_context:
            raise InvalidRequestError(
                f"This model's maximum context length is {self.max_context} tokens. However, you requested "
                f"{wanted} tokens ({len(request.prompt)} in the prompt, {request.params.max_tokens} for the "
                "completion). Please reduce the length of the prompt or of the completion.",
                param="max_tokens" if len(request.prompt) < self.max_context else "prompt",
                code="context_length_exceeded",
            )
        if min(request.prompt) < 0 or max(request.prompt) >= self.vocab_size:
            raise InvalidRequestError(f"token ids must be in [0, {self.vocab_size})", param="prompt")
        least = request.grammar.min_tokens if request.grammar and request.params.ensure_complete else None
        if least is not None and request.params.max_tokens < least:
            raise InvalidRequestError(
                f"The shortest output that satisfies the constraint has {least} tokens, but only "
                f"{request.params.max_tokens} are allowed.",
                param="max_tokens",
            )

    def _check_queue(self, request: GenerateRequest) -> None:
        waiting = len(self._scheduler.waiting)
        if waiting + request.choices > self.config.max_waiting:
            self.stats.rejected["queue_full"] += 1
            raise QueueFullError(
                f"{waiting} requests are waiting already", retry_after_s=self._queue_time_s(waiting)
            )
        tokens = sum(sequence.length for sequence in self._scheduler.waiting)
        # Whatever may run at all may wait alone.
        if waiting and tokens + request.choices * len(request.prompt) > self.config.max_waiting_tokens:
            self.stats.rejected["queue_tokens"] += 1
            raise QueueFullError(
                f"{tokens} tokens are waiting already", retry_after_s=self._queue_time_s(waiting)
            )

    def _set_deadlines(self, handle: Request, request: GenerateRequest) -> None:
        loop = asyncio.get_running_loop()
        if request.queue_timeout_s is not None:
            wait_s = request.queue_timeout_s
            message = f"it waited in the queue for {wait_s:g} s"
            handle.deadlines.append(loop.call_later(wait_s, self._time_out, handle, message, True))
        if request.timeout_s is not None:
            message = f"it was not done after {request.timeout_s:g} s"
            handle.deadlines.append(
                loop.call_later(request.timeout_s, self._time_out, handle, message, False)
            )

    def _time_out(self, handle: Request, message: str, only_waiting: bool) -> None:
        """End what of a request is unfinished, or, with `only_waiting`, what never ran."""
        for sequence in handle.sequences:
            if sequence.finish_reason is None and not (only_waiting and sequence.timing.admitted):
                self._finish(sequence, Update(index=sequence.index, finish_reason="timeout", error=message))

    def _sequence(self, handle: Request, request: GenerateRequest, index: int) -> Sequence:
        params = request.params
        return Sequence(
            id=next(self._ids),
            request=handle,
            index=index,
            params=params,
            tokens=list(request.prompt),
            num_prompt=len(request.prompt),
            detokenizer=Detokenizer(
                self.tokenizer,
                prompt=request.prompt,
                stop=params.stop,
                include_stop=params.include_stop_str_in_output,
                skip_special=params.skip_special_tokens,
            ),
            matcher=request.grammar.matcher() if request.grammar else None,
            delay_s=request.priority * self.config.priority_aging,
        )

    def _finish(self, sequence: Sequence, update: Update) -> None:
        """End a sequence with `update`, whose finish reason says why."""
        assert update.finish_reason is not None
        now = time.monotonic()
        sequence.finish_reason = update.finish_reason
        self._scheduler.finish(sequence, cache=update.finish_reason != "error")
        self._finish_interval_s += 0.1 * (min(now - self._last_finish, 60.0) - self._finish_interval_s)
        self._last_finish = now
        self.stats.record_finish(sequence, update.finish_reason, now)
        self.history.record_end(sequence)
        self._released.append(sequence.id)
        del self._live[sequence.id]
        if not self._live:
            self._idle.set()
        sequence.request.stream.put(update)
        if sequence.request.is_finished:
            sequence.request.drop_deadlines()

    def _queue_time_s(self, waiting: int) -> float:
        """When a queue of `waiting` sequences should be done, from the recent rate of finishes."""
        return min(120.0, max(1.0, waiting * self._finish_interval_s))

    # -- the loop ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        flight: _Step | None = None
        upcoming: _Step | None = None
        try:
            while True:
                upcoming = self._launch(flight)
                if flight is not None:
                    await self._land(flight)
                    self._watchdog.end()
                if upcoming is not None:
                    self._watchdog.begin()
                    await self._fill_masks(upcoming)
                elif flight is None:
                    await self._work.wait()
                flight, upcoming = upcoming, None
        except Exception:
            _log.exception("the step loop died")
            self._accepting = False
            raise
        finally:
            self._watchdog.end()
            # The worker may be waiting for masks that nobody will fill now.
            for step in (flight, upcoming):
                if step is not None and step.batch.masks is not None:
                    step.batch.masks.cancel()
            for sequence in list(self._live.values()):
                update = Update(index=sequence.index, finish_reason="error", error="internal error")
                self._finish(sequence, update)

    def _launch(self, flight: _Step | None) -> _Step | None:
        """Plan the next step and hand it to the worker; None if there is nothing to run."""
        self._work.clear()
        if flight is not None and self._pays_to_read_first():
            return None
        started = time.perf_counter()
        hits = self.stats.prefix_hits
        plan = self._scheduler.plan()
        if plan is None:
            return None
        in_flight = flight.sampling if flight else []
        batch = assemble(
            plan,
            page_size=self.config.page_size,
            eos_ids=self.tokenizer.eos_ids,
            previous={row.sequence.id: index for index, row in enumerate(in_flight)},
            released=self._released,
        )
        self._released = []
        self.stats.step_plan.observe(time.perf_counter() - started)
        return _Step(
            plan=plan,
            batch=batch,
            sampling=[row for row in plan.rows.values() if row.samples],
            measuring=[
                (row.sequence, position)
                for row in plan.rows.values()
                for position in row.sequence.unmeasured(row.start, row.stop)
            ],
            launched=time.monotonic(),
            cached_tokens=self.stats.prefix_hits - hits,
            output=asyncio.get_running_loop().run_in_executor(self._worker, self._runner.run, batch),
        )

    def _pays_to_read_first(self) -> bool:
        """Whether to land the step in flight before planning the next one.

        A token may let its grammar dictate the ones after it. Known in time, they join the next step;
        learned while that step is in flight, they cost one more. With few sequences, all of them under
        a grammar, a saved step is worth more than the overlap.
        """
        running = self._scheduler.running.values()
        return len(running) <= _FEW and all(sequence.matcher is not None for sequence in running)

    async def _land(self, step: _Step) -> None:
        """Wait for a step and give its tokens out."""
        try:
            output = await step.output
        except Exception as error:  # noqa: BLE001  whatever it is, it ends this batch's sequences only
            self._fail(step, error)
            return
        started = time.perf_counter()
        self.stats.steps += 1
        self.stats.computed_tokens += len(step.batch.token_ids)
        self.stats.iteration_tokens.observe(len(step.batch.token_ids))
        self.stats.step_forward.observe(output.forward_s)
        self.stats.step_sample.observe(output.sample_s)
        for row in step.plan.rows.values():
            self._scheduler.commit(row)
        now = time.monotonic()
        self.history.record_step(
            step.plan.rows.values(), cached=step.cached_tokens, launched=step.launched, landed=now
        )
        measured = iter(output.prompt_logprobs)
        for sequence, position in step.measuring:
            sequence.request.measured(position, next(measured))
        for row, token_id, logprob in zip(step.sampling, output.token_ids, output.logprobs, strict=True):
            sequence = row.sequence
            if not sequence.take_sample():
                self.stats.discarded_tokens += 1
                continue
            update = self._accept(sequence, token_id, logprob)
            if update.token_ids:
                self.stats.record_tokens(sequence, len(update.token_ids), now)
            if update.finish_reason is not None:
                self._finish(sequence, update)
            else:
                sequence.request.stream.put(update)
        self.stats.step_commit.observe(time.perf_counter() - started)

    def _accept(self, sequence: Sequence, token_id: int, logprob: TokenLogprob | None) -> Update:
        """What a sampled token makes of its sequence; whatever fails with it ends this sequence only."""
        try:
            update = accept_token(sequence, token_id, logprob, self.tokenizer.eos_ids)
            if update.finish_reason is None:
                append_forced_tokens(sequence, update, self.tokenizer.eos_ids)
        except Exception:  # noqa: BLE001  a grammar engine's or the tokenizer's own
            _log.exception("token %d of request %s failed", token_id, sequence.request.id)
            return Update(index=sequence.index, finish_reason="error", error="its output could not be read")
        return update

    def _fail(self, step: _Step, error: Exception) -> None:
        """A step raised: its sequences end with an error, all others go on."""
        _log.error("a step of %d tokens failed", len(step.batch.token_ids), exc_info=error)
        for row in step.plan.rows.values():
            sequence = row.sequence
            if row.samples:
                sequence.take_sample()
            if sequence.finish_reason is None:
                update = Update(index=sequence.index, finish_reason="error", error="the forward pass failed")
                self._finish(sequence, update)

    async def _fill_masks(self, step: _Step) -> None:
        """Give the step its grammar masks, now that every token before it was accepted."""
        if step.batch.masks is None:
            return
        started = time.perf_counter()
        constrained = [
            (index, row)
            for index, row in enumerate(step.sampling)
            if row.sequence.matcher is not None
            and not row.sequence.superseded
            and row.sequence.finish_reason is None
        ]
        rows = [row for _, row in constrained]
        filled = await asyncio.get_running_loop().run_in_executor(
            self._masker, fill_masks, rows, -(-self.vocab_size // 32)
        )
        for index, message in filled.errors.items():
            sequence = rows[index].sequence
            if sequence.finish_reason is None:
                self._finish(sequence, Update(index=sequence.index, finish_reason="error", error=message))
        indices = np.array([index for index, _ in constrained], np.int64)
        step.batch.masks.set_result(Masks(rows=indices, bits=filled.bits))
        self.stats.step_mask.observe(time.perf_counter() - started)

    def _describe(self) -> str:
        running = list(self._scheduler.running.values())
        rows = ", ".join(f"{s.request.id}[{s.index}] {s.scheduled}/{s.length}" for s in running[:16])
        return f"{self.load()} running (request[choice] scheduled/length): {rows}"

    async def _measure_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LAG_PERIOD_S
            await asyncio.sleep(_LAG_PERIOD_S)
            self.stats.loop_lag.observe(max(0.0, loop.time() - due))
