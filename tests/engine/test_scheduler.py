"""Tree, pool and scheduler together, step by step on a fake device, under random operations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.assemble import assemble
from engine.batch import NOTHING, Batch
from engine.detokenizer import Detokenizer
from engine.pace import Pace
from engine.page_pool import PagePool
from engine.params import SamplingParams
from engine.plan import Plan
from engine.prefix_tree import Prefix, PrefixTree
from engine.request import Request, Sequence, Timing
from engine.scheduler import Scheduler
from engine.speculation import Speculation
from engine.stats import Stats
from engine.stream import UpdateStream
from engine.token_price import Chunk
from tests.fakes import FakeRunner, byte_tokenizer, hashed_tokens

TOKENIZER = byte_tokenizer()


class Rig:
    """A scheduler driven by hand, with one step in flight like the engine's loop."""

    def __init__(
        self,
        *,
        num_pages: int,
        page_size: int = 2,
        budget: int = 8,
        max_running: int = 4,
        shares: bool = True,
    ) -> None:
        self.pool = PagePool(num_pages, page_size)
        self.tree = PrefixTree(page_size) if shares else None
        self.stats = Stats()
        self.pace = Pace(1.8, budget)
        self.scheduler = Scheduler(
            self.pool,
            self.tree,
            self.stats,
            max_batch_tokens=budget,
            max_running=max_running,
            speculation=Speculation(0),
            pace=self.pace,
        )
        self.runner = FakeRunner(num_pages=num_pages, page_size=page_size)
        self.live: list[Sequence] = []
        self.ended: list[Sequence] = []
        self.flight: tuple[Plan, Batch] | None = None
        self._ids: Iterator[int] = iter(range(1 << 30))

    def submit(
        self,
        prompt: list[int],
        max_tokens: int,
        namespace: str = "",
        *,
        tenant: str = "",
        arrived: float = 0.0,
        delay_s: float = 0.0,
    ) -> Sequence:
        params = SamplingParams(max_tokens=max_tokens)
        request = Request(
            id="",
            prompt=prompt,
            params=params,
            namespace=namespace,
            stream=UpdateStream(1),
            tenant=tenant,
        )
        sequence = Sequence(
            id=next(self._ids),
            request=request,
            index=0,
            params=params,
            tokens=list(prompt),
            num_prompt=len(prompt),
            detokenizer=Detokenizer(TOKENIZER, prompt=prompt, stop=(), include_stop=False, skip_special=True),
            timing=Timing(arrived=arrived),
            delay_s=delay_s,
        )
        self.scheduler.add(sequence)
        self.live.append(sequence)
        return sequence

    def end(self, sequence: Sequence) -> None:
        sequence.finish_reason = "abort"
        self.scheduler.finish(sequence)
        self.live.remove(sequence)
        self.ended.append(sequence)

    def step(self) -> bool:
        """Plan and launch a step, then land the one before it; False once nothing is left to do."""
        landing, self.flight = self.flight, None
        plan = self.scheduler.plan()
        if plan is not None:
            sampled = [row.sequence.id for row in landing[0].rows.values() if row.samples] if landing else []
            previous = {key: index for index, key in enumerate(sampled)}
            batch = assemble(
                plan,
                page_size=self.pool.page_size,
                eos_ids=frozenset(),
                previous=previous,
                previous_ids=landing[1].sampled if landing else NOTHING,
                released=[],
            )
            self.flight = (plan, batch)
        if landing is not None:
            self._land(*landing)
        return self.flight is not None or landing is not None

    def run(self) -> None:
        while self.step():
            self.check()

    def check(self) -> None:
        pages = self.scheduler.page_counts()
        assert pages.free + pages.evictable + pages.protected + pages.private == pages.total
        for sequence in self.live:
            assert 0 <= sequence.computed <= sequence.scheduled <= sequence.length
            assert len(sequence.pages) * self.pool.page_size >= sequence.scheduled
            assert sequence.num_shared <= len(sequence.pages)
        owned = [p for s in self.live for p in s.pages[s.num_shared :]]
        assert len(owned) == len(set(owned)) == pages.private, "a page has two owners"

    def _land(self, plan: Plan, batch: Batch) -> None:
        output = self.runner.prepare(batch)()
        for row in plan.rows.values():
            self.scheduler.commit(row)
        if plan.decodes:
            self.pace.ran(plan.chunks, 1.0)
        sampling = [row.sequence for row in plan.rows.values() if row.samples]
        for sequence, token_id in zip(sampling, output.token_ids, strict=True):
            sequence.pending -= 1
            if sequence.finish_reason is None:
                sequence.tokens.append(token_id)
                if sequence.known - sequence.num_prompt == sequence.params.max_tokens:
                    self.end(sequence)


