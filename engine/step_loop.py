"""The step loop: the only seam between asyncio and the device.

    loop thread     plan 2   land 1: accept, fill masks 2, deliver   plan 3   land 2 ...
    worker thread   [ forward 1 | sample 1 ][ forward 2 .......... | sample 2 ][ forward 3 ...

Step N+1 is planned, prepared and launched before step N's tokens are read; only its sampling waits for the
grammar masks, which are filled once N's tokens were accepted, while N+1's forward pass runs. That a
sequence ended is therefore learned one step late; its row of the step in flight is discarded. The worker
goes from one step to the next with as little Python as can be, for which the loop may have the interpreter.

Where what step N samples decides which tokens step N+1 runs, N is read first: where it tries guessed
tokens, and where grammars dictate many tokens after sampled ones.

Scheduler, tree, pool and requests are touched by the loop's thread only, so they need no lock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from engine.assemble import assemble
from engine.batch import NOTHING, Batch, Masks, Runner, StepOutput
from engine.config import Config
from engine.history import History
from engine.isolation import IsolatingRunner
from engine.masks import fill_masks, kept_masks
from engine.outputs import accept_token, append_forced_tokens
from engine.pace import Pace
from engine.plan import OVERLAP, Plan, Row
from engine.request import Sequence
from engine.scheduler import Scheduler
from engine.stats import Stats
from engine.stream import TokenLogprob, Update
from engine.watchdog import Watchdog
from engine.worker import Worker

_log = logging.getLogger("radish.engine")

_LAG_PERIOD_S = 0.1
_LAST_STEP_S = 10.0
"""How long a step may go on once the loop is to stop."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A launched step."""

    plan: Plan
    batch: Batch
    sampling: list[Row]
    reading: list[Row]
    """Those that run tokens of prompts."""
    measuring: list[tuple[Row, int]]
    """The targets that are measured, as in `batch.prompt_next`."""
    launched: float
    """`time.monotonic()` seconds."""
    cached_tokens: int
    """Found in the prefix tree for sequences that start here."""
    output: asyncio.Future[StepOutput]


