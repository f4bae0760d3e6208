"""Decides, step by step, which tokens of which sequences are computed and in which pages they land.

There are no phases: a sequence needs `unscheduled` tokens run, one in decode, many in prefill or after
a preemption, and gets as many as the step's token budget allows. Decoding sequences come first; what
prompts of many steps may add to them is bounded in time (`engine.pace`), so none slows them down for long,
and what grammars dictate adds no more to free text than goes unnoticed (`engine.row_price`).
While a long one is in progress, half of the rest is for short ones, running or waiting, so it stalls no
short one either; then come the prompts in progress, then any waiting ones (`engine.waiting` says whose turn
it is).

A plan may be made while the step before it is still running on the device. That is safe without any
fence because steps run in the order they were planned: a page freed here may still be written by the
running step, but whoever gets it next is planned later, hence runs later.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from engine.admission import OutputReserve
from engine.pace import Pace
from engine.page_pool import PagePool
from engine.plan import Plan, Row
from engine.prefix_tree import Prefix, PrefixTree
from engine.request import Sequence
from engine.row_price import RowPrice
from engine.sequence_pages import SequencePages
from engine.speculation import Speculation
from engine.stats import PageCounts, Stats
from engine.token_price import Chunk
from engine.waiting import WaitingQueue

_LONG_LOOKUPS = 4
"""How many waiting prompts too long to be short are looked up in the tree each step: what is cached of them
may make them short, but looking takes time."""
_LOOKED_UP = 1 << 15
"""Tokens of waiting prompts that are looked up in vain each time: of those that cannot start."""


class Scheduler:
    """Owner of the waiting and running sequences and their lengths."""

    def __init__(
        self,
        pool: PagePool,
        tree: PrefixTree | None,
        stats: Stats,
        *,
        max_batch_tokens: int,
        max_running: int,
        pace: Pace,
        speculation: Speculation,
    ) -> None:
        self._pages = SequencePages(pool, tree, stats)
        self._stats = stats
        self._max_batch_tokens = max_batch_tokens
        self._max_running = max_running
        self._pace = pace
        self._speculation = speculation
        self._short = max_batch_tokens // 2
        """Tokens to run, at most, of what counts as a short prompt."""
        self._reserve = OutputReserve(pool.page_size)
        self._places = max_running
        """How many sequences can run: fewer where pages ran out for more."""
        self.waiting = WaitingQueue()
        self.row_price = RowPrice()
        self.running: dict[int, Sequence] = {}
        self._has_started = False
        """Whether some of them started since the last plan."""

    # -- what the engine calls ---------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. It must fit into an empty pool together with all of its output."""
        self.waiting.add(sequence)

    def plan(self) -> Plan | None:
        """The next step, or None if there is nothing to run; lengths and pages are already updated."""
        plan = Plan(self._max_batch_tokens, self._pace.unlimited())
        single: list[Sequence] = []
        several: list[Sequence] = []
        for sequence in self._in_order():
            (several if sequence.unscheduled > 1 else single).append(sequence)
        prompts = [sequence for sequence in several if not sequence.is_dictated]
        self._schedule_all(single, plan)
        if plan.decodes:
            self._pace_prompts(plan, several)
        self._schedule_dictated([sequence for sequence in several if sequence.is_dictated], plan)
        unpaced = [sequence for sequence in prompts if not sequence.paced]
        short = [sequence for sequence in unpaced if sequence.unscheduled <= self._short]
        if len(short) < len(prompts) or self._is_long_next():
            kept = plan.budget - plan.budget // 2
            plan.budget -= kept
            self._schedule_all(short, plan)
            self._admit(plan, longest=self._short)
            plan.budget += kept
        self._schedule_all(prompts, plan)
        self._admit(plan)
        self._speculation.add_drafts(plan, self._pages, self.row_price)
        self._places = len(self.running) if len(self.waiting) else self._max_running
        self._reserve.decay()
        return plan if plan.rows else None

    def _in_order(self) -> Iterable[Sequence]:
        """The running sequences in their order, which only newly started ones are not in."""
        if self._has_started:
            in_order = sorted(self.running.values(), key=lambda sequence: sequence.order)
            self.running = {sequence.id: sequence for sequence in in_order}
            self._has_started = False
        return self.running.values()

    def _is_long_next(self) -> bool:
        """Whether the sequence whose turn it is would take more than half of a step."""
        if not len(self.waiting):
            return False
        sequence = next(self.waiting.turns(self._tenants()), None)
        if sequence is None or sequence.length <= self._short:
            return False
        return sequence.length - len(self._pages.match(sequence).pages) * self._pages.page_size > self._short

    def _tenants(self) -> Counter[str]:
        """Running sequences by tenant."""
        return Counter(sequence.request.tenant for sequence in self.running.values())

    def _pace_prompts(self, plan: Plan, several: list[Sequence]) -> None:
        """Bound what prompts add to a plan that decodes; `several` have more than a token to run."""
        in_progress = any(sequence.paced for sequence in self.running.values())
        in_progress |= any(map(self._is_rest, several))
        allowance = self._pace.allowance(in_progress=in_progress)
        if allowance is None:
            plan.budget = 0
        else:
            plan.allowance = allowance

    def _is_rest(self, sequence: Sequence) -> bool:
        """Whether it has the rest of a long prompt to run, of which the most was cached."""
        behind = sequence.scheduled > self._pace.long and not sequence.paced
        return behind and sequence.unscheduled > 1 and not sequence.is_dictated

    def commit(self, row: Row) -> None:
        """A row was computed: its KV counts, and whole pages of prompt are shared from now on."""
        sequence = row.sequence
        if row.epoch != sequence.preemptions or sequence.id not in self.running:
            return
        sequence.computed = row.stop
        if row.stop - row.start > 1:
            self._pages.share(sequence)

    def finish(self, sequence: Sequence, *, cache: bool = True) -> None:
        """Forget a sequence, wherever it is. Its computed pages stay cached unless `cache` is false."""
        if self.running.pop(sequence.id, None) is not None:
            if cache:
                self._pages.share(sequence)
            self._pages.release(sequence)
        else:
            self.waiting.remove(sequence)

    @property
    def is_full(self) -> bool:
        """Whether a new sequence has to wait for another to end."""
        return len(self.waiting) >= self.free_places

    @property
    def free_places(self) -> int:
        """How many of those that wait will start with the next plan, as far as that is known."""
        return max(0, self._places - len(self.running))

    def page_counts(self) -> PageCounts:
        """Pages by state."""
        return self._pages.counts(self.running.values())

    def flush(self) -> None:
        """Give up every cached page that nobody uses."""
        self._pages.flush()

    # -- running sequences -------------------------------------------------------------------------

    def _schedule_all(self, sequences: list[Sequence], plan: Plan) -> None:
        for sequence in sequences:
            # Not preempted for one before it, and not in the plan already.
            if sequence.id in self.running and sequence.id not in plan.rows:
                self._schedule(sequence, plan)

    def _schedule_dictated(self, sequences: list[Sequence], plan: Plan) -> None:
        """Plan what grammars dictate: all of it or, beside free text, a token each as if it were free text,
        too, and more only as far as that goes unnoticed."""
        more = plan.budget
        if sequences and plan.decodes_freely:
            more = self.row_price.unnoticed(len(plan.rows) + len(sequences), plan.budget)
        for sequence in sequences:
            # Not preempted for one before it.
            if sequence.id in self.running:
                self._schedule(sequence, plan, most=1 + more)
                row = plan.rows.get(sequence.id)
                more -= row.stop - row.start - 1 if row else 0

    def _schedule(self, sequence: Sequence, plan: Plan, *, most: int | None = None) -> None:
        """Plan as many of the sequence's tokens as budget and pages allow, `most` at most."""
        start, length = sequence.scheduled, sequence.length
        count = min(length - start, plan.budget if most is None else min(plan.budget, most))
        if sequence.paced:
            count = min(count, plan.allowance.tokens(start))
        elif count > 1 and self._is_rest(sequence):
            count = min(count, plan.allowance.rest(start))
        # A prompt is run to its end even where nothing may be sampled after it.
        if count <= 0 or sequence.has_all_output:
            return
        if count > 1:
            count = sequence.affordable(plan.budget, count)
        stop = start + count
        if not self._extend(sequence, stop, plan):
            return
        samples = stop == length and sequence.request.purpose == "generate"
        plan.rows[sequence.id] = Row(sequence, start, stop, samples, sequence.preemptions)
        plan.budget -= sequence.cost(start, stop)
        if count > 1 or sequence.paced:
            plan.allowance.spend(Chunk(count, start), paced=sequence.paced)
        sequence.paced &= stop < length
        sequence.scheduled = stop
        sequence.pending += samples

    def _extend(self, sequence: Sequence, tokens: int, plan: Plan) -> bool:
        """Have pages for so many of its tokens; False if the sequence itself had to be preempted."""
        while not self._pages.extend(sequence, tokens):
            victim = max(self.running.values(), key=lambda running: running.order)
            self._preempt(victim, plan)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence, plan: Plan) -> None:
        """Drop the sequence's pages but keep its tokens; it resumes by computing them again."""
        row = plan.rows.pop(sequence.id, None)
        if row is not None:
            plan.budget += sequence.cost(row.start, row.stop)
            sequence.pending -= row.samples
        del self.running[sequence.id]
        self._pages.share(sequence)
        self._pages.release(sequence)
        sequence.preemptions += 1
        sequence.repeated = sequence.known
        self._stats.preemptions += 1
        self._reserve.raise_after_preemption()
        self.waiting.add(sequence)

    # -- waiting sequences -------------------------------------------------------------------------

    def _admit(self, plan: Plan, longest: int | None = None) -> None:
        """Start waiting sequences by turns while budget, places and pages last.

        One whose prefix is being computed by a running sequence is passed over until it can share it.

        Args:
            longest: admit only what has that many tokens to run at most; None: whatever comes.
        """
        if not len(self.waiting):
            return
        passed_over = long = looked_up = 0
        for sequence in self.waiting.turns(self._tenants()):
            if plan.budget <= 0 or len(self.running) >= self._max_running or passed_over >= self._max_running:
                return
            if longest is not None and sequence.length > longest:
                long += 1
                if long > _LONG_LOOKUPS:
                    continue
            if looked_up + sequence.length > _LOOKED_UP and looked_up:
                passed_over += 1
                continue
            prefix = self._pages.match(sequence)
            cached = len(prefix.pages) * self._pages.page_size
            too_long = longest is not None and sequence.length - cached > longest
            paced = sequence.length - cached > self._pace.long
            # One that would not run at once would only take a place and pages.
            cannot_run = too_long or (paced and plan.allowance.tokens(cached) == 0)
            cannot_run |= not paced and cached > self._pace.long and plan.allowance.rest(cached) == 0
            if cannot_run or self._is_in_flight(sequence, len(prefix.pages)):
                passed_over += 1
                looked_up += sequence.length
            elif not self._try_start(sequence, prefix):
                return
            else:
                self.waiting.start(sequence)
                sequence.paced = paced
                self._schedule(sequence, plan)

    def _is_in_flight(self, sequence: Sequence, num_matched: int) -> bool:
        """Whether a running sequence is about to compute the page after the `num_matched` cached ones."""
        if not self._pages.is_sharing:
            return False
        size = self._pages.page_size
        start, stop = num_matched * size, (num_matched + 1) * size
        if stop >= sequence.length or stop > sequence.first_target:
            return False
        return any(
            other.computed < stop <= other.num_prompt
            and other.request.namespace == sequence.request.namespace
            and other.tokens[start:stop] == sequence.tokens[start:stop]
            and other.tokens[:start] == sequence.tokens[:start]
            for other in self.running.values()
        )

    def _try_start(self, sequence: Sequence, prefix: Prefix) -> bool:
        """Keep the cached prefix and move to running, if it fits beside what the running ones still need."""
        self._pages.begin(sequence, prefix)
        all_running = [*self.running.values(), sequence]
        needed = sum(map(self._pages.missing, all_running)) + self._reserve.pages(all_running)
        if self.running and needed > self._pages.available:
            self._pages.release(sequence)
            return False
        self._stats.prefix_queries += sequence.length
        self._stats.prefix_hits += sequence.computed
        if not sequence.timing.admitted:
            sequence.timing.admitted = time.monotonic()
            sequence.cached_tokens = sequence.computed
        self.running[sequence.id] = sequence
        self._has_started = True
        return True