def output(sequence: Sequence) -> list[int]:
    return sequence.tokens[sequence.num_prompt :]


def expected(sequence: Sequence) -> list[int]:
    return hashed_tokens(sequence.request.prompt, len(output(sequence)))


@pytest.mark.parametrize("budget", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 23])
def test_any_budget_gives_the_same_tokens(budget: int, length: int) -> None:
    """A39: chunks of one token, smaller than a page, and as long as the prompt."""
    rig = Rig(num_pages=16, page_size=4, budget=budget)
    sequence = rig.submit(list(range(length)), 9)
    rig.run()
    assert output(sequence) == hashed_tokens(range(length), 9)


@pytest.mark.parametrize("length", [3, 4, 5, 8])
def test_a_wholly_cached_prompt_still_runs_its_last_token(length: int) -> None:
    """A34"""
    rig = Rig(num_pages=16, page_size=4)
    first = rig.submit(list(range(length)), 5)
    rig.run()
    second = rig.submit(list(range(length)), 5)
    rig.run()
    assert output(second) == output(first) == expected(first)
    assert second.cached_tokens == (length - 1) // 4 * 4


def test_equal_prompts_that_arrive_together_are_computed_once() -> None:
    """A33: the others wait for the first one's pages instead of computing and then freeing their own."""
    rig = Rig(num_pages=64, page_size=4, budget=64, max_running=8)
    sequences = [rig.submit(list(range(21)), 6) for _ in range(8)]
    rig.run()
    assert all(output(sequence) == expected(sequence) for sequence in sequences)
    assert [sequence.cached_tokens for sequence in sequences] == [0] + [20] * 7


def test_decode_goes_first_and_the_prompt_gets_what_is_left() -> None:
    rig = Rig(num_pages=64, budget=8)
    rig.submit([1, 2], 30)
    rig.step()
    rig.submit(list(range(32)), 1)
    for _ in range(4):
        plan = rig.scheduler.plan()
        assert plan is not None
        assert [row.stop - row.start for row in plan.rows.values()] == [1, 7]
        assert rig.flight is not None
        landing, ids = rig.flight, rig.flight[1].sampled
        batch = assemble(
            plan, page_size=2, eos_ids=frozenset(), previous={0: 0}, previous_ids=ids, released=[]
        )
        rig.flight = (plan, batch)
        rig._land(*landing)


def sizes(plan: Plan | None) -> dict[int, int]:
    """Tokens by sequence id."""
    assert plan is not None
    return {key: row.stop - row.start for key, row in plan.rows.items()}


def test_a_long_prompt_in_progress_leaves_half_to_short_ones() -> None:
    """Whatever is left of a share that is not used goes to the prompt in progress."""
    rig = Rig(num_pages=128, budget=16, max_running=8)
    long = rig.submit(list(range(100)), 1)
    assert sizes(rig.scheduler.plan()) == {long.id: 16}
    other = rig.submit(list(range(50, 150)), 1)
    short = [rig.submit([n, n, n], 1) for n in range(4)]
    assert sizes(rig.scheduler.plan()) == {short[0].id: 3, short[1].id: 3, short[2].id: 2, long.id: 8}
    assert other in rig.scheduler.waiting
    assert sizes(rig.scheduler.plan()) == {short[2].id: 1, short[3].id: 3, long.id: 12}
    assert sizes(rig.scheduler.plan()) == {long.id: 16}
    assert long.scheduled == 16 + 8 + 12 + 16


def priced(pace: Pace, tokens: int) -> None:
    """Have so many tokens of a prompt fit into a step that decodes."""
    for _ in range(3):
        pace.ran([], 1.0)
    pace._price.learn([Chunk(1, 0)], 0.8 / (tokens + 0.5))
    pace.plan(tokens)


def test_long_prompts_add_to_decoding_what_the_pace_allows() -> None:
    """Other prompts count against it, up to a half; without anyone who decodes there is no such limit."""
    rig = Rig(num_pages=256, budget=48, max_running=8)
    stream = rig.submit([1], 50)
    rig.step()
    priced(rig.pace, 16)
    long = rig.submit(list(range(200)), 1)
    also_long = rig.submit(list(range(50, 250)), 1)
    assert sizes(rig.scheduler.plan()) == {stream.id: 1, long.id: 16}
    assert also_long in rig.scheduler.waiting
    short = rig.submit([7, 7], 1)
    medium = rig.submit([8] * 100, 1)
    assert sizes(rig.scheduler.plan()) == {stream.id: 1, short.id: 2, long.id: 14, medium.id: 31}
    assert sizes(rig.scheduler.plan()) == {stream.id: 1, long.id: 16, medium.id: 31}
    rig.pace._steps = 1000
    assert sizes(rig.scheduler.plan()) == {stream.id: 1}, "it is time to see how long decoding takes"
    rig.end(stream)
    assert sizes(rig.scheduler.plan()) == {long.id: 48}


