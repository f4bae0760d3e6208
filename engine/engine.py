"""Requests in, streams of updates out: what everything above the engine talks to.

The step loop runs them (see `engine.step_loop`). Scheduler, tree, pool and requests are touched by the
event loop's thread only, so they need no lock.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from contextlib import suppress

from engine.batch import Runner
from engine.config import Config
from engine.detokenizer import Detokenizer
from engine.dictation import Dictations
from engine.errors import EngineStoppedError, InvalidRequestError
from engine.history import History
from engine.pace import Pace
from engine.page_pool import PagePool
from engine.prefix_tree import PrefixTree
from engine.queue_limits import Claim, QueueLimits
from engine.request import GenerateRequest, Request, Sequence
from engine.scheduler import Scheduler
from engine.snapshot import SequenceView, Snapshot, take, view
from engine.speculation import Speculation
from engine.stats import Load, Stats
from engine.step_loop import StepLoop
from engine.stream import Update, UpdateStream
from engine.targets import Targets
from engine.tokenizer import Tokenizer
from grammars.compiler import Compiler

_log = logging.getLogger("radish.engine")


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
        hidden_size: int,
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
        self.hidden_size = hidden_size
        """Width of an embedding."""
        self.stats = Stats()
        self.history = History()
        self._tree = PrefixTree(config.page_size) if config.prefix_cache else None
        self._pool = PagePool(num_pages, config.page_size)
        pace = Pace(config.step_aim, config.max_batch_tokens)
        self._scheduler = Scheduler(
            self._pool,
            self._tree,
            self.stats,
            max_batch_tokens=config.max_batch_tokens,
            max_running=config.max_running,
            pace=pace,
            speculation=Speculation(config.draft_tokens or 0),
        )
        self._queue_limits = QueueLimits(config, self._scheduler, self.stats)
        self._loop = StepLoop(
            config=config,
            scheduler=self._scheduler,
            runner=runner,
            stats=self.stats,
            history=self.history,
            pace=pace,
            eos_ids=tokenizer.eos_ids,
            vocab_size=vocab_size,
            finish=self._finish,
            abandon=self._abandon,
        )
        self._ids = itertools.count()
        self._dictations = Dictations()
        self._live: dict[int, Sequence] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._accepting = False

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to take requests."""
        self._accepting = True
        self._loop.start()

    @property
    def is_ready(self) -> bool:
        """Whether new requests are taken."""
        return self._accepting and self.is_alive and not self.is_stuck

    @property
    def is_stuck(self) -> bool:
        """Whether a step takes longer than `config.step_timeout`."""
        return self._loop.is_stuck

    @property
    def is_alive(self) -> bool:
        """Whether the step loop runs."""
        return self._loop.is_alive

    @property
    def hangs(self) -> bool:
        """Whether it was stopped in a step that did not end: then this process can only be made to exit."""
        return self._loop.hangs

    async def drain(self, timeout_s: float) -> None:
        """Take no new requests and let the running ones finish, for `timeout_s` seconds at most."""
        self._accepting = False
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)

    async def stop(self) -> None:
        """End everything now; unfinished sequences end with reason "abort".

        A step in flight gets the shorter of 10 s and `config.step_timeout` to end; see `hangs`.
        """
        self._accepting = False
        for sequence in list(self._live.values()):
            self._finish(sequence, Update(index=sequence.index, finish_reason="abort"))
        await self._loop.stop()
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
        self._queue_limits.check(Claim.of(request))
        handle = Request(
            id=request_id,
            prompt=request.prompt,
            params=request.params,
            namespace=request.namespace,
            tenant=request.tenant,
            purpose=request.purpose,
            targets=_targets(request),
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
        self._loop.wake()
        return handle

    def check_room(self, claim: Claim) -> None:
        """Ask whether a request may wait before it is prepared, which `submit` asks again.

        Raises:
            QueueFullError: it is refused.
        """
        self._queue_limits.check(claim)

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

    def views(self, tenant: str) -> list[SequenceView]:
        """A tenant's sequences that wait or run, and those of the last that ended."""
        live = (view(sequence) for sequence in self._live.values() if sequence.request.tenant == tenant)
        return [*live, *self.history.ended_of(tenant)]

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
        params = request.params
        barred = {word[0] for word in params.bad_words if len(word) == 1}
        if params.min_tokens:
            barred |= self.tokenizer.eos_ids | params.stop_token_ids
        if params.allowed_token_ids and params.allowed_token_ids <= barred:
            raise InvalidRequestError(
                "None of the allowed tokens may begin the output: each is a bad word, or would end it before "
                "min_tokens",
                param="allowed_token_ids",
            )
        least = request.grammar.min_tokens if request.grammar and request.params.ensure_complete else None
        if least is not None and request.params.max_tokens < least:
            raise InvalidRequestError(
                f"The shortest output that satisfies the constraint has {least} tokens, but only "
                f"{request.params.max_tokens} are allowed.",
                param="max_tokens",
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
            dictation=self._dictations.of(request.grammar) if request.grammar else None,
            delay_s=request.priority * self.config.priority_aging,
        )

    def _finish(self, sequence: Sequence, update: Update) -> None:
        """End a sequence with `update`, whose finish reason says why."""
        assert update.finish_reason is not None
        now = time.monotonic()
        sequence.finish_reason = update.finish_reason
        self._queue_limits.ends(sequence)
        self._scheduler.finish(sequence, cache=update.finish_reason != "error")
        self.stats.record_finish(sequence, update.finish_reason, now)
        self.history.record_end(sequence)
        self._loop.release(sequence)
        del self._live[sequence.id]
        if not self._live:
            self._idle.set()
        sequence.request.stream.put(update)
        if sequence.request.is_finished:
            sequence.request.drop_deadlines()

    def _abandon(self) -> None:
        """The step loop ended: end what is left, and take nothing new."""
        self._accepting = False
        for sequence in list(self._live.values()):
            update = Update(index=sequence.index, finish_reason="error", error="internal error")
            self._finish(sequence, update)


def _targets(request: GenerateRequest) -> Targets | None:
    top = request.params.prompt_logprobs
    if request.targets is not None or top is None:
        return request.targets
    return Targets.of_prompt(request.prompt, top)