class StepLoop:
    """Plans, launches and lands steps for as long as there is something to run.

    Args:
        eos_ids: ids that end a sequence.
        vocab_size: width of the logits.
        finish: ends a sequence with its last update; called for every one that ends in a step.
        abandon: called when the loop ends, for whatever reason: nothing will be run any more.
    """

    def __init__(
        self,
        *,
        config: Config,
        scheduler: Scheduler,
        runner: Runner,
        stats: Stats,
        history: History,
        pace: Pace,
        eos_ids: frozenset[int],
        vocab_size: int,
        finish: Callable[[Sequence, Update], None],
        abandon: Callable[[], None],
    ) -> None:
        self._page_size = config.page_size
        self._scheduler = scheduler
        self._runner = IsolatingRunner(runner)
        self._stats = stats
        self._history = history
        self._pace = pace
        self._eos_ids = eos_ids
        self._mask_words = -(-vocab_size // 32)
        self._finish = finish
        self._abandon = abandon
        self._released: list[int] = []
        self._worker = Worker("radish-forward")
        self._masker = Worker("radish-masks")
        self._work = asyncio.Event()
        self._watchdog = Watchdog(config.step_timeout, self._describe)
        self._last_step_s = min(_LAST_STEP_S, config.step_timeout)
        self.hangs = False
        """Whether the loop was stopped in a step that did not end: its thread never may."""
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False

    def start(self) -> None:
        """Begin to run steps, on the running event loop."""
        self._watchdog.start()
        self._worker.start()
        self._masker.start()
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._measure_lag())]

    async def stop(self) -> None:
        """Run no further step; waits for the one in flight, unless it hangs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._tasks and not self._stopped:
            self._stopped = True
            ends = (self._worker.stop(), self._masker.stop())
            _, hanging = await asyncio.wait(ends, timeout=self._last_step_s)
            self.hangs = bool(hanging)
        self._watchdog.stop()

    @property
    def is_alive(self) -> bool:
        return bool(self._tasks) and not self._tasks[0].done()

    @property
    def is_stuck(self) -> bool:
        """Whether a step takes longer than `config.step_timeout`."""
        return self._watchdog.is_stuck

    def wake(self) -> None:
        """There is something new to run."""
        self._work.set()

    def release(self, sequence: Sequence) -> None:
        """The sequence will never sample again: the sampler may forget it."""
        self._released.append(sequence.id)

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
            raise
        finally:
            self._watchdog.end()
            # The worker may be waiting for masks that nobody will fill now.
            for step in (flight, upcoming):
                if step is None:
                    continue
                step.output.cancel()
                if step.batch.masks is not None:
                    step.batch.masks.cancel()
            self._abandon()

    def _launch(self, flight: _Step | None) -> _Step | None:
        """Plan the next step and hand it to the worker; None if there is nothing to run."""
        self._work.clear()
        if flight is not None and (flight.plan.has_drafts or self._pays_to_read_first()):
            return None
        started = time.perf_counter()
        hits = self._stats.prefix_hits
        plan = self._scheduler.plan()
        if plan is None:
            return None
        in_flight = flight.sampling if flight else []
        batch = assemble(
            plan,
            page_size=self._page_size,
            eos_ids=self._eos_ids,
            previous={row.sequence.id: index for index, row in enumerate(in_flight)},
            previous_ids=flight.batch.sampled if flight else NOTHING,
            released=self._released,
        )
        self._released = []
        launch = self._runner.prepare(batch)
        reading = plan.reading()
        self._stats.step_plan.observe(time.perf_counter() - started)
        return _Step(
            plan=plan,
            batch=batch,
            sampling=[row for row in plan.rows.values() if row.samples],
            reading=reading,
            measuring=[
                (row, target) for row in reading for target in row.sequence.unmeasured(row.start, row.stop)
            ],
            launched=time.monotonic(),
            cached_tokens=self._stats.prefix_hits - hits,
            output=self._worker.call(launch),
        )

    def _pays_to_read_first(self) -> bool:
        """Whether to land the step in flight before planning the next one.

        A token may let its grammar dictate the ones after it. Known in time, they join the next step;
        learned while that step is in flight, they make its sample worthless. Where all sequences are under
        grammars and that share of samples would be lost, it is worth more than the overlap.
        """
        running = self._scheduler.running.values()
        shares = [sequence.dictation.share for sequence in running if sequence.dictation is not None]
        return bool(shares) and len(shares) == len(running) and sum(shares) >= OVERLAP * len(shares)

    async def _land(self, step: _Step) -> None:
        """Wait for a step and give its tokens out."""
        output = await step.output
        started = time.perf_counter()
        self._stats.steps += 1
        self._stats.computed_tokens += len(step.batch.token_ids)
        self._stats.iteration_tokens.observe(len(step.batch.token_ids))
        self._stats.step_forward.observe(output.forward_s)
        self._stats.step_sample.observe(output.sample_s)
        failed = self._commit(step, output)
        if step.plan.decodes:
            self._pace.ran(step.plan.chunks, output.forward_s + output.sample_s)
        if not step.reading:
            self._scheduler.row_price.learn(len(step.batch.token_ids), output.forward_s + output.sample_s)
        now = time.monotonic()
        self._history.record_step(
            step.plan.rows.values(), cached=step.cached_tokens, launched=step.launched, landed=now
        )
        self._read(step, output, failed)
        sampled = zip(output.token_ids, output.logprobs, strict=True)
        for row in step.sampling:
            sequence, samples = row.sequence, list(islice(sampled, 1 + len(row.draft)))
            if not sequence.take_sample():
                self._stats.discarded_tokens += len(samples)
                continue
            update = self._accept_all(row, samples)
            if update.token_ids:
                self._stats.record_tokens(sequence, len(update.token_ids), now)
            if update.finish_reason is not None:
                self._finish(sequence, update)
            else:
                sequence.request.stream.put(update)
        self._stats.step_commit.observe(time.perf_counter() - started)

    def _accept_all(self, row: Row, samples: list[tuple[int, TokenLogprob | None]]) -> Update:
        """What a row's samples make of its sequence: those after guesses count as far as these were right."""
        sequence = row.sequence
        update = self._accept(sequence, *samples[0])
        self._stats.draft_tokens += len(row.draft)
        for guess, (token_id, _), following in zip(row.draft, samples, samples[1:], strict=False):
            if update.finish_reason is not None or token_id != guess:
                break
            sequence.confirm_guess()
            self._stats.accepted_tokens += 1
            update.merge(self._accept(sequence, *following))
        return update

    def _accept(self, sequence: Sequence, token_id: int, logprob: TokenLogprob | None) -> Update:
        """What a sampled token makes of its sequence; whatever fails with it ends this sequence only."""
        try:
            update = accept_token(sequence, token_id, logprob, self._eos_ids)
            if update.finish_reason is None:
                append_forced_tokens(sequence, update, self._eos_ids)
        except Exception:  # noqa: BLE001  a grammar engine's or the tokenizer's own
            _log.exception("token %d of request %s failed", token_id, sequence.request.id)
            return Update(index=sequence.index, finish_reason="error", error="its output could not be read")
        return update

    def _read(self, step: _Step, output: StepOutput, failed: set[int]) -> None:
        """Take what a step says of known text, and end the sequences of which nothing else is wanted."""
        measured = iter(output.prompt_logprobs)
        for row, target in step.measuring:
            if row.sequence.id not in failed:
                row.sequence.request.measured(target, next(measured))
        embeddings = iter(output.embeddings)
        for row in step.reading:
            sequence = row.sequence
            if sequence.id in failed or not sequence.completes(row.stop):
                continue
            update = Update(index=sequence.index, finish_reason="stop")
            if row.embeds:
                sequence.request.embedding = next(embeddings)
                if not np.isfinite(sequence.request.embedding).all():
                    update.finish_reason, update.error = "error", "the model gave no usable numbers"
            if sequence.finish_reason is None:
                self._stats.record_prompt(sequence)
                self._finish(sequence, update)

    def _commit(self, step: _Step, output: StepOutput) -> set[int]:
        """Count the rows that were computed, and end the sequences of those that were not: their ids."""
        failed: set[int] = set()
        for index, row in enumerate(step.plan.rows.values()):
            sequence = row.sequence
            if index not in output.failed:
                self._scheduler.commit(row)
                continue
            failed.add(sequence.id)
            if sequence.finish_reason is None:
                error = output.failed[index]
                self._finish(sequence, Update(index=sequence.index, finish_reason="error", error=error))
        return failed

    async def _fill_masks(self, step: _Step) -> None:
        """Give the step its grammar masks, now that every token before it was accepted."""
        if step.batch.masks is None:
            return
        started = time.perf_counter()
        indices: list[int] = []
        rows: list[Row] = []
        for index, row in enumerate(step.sampling):
            sequence = row.sequence
            is_open = sequence.finish_reason is None and not sequence.superseded
            if sequence.matcher is not None and is_open:
                indices.append(index)
                rows.append(row)
        # Quicker than to wake a thread, and to be woken by it.
        filled = kept_masks(rows)
        if filled is None:
            filled = await self._masker.call(fill_masks, rows, self._mask_words)
        for index, message in filled.errors.items():
            sequence = rows[index].sequence
            if sequence.finish_reason is None:
                self._finish(sequence, Update(index=sequence.index, finish_reason="error", error=message))
        step.batch.masks.set_result(Masks(rows=np.array(indices, np.int64), bits=filled.bits))
        self._stats.step_mask.observe(time.perf_counter() - started)

    def _describe(self) -> str:
        running = list(self._scheduler.running.values())
        rows = ", ".join(f"{s.request.id}[{s.index}] {s.scheduled}/{s.length}" for s in running[:16])
        counts = (
            f"{len(running)} running, {len(self._scheduler.waiting)} waiting, {self._scheduler.page_counts()}"
        )
        return f"{counts}; running (request[choice] scheduled/length): {rows}"

    async def _measure_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LAG_PERIOD_S
            await asyncio.sleep(_LAG_PERIOD_S)
            self._stats.loop_lag.observe(max(0.0, loop.time() - due))