def test_what_was_long_decodes_as_others_do() -> None:
    rig = Rig(num_pages=256, budget=32, max_running=8)
    priced(rig.pace, 8)
    rig.submit(list(range(129)), 9)
    while rig.step() and rig.scheduler.running[0].num_output < 2:
        pass
    assert not rig.scheduler.running[0].paced
    rig.submit(list(range(50, 180)), 1)
    assert sizes(rig.scheduler.plan()) == {0: 1, 1: 8}
    rig.pace._steps = 1000
    assert sizes(rig.scheduler.plan()) == {0: 1}


def test_a_cached_prefix_makes_a_long_prompt_short() -> None:
    rig = Rig(num_pages=128, page_size=4, budget=16, max_running=8)
    rig.submit(list(range(60)), 1)
    rig.run()
    long = rig.submit(list(range(100, 200)), 1)
    rig.step()
    cached = rig.submit([*range(60), 7, 7], 1)
    assert sizes(rig.scheduler.plan()) == {cached.id: 2, long.id: 14}


def test_what_is_left_of_a_cached_long_prompt_runs_at_once_but_not_all_of_it() -> None:
    """It attends to all that is cached, so it may add no more than eight times what uncached ones may."""
    rig = Rig(num_pages=512, page_size=4, budget=64, max_running=8)
    cached = list(range(260))
    rig.submit(cached, 1)
    rig.run()
    stream = rig.submit([1], 50)
    rig.step()
    priced(rig.pace, 3)
    long = rig.submit(list(range(300, 600)), 1)
    assert sizes(rig.scheduler.plan()) == {stream.id: 1, long.id: 4}
    rest = rig.submit([*cached, *[7] * 32], 1)
    planned = [sizes(rig.scheduler.plan()) for _ in range(6)]
    ran = [step.get(rest.id, 0) for step in planned]
    few, remainder = filter(None, ran)
    assert 16 <= few < 32 == few + remainder
    assert ran.index(remainder) - ran.index(few) == 3
    assert [step.get(long.id, 0) for step in planned if rest.id not in step] == [4] * 4


