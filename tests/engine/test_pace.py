"""The limit on prompts beside decoding, on machines whose steps take known times."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from engine.pace import Allowance, Pace
from engine.token_price import Chunk

Machine = Callable[[Chunk], float]
"""What a chunk adds to a step (seconds)."""


def machine(token_s: float, doubling: float = math.inf) -> Machine:
    """One on which a token costs that, and twice as much after `doubling` others."""
    return lambda chunk: token_s * (chunk.tokens + chunk.attended / doubling)


def decode(pace: Pace, seconds: float, steps: int = 3) -> None:
    for _ in range(steps):
        pace.ran([], seconds)


def fitting(pace: Pace, context: int = 0) -> int:
    allowance = pace.allowance(in_progress=False)
    assert allowance is not None
    return allowance.tokens(context)


def flood(pace: Pace, steps: int, decode_s: float, added: Machine, *, prompt: int = 8000) -> list[Chunk]:
    """The chunks of those steps that run prompts, of which there are always more; planned one ahead, as by
    the step loop."""
    done: list[Chunk] = []
    planned: list[Chunk | None] = []
    at = 0
    for _ in range(steps):
        allowance = pace.allowance(in_progress=True)
        if allowance is None:
            planned.append(None)
        else:
            chunk = Chunk(min(prompt - at, allowance.tokens(at)), at)
            allowance.spend(chunk, paced=True)
            at = (at + chunk.tokens) % prompt
            planned.append(chunk)
        if len(planned) > 1:
            landed = planned[-2]
            pace.ran([landed] if landed else [], decode_s + (added(landed) if landed else 0.0))
            done += [landed] if landed else []
    return done


@pytest.mark.parametrize("decode_s", [0.002, 0.01, 0.2])
@pytest.mark.parametrize("doubling", [1000.0, 4000.0, math.inf])
def test_steps_soon_take_what_they_should(decode_s: float, doubling: float) -> None:
    """At every context: the first 8,000 tokens cost up to nine times as much at the end."""
    pace = Pace(1.8, 512)
    decode(pace, decode_s)
    added = machine(decode_s / 100, doubling)
    times = [added(chunk) for chunk in flood(pace, 3000, decode_s, added)]
    assert max(times) <= 1.8 * 0.8 * decode_s
    assert sum(times[50:]) / len(times[50:]) == pytest.approx(0.8 * decode_s, rel=0.15)


def test_a_jump_to_another_context_is_foreseen() -> None:
    """But no chunk is more than twice the one before it."""
    pace = Pace(1.8, 512)
    decode(pace, 0.01)
    added = machine(0.0001, 2000.0)
    flood(pace, 1000, 0.01, added)
    for context in (0, 7000, 100, 3000):
        chunk = Chunk(fitting(pace, context), context)
        assert added(chunk) <= 1.25 * 0.008
    pace.plan(60)
    assert added(Chunk(fitting(pace), 0)) == pytest.approx(0.008, rel=0.25)


def test_a_fast_machine_is_not_held_back() -> None:
    pace = Pace(1.8, 512)
    decode(pace, 0.005)
    chunks = flood(pace, 100, 0.005, machine(1e-6))
    assert [chunk.tokens for chunk in chunks[:5]] == [4, 4, 8, 16, 32], "nothing is known of it"
    assert min(chunk.tokens for chunk in chunks[9:15]) >= 500


def test_prompts_go_on_whatever_steps_take() -> None:
    pace = Pace(1.8, 512)
    decode(pace, 0.01)
    chunks = flood(pace, 100, 0.01, machine(0.1))
    assert {chunk.tokens for chunk in chunks} == {4}


def test_more_rows_are_noticed() -> None:
    """They make decoding slower than it was: measured again every 24 steps."""
    pace = Pace(1.8, 512)
    decode(pace, 0.01)
    added = machine(0.0004)
    chunks = flood(pace, 200, 0.1, added)
    assert added(chunks[-1]) == pytest.approx(0.08, rel=0.3)


def test_a_slow_moment_is_forgotten() -> None:
    """Of a step that only decodes, and of one with a prompt."""
    pace = Pace(1.8, 512)
    added = machine(0.0001)
    decode(pace, 0.01)
    before = flood(pace, 60, 0.01, added)[-1].tokens
    pace.ran([], 3.0)
    assert fitting(pace) == pytest.approx(before, rel=0.2)
    pace.ran([Chunk(before, 0)], 3.0)
    assert fitting(pace) < before / 8
    assert flood(pace, 30, 0.01, added)[-1].tokens == pytest.approx(before, rel=0.2)


def test_uneven_steps_do_not_make_prompts_free() -> None:
    """On a busy machine one that only decodes may take longer than those with a few tokens of a prompt."""
    pace = Pace(1.8, 512)
    decode(pace, 0.02)
    for _ in range(3):
        chunk = Chunk(fitting(pace), 0)
        pace.plan(chunk.tokens)
        pace.ran([chunk], 0.015)
    chunks = flood(pace, 40, 0.01, machine(0.001))
    assert max(chunk.tokens for chunk in chunks) <= 128
    # As long as decoding is taken for so slow, 26 fit.
    assert max(chunk.tokens for chunk in chunks[8:]) <= 28


def test_quicker_decoding_does_not_make_prompts_free() -> None:
    """Steps with prompts that take less than decoding alone did: time to see how long that takes now."""
    pace = Pace(1.8, 512)
    decode(pace, 0.04)
    added = machine(0.0005)
    assert flood(pace, 60, 0.04, added)[-1].tokens == pytest.approx(64, rel=0.1)
    chunks = flood(pace, 60, 0.01, added)
    assert max(chunk.tokens for chunk in chunks) <= 100
    assert chunks[-1].tokens == pytest.approx(16, abs=2)


def test_other_prompts_say_nothing_about_small_chunks() -> None:
    pace = Pace(1.8, 512)
    decode(pace, 0.01)
    flood(pace, 60, 0.01, machine(0.0004))
    before = fitting(pace)
    for _ in range(20):
        pace.ran([Chunk(400, 0)], 0.01 + 400 * 0.0001)
    assert fitting(pace) == before


def begin(pace: Pace, *others: int) -> Allowance:
    """Of a step in which other prompts run so many tokens."""
    allowance = pace.allowance(in_progress=False)
    assert allowance is not None
    for tokens in others:
        allowance.spend(Chunk(tokens, 0), paced=False)
    return allowance


def even_pace() -> tuple[Pace, int]:
    """One that knows a machine, and how many tokens fit there."""
    pace = Pace(2.0, 512)
    decode(pace, 0.01)
    flood(pace, 200, 0.01, machine(0.0001), prompt=512)
    pace.plan(100)
    whole = fitting(pace)
    assert whole == pytest.approx(100, rel=0.05)
    return pace, whole


def test_paced_prompts_share_a_step() -> None:
    pace, whole = even_pace()
    allowance = begin(pace)
    allowance.spend(Chunk(40, 0), paced=True)
    assert allowance.tokens(0) == pytest.approx(whole - 40, abs=2)
    allowance.spend(Chunk(allowance.tokens(0), 0), paced=True)
    assert allowance.tokens(0) == 0, "the fewest are for one of them"
    pace.plan(10)
    allowance = begin(pace)
    assert allowance.tokens(0) == 20, "from step to step not more than twice as many"
    allowance.spend(Chunk(15, 0), paced=True)
    assert allowance.tokens(0) == 5
    allowance.spend(Chunk(5, 0), paced=True)
    assert begin(pace).tokens(0) == 40


def test_steps_that_others_fill_are_left_to_them() -> None:
    """To add to those, too, would make the longest steps longer."""
    pace, whole = even_pace()
    assert begin(pace, 30).tokens(0) == pytest.approx(whole - 30, abs=2)
    for _ in range(3):
        for _ in range(2):
            allowance = begin(pace, 80)
            assert [allowance.tokens(0) for _ in range(3)] == [0, 0, 0]
        begin(pace).spend(Chunk(1, 0), paced=True)
        pace.plan(100)


def test_many_steps_that_others_fill_are_shared() -> None:
    """Others leave half of what fits, or a quarter of what they add, until a step is not filled."""
    pace, whole = even_pace()
    for _ in range(2):
        assert begin(pace, 200).tokens(0) == 0
    for others, tokens in (((80,), whole / 2), ((200, 200), whole)):
        allowance = begin(pace, *others)
        assert allowance.tokens(0) == pytest.approx(tokens, rel=0.1)
        allowance.spend(Chunk(100, 0), paced=True)
    begin(pace).spend(Chunk(100, 0), paced=True)
    assert begin(pace, 200).tokens(0) == 0


def test_the_rests_of_cached_prompts_may_add_more() -> None:
    """All of them together, in one of three steps: eight times as much."""
    pace = Pace(2.0, 512)
    decode(pace, 0.01)
    flood(pace, 300, 0.01, machine(0.0001, 4000))
    allowance = begin(pace, 200)
    many = allowance.rest(5000)
    assert machine(0.0001, 4000)(Chunk(many, 5000)) == pytest.approx(8 * 0.01, rel=0.15)
    allowance.spend(Chunk(many - 100, 5000), paced=False)
    assert allowance.rest(5000) == pytest.approx(100, abs=5)
    allowance.spend(Chunk(100, 5000), paced=False)
    assert allowance.rest(5000) == 0
    assert allowance.tokens(0) == 0, "they fill it"
    assert [begin(pace).rest(5000) > 0 for _ in range(4)] == [False, False, True, True]
    dear = Pace(1.8, 512)
    decode(dear, 0.01)
    flood(dear, 60, 0.01, machine(0.1))
    assert begin(dear).rest(5000) == 4


def test_no_aim_is_no_limit() -> None:
    pace = Pace(0.0, 512)
    pace.ran([Chunk(512, 0)], 9.0)
    allowance = pace.allowance(in_progress=True)
    assert allowance is not None
    assert allowance.tokens(0) == pace.unlimited().tokens(0) == 512
