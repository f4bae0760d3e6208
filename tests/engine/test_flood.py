"""Scheduler and pace together, under clients that ask again and again, on a machine of known speed.

Time is simulated: a step takes what its rows, its prompt tokens and their context cost.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from engine.detokenizer import Detokenizer
from engine.pace import Pace
from engine.page_pool import PagePool
from engine.params import SamplingParams
from engine.plan import Plan
from engine.prefix_tree import PrefixTree
from engine.request import Request, Sequence
from engine.scheduler import Scheduler
from engine.speculation import Speculation
from engine.stats import Stats
from engine.stream import UpdateStream
from tests.fakes import byte_tokenizer

_STEP_S, _ROW_S = 0.006, 0.00055
_AIM = 1.8
_TOKENIZER = byte_tokenizer()


@dataclass
class Kind:
    """Clients that each send a new prompt when their answer is complete."""

    clients: int
    prompt: int
    output: int
    """Tokens, half as many to half as many again."""
    shared: int = 0
    """Leading tokens that are the same in all prompts."""
    answers: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    waits: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)


class Machine:
    """Runs plans as the step loop does: the next one is made before the tokens of one are read."""

    def __init__(self, *kinds: Kind, aim: float, token_s: float, doubling: float = 4000.0) -> None:
        self.now = 0.0
        self._token_s = token_s
        self._doubling = doubling
        """After so many tokens the next one of a prompt costs twice as much."""
        self._pace = Pace(aim, 512)
        self._scheduler = Scheduler(
            PagePool(8000, 16),
            PrefixTree(16),
            Stats(),
            max_batch_tokens=512,
            max_running=64,
            speculation=Speculation(0),
            pace=self._pace,
        )
        self._chance = random.Random(5)
        self._ids = itertools.count()
        self._kinds: dict[int, Kind] = {}
        self._last: dict[int, float] = {}
        for kind in kinds:
            for _ in range(kind.clients):
                self._ask(kind)

    def run(self, seconds: float) -> None:
        flight = self._scheduler.plan()
        while self.now < seconds:
            upcoming = self._scheduler.plan()
            assert flight is not None
            self._land(flight)
            flight = upcoming or self._scheduler.plan()

    def _land(self, plan: Plan) -> None:
        rows = list(plan.rows.values())
        costs = (chunk.tokens * (1 + chunk.context / self._doubling) for chunk in plan.chunks)
        seconds = _STEP_S + _ROW_S * len(rows) + self._token_s * sum(costs)
        self.now += seconds
        for row in rows:
            self._scheduler.commit(row)
            if not row.decodes:
                self._kinds[row.sequence.id].prompt_tokens += row.stop - row.start
        if plan.decodes:
            self._pace.ran(plan.chunks, seconds)
        for row in rows:
            if row.samples and row.sequence.take_sample():
                self._accept(row.sequence)

    def _accept(self, sequence: Sequence) -> None:
        kind = self._kinds[sequence.id]
        sequence.tokens.append(0)
        kind.tokens += 1
        times = kind.gaps if sequence.num_output - sequence.pending > 1 else kind.waits
        times.append(self.now - self._last[sequence.id])
        self._last[sequence.id] = self.now
        if sequence.known - sequence.num_prompt == sequence.params.max_tokens:
            sequence.finish_reason = "length"
            self._scheduler.finish(sequence)
            kind.answers += 1
            self._ask(kind)

    def _ask(self, kind: Kind) -> None:
        number = next(self._ids)
        prompt = [self._chance.randrange(1 << 30) for _ in range(self._about(kind.prompt))]
        prompt[: kind.shared] = range(min(kind.shared, len(prompt) - 1))
        params = SamplingParams(max_tokens=self._about(kind.output))
        request = Request(
            id="", prompt=prompt, params=params, namespace="", tenant=str(kind.prompt), stream=UpdateStream(1)
        )
        sequence = Sequence(
            id=number,
            request=request,
            index=0,
            params=params,
            tokens=list(prompt),
            num_prompt=len(prompt),
            detokenizer=Detokenizer(_TOKENIZER, prompt=[], stop=(), include_stop=False, skip_special=True),
        )
        sequence.timing.arrived = self.now
        self._kinds[number], self._last[number] = kind, self.now
        self._scheduler.add(sequence)

    def _about(self, number: int) -> int:
        return self._chance.randint(number // 2 + 1, number + number // 2)


@pytest.mark.parametrize(("token_s", "doubling"), [(0.00016, 10000), (0.00016, 2500), (0.0004, 4000)])
@pytest.mark.parametrize(("clients", "prompt"), [(4, 60), (16, 300), (32, 60)])
def test_a_flood_of_long_prompts_at_most_doubles_the_gaps(
    token_s: float, doubling: float, clients: int, prompt: int
) -> None:
    """The usual ones and the long ones. Those who send short prompts do not wait long, and the flood has a
    seventh of the speed that it would have alone."""
    calm, flooded, flood, alone = (
        *(Kind(clients, prompt, 64), Kind(clients, prompt, 64)),
        *(Kind(4, 8000, 8), Kind(4, 8000, 8)),
    )
    machine = {"aim": _AIM, "token_s": token_s, "doubling": doubling}
    Machine(calm, **machine).run(60)
    Machine(flooded, flood, **machine).run(60)
    Machine(alone, **machine).run(60)
    for percent in (50, 99):
        assert np.percentile(flooded.gaps, percent) <= 2 * np.percentile(calm.gaps, percent)
    assert np.percentile(flooded.waits, 99) <= 6 * np.percentile(calm.waits, 99)
    assert flood.prompt_tokens >= alone.prompt_tokens / 7


@pytest.mark.parametrize(("shared", "times"), [(0, 1), (4000, 8)])
def test_long_answers_beside_a_flood(shared: int, times: int) -> None:
    """Nothing but the flood makes their gaps longer: by what it may add, or by eight times as much in one of
    three steps where its prompts are cached but for a rest."""
    machine = {"aim": _AIM, "token_s": 0.0003, "doubling": 2500}
    calm, flooded, flood = Kind(4, 120, 400), Kind(4, 120, 400), Kind(4, 4200, 1, shared=shared)
    Machine(calm, **machine).run(40)
    Machine(flooded, flood, **machine).run(40)
    usual, longest = np.percentile(calm.gaps, (50, 99))
    assert np.percentile(flooded.gaps, 50) <= _AIM * usual
    assert np.percentile(flooded.gaps, 99) <= longest + 1.3 * times * (_AIM - 1) * usual
    assert flood.answers >= 2


@pytest.mark.parametrize("token_s", [0.00016, 0.0004])
@pytest.mark.parametrize("load", [(32, 300, 128), (32, 300, 32), (8, 1300, 128)])
def test_ordinary_loads_lose_nothing(token_s: float, load: tuple[int, int, int]) -> None:
    paced, free = Kind(*load), Kind(*load)
    Machine(paced, aim=_AIM, token_s=token_s).run(30)
    Machine(free, aim=0.0, token_s=token_s).run(30)
    assert paced.tokens >= 0.97 * free.tokens