def test_looking_for_what_cannot_start_takes_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many long prompts that wait for the same prefix, a few are looked up each step; all are answered."""
    monkeypatch.setattr("engine.scheduler._LOOKED_UP", 300)
    rig = Rig(num_pages=1024, page_size=4, budget=32, max_running=64)
    assert rig.tree is not None
    match, looked_up = rig.tree.match, [0]

    def counted(namespace: str, tokens: list[int]) -> Prefix:
        looked_up[-1] += len(tokens)
        return match(namespace, tokens)

    monkeypatch.setattr(rig.tree, "match", counted)
    shared = [number % 251 for number in range(120)]
    waiting = [rig.submit([*shared, number], 2) for number in range(40)]
    while rig.step():
        rig.check()
        looked_up.append(0)
    assert [output(sequence) for sequence in waiting] == [expected(sequence) for sequence in waiting]
    # Two of them each of the two times that what waits is gone through, and the one that is computed.
    assert max(looked_up[:4]) <= 2 * 300 + 2 * 121
    # What starts is looked up besides, and again when it is shared.
    assert max(looked_up[4:]) <= 2 * 300 + 3 * 32 * 121


def test_places_are_shared_out_evenly_between_tenants() -> None:
    """A flood of one tenant's requests delays nobody else's by more than a place."""
    rig = Rig(num_pages=256, budget=64, max_running=4)
    flood = [rig.submit([n, 1, 2], 3, tenant="flood") for n in range(40)]
    rig.step()
    late = [rig.submit([n, 3, 4], 3, tenant=tenant) for n, tenant in enumerate(("a", "a", "b"))]
    served: list[str] = []
    while rig.step():
        for sequence in rig.scheduler.running.values():
            if sequence.request.tenant not in served:
                served.append(sequence.request.tenant)
        if late[0].timing.admitted and late[2].timing.admitted:
            running = [s.request.tenant for s in rig.scheduler.running.values()]
            assert running.count("flood") <= 2
            break
    assert served == ["flood", "a", "b"]
    rig.run()
    assert all(output(sequence) == expected(sequence) for sequence in (*flood, *late))


def test_waiting_makes_up_for_priority() -> None:
    """Less urgent ones are passed by later arrivals for a bounded time only."""
    rig = Rig(num_pages=64, budget=64, max_running=1)
    patient = rig.submit([1], 1, delay_s=50.0)
    ordinary = [rig.submit([2], 1) for _ in range(3)]
    urgent = rig.submit([3], 1, delay_s=-50.0)
    after = rig.submit([4], 1, arrived=51.0)
    order = [urgent, *ordinary, patient, after]
    assert [*rig.scheduler.waiting] == order
    rig.run()
    assert rig.ended == order


def test_the_waiting_queue_holds_what_was_put_in() -> None:
    rig = Rig(num_pages=64, max_running=1)
    waiting = [rig.submit([1], 1, tenant=tenant) for tenant in "aabb"]
    queue = rig.scheduler.waiting
    assert len(queue) == 4
    assert [s.request.tenant for s in queue] == ["a", "b", "a", "b"]
    assert [s.request.tenant for s in queue.turns({"a": 1})] == ["b", "a", "b", "a"]
    queue.remove(waiting[1])
    with pytest.raises(ValueError, match="does not wait"):
        queue.remove(waiting[1])
    assert set(queue) == {waiting[0], waiting[2], waiting[3]}


def test_preempted_sequences_resume_with_the_same_tokens() -> None:
    """A35, A36: a pool for two runs six long ones, and wastes little."""
    rig = Rig(num_pages=24, page_size=2, budget=16, max_running=6)
    sequences = [rig.submit([n, n + 1, n + 2], 18) for n in range(6)]
    rig.run()
    assert all(output(sequence) == expected(sequence) for sequence in sequences)
    assert rig.stats.preemptions > 0
    computed = sum(len(batch.token_ids) for batch in rig.runner.batches)
    assert computed < 3 * 6 * (3 + 18)


def test_an_aborted_half_prefilled_prompt_leaves_only_computed_pages() -> None:
    """A04: what is launched but not read back never enters the tree."""
    rig = Rig(num_pages=32, page_size=4, budget=8)
    sequence = rig.submit(list(range(30)), 4)
    rig.step()
    rig.step()
    assert (sequence.computed, sequence.scheduled) == (8, 16)
    rig.end(sequence)
    assert rig.scheduler.page_counts().evictable == 2
    again = rig.submit(list(range(30)), 4)
    rig.run()
    assert again.cached_tokens == 8
    assert output(again) == expected(again)


def test_without_sharing_nothing_is_cached() -> None:
    rig = Rig(num_pages=32, shares=False)
    for _ in range(2):
        sequence = rig.submit([1, 2, 3, 4, 5], 4)
        rig.run()
        assert output(sequence) == expected(sequence)
        assert sequence.cached_tokens == 0
    assert rig.pool.free == 32


class RandomOperations(RuleBasedStateMachine):
    """Random submissions, steps, aborts and flushes; eviction and preemption follow from small pools."""

    @initialize(
        num_pages=st.integers(12, 40),
        page_size=st.integers(1, 4),
        budget=st.integers(1, 24),
        max_running=st.integers(1, 6),
    )
    def begin(self, num_pages: int, page_size: int, budget: int, max_running: int) -> None:
        self.rig = Rig(num_pages=num_pages, page_size=page_size, budget=budget, max_running=max_running)

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=9),
        max_tokens=st.integers(1, 3),
        namespace=st.sampled_from(["", "", "other"]),
        tenant=st.sampled_from(["", "a", "b"]),
        delay_s=st.sampled_from([0.0, 0.0, -10.0, 10.0]),
    )
    def submit(self, prompt: list[int], max_tokens: int, namespace: str, tenant: str, delay_s: float) -> None:
        if self.rig.pool.pages_for(len(prompt) + max_tokens) <= self.rig.pool.total:
            self.rig.submit(prompt, max_tokens, namespace, tenant=tenant, delay_s=delay_s)

    @rule(count=st.integers(1, 6))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.rig.step()
            self.rig.check()

    @precondition(lambda self: self.rig.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.rig.end(data.draw(st.sampled_from(self.rig.live)))

    @rule()
    def flush(self) -> None:
        self.rig.scheduler.flush()

    @invariant()
    def pages_add_up_and_texts_are_right(self) -> None:
        self.rig.check()
        for sequence in (*self.rig.live, *self.rig.ended):
            assert output(sequence) == expected(sequence)

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.run()
            self.pages_add_up_and_texts_are_right()
            assert not self.rig.live, "everything finishes"
            self.rig.scheduler.flush()
            assert self.rig.pool.free == self.rig.pool.total


TestRandomOperations = RandomOperations.TestCase
TestRandomOperations.settings = settings(
    max_examples=max(150, settings().max_examples), stateful_step_count=40, deadline=None
)
